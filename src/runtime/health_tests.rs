use super::*;
use crate::runtime::progress::Progress;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn readiness_says_which_gate_is_closed() {
    let (health, telemetry, cancel) = (Health::new(), Telemetry::new(), CancellationToken::new());
    let nodes = health.gate("informer nodes");
    let crds = health.gate("definitions");
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let address = serve(address, health.clone(), telemetry, cancel.clone()).await.unwrap();

    nodes.open();
    crds.close("NodeFence is missing");
    let answer = get(address, "/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("definitions: NodeFence is missing"), "{answer}");
    assert!(!answer.contains("informer nodes"), "{answer}");
    assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));

    crds.open();
    assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
    let metrics = get(address, "/metrics").await;
    assert!(metrics.contains("openmetrics-text") && metrics.contains("bulkhead_leader 0"), "{metrics}");

    cancel.cancel();
    for _ in 0..100 {
        if TcpStream::connect(address).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("still listening after cancel");
}

#[tokio::test(start_paused = true)]
async fn an_informer_that_stopped_asking_fails_the_liveness() {
    let (telemetry, cancel) = (Telemetry::new(), CancellationToken::new());
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let address = serve(address, Health::new(), telemetry.clone(), cancel.clone()).await.unwrap();
    telemetry.informer_asks("nodes");
    telemetry.informer_asks("pods");
    tokio::time::advance(SILENCE).await;
    telemetry.informer_asks("pods");
    assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
    tokio::time::advance(Duration::from_secs(1)).await;
    let answer = get(address, "/healthz").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("informer nodes"), "{answer}");
    assert!(!answer.contains("informer pods"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_stuck_queue_fails_the_readiness_and_a_blocked_one_the_liveness_too() {
    let (telemetry, cancel) = (Telemetry::new(), CancellationToken::new());
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let address = serve(address, Health::new(), telemetry.clone(), cancel.clone()).await.unwrap();
    let start = crate::runtime::clock::monotonic();
    let working = Progress { deadline: Duration::from_secs(60), waiting: 0, oldest: None, moved: start };
    telemetry.queue_moves("mounts", Progress { waiting: 2, ..working });
    telemetry.queue_moves("others", working);
    assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
    tokio::time::advance(Duration::from_secs(120)).await;
    let answer = get(address, "/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("queue mounts: 2 keys wait"), "{answer}");
    assert!(!answer.contains("others"), "{answer}");
    assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"), "a restart would not help");

    telemetry.queue_moves("mounts", Progress { oldest: Some(start), ..working });
    for path in ["/readyz", "/healthz"] {
        let answer = get(address, path).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("queue mounts: a reconcile runs"), "{answer}");
    }
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let served = serve(address, Health::new(), Telemetry::new(), CancellationToken::new()).await;
    assert!(served.unwrap_err().to_string().contains(&address.to_string()));
}
