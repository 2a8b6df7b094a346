//! A node that was declared failed by heartbeats, before Kubernetes gave it up: for Kubernetes it is Ready still.

use std::sync::Arc;

use serde_json::json;

use crate::api::node_fence::{Channel, NodeFence, Phase, STORAGE_PATH_LOSS};
use crate::api::slim::Lease;
use crate::controllers::testing::*;

use super::super::decide::NodeState;
use super::super::memory::{Found, Incident};
use super::super::rows::node_state;
use super::build::{found, node_using};
use super::world::{Fencer, World};

fn world() -> World {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.heartbeats_tell();
    world
}

#[test]
fn it_is_not_back_because_kubernetes_calls_it_ready() {
    let mut world = world();
    world.run();
    world.assert_order(&["Started v1", "delete pg grace 0"]);
    assert_ne!(world.seen.phase(), Some(Phase::Recovered));
}

/// Attach/detach would look for itself only a minute later: what was won by heartbeats would be lost again.
#[test]
fn it_is_detached_by_the_key_though_kubernetes_calls_it_ready() {
    let mut world = world();
    world.run();
    assert_eq!(world.seen.node.as_ref().unwrap().ready(), "True");
    world.assert_order(&["v1 is Fenced", "taint out-of-service", "delete pg grace 0", "untaint out-of-service"]);
    assert!(!world.did("detach"), "{:#?}", world.log);
}

/// Its kubelet talked while its pods were moved for their storage.
#[test]
fn the_key_is_not_set_where_the_incident_began_on_a_node_that_was_well() {
    let mut world = world();
    world.plan().pods[0].reason = STORAGE_PATH_LOSS.into();
    world.run();
    world.assert_order(&["delete pg grace 0", "detach v1"]);
    assert!(!world.did("out-of-service"), "{:#?}", world.log);
}

/// Its kubelet told its status first, and has not renewed its Lease yet.
#[test]
fn nor_on_one_that_kubernetes_had_given_up_and_that_is_ready_again() {
    let mut world = world();
    world.ready_turns();
    world.run();
    world.assert_order(&["delete pg grace 0", "detach v1"]);
    assert!(!world.did("taint out-of-service"), "{:#?}", world.log);
}

#[test]
fn the_key_goes_when_the_lease_moves_and_does_not_come_again() {
    let mut world = world();
    world.attacher = false;
    world.run();
    world.seen.lease_is_still = false;
    world.run_controller();
    world.assert_order(&["taint out-of-service", "untaint out-of-service"]);
    let set = world.log.iter().filter(|entry| *entry == "taint out-of-service").count();
    assert_eq!(set, 1, "{:#?}", world.log);
}

/// What it sees first is the renewal that told that the node is back.
#[test]
fn a_new_leader_knows_a_lease_that_was_renewed_since_the_decision() {
    let mut world = world();
    let lease: Lease = serde_json::from_value(json!({ "metadata": {}, "spec": { "renewTime": at(100_005) } })).unwrap();
    let found = Found { lease: Some(Arc::new(lease)), ..found(&world.seen.fence) };
    let seen = Incident::default().look(found, world.seen.settings, world.now);
    assert_eq!((seen.lease_is_still, seen.renewed_at), (true, Some(at(100_005))));
    world.seen.renewed_at = seen.renewed_at;
    world.run();
    assert!(!world.did("taint out-of-service"), "{:#?}", world.log);
}

/// By a fencer's word and its Lease, where no agent was ever heard.
#[test]
fn nor_is_one_that_has_no_power_by_the_word_of_a_fencer() {
    let mut world = world();
    world.plan().evidence[1].channel = Channel::Power;
    assert!(world.seen.fence.spec.plan.is_ahead_of_kubernetes());
    world.run();
    world.assert_order(&["Started v1", "delete pg grace 0"]);
    assert_ne!(world.seen.phase(), Some(Phase::Recovered));
}

#[test]
fn it_is_back_when_its_lease_moves() {
    let mut world = world();
    world.fencers.insert(DRIVER.into(), Fencer::Silent);
    world.run();
    world.node_returns();
    world.run_controller();
    world.assert_order(&["ask Fenced v1 round 1", "ask Unfenced", "untaint fenced", "phase Recovered"]);
    assert!(!world.did("delete"), "{:#?}", world.log);
}

/// The next controller has not seen the Lease move yet; the proof was taken back when the machine got its power again.
#[test]
fn nor_is_one_asked_for_that_has_booted_again() {
    let mut world = world();
    assert_eq!(node_state(&world.seen), NodeState::Away);
    world.node_reboots();
    world.seen.lease_is_still = true;
    assert_eq!(node_state(&world.seen), NodeState::Back);
    world.run();
    assert!(!world.did("ask Fenced"), "{:#?}", world.log);
}

/// It booted while its pods were moved for their storage, and failed after that.
#[test]
fn one_that_had_booted_before_it_failed_is_not_back() {
    let mut world = world();
    world.plan().pods[0].reason = STORAGE_PATH_LOSS.into();
    world.node_reboots();
    world.seen.lease_is_still = true;
    assert_eq!(node_state(&world.seen), NodeState::Away);
}

#[test]
fn heartbeats_beside_what_kubernetes_says_change_nothing() {
    let mut world = world();
    world.plan().evidence[0].reason = "NodeUnreachable".into();
    assert!(!world.seen.fence.spec.plan.is_ahead_of_kubernetes());
    world.seen.node = Some(Arc::new(node_using(unreachable("n1"), &world.seen.fence)));
    world.run();
    assert!(world.did("delete"));
    world.node_returns();
    world.seen.lease_is_still = true;
    assert_eq!(node_state(&world.seen), NodeState::Back);
}

/// The kubelet of a node whose pods were moved for a lost path has renewed its Lease all the while.
#[test]
fn a_lease_that_moved_before_the_node_failed_does_not_bring_it_back() {
    let mut world = world();
    let node_alone = world.plan().evidence.clone();
    world.plan().evidence.truncate(1);
    let (mut incident, settings) = (Incident::default(), world.seen.settings);
    let mut is_still = |fence: &Arc<NodeFence>, renewed: i64| {
        let lease: Lease =
            serde_json::from_value(json!({ "metadata": {}, "spec": { "renewTime": at(renewed) } })).unwrap();
        let found = Found { lease: Some(Arc::new(lease)), ..found(fence) };
        incident.look(found, settings, now()).lease_is_still
    };
    assert!(is_still(&world.seen.fence, 10));
    assert!(!is_still(&world.seen.fence, 20));
    world.plan().evidence = node_alone;
    assert!(is_still(&world.seen.fence, 20), "it has failed since");
    assert!(!is_still(&world.seen.fence, 30));
    world.plan().evidence.truncate(1);
    assert!(!is_still(&world.seen.fence, 40), "a store that is late says nothing new");
}
