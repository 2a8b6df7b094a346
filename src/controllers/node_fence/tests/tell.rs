//! What is told of an incident, and on what.

use serde_json::json;

use crate::api::conditions::{self, State};
use crate::api::node_fence::{AWAITING_STORAGE, NodeFence, NodeFenceStatus, Phase, Timeline, VolumeStatus};
use crate::api::slim::Node;
use crate::controllers::feed_tests::telling;
use crate::controllers::testing::*;
use crate::runtime::store::ObjectKey;

use super::super::tell::{lost, transitions};
use super::build::fence;

/// The NodeFence with another status.
fn then(before: &NodeFence, change: impl FnOnce(&mut NodeFenceStatus)) -> NodeFence {
    let mut after = before.clone();
    change(after.status.get_or_insert_default());
    after
}

/// What happens, and the reason of the Event that tells it on the NodeFence and on its Node.
type Case = (&'static str, fn(&mut NodeFenceStatus));

const CASES: [Case; 3] = [
    ("NodeReturned", |status| {
        status.timeline = Some(Timeline { returned_at: Some(at(1)), ..Timeline::default() });
    }),
    ("PathNotRestored", |status| {
        conditions::set(&mut status.conditions, "Stalled", State::True, AWAITING_STORAGE, "not proved", 1, at(2));
    }),
    ("NodeRecovered", |status| {
        conditions::remove(&mut status.conditions, "Stalled");
        status.phase = Some(Phase::Recovered);
    }),
];

#[tokio::test(start_paused = true)]
async fn how_it_ends_for_a_node_is_told_on_the_node_too() {
    let (cx, told) = telling(&Node::default());
    cx.stores.nodes.insert(node("n1"));
    let mut before = fence(&[], &policy("db", &json!({})));
    for (reason, change) in CASES {
        let after = then(&before, change);
        transitions(&cx, &before, &after);
        assert_eq!(told.taken().await, [format!("Node n1 {reason}"), format!("NodeFence n1 {reason}")]);
        transitions(&cx, &after, &then(&after, |_| {}));
        assert!(told.taken().await.is_empty(), "{reason} is no news any more");
        before = after;
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_node_that_is_gone_it_is_told_on_the_nodefence() {
    let (cx, told) = telling(&Node::default());
    cx.stores.nodes.insert(node("n1"));
    cx.stores.nodes.remove(&ObjectKey::cluster("n1"));
    let before = fence(&[], &policy("db", &json!({})));
    transitions(&cx, &before, &then(&before, |status| status.phase = Some(Phase::Recovered)));
    assert_eq!(told.taken().await, ["NodeFence n1 NodeRecovered"]);
}

/// An older definition drops what it does not know, without a word.
#[test]
fn what_the_server_does_not_keep_is_named() {
    let row: VolumeStatus = serde_json::from_value(json!({
        "episode": 1, "name": "v1", "state": "Fencing", "proof": "PowerOff", "externalProof": "PowerOff",
    }))
    .unwrap();
    let sent = NodeFenceStatus {
        failed_boot_ids: vec!["boot-1".into()],
        volumes: vec![row.clone()],
        ..NodeFenceStatus::default()
    };
    assert!(lost(&sent, &sent).is_empty());
    let kept = NodeFenceStatus {
        failed_boot_ids: Vec::new(),
        volumes: vec![VolumeStatus { external_proof: None, ..row }],
        ..NodeFenceStatus::default()
    };
    assert_eq!(lost(&sent, &kept), ["status.failedBootIDs", "status.volumes[].externalProof"]);
}
