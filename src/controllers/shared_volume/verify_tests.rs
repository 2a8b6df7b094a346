use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::api::shared_volume::SharedVolume;
use crate::controllers::shared_volume::decide::Intervals;
use crate::controllers::shared_volume::memory::Memory;
use crate::runtime::fake_api;

fn seen(service: Option<Value>) -> Seen {
    let candidate = json!({ "name": "a", "addresses": ["10.0.0.11"], "ports": [{ "name": "nfs", "port": 2049 }] });
    let shared_volume: SharedVolume = serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "SharedVolume",
        "metadata": { "namespace": "web", "name": "media" },
        "spec": { "claimName": "media", "backend": { "static": { "candidates": [candidate] } } },
    }))
    .unwrap();
    Seen {
        shared_volume: Arc::new(shared_volume),
        rivals: Vec::new(),
        claim: None,
        service: service.map(|service| Arc::new(serde_json::from_value(service).unwrap())),
        slices: Vec::new(),
        endpoints: None,
        pods: Vec::new(),
        observation: None,
        fenced_nodes: BTreeSet::new(),
        unproved_nodes: BTreeSet::new(),
        answers: BTreeMap::new(),
        memory: Memory::default(),
        intervals: Intervals::default(),
        cluster_domain: "cluster.local".to_owned(),
    }
}

fn service(uid: &str, selector: Value) -> Value {
    json!({
        "metadata": { "namespace": "web", "name": "media", "uid": uid },
        "spec": { "clusterIPs": ["10.96.0.7"], "selector": selector },
    })
}

fn slice(name: &str, manager: &str) -> Value {
    let labels = json!({ SERVICE_NAME_LABEL: "media", crate::api::slim::network::MANAGED_BY_LABEL: manager });
    json!({
        "metadata": { "namespace": "web", "name": name, "labels": labels }, "addressType": "IPv4",
        "endpoints": [{ "addresses": ["10.0.0.9"] }],
    })
}

/// An API server with these slices, and how often they were read.
fn api(slices: Vec<Value>) -> (Client, Arc<AtomicUsize>) {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = reads.clone();
    let client = fake_api::client(move |call| match call.path.rsplit('/').next() {
        Some("endpointslices") => {
            counted.fetch_add(1, Ordering::SeqCst);
            assert_eq!(call.query["labelSelector"], "kubernetes.io%2Fservice-name%3Dmedia");
            fake_api::ok(json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": slices }))
        }
        _ if call.path.contains("/services/") => fake_api::ok(service("uid-1", json!({}))),
        _ => fake_api::refuse(404, "NotFound"),
    });
    (client, reads)
}

fn key() -> ObjectKey {
    ObjectKey::namespaced("web", "media")
}

#[tokio::test]
async fn what_a_selector_left_behind_is_found_and_looked_at_until_it_is_gone() {
    let left = vec![slice("media-x7k2p", SELECTOR_SLICES), slice("media-ipv4", "sharedvolume.bulkhead.dev")];
    let (client, reads) = api(left);
    let hidden = Hidden::default();
    for pass in 1..=2 {
        let mut seen = seen(Some(service("uid-1", json!({}))));
        hidden.add_to(&client, &key(), &mut seen).await.unwrap();
        let names: Vec<_> = seen.slices.iter().map(|slice| slice.metadata.name.clone().unwrap()).collect();
        assert_eq!((names.as_slice(), reads.load(Ordering::SeqCst)), (&["media-x7k2p".to_owned()][..], pass));
    }
}

#[tokio::test]
async fn a_service_that_has_nothing_of_it_is_read_once() {
    let (client, reads) = api(Vec::new());
    let hidden = Hidden::default();
    let look = async |service: Option<Value>| {
        hidden.add_to(&client, &key(), &mut seen(service)).await.unwrap();
        reads.load(Ordering::SeqCst)
    };
    assert_eq!(look(None).await, 0);
    assert_eq!(look(Some(service("uid-1", json!({})))).await, 1);
    assert_eq!(look(Some(service("uid-1", json!({})))).await, 1);
    // Others write its endpoints, so there may be some any time; and another Service is another matter.
    assert_eq!(look(Some(service("uid-1", json!({ "app": "nfs" })))).await, 2);
    assert_eq!(look(Some(service("uid-2", json!({})))).await, 3);
}

#[tokio::test(start_paused = true)]
async fn slices_of_a_selector_that_is_gone_are_looked_for_for_a_while() {
    let (client, reads) = api(Vec::new());
    let hidden = Hidden::default();
    let look = async |selector: Value| {
        let mut seen = seen(Some(service("uid-1", selector)));
        hidden.add_to(&client, &key(), &mut seen).await.unwrap();
        (reads.load(Ordering::SeqCst), hidden.look_again(&key(), &seen).is_some())
    };
    assert_eq!(look(json!({ "app": "nfs" })).await, (1, false), "the watch shows when it goes");
    assert_eq!(look(json!({})).await, (2, true));
    hidden.read_again(&key());
    assert_eq!(look(json!({})).await, (3, true), "a write that was refused changes nothing about it");
    tokio::time::advance(AFTER_SELECTOR.0).await;
    assert_eq!(look(json!({})).await, (3, false));
    hidden.suspect(&key());
    assert_eq!(look(json!({})).await, (4, true), "it was taken off just now");
}

#[tokio::test]
async fn what_was_read_live_is_known_to_later_passes() {
    let (client, _) = api(Vec::new());
    let hidden = Hidden::default();
    let mut first = seen(Some(service("uid-1", json!({}))));
    hidden.add_to(&client, &key(), &mut first).await.unwrap();
    assert!(first.slices.is_empty());
    let (client, _) = api(vec![slice("media-x7k2p", SELECTOR_SLICES)]);
    Live::read(&client, &first).await.unwrap().onto(&mut first);
    hidden.learn(&key(), &first);
    let mut second = seen(Some(service("uid-1", json!({}))));
    hidden.add_to(&client, &key(), &mut second).await.unwrap();
    assert_eq!(second.slices.len(), 1);
}

#[tokio::test]
async fn a_service_that_was_read_live_counts_until_a_watch_shows_one() {
    let (client, _) = api(Vec::new());
    let hidden = Hidden::default();
    let mut first = seen(None);
    Live::read(&client, &first).await.unwrap().onto(&mut first);
    assert_eq!(first.service.as_ref().unwrap().metadata.uid.as_deref(), Some("uid-1"));
    hidden.is_ahead(&key(), &first);
    let mut second = seen(None);
    hidden.add_to(&client, &key(), &mut second).await.unwrap();
    assert!(second.service.is_some());
    hidden.add_to(&client, &key(), &mut seen(Some(service("uid-2", json!({}))))).await.unwrap();
    let mut third = seen(None);
    hidden.add_to(&client, &key(), &mut third).await.unwrap();
    assert!(third.service.is_none());
}
