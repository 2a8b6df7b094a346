use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;
use crate::error::ErrorClass;

/// A server that reads a request, sends `answer` and then nothing more; counts connections, keeps the last
/// request's text.
struct Mute {
    config: Config,
    connections: Arc<AtomicUsize>,
    request: Arc<std::sync::Mutex<String>>,
}

impl Mute {
    async fn new(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let connections = Arc::new(AtomicUsize::new(0));
        let request: Arc<std::sync::Mutex<String>> = Arc::default();
        tokio::spawn({
            let (connections, request) = (connections.clone(), Arc::clone(&request));
            async move {
                let mut open = Vec::new();
                while let Ok((mut stream, _)) = listener.accept().await {
                    connections.fetch_add(1, Ordering::SeqCst);
                    let mut buffer = vec![0; 8192];
                    let length = stream.read(&mut buffer).await.unwrap();
                    *request.lock().unwrap() = String::from_utf8_lossy(&buffer[..length]).into_owned();
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    open.push(stream);
                }
            }
        });
        Self { config: Config::new(url.parse().unwrap()), connections, request }
    }

    /// Asks for a node; returns the class of the error and how long it took.
    async fn ask(&self, repeat: bool) -> (ErrorClass, Duration) {
        let limit = Duration::from_millis(300);
        let client = client(&self.config, Patience { answer: limit, silence: limit, repeat }, 4).unwrap();
        let started = Instant::now();
        let asked = tokio::time::timeout(Duration::from_secs(20), Api::<Node>::all(client).get("n1")).await;
        let error = Error::from(asked.expect("a request without an answer must end").unwrap_err());
        (error.class(), started.elapsed())
    }
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let server = Mute::new("").await;
    for repeat in [false, true] {
        let (class, took) = server.ask(repeat).await;
        assert_eq!(class, ErrorClass::Transport);
        assert!(took >= Duration::from_millis(250) && took < Duration::from_secs(5), "{took:?}");
    }
}

#[tokio::test]
async fn an_answer_that_stops_in_its_middle_is_given_up() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{\"kind\":";
    let (class, took) = Mute::new(head).await.ask(false).await;
    assert_eq!(class, ErrorClass::Transport);
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn only_reads_are_repeated() {
    let answer = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let server = Mute::new(answer).await;
    server.ask(false).await;
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    server.ask(true).await;
    assert!(server.connections.load(Ordering::SeqCst) > 2);
}

#[tokio::test]
async fn the_user_agent_names_us() {
    let answer = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let server = Mute::new(answer).await;
    let clients = Clients::from_config(server.config.clone(), "bulkhead-controller/1.2.3").unwrap();
    Api::<Node>::all(clients.writes).get("n1").await.unwrap_err();
    let request = server.request.lock().unwrap().to_lowercase();
    assert!(request.contains("user-agent: bulkhead-controller/1.2.3"), "{request}");
    assert!(Clients::from_config(server.config.clone(), "line\nbreak").is_err());
}

/// The kernel's own word on it: timer 2 of `/proc/net/tcp` is the keepalive.
#[tokio::test]
async fn a_silent_connection_is_asked_whether_somebody_is_there() {
    let server = Mute::new("").await;
    let stream = tower::Service::call(&mut tcp(), server.config.cluster_url.clone()).await.unwrap();
    let port = stream.inner().local_addr().unwrap().port();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let ours = table.lines().find(|line| line.split_whitespace().nth(1).unwrap().ends_with(&format!(":{port:04X}")));
    let timer = ours.unwrap().split_whitespace().nth(5).unwrap();
    assert!(timer.starts_with("02:"), "{timer}");
    let (after, every, times) = KEEPALIVE;
    assert!(after + every * times < Duration::from_secs(20), "a watch must be given up before its node is fenced");
}

#[tokio::test]
async fn a_proxy_that_is_not_built_in_is_refused() {
    let mut config = Config::new("http://127.0.0.1:1".parse().unwrap());
    config.proxy_url = Some("http://127.0.0.1:2".parse().unwrap());
    let error = Clients::from_config(config, "test").err().unwrap();
    assert!(error.to_string().contains("proxy-url"), "{error}");
}

#[tokio::test]
async fn a_missing_kubeconfig_is_named() {
    let error = Clients::load(Some(Path::new("/nonexistent/kubeconfig")), "test").await.err().unwrap();
    assert!(error.to_string().contains("/nonexistent/kubeconfig"), "{error}");
}
