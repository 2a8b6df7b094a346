//! A node that comes back, goes, or comes again under the same name.

use std::sync::Arc;

use serde_json::json;

use crate::api::fencing::Proof;
use crate::api::node_fence::{Phase, PlannedPod, PlannedVolume, PodStatusState, VolumeStatusState};
use crate::controllers::testing::*;

use super::build::planned;
use super::world::{Fencer, World};

fn silent(world: &mut World) {
    world.fencers.insert(DRIVER.into(), Fencer::Silent);
}

#[test]
fn before_started_it_is_undone_in_full_at_once() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    silent(&mut world);
    world.run();
    world.node_returns();
    world.run_controller();
    world.assert_order(&["ask Fenced v1 round 1", "ask Unfenced", "untaint fenced", "inactive", "phase Recovered"]);
    assert!(!world.did("delete"), "{:#?}", world.log);
    assert_eq!(world.pod("pg").0, PodStatusState::Undone);
    assert_eq!(world.volume("v1").state, VolumeStatusState::Undone);
    assert!(world.seen.requests.is_empty() && world.seen.our_taint().is_none() && !world.seen.is_active());
}

#[test]
fn the_loser_of_the_race_for_started_looks_again_and_releases_the_pod() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    silent(&mut world);
    world.run();
    world.node_returns();
    // Everything up to the write that turns the request round; then the fencer is first.
    while !world.decide().effects.iter().any(|effect| matches!(effect, super::super::decide::Effect::AskAgain(_))) {
        assert!(world.pass(), "the request is turned round: {:#?}", world.log);
    }
    world.fencers.clear();
    world.fencers_act();
    world.run();
    world.assert_order(&["Started v1", "pg is Releasing", "delete pg graceful"]);
    assert_ne!(world.pod("pg").0, PodStatusState::Undone);
}

#[test]
fn a_request_that_the_store_does_not_show_yet_is_not_taken_for_none() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    silent(&mut world);
    world.run();
    let hidden = std::mem::take(&mut world.seen.requests);
    world.node_returns();
    world.run_controller();
    assert_ne!(world.seen.phase(), Some(Phase::Recovered), "the fencer may yet begin: {:#?}", world.log);
    world.seen.requests = hidden;
    world.run_controller();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered));
}

#[test]
fn after_started_its_pods_go_gracefully_and_the_taint_waits_for_a_new_boot_id() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world.node_returns();
    world.run();
    assert!(world.did("delete pg graceful") && !world.did("delete pg grace 0"), "{:#?}", world.log);
    world.remove_pod("pg");
    world.fencers.clear();
    world.wait(30.0);
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning));
    assert!(world.seen.our_taint().is_some(), "the same boot id proves nothing");
    world.wait(3600.0);
    world.run();
    assert!(world.seen.our_taint().is_some(), "time proves nothing");
    world.node_becomes(|mut node| {
        node.status.node_info.boot_id = String::new();
        node
    });
    world.run();
    assert!(world.seen.our_taint().is_some(), "an empty boot id proves nothing");
    world.node_reboots();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered));
    world.assert_order(&["ask Unfenced", "Unfenced v1", "untaint fenced", "inactive", "phase Recovered"]);
}

#[test]
fn a_pod_that_is_put_back_on_the_rebooted_node_does_not_keep_the_fence_going() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world.node_reboots();
    world.run_controller();
    world.remove_pod("pg");
    // Its owner's next pod names the node; so the attachment stays.
    world.seen.pods.push(but(pod("again", "n1", &[csi("v1")]), |pod| pod.status.conditions.clear()));
    world.fencers.clear();
    world.run();
    assert_eq!(world.volume("v1").state, VolumeStatusState::Clean, "{:#?}", world.log);
    assert!(world.did("phase Recovered") && world.seen.requests.is_empty(), "{:#?}", world.log);
    assert_eq!(world.seen.attachments.len(), 1);
}

#[test]
fn a_request_that_arrives_after_the_recovery_is_taken_back() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    silent(&mut world);
    world.run();
    let late = world.seen.requests[0].clone();
    world.node_returns();
    world.run_controller();
    assert!(world.did("phase Recovered") && world.seen.requests.is_empty());
    // The server takes a creation that its sender has long given up: its name is free again.
    world.seen.requests.push(late);
    world.run();
    assert!(world.seen.requests.is_empty(), "{:#?}", world.log);
    assert_eq!(world.seen.phase(), Some(Phase::Recovered));
}

#[test]
fn a_plan_without_a_boot_id_is_never_cleaned_by_one() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    Arc::make_mut(&mut world.seen.fence).spec.node.boot_id = None;
    world.run();
    world.node_reboots();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning));
    assert!(world.seen.our_taint().is_some());
}

#[test]
fn pods_of_a_volume_that_may_still_be_started_are_not_given_up() {
    let pods = vec![pod("a", "n1", &[csi("v1")]), pod("b", "n1", &[csi("v2")])];
    let mut world = World::new(pods, &json!({}));
    silent(&mut world);
    world.run();
    world.fencers.clear();
    world.fencers_act();
    // Only v1 was begun so far.
    let request = Arc::make_mut(&mut world.seen.requests[0]);
    request.status.as_mut().unwrap().volumes.retain(|row| row.name == "v1");
    world.node_returns();
    world.run_controller();
    // Given up only once the request is turned round: from then on nothing begins with v2.
    world.assert_order(&["ask Unfenced", "b is Undone"]);
    world.run();
    assert!(world.did("delete a graceful") && !world.did("delete b"), "{:#?}", world.log);
}

#[test]
fn a_pod_that_came_to_share_a_cut_off_volume_later_does_not_keep_the_first_one() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1"), csi("v2")])], &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world.seen.pods.push(pod("late", "n1", &[csi("v1")]));
    world.run();
    assert_eq!(world.pod("pg"), (PodStatusState::Waiting, "SharerHeld".into()));
    world.node_returns();
    world.run();
    assert!(world.did("delete pg graceful"), "its volumes may have been cut off: {:#?}", world.log);
}

#[test]
fn one_that_fails_again_while_cleaning_stays_in_cleaning_for_the_next_episode() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    silent(&mut world);
    world.run();
    world.node_returns();
    while world.seen.phase() != Some(Phase::Cleaning) {
        assert!(world.pass(), "{:#?}", world.log);
    }
    world.node_fails();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "the pods of this episode are settled; a new one is due");
}

#[test]
fn a_deleted_node_is_fenced_all_the_same_and_over_when_pods_and_attachments_are_gone() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    silent(&mut world);
    world.run();
    world.seen.node = None;
    world.fencers.clear();
    world.run();
    world.assert_order(&["Fenced v1", "pg is Releasing", "delete pg grace 0", "detach v1", "inactive"]);
    assert_eq!(world.seen.phase(), Some(Phase::Recovered));
    assert_eq!(world.condition("NodeClean"), Some(("True".into(), "NodeDeleted".into())));
}

#[test]
fn a_deleted_node_whose_pods_others_collected_ends_without_any_fencer() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    silent(&mut world);
    world.run();
    world.seen.node = None;
    world.remove_pod("pg");
    world.run();
    assert_ne!(world.seen.phase(), Some(Phase::Recovered), "its attachment is still there");
    world.seen.attachments.clear();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    assert_eq!(world.pod("pg"), (PodStatusState::Released, "ReleasedByOthers".into()));
}

/// What a node that is created again under the name means: (boot id, recovered in the end).
const CREATED_AGAIN: [(&str, &str, bool); 2] =
    [("another machine, or a reboot", "boot-2", true), ("the same boot: the old processes may live", "boot-1", false)];

fn created_again(boot_id: &str) -> crate::api::slim::Node {
    let mut node = node("n1");
    node.metadata.uid = Some("uid-again".into());
    node.status.node_info.boot_id = boot_id.into();
    node
}

#[test]
fn a_node_created_again_is_clean_only_with_a_new_boot_id() {
    for (name, boot_id, clean) in CREATED_AGAIN {
        let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
        world.run();
        world.seen.node = Some(Arc::new(created_again(boot_id)));
        world.run();
        assert_eq!(world.seen.phase() == Some(Phase::Recovered), clean, "{name}");
        assert_eq!(world.seen.our_taint().is_some(), !clean, "{name}: tainted again until it is clean");
    }
}

#[test]
fn so_it_is_when_the_incident_was_over_with_the_deletion() {
    for (name, boot_id, clean) in CREATED_AGAIN {
        let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
        world.run();
        world.seen.node = None;
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{name}");
        world.seen.node = Some(Arc::new(created_again(boot_id)));
        world.run();
        assert_eq!(world.seen.phase() == Some(Phase::Recovered), clean, "{name}");
        assert_eq!(world.seen.our_taint().is_some(), !clean, "{name}: tainted again until it is clean");
        world.node_reboots();
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{name}: rebooted");
        assert!(world.seen.our_taint().is_none(), "{name}: rebooted");
    }
}

#[test]
fn a_doubtful_identity_does_not_keep_what_an_earlier_episode_cut_off_once_the_node_is_back() {
    for (name, comes_back, clean) in
        [("the same boot", World::node_returns as fn(&mut World), false), ("rebooted", World::node_reboots, true)]
    {
        let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
        world.fencers.insert(DRIVER.into(), Fencer::Hangs);
        world.run();
        assert_eq!(world.volume("v1").state, VolumeStatusState::Fencing, "{name}");
        // It came back, its owner's next pod started there, and it fails again: whom that volume is published to is in doubt.
        world.remove_pod("pg");
        let again = pod("again", "n1", &[csi("v1")]);
        let row = world.plan().volumes[0].clone();
        let planned = PlannedPod { episode: 2, ..planned(&again) };
        world.plan().volumes.push(PlannedVolume { episode: 2, node_id: None, ..row });
        world.plan().pods.push(planned);
        Arc::make_mut(&mut world.seen.fence).spec.episode = 2;
        world.seen.pods.push(again);
        world.run();
        assert_eq!(world.condition("Held"), Some(("True".into(), "IdentityAmbiguous".into())), "{name}");
        assert!(!world.did("delete again"), "{name}: {:#?}", world.log);
        comes_back(&mut world);
        world.run_controller();
        assert_eq!(world.condition("Held"), Some(("False".into(), "NotHeld".into())), "{name}");
        assert!(world.did("delete again graceful"), "{name}: {:#?}", world.log);
        world.remove_pod("again");
        world.fencers.clear();
        world.run();
        assert_eq!(world.seen.phase() == Some(Phase::Recovered), clean, "{name}: {:#?}", world.log);
        assert_eq!(world.seen.our_taint().is_none(), clean, "{name}: {:#?}", world.log);
    }
}

#[test]
fn another_nodes_uid_never_gets_the_out_of_service_taint() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    let mut other = unreachable("n1");
    other.metadata.uid = Some("uid-again".into());
    world.seen.node = Some(Arc::new(other));
    world.run();
    world.wait(5.0);
    world.run();
    assert!(world.did("detach v1") && !world.did("taint out-of-service"), "{:#?}", world.log);
}

#[test]
fn a_record_is_kept_for_seven_days_and_deletion_takes_effect_only_after_recovery() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    let deleted = |world: &mut World| {
        let at = crate::api::time::to_k8s(world.now.wall);
        Arc::make_mut(&mut world.seen.fence).metadata.deletion_timestamp = Some(at);
    };
    deleted(&mut world);
    world.run();
    assert!(world.did("delete pg grace 0") && !world.did("unguard"), "deletion neither stops nor forgets an incident");
    Arc::make_mut(&mut world.seen.fence).metadata.deletion_timestamp = None;
    world.node_reboots();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered));
    world.wait(7.0 * 86_400.0 - 60.0);
    assert_eq!(world.decide().effects, []);
    world.wait(120.0);
    assert!(world.pass() && world.did("forget"));
    deleted(&mut world);
    assert!(world.pass() && world.did("unguard"));
}

#[test]
fn a_node_that_flaps_between_releasing_and_gone_is_asked_anew_before_any_forced_delete() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world.node_returns();
    world.run();
    assert!(world.did("delete pg graceful"));
    world.node_fails();
    world.fencers.insert(DRIVER.into(), Fencer::Proves(Proof::Acknowledged));
    world.run();
    assert!(!world.did("delete pg grace 0"), "Acknowledged is not enough: {:#?}", world.log);
    world.fencers.clear();
    world.wait(5.0);
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
}

/// A pod with nodeName, say. Its attachment stays as long as it does: that must not hold the taint for ever.
#[test]
fn a_pod_that_came_meanwhile_keeps_its_attachment_on_a_node_that_has_booted_again() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.attacher = false;
    world.run_until("delete pg");
    world.seen.pods.push(pod("pg-again", "n1", &[csi("v1")]));
    world.run();
    world.node_reboots();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    assert!(!world.did("detach") && !world.did("delete pg-again"), "{:#?}", world.log);
}

#[test]
fn a_taint_that_arrives_when_all_is_over_is_taken_off() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.run();
    world.node_reboots();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    world.node_becomes(|node| with_taint(node, "bulkhead.dev/fenced", "1", "NoSchedule"));
    world.run();
    assert!(world.seen.our_taint().is_none(), "nobody else would take it off: {:#?}", world.log);
}

/// The node was clean, and not given back yet, when a scheduler that had not heard of the taint put it there. Then the node failed
/// again.
#[test]
fn what_a_pod_that_came_too_late_needs_is_cut_off_once_more() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}));
    world.run_until("pg is Released");
    world.node_reboots();
    world.run_until("v1 is Clean");
    let late = pod("late", "n1", &[csi("v1")]);
    let row = planned(&late);
    world.plan().pods.push(row);
    world.seen.pods.push(late);
    world.node_fails();
    world.run();
    assert!(world.did("delete late grace 0"), "{:#?}", world.log);
    assert_eq!((world.pod("late").0, world.volume("v1").refences), (PodStatusState::Released, Some(1)));
    world.node_returns();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "it failed again in that boot: {:#?}", world.log);
    world.node_reboots();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
}
