//! Pods that move off a node that is well, since a volume of theirs is in trouble there.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use crate::api::node_fence::{Channel, Phase, PodStatusState, VOLUME_TAINT, VolumeStatusState};
use crate::api::resiliency_policy::{ResiliencyPolicyStatus, Restraint, RestraintType};
use crate::api::time;
use crate::controllers::testing::*;

use super::cleaning::{clean, says};
use super::world::{Fencer, World, stamp};

const KEY: &str = "VolumeNotUsable";

/// A node that is well, with a pod whose volume is tainted there, and one that has nothing to do with it.
fn troubled() -> World {
    let mut world =
        World::new(vec![pod("pg", "n1", &[csi("v1"), csi("v2")])], &json!({ "triggers": { "volumeTaints": [KEY] } }));
    world.plan().evidence.iter_mut().for_each(|it| it.channel = Channel::Volume);
    world.plan().pods.iter_mut().for_each(|row| row.reason = VOLUME_TAINT.into());
    world.seen.pods.push(pod("web", "n1", &[csi("v9")]));
    world.seen.attachments.push(Arc::new(attachment("v9", "n1")));
    world.seen.healths = Some(BTreeMap::from([("v1".into(), Arc::new(tainted("v1", KEY, &["n1"])))]));
    world.node_returns();
    world
}

fn heal(world: &mut World) {
    world.seen.healths = Some(BTreeMap::new());
}

fn assert_untouched(world: &World) {
    assert!(world.seen.pods.iter().any(|pod| pod.name() == "web" && !pod.pod.is_terminating()));
    assert!(world.seen.attachments.iter().any(|it| it.volume() == "v9" && it.metadata.deletion_timestamp.is_none()));
    assert!(!world.did("taint out-of-service"), "{:#?}", world.log);
    assert!(!world.did("delete web"), "{:#?}", world.log);
}

/// The kubelet ends what it was asked to end.
fn kubelet_ends(world: &mut World, name: &str) {
    world.remove_pod(name);
    world.run();
}

#[test]
fn fenced_first_and_then_asked_to_end_and_the_node_is_given_back_when_it_is_clean() {
    let mut world = troubled();
    world.run();
    world.assert_order(&["active", "taint fenced", "v1 is Fenced", "pg is Releasing", "delete pg graceful"]);
    assert!(!world.did("detach"), "while its pod ends the volume stays attached: {:#?}", world.log);
    kubelet_ends(&mut world, "pg");
    world.assert_order(&["delete pg graceful", "detach v1", "phase Cleaning"]);
    assert_eq!(world.pod("pg"), (PodStatusState::Released, VOLUME_TAINT.into()));
    let agent = clean(&world);
    says(&mut world, agent);
    world.run();
    world.assert_order(&["v1 is Clean", "ask Unfenced", "untaint fenced", "inactive", "phase Recovered"]);
    assert_untouched(&world);
}

#[test]
fn a_node_with_an_open_incident_of_volumes_is_not_taken_for_one_that_has_come_back() {
    let mut world = troubled();
    world.fencers.insert(DRIVER.into(), Fencer::Silent);
    world.run();
    assert!(!world.did("ask Unfenced") && world.seen.our_taint().is_some(), "{:#?}", world.log);
    // Nor by a controller that has just started and knows nothing of the volumes yet.
    world.seen.healths = None;
    world.restart();
    world.run();
    assert!(!world.did("ask Unfenced") && world.seen.our_taint().is_some(), "{:#?}", world.log);
}

#[test]
fn a_taint_that_goes_before_started_leaves_nothing() {
    let everywhere = |world: &mut World| {
        world.seen.healths = Some(BTreeMap::from([("v1".into(), Arc::new(tainted("v1", KEY, &[])))]));
    };
    let outage = |world: &mut World| {
        let since = time::stamp(world.now.wall);
        let restraint = Restraint { type_: RestraintType::ArrayOutage, name: None, since, until: None };
        let status = ResiliencyPolicyStatus { restraints: vec![restraint], ..ResiliencyPolicyStatus::default() };
        Arc::make_mut(&mut world.seen.policies[0]).status = Some(status);
    };
    for (name, change) in [("healed", heal as fn(&mut World)), ("everywhere", everywhere), ("outage", outage)] {
        let mut world = troubled();
        world.fencers.insert(DRIVER.into(), Fencer::Silent);
        world.run();
        change(&mut world);
        world.run_controller();
        world.assert_order(&["ask Fenced v1 round 1, v2 round 1", "ask Unfenced", "untaint fenced", "phase Recovered"]);
        assert_eq!(world.pod("pg"), (PodStatusState::Undone, "TaintGone".into()), "{name}");
        assert!(!world.did("delete"), "{name}: {:#?}", world.log);
        assert_untouched(&world);
    }
}

#[test]
fn after_started_the_pod_goes_in_any_case() {
    let mut world = troubled();
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    heal(&mut world);
    world.run();
    world.assert_order(&["Started v1", "pg is Releasing", "delete pg graceful"]);
    assert_untouched(&world);
}

#[test]
fn a_pod_that_does_not_end_is_ended_with_a_new_proof() {
    let mut world = troubled();
    world.run();
    let asked = world.log.iter().filter(|entry| entry.starts_with("ask Fenced")).count();
    world.wait(29.0);
    world.run();
    assert_eq!(world.log.iter().filter(|entry| entry.starts_with("ask Fenced")).count(), asked, "nobody waits for it");
    assert!(!world.did("delete pg grace 0"), "{:#?}", world.log);
    world.wait(2.0);
    world.run();
    world.assert_order(&["delete pg graceful", "ask Fenced v1 round 2, v2 round 2", "delete pg grace 0", "detach v1"]);
    assert_untouched(&world);
}

/// Its kubelet ends the pods, in whichever boot. What it cannot end goes by force, and may be left in that one.
#[test]
fn a_reboot_meanwhile_cleans_it_unless_a_pod_went_by_force_since() {
    for (ends, phase) in [(true, Phase::Recovered), (false, Phase::Cleaning)] {
        let mut world = troubled();
        world.run();
        world.node_reboots();
        world.run();
        if ends {
            kubelet_ends(&mut world, "pg");
        } else {
            world.wait(31.0);
            world.run();
        }
        assert_eq!(world.did("delete pg grace 0"), !ends, "{:#?}", world.log);
        assert_eq!(world.seen.phase(), Some(phase), "{:#?}", world.log);
        let failed = world.seen.fence.status.iter().flat_map(|status| &status.failed_boot_ids);
        assert_eq!(failed.count(), usize::from(!ends), "{:#?}", world.log);
    }
}

/// Its kubelet had started it anew, and ended it without its volume: what it wrote last may be left there.
#[test]
fn a_pod_that_was_cut_off_after_a_reboot_is_not_cleaned_by_that_reboot() {
    for asked_by_somebody_else in [false, true] {
        let mut world = troubled();
        world.fencers.insert(DRIVER.into(), Fencer::Silent);
        world.run();
        world.node_reboots();
        world.run();
        if asked_by_somebody_else {
            let by = stamp(later(world.now, 30.0));
            world.change_pod("pg", |pod| {
                pod.metadata.deletion_timestamp = Some(by);
                pod.metadata.deletion_grace_period_seconds = Some(30);
            });
        }
        world.fencers.clear();
        world.run();
        assert_eq!(world.did("delete pg graceful"), !asked_by_somebody_else, "{:#?}", world.log);
        kubelet_ends(&mut world, "pg");
        assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "{:#?}", world.log);
        assert!(world.seen.our_taint().is_some() && !world.did("delete pg grace 0"), "{:#?}", world.log);
        world.node_reboots();
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
    }
}

#[test]
fn a_kubelet_that_falls_silent_meanwhile_makes_it_a_failed_node() {
    let mut world = troubled();
    world.run();
    world.seen.lease_is_still = true;
    world.node_fails();
    world.wait(11.0);
    world.run();
    world.assert_order(&["delete pg graceful", "delete pg grace 0", "detach v1"]);
    assert_untouched(&world);
    assert_eq!(world.volume("v1").state, VolumeStatusState::Detached);
    world.node_returns();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "{:#?}", world.log);
}

#[test]
fn a_pod_that_shares_a_volume_with_one_that_stays_waits() {
    let mut world = troubled();
    world.seen.pods.push(pod("other", "n1", &[csi("v2")]));
    world.run();
    assert_eq!(world.pod("pg"), (PodStatusState::Waiting, "SharerHeld".into()));
    assert!(!world.did("Started") && !world.did("delete"), "{:#?}", world.log);
}

#[test]
fn a_machine_that_slept_does_not_rest_on_the_proof_of_before() {
    for (sleeps, goes) in [(0, true), (15, false)] {
        let mut world = troubled();
        world.run();
        world.wait(31.0);
        while !world.log.iter().any(|entry| entry.starts_with("ask Fenced v1 round 2")) {
            assert!(world.pass(), "{:#?}", world.log);
        }
        // The answer is there and nothing was done on it yet; then the machine sleeps, and its clock with it.
        world.fencers_act();
        world.fencers_act();
        world.now.wall += chrono::TimeDelta::seconds(sleeps);
        world.run_controller();
        assert_eq!(world.did("delete pg grace 0"), goes, "{sleeps}: {:#?}", world.log);
    }
}
