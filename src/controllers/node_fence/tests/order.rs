//! The order of the steps, from the plan to the record of a recovered node.

use serde_json::json;

use crate::api::node_fence::{Phase, PodStatusState, VolumeStatusState};
use crate::controllers::testing::*;

use super::world::World;

#[test]
fn a_dead_node_is_walked_through_in_the_designs_order() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1"), csi("v2")])], &json!({}));
    world.run();
    world.assert_order(&[
        "active",
        "taint fenced",
        "ask Fenced v1 round 1, v2 round 1",
        "Started v1",
        "Started v2",
        "v1 is Fencing",
        "Fenced v1",
        "v1 is Fenced",
        "pg is Releasing",
        "taint out-of-service",
        "delete pg grace 0",
        "pg is Released",
        "untaint out-of-service",
        "v1 is Detached",
    ]);
    assert!(!world.did("detach"), "the taint detaches all of it: {:#?}", world.log);
    assert_eq!(world.seen.phase(), Some(Phase::PodsReleased), "one attacher re-sync is watched first");
    world.wait(61.0);
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Detached));
    assert_eq!(world.volume("v1").state, VolumeStatusState::Detached);
    assert_eq!(world.pod("pg"), (PodStatusState::Released, String::new()));
    assert!(world.seen.our_taint().is_some(), "the taint stays until the node is clean");
}
