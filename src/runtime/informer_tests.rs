use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::api::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{sync::mpsc::UnboundedReceiver, time::sleep};

use super::*;
use crate::runtime::{
    fake_api::{self, Call, Reply, ok, refuse, silence, watch},
    store::{Change, ObjectKey},
};

/// A pod of which we read two fields.
#[derive(kube::Resource, Clone, Debug, Serialize, Deserialize)]
#[resource(inherit = "Pod")]
struct SlimPod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SlimPodSpec,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimPodSpec {
    #[serde(default)]
    node_name: String,
}

fn pod(name: &str, version: u32, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "ns", "name": name, "uid": format!("uid-{name}"),
            "resourceVersion": version.to_string(),
        },
        "spec": { "nodeName": node, "containers": [{ "name": "not read" }] },
    })
}

fn event(kind: &str, object: Value) -> Value {
    json!({ "type": kind, "object": object })
}

fn list_end(version: u32) -> Value {
    let annotations = json!({ "k8s.io/initial-events-end": "true" });
    let metadata = json!({ "resourceVersion": version.to_string(), "annotations": annotations });
    event("BOOKMARK", json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata }))
}

/// A server whose answers depend on how many streaming lists it was asked for; it remembers all calls.
struct Server {
    calls: Arc<Mutex<Vec<Call>>>,
    client: Client,
    telemetry: Telemetry,
}

impl Server {
    /// `answer` gets the request and the number of lists begun so far, this one included.
    fn new(answer: impl Fn(&Call, usize) -> Reply + Send + Sync + 'static) -> Self {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let client = fake_api::client({
            let calls = calls.clone();
            move |call| {
                let mut calls = calls.lock().unwrap();
                calls.push(call.clone());
                answer(&call, calls.iter().filter(|it| lists(it)).count())
            }
        });
        Self { calls, client, telemetry: Telemetry::new() }
    }

    fn informer(&self) -> Informer<SlimPod> {
        Informer::new(Api::all(self.client.clone()), "pods")
    }

    fn start(&self, informer: Informer<SlimPod>) -> (Store<SlimPod>, UnboundedReceiver<Change<SlimPod>>) {
        let store = informer.spawn(CancellationToken::new(), &self.telemetry);
        let changes = store.subscribe();
        (store, changes)
    }

    fn count(&self, which: fn(&Call) -> bool) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| which(call)).count()
    }
}

fn lists(call: &Call) -> bool {
    call.is_streaming_list() || !call.is_watch()
}

async fn next(changes: &mut UnboundedReceiver<Change<SlimPod>>) -> String {
    let change = tokio::time::timeout(Duration::from_secs(600), changes.recv()).await.unwrap().unwrap();
    let node = |pod: &Option<Arc<SlimPod>>| pod.as_ref().map_or("-".to_owned(), |pod| pod.spec.node_name.clone());
    format!("{} {}>{}", change.key, node(&change.old), node(&change.new))
}

#[tokio::test(start_paused = true)]
async fn a_slim_kind_is_cached_indexed_and_followed() {
    let server = Server::new(|call, _| match lists(call) {
        true => watch(&[
            event("ADDED", pod("a", 1, "n1")),
            event("ADDED", pod("b", 2, "n1")),
            list_end(2),
            event("MODIFIED", pod("a", 3, "n2")),
            event("DELETED", pod("b", 4, "n1")),
        ]),
        false => silence(),
    });
    let informer = server.informer().index("node", |pod| vec![pod.spec.node_name.clone()]);
    let (store, mut changes) = server.start(informer);
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(next(&mut changes).await);
    }
    assert_eq!(seen, ["ns/a ->n1", "ns/b ->n1", "ns/a n1>n2", "ns/b n1>-"]);
    assert!(store.synced());
    assert_eq!((store.len(), store.by_index("node", "n2").len(), store.relists()), (1, 1, 1));
    assert_eq!(server.calls.lock().unwrap()[0].path, "/api/v1/pods");
}

#[tokio::test(start_paused = true)]
async fn http_410_at_watch_starts_leads_to_a_new_list() {
    let server = Server::new(|call, lists_so_far| match (lists(call), lists_so_far) {
        (false, _) => refuse(410, "Expired"),
        (true, 1) => watch(&[event("ADDED", pod("a", 1, "n1")), list_end(1)]),
        (true, _) => watch(&[event("ADDED", pod("b", 9, "n1")), list_end(9)]),
    });
    let (_store, mut changes) = server.start(server.informer());
    assert_eq!(next(&mut changes).await, "ns/a ->n1");
    assert_eq!(next(&mut changes).await, "ns/b ->n1", "without a new list this never comes");
    let calls: Vec<_> = server.calls.lock().unwrap().iter().map(lists).collect();
    assert_eq!(calls[..5], [true, false, false, false, true], "lists and watch starts in order");
    assert_eq!(next(&mut changes).await, "ns/a n1>-", "what the new list lacks is gone");
    // A server that never stops answering 410 is not hammered.
    let (before, wait) = (server.calls.lock().unwrap().len(), Duration::from_secs(600));
    sleep(wait).await;
    let made = server.calls.lock().unwrap().len() - before;
    assert!(made < 60, "{made} calls in {wait:?}");
}

#[tokio::test(start_paused = true)]
async fn a_gone_event_inside_the_stream_leads_to_a_new_list() {
    let gone = json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old" });
    let server = Server::new(move |call, lists_so_far| match (lists(call), lists_so_far) {
        (false, _) => silence(),
        (true, 1) => watch(&[event("ADDED", pod("a", 1, "n1")), list_end(1), event("ERROR", gone.clone())]),
        (true, _) => watch(&[list_end(9)]),
    });
    let (store, mut changes) = server.start(server.informer());
    assert_eq!(next(&mut changes).await, "ns/a ->n1");
    assert_eq!(next(&mut changes).await, "ns/a n1>-");
    assert_eq!(store.relists(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_streaming_lists_is_listed_in_pages() {
    let server = Server::new(|call, _| match (call.is_streaming_list(), call.is_watch()) {
        (true, _) => refuse(422, "Invalid"),
        (false, true) => silence(),
        (false, false) => ok(json!({
            "kind": "PodList", "apiVersion": "v1", "metadata": { "resourceVersion": "5" },
            "items": [pod("a", 1, "n1")],
        })),
    });
    let (store, mut changes) = server.start(server.informer());
    assert_eq!(next(&mut changes).await, "ns/a ->n1");
    store.wait_synced().await;
    assert_eq!(server.count(Call::is_streaming_list), 1);
}

#[tokio::test(start_paused = true)]
async fn one_unreadable_object_does_not_stop_the_kind_and_is_not_forgotten() {
    let broken = |version| {
        let mut pod = pod("a", version, "n1");
        pod["spec"] = json!("not an object");
        pod
    };
    let server = Server::new(move |call, lists_so_far| match (lists(call), lists_so_far) {
        (false, _) => refuse(410, "Expired"),
        (true, 1) => watch(&[
            event("ADDED", pod("a", 1, "n1")),
            list_end(1),
            event("MODIFIED", broken(2)),
            event("ADDED", pod("b", 3, "n1")),
        ]),
        (true, 2) => watch(&[event("ADDED", broken(2)), event("ADDED", pod("c", 4, "n1")), list_end(4)]),
        (true, _) => silence(),
    });
    let (store, mut changes) = server.start(server.informer());
    let before = server.telemetry.encode().unwrap();
    assert!(before.contains("bulkhead_informer_undecodable_total{informer=\"pods\"} 0"), "{before}");
    assert_eq!(next(&mut changes).await, "ns/a ->n1");
    assert_eq!(next(&mut changes).await, "ns/b ->n1");
    assert_eq!(next(&mut changes).await, "ns/c ->n1");
    assert_eq!(next(&mut changes).await, "ns/b n1>-", "b vanished; a is only unreadable");
    assert!(store.get(&ObjectKey::namespaced("ns", "a")).is_some());
    let text = server.telemetry.encode().unwrap();
    assert!(text.contains("bulkhead_informer_undecodable_total{informer=\"pods\"} 2"), "{text}");
    assert!(text.contains("bulkhead_informer_relists_total{informer=\"pods\"} 2"), "{text}");
    assert!(text.contains("bulkhead_informer_objects{informer=\"pods\"} 2"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_kept_does_not_exist() {
    let server = Server::new(|call, _| match lists(call) {
        true => watch(&[
            event("ADDED", pod("a", 1, "n1")),
            event("ADDED", pod("b", 2, "other")),
            list_end(2),
            event("MODIFIED", pod("a", 3, "other")),
        ]),
        false => silence(),
    });
    let (store, mut changes) = server.start(server.informer().keep(|pod| pod.spec.node_name == "n1"));
    assert_eq!(next(&mut changes).await, "ns/a ->n1");
    assert_eq!(next(&mut changes).await, "ns/a n1>-", "it left what is kept");
    assert!(store.is_empty());
}

#[tokio::test(start_paused = true)]
async fn selectors_and_namespace_reach_the_server_and_the_watch_is_short() {
    let server = Server::new(|_, _| silence());
    let api: Api<SlimPod> = Api::namespaced(server.client.clone(), "apps");
    let informer = Informer::new(api, "pods").fields("spec.nodeName=n1");
    let _store = server.start(informer);
    sleep(Duration::from_millis(1)).await;
    let call = server.calls.lock().unwrap()[0].clone();
    assert_eq!(call.path, "/api/v1/namespaces/apps/pods");
    assert_eq!(call.query["fieldSelector"], "spec.nodeName%3Dn1");
    let timeout: u32 = call.query["timeoutSeconds"].parse().unwrap();
    assert!((WATCH_TIMEOUT..=WATCH_TIMEOUT + TIMEOUT_JITTER).contains(&timeout), "{timeout}");
}

#[tokio::test(start_paused = true)]
async fn a_field_that_the_server_does_not_know_is_done_without_if_it_may_be() {
    let server = Server::new(|call, _| match call.query.contains_key("fieldSelector") {
        true => refuse(400, "BadRequest"),
        false if lists(call) => {
            watch(&[event("ADDED", pod("a", 1, "n1")), event("ADDED", pod("b", 2, "n2")), list_end(2)])
        }
        false => silence(),
    });
    let optional = server.informer().keep(|pod| pod.spec.node_name == "n1").fields_if_served("spec.nodeName=n1");
    let (store, mut changes) = server.start(optional);
    assert_eq!(next(&mut changes).await, "ns/a ->n1");
    store.wait_synced().await;
    assert_eq!(store.len(), 1);

    let (store, _changes) = server.start(server.informer().fields("spec.nodeName=n1"));
    sleep(Duration::from_secs(600)).await;
    assert!(!store.synced(), "what must be selected is not replaced by everything");
}

#[tokio::test(start_paused = true)]
async fn the_watch_ends_with_the_token() {
    let server = Server::new(|_, _| refuse(503, "ServiceUnavailable"));
    let cancel = CancellationToken::new();
    let store = server.informer().spawn(cancel.clone(), &server.telemetry);
    sleep(Duration::from_secs(60)).await;
    assert!(!store.synced());
    cancel.cancel();
    sleep(Duration::from_millis(1)).await;
    let calls = server.calls.lock().unwrap().len();
    assert!(calls > 1, "it tried again until then");
    sleep(Duration::from_secs(600)).await;
    assert_eq!(server.calls.lock().unwrap().len(), calls);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_watch_that_is_renewed_is_a_sign_of_life_and_a_stuck_one_is_not() {
    use futures::FutureExt as _;
    let limit = Duration::from_secs(600);
    // The server ends each quiet watch in time; or it never answers at all.
    for (renews, silent) in [(true, vec![]), (false, vec!["pods"])] {
        let server = Server::new(move |call, _| match call.is_streaming_list() {
            true => watch(&[list_end(1)]),
            false if renews => sleep(Duration::from_secs(180)).then(|()| watch(&[])).boxed(),
            false => silence(),
        });
        let cancel = CancellationToken::new();
        let _store = server.informer().spawn(cancel.clone(), &server.telemetry);
        sleep(Duration::from_secs(3000)).await;
        assert_eq!(server.telemetry.silent_informers(limit), silent, "renews: {renews}");
        cancel.cancel();
    }
}

#[test]
fn only_who_is_eager_asks_soon_again_and_only_while_nobody_answers() {
    let long = Duration::from_secs(30);
    let silence = || watcher::Error::WatchFailed(kube::Error::Service("connection timed out".into()));
    let answer = kube::core::Status { code: 503, ..kube::core::Status::default() };
    let answer = watcher::Error::WatchStartFailed(kube::Error::Api(Box::new(answer)));
    assert_eq!(pause_after(&silence(), long, true), EAGER_PAUSE);
    assert_eq!(pause_after(&silence(), Duration::from_millis(800), true), Duration::from_millis(800));
    assert_eq!(pause_after(&silence(), long, false), long);
    assert_eq!(pause_after(&answer, long, true), long);
}
