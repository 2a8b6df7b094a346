//! Writing against a Kubernetes API in memory, and the end of calls.

use std::sync::{Arc, Mutex};

use http::Method;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::decide::{Call, Seen, decide};
use super::super::driver::Driver;
use super::super::metrics::Metrics;
use super::super::tests::{Case, sends};
use super::*;
use crate::csi::client;
use crate::runtime::clock::Clock;
use crate::runtime::events::Events;
use crate::runtime::fake_api::{self, Call as ApiCall, Reply, ok, refuse};
use crate::runtime::leader::Leadership;
use crate::runtime::telemetry::Telemetry;
use crate::runtime::writer::Writer;

/// A context whose API answers so, and whose driver is at that socket.
pub(in crate::csi_sidecar) fn context(
    socket: &str,
    answer: impl Fn(ApiCall) -> Reply + Send + Sync + 'static,
) -> Context {
    let client = fake_api::client(answer);
    let (telemetry, leadership) = (Telemetry::new(), Leadership::always());
    let clients = fake_api::clients(&client);
    Context {
        driver: Driver::new(client::connect(socket).unwrap()),
        name: "csi.example.com".into(),
        events: Events::spawn(client.clone(), "b", "p", leadership.clone(), &telemetry, CancellationToken::new()),
        writer: Writer::new(client, leadership, "bulkhead-test"),
        clients,
        metrics: Metrics::register(&telemetry),
        telemetry,
        clock: Clock::system(),
        calls: TaskTracker::new(),
    }
}

/// A begun row that this process did not write, at a version.
fn inherited() -> FenceRequest {
    let mut request = Case::new().begun(1).request();
    request.metadata.resource_version = Some("7".into());
    request
}

fn decided(cx: &Context, request: &FenceRequest, memory: &Shared) -> Vec<Effect> {
    let seen = Seen {
        request: Arc::new(request.clone()),
        calls: lock(memory).calls.clone(),
        reading: None,
        busy: None,
        let_in: None,
        holds: None,
        looked: None,
    };
    let decision = decide(&seen, cx.clock.now());
    assert!(!sends(&decision) || !lock(memory).calls.is_empty(), "called without a write of our own");
    decision.effects
}

#[tokio::test]
async fn a_store_that_is_behind_leads_to_a_conflict_and_to_no_call() {
    let writes = Arc::new(Mutex::new(Vec::new()));
    let cx = context("/nobody/listens", {
        let writes = writes.clone();
        move |call| {
            if call.method == Method::PUT {
                writes.lock().unwrap().push(call.body["metadata"]["resourceVersion"].clone());
            }
            refuse(409, "Conflict")
        }
    });
    let (request, memory) = (inherited(), Shared::default());
    for _ in 0..2 {
        let effects = decided(&cx, &request, &memory);
        let error = act(&cx, &request, &memory, effects, || ()).await.unwrap_err();
        assert!(error.is_conflict(), "{error}");
        assert!(lock(&memory).calls.is_empty() && cx.calls.is_empty());
    }
    assert_eq!(*writes.lock().unwrap(), ["7", "7"], "each at the version that was read");
}

#[tokio::test]
async fn a_store_that_is_up_to_date_leads_to_the_call() {
    let cx = context("/nobody/listens", |call| ok(call.body));
    let (request, memory) = (inherited(), Shared::default());
    let effects = decided(&cx, &request, &memory);
    let written = act(&cx, &request, &memory, effects, || ()).await.unwrap().unwrap();
    assert_eq!(lock(&memory).calls.values().collect::<Vec<_>>(), [&Call::Recorded]);
    assert!(matches!(decided(&cx, &written, &memory).as_slice(), [Effect::Unpublish(_)]));
}

#[tokio::test(start_paused = true)]
async fn calls_under_way_are_waited_for_at_the_end_but_not_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("csi.sock");
    // Accepts connections and never answers.
    let _driver = UnixListener::bind(&path).unwrap();
    let cx = context(path.to_str().unwrap(), |_| refuse(404, "NotFound"));
    let (request, memory) = (inherited(), Shared::default());
    send(&cx, &request, &memory, request.spec.volumes[0].clone(), || ());
    assert_eq!(cx.calls.len(), 1);
    let began = tokio::time::Instant::now();
    super::super::drain(&cx.calls, began + Duration::from_secs(3)).await;
    assert_eq!((began.elapsed().as_secs(), cx.calls.len()), (3, 1), "it hangs, and the end does not");
    super::super::drain(&cx.calls, began + Duration::from_secs(60)).await;
    assert_eq!((began.elapsed().as_secs(), cx.calls.len()), (30, 0), "waited for until its own deadline");
    assert!(matches!(lock(&memory).calls.values().next(), Some(Call::Failed { .. })));
    let counted = "bulkhead_fence_calls_total{method=\"ControllerUnpublishVolume\",result=\"DeadlineExceeded\"} 1";
    assert!(cx.telemetry.encode().unwrap().contains(counted), "a driver that hangs is seen");
}
