//! What a look at a node takes from the API.

use std::time::Instant;

use serde_json::{Value, json};

use crate::api::slim::Lease;
use crate::controllers::NODE_LEASES;
use crate::controllers::feed_tests::context;
use crate::controllers::testing::*;
use crate::runtime::fake_api;

use super::super::observe;
use super::super::silence::SilenceTracker;

fn lease(renewed: i64) -> Value {
    json!({ "metadata": { "name": "n1", "namespace": NODE_LEASES }, "spec": { "renewTime": at(renewed) } })
}

/// A pass decides on what it saw: a store that has caught up since makes no Lease still.
#[tokio::test]
async fn a_lease_that_moves_during_the_look_has_moved_whatever_the_store_has_by_then() {
    let (node, now) = (unreachable("n1"), Instant::now());
    let seen: Lease = serde_json::from_value(lease(0)).unwrap();
    let mut tracker = SilenceTracker::default();
    tracker.update([("n1", &seen)], [&node], (0, 1), now);
    let silence = tracker.of(&node, now);
    for (renewed, is_still) in [(0, true), (10, false)] {
        let cx = context();
        let (leases, live, node) = (cx.stores.leases.clone(), lease(renewed), serde_json::to_value(&node).unwrap());
        leases.insert(seen.clone());
        let client = fake_api::client(move |call| match call.path.as_str() {
            "/api/v1/nodes/n1" => fake_api::ok(node.clone()),
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1" => {
                leases.insert(serde_json::from_value(live.clone()).unwrap());
                fake_api::ok(live.clone())
            }
            _ => fake_api::ok(json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [] })),
        });
        let found = observe::read(&client, &cx.stores, "n1", silence).await.unwrap().unwrap();
        assert_eq!(found.lease_is_still, is_still, "renewed at {renewed}");
    }
}
