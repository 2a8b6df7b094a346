use std::net::{IpAddr, Ipv4Addr};

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::runtime::queue::{self, Next, QueueConfig};
use crate::runtime::telemetry::Telemetry;

const PACE: Pace =
    Pace { period: Duration::from_millis(20), timeout: Duration::from_millis(500), failure_threshold: 3 };
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A prober, and whom it wakes.
struct Probes {
    prober: Prober,
    woken: mpsc::UnboundedReceiver<ObjectKey>,
    telemetry: Telemetry,
    cancel: CancellationToken,
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Probes {
    fn new() -> Self {
        let (queue, receiver) = queue::queue();
        let (telemetry, cancel) = (Telemetry::new(), CancellationToken::new());
        let metrics = Metrics::register(&telemetry);
        let prober = Prober::new(queue, Leadership::always(), Clock::system(), metrics);
        let (sender, woken) = mpsc::unbounded_channel();
        let wake = move |key: ObjectKey| {
            let sender = sender.clone();
            async move {
                // Nobody listens only at the end of a test.
                let _ = sender.send(key);
                Ok(Next::Await)
            }
        };
        let config = QueueConfig { name: "test", kind: "", concurrency: 1, deadline: Duration::from_secs(5) };
        let (of, end) = (telemetry.clone(), cancel.clone());
        tokio::spawn(async move { queue::run(config, receiver, &of, end, None, wake).await });
        Self { prober, woken, telemetry, cancel }
    }

    async fn woken(&mut self) -> ObjectKey {
        tokio::time::timeout(Duration::from_secs(10), self.woken.recv()).await.unwrap().unwrap()
    }

    /// The answer that the next wake is about.
    async fn answer(&mut self, target: &Target) -> Answer {
        let key = self.woken().await;
        self.prober.answers(&key).remove(target).unwrap()
    }
}

fn key() -> ObjectKey {
    ObjectKey::namespaced("web", "media")
}

fn target(port: u16) -> Target {
    Target { address: HERE, port, probe: ProbeType::TCP }
}

#[tokio::test]
async fn only_another_settled_answer_wakes() {
    let mut probes = Probes::new();
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let server = target(listener.local_addr().unwrap().port());
    drop(listener);
    probes.prober.want(&key(), &[server], PACE);
    assert!(matches!(probes.prober.answers(&key())[&server], Answer::Pending { .. }));
    // The first refusal is told, for somebody may wait for the first answer; then that it is lost.
    assert!(matches!(probes.answer(&server).await, Answer::Failing { failures: 1.., .. }));
    assert!(matches!(probes.answer(&server).await, Answer::Failing { failures: 3.., .. }));
    let listener = TcpListener::bind((HERE, server.port)).await.unwrap();
    let Answer::Serving { since, at } = probes.answer(&server).await else { panic!("it listens") };
    // Later answers change nothing, and one or two failures wake nobody.
    drop(listener);
    let Answer::Failing { since: lost, failures, error } = probes.answer(&server).await else { panic!("it is gone") };
    assert!(failures >= 3 && lost >= since && error.contains("refused"), "{failures} {error}");
    assert!(at <= Clock::system().now().wall);
    assert!(probes.woken.try_recv().is_err());
    let text = probes.telemetry.encode().unwrap();
    assert!(text.contains("bulkhead_shared_volume_probe_seconds_count{result=\"Refused\"}"), "{text}");
}

#[tokio::test]
async fn a_port_that_is_open_is_no_nfs_server() {
    let mut probes = Probes::new();
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let server = Target { probe: ProbeType::NFSNull, ..target(listener.local_addr().unwrap().port()) };
    probes.prober.want(&key(), &[server], Pace { timeout: Duration::from_millis(100), ..PACE });
    let Answer::Failing { error, .. } = probes.answer(&server).await else { panic!("nobody answers there") };
    assert!(error.contains("no answer"), "{error}");
}

#[tokio::test]
async fn what_nobody_wants_any_more_is_not_asked() {
    let mut probes = Probes::new();
    let (kept, dropped) =
        (Target { probe: ProbeType::None, ..target(1) }, Target { probe: ProbeType::None, ..target(2) });
    probes.prober.want(&key(), &[kept, dropped], PACE);
    probes.woken().await;
    let task = |target: &Target| probes.prober.lock().by_key[&key()][target].task.clone();
    let (staying, leaving) = (task(&kept), task(&dropped));
    probes.prober.want(&key(), &[kept], PACE);
    assert_eq!(probes.prober.answers(&key()).into_keys().collect::<Vec<_>>(), [kept]);
    while !leaving.is_finished() {
        tokio::task::yield_now().await;
    }
    assert!(!staying.is_finished());
    probes.prober.want(&key(), &[], PACE);
    assert!(probes.prober.answers(&key()).is_empty());
    while !staying.is_finished() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn another_pace_forgets_no_answer() {
    let mut probes = Probes::new();
    let server = Target { probe: ProbeType::None, ..target(1) };
    probes.prober.want(&key(), &[server], PACE);
    let answer = probes.answer(&server).await;
    assert!(matches!(answer, Answer::Serving { .. }));
    probes.prober.want(&key(), &[server], Pace { period: Duration::from_secs(60), ..PACE });
    assert_eq!(probes.prober.answers(&key())[&server], answer);
}

#[test]
fn who_served_is_lost_only_after_enough_failures() {
    let now = monotonic();
    let mut answer = Answer::Serving { since: now, at: chrono::DateTime::UNIX_EPOCH };
    let mut settled = Settled::Serving;
    for expected in [Settled::Serving, Settled::Serving, Settled::Lost, Settled::Lost] {
        (answer, settled) = failing(&answer, settled, &NullCallError::TimedOut, now, 3);
        assert_eq!(settled, expected, "{answer:?}");
    }
    let (_, at_once) = failing(&Answer::Pending { since: now }, Settled::Pending, &NullCallError::Refused, now, 1);
    assert_eq!(at_once, Settled::Lost);
}

#[test]
fn the_pace_is_kept_within_a_tenth() {
    let period = Duration::from_secs(5);
    assert_eq!(jittered(period, 0.0), Duration::from_millis(4500));
    assert!(jittered(period, 0.999_999) < Duration::from_millis(5501));
}
