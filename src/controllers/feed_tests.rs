//! With what the feeds of controllers are tested: stores that a test fills by hand, and the keys that a change queues.

use std::collections::BTreeSet;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Context, Informers, S3Stores, Stores};
use crate::api::s3::MOUNTPOINT_NAMESPACE;
use crate::runtime::clock::Clock;
use crate::runtime::events::{EventType, Events};
use crate::runtime::fake_api;
use crate::runtime::health::Health;
use crate::runtime::leader::Leadership;
use crate::runtime::queue::{self, Next, Queue, QueueConfig};
use crate::runtime::telemetry::{EventLabel, EventResult, Telemetry};
use crate::runtime::writer::Writer;

/// Longer than any change is held back, on paused time: it passes only when nobody has anything to do before.
const SETTLED: Duration = Duration::from_secs(1);
/// Longer than any Event takes: who waits for one that does not come waits in vain.
const IN_VAIN: Duration = Duration::from_secs(30);
/// Reason of the Event that a test tells itself.
const ASKED: &str = "Asked";

/// A context whose API never answers. Its stores have the indexes of the product; their informers ended before they began.
pub fn context() -> Context {
    let client = fake_api::client(|_| fake_api::silence());
    let (telemetry, leadership) = (Telemetry::new(), Leadership::always());
    let ended = CancellationToken::new();
    ended.cancel();
    Context {
        stores: unfed(|informers| Stores::spawn(informers, "bulkhead-system")),
        clients: fake_api::clients(&client),
        writer: Writer::new(client.clone(), leadership.clone(), "bulkhead-test"),
        events: Events::spawn(client, "b", "p", leadership, &telemetry, ended),
        telemetry,
        clock: Clock::system(),
    }
}

/// The stores of S3 mounts, with the indexes of the product; their informers ended before they began, too.
pub fn s3_stores() -> S3Stores {
    unfed(|informers| S3Stores::spawn(informers, MOUNTPOINT_NAMESPACE))
}

fn unfed<S>(spawn: impl FnOnce(Informers<'_>) -> S) -> S {
    let client = fake_api::client(|_| fake_api::silence());
    let (telemetry, health, cancel) = (Telemetry::new(), Health::new(), CancellationToken::new());
    cancel.cancel();
    spawn(Informers { client: &client, telemetry: &telemetry, health: &health, cancel: &cancel })
}

/// A context whose API takes every write, answers those of objects with this one, and hands on the Events that it is sent.
pub fn telling<K: Serialize>(written: &K) -> (Context, Told) {
    let (sent, came) = mpsc::unbounded_channel();
    let written = serde_json::to_value(written).unwrap();
    let client = fake_api::client(move |call| {
        if !call.path.ends_with("/events") {
            return fake_api::ok(written.clone());
        }
        let text = |pointer| call.body.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let event = format!("{} {} {}", text("/regarding/kind"), text("/regarding/name"), text("/reason"));
        // Fails once the test has ended.
        let _ = sent.send(event);
        fake_api::ok(call.body)
    });
    let (cx, leadership) = (context(), Leadership::always());
    let events = Events::spawn(client.clone(), "b", "p", leadership.clone(), &cx.telemetry, CancellationToken::new());
    let told = Told {
        events: events.clone(),
        telemetry: cx.telemetry.clone(),
        came: tokio::sync::Mutex::new(came),
        asked: AtomicUsize::default(),
    };
    (Context { writer: Writer::new(client, leadership, "bulkhead-test"), events, ..cx }, told)
}

/// Events: kind and name of the object, and the reason.
pub struct Told {
    events: Events,
    telemetry: Telemetry,
    came: tokio::sync::Mutex<mpsc::UnboundedReceiver<String>>,
    asked: AtomicUsize,
}

impl Told {
    /// Those that were told since this was asked last. One task sends all of them in their order: when the one that is told
    /// here has come, no other will come that was told before.
    pub async fn taken(&self) -> Vec<String> {
        let last = self.ask();
        let (mut came, mut told) = (self.came.lock().await, Vec::new());
        loop {
            let event = tokio::time::timeout(IN_VAIN, came.recv()).await.expect("what was told comes").unwrap();
            if event == last {
                break;
            }
            told.push(event);
        }
        self.check_that_none_was_lost();
        told
    }

    /// Tells an Event of an object that no other is of, and says how it comes.
    fn ask(&self) -> String {
        let name = format!("question-{}", self.asked.fetch_add(1, Ordering::Relaxed));
        let event = format!("Test {name} {ASKED}");
        let regarding = ObjectReference { kind: Some("Test".into()), name: Some(name), ..ObjectReference::default() };
        self.events.publish(regarding, EventType::Normal, ASKED, "Ask", "a test asks what was told".into());
        event
    }

    /// One that is told twice is dropped on its way, and would look like one that is not told again.
    fn check_that_none_was_lost(&self) {
        use EventResult::{DroppedFull, DroppedNotLeader, DroppedRate, DroppedRepeated, Failed};
        for result in [DroppedFull, DroppedNotLeader, DroppedRate, DroppedRepeated, Failed] {
            let count = self.telemetry.runtime.events.get_or_create(&EventLabel { result }).get();
            assert_eq!(count, 0, "{result:?}");
        }
    }
}

/// All first lists have come, and hold what is in the stores.
pub fn list_done(stores: &Stores) {
    stores.nodes.list_done();
    stores.leases.list_done();
    stores.fencer_leases.list_done();
    stores.pods.list_done();
    stores.claims.list_done();
    stores.volumes.list_done();
    stores.attachments.list_done();
    stores.csi_nodes.list_done();
    stores.csi_drivers.list_done();
    stores.namespaces.list_done();
    stores.policies.list_done();
    stores.fences.list_done();
    stores.requests.list_done();
    stores.reports.list_done();
    stores.node_reports.list_done();
    stores.health_policies.list_done();
    stores.healths.list_done();
    stores.agents.list_done();
    stores.admission_bindings.list_done();
}

/// The keys that come out of a queue. Nothing is done about them.
pub struct Queued(Arc<Mutex<BTreeSet<String>>>);

impl Queued {
    /// Of a new queue.
    pub fn queue() -> (Queue<String>, Self) {
        let (queue, receiver) = queue::queue();
        let keys = Arc::<Mutex<BTreeSet<String>>>::default();
        let noted = keys.clone();
        let note = move |key: String| {
            noted.lock().unwrap().insert(key);
            async { Ok(Next::Await) }
        };
        tokio::spawn(async move {
            let (config, telemetry) = (QueueConfig::test("test"), Telemetry::new());
            queue::run(config, receiver, &telemetry, CancellationToken::new(), None, note).await;
        });
        (queue, Self(keys))
    }

    /// Those that came since this was asked last, each once. For tests on paused time: there the second passes when everybody
    /// waits for something later, so that what has not come by then does not come, however slow the machine is.
    pub async fn taken(&self) -> Vec<String> {
        tokio::time::sleep(SETTLED).await;
        mem::take(&mut *self.0.lock().unwrap()).into_iter().collect()
    }
}
