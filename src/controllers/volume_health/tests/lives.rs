//! Nodes that fail and return, and the life of the VolumeHealth itself.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::time;
use crate::controllers::volume_health::decide::Effect;

use super::world::{World, finding, node, parse, policy};

fn ready(world: &mut World, status: &str, seconds_ago: i64) {
    let mut changed = node("n1");
    let since = time::to_k8s(world.ago(seconds_ago));
    changed.status.conditions[0].status = status.into();
    changed.status.conditions[0].last_transition_time = Some(since);
    world.place("n1").node = Some(Arc::new(changed));
}

fn settled_local() -> World {
    let mut world = World::local();
    world.report("n1", &[]);
    world.settle();
    assert_eq!(world.phase(), "Healthy");
    world
}

#[test]
fn a_node_that_is_not_ready_for_long_takes_its_local_volumes_and_brings_them_back() {
    let mut world = settled_local();
    ready(&mut world, "Unknown", 30);
    let decision = world.settle();
    assert_eq!((world.summary(), decision.look_again.unwrap().as_secs()), ("", 90), "the default is 2 minutes");
    world.wait(91);
    assert_eq!(world.settle().look_again, None);
    let taint = world.taint("VolumeNotUsable");
    assert_eq!((format!("{:?}", taint.source).as_str(), taint.reason.as_str()), ("NodeLifecycle", "NodeDown"));
    assert_eq!((taint.nodes.as_slice(), world.phase().as_str()), (["n1".to_owned()].as_slice(), "Unhealthy"));
    // In another way not ready: it was never good in between.
    ready(&mut world, "False", 0);
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable");
    ready(&mut world, "True", 0);
    world.settle();
    assert_eq!((world.summary(), world.phase().as_str()), ("", "Healthy"));
}

#[test]
fn the_ruling_policy_says_how_long() {
    let mut world = settled_local();
    let spec = json!({ "selector": {}, "priority": 1, "thresholds": { "unreachableAfter": "20s" } });
    world.seen.policies.push(policy("short", spec));
    ready(&mut world, "Unknown", 21);
    world.settle();
    assert_eq!((world.summary(), world.status().policy.as_deref()), ("VolumeNotUsable", Some("short")));
}

#[test]
fn a_node_that_is_deleted_takes_them_at_once() {
    let mut world = settled_local();
    let place = world.place("n1");
    (place.node, place.report, place.agent_ready) = (None, None, false);
    world.settle();
    assert_eq!(world.taint("VolumeNotUsable").reason, "NodeDown");
    let writes = world.writes;
    world.wait(999);
    world.settle();
    assert_eq!(world.writes, writes, "at rest nothing is written");
    // Registered again, but not Ready yet.
    ready(&mut world, "False", 0);
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable");
    ready(&mut world, "True", 0);
    world.settle();
    assert_eq!(world.summary(), "");
}

#[test]
fn volumes_that_can_move_are_not_lost_with_a_node() {
    let mut world = World::csi(&["n1"]);
    world.settle();
    ready(&mut world, "Unknown", 9999);
    world.settle();
    assert_eq!(world.summary(), "");
    world.place("n1").node = None;
    world.settle();
    assert_eq!(world.summary(), "");
}

#[test]
fn many_nodes_at_once_taint_later_and_what_is_tainted_stays() {
    let mut world = settled_local();
    ready(&mut world, "Unknown", 130);
    world.seen.storm = Some(world.ago(100));
    let decision = world.settle();
    assert_eq!((world.summary(), decision.look_again.unwrap().as_secs()), ("", 320), "5 minutes, then the threshold");
    world.seen.storm = None;
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable");
    world.seen.storm = Some(world.ago(1));
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable", "only new ones are held");
}

#[test]
fn a_taint_of_the_agent_stays_beside_that_of_the_node() {
    let mut world = World::local();
    world.report("n1", &[finding("Device", "Inaccessible", "DeviceMissing", world.ago(3))]);
    world.settle();
    let place = world.place("n1");
    (place.node, place.report) = (None, None);
    world.settle();
    assert_eq!(world.status().observations.len(), 2);
    assert_eq!(world.taint("VolumeNotUsable").reason, "DeviceMissing");
    ready(&mut world, "True", 0);
    world.settle();
    assert_eq!(world.summary(), "VolumeNotUsable", "its agent has not spoken yet");
    world.report("n1", &[]);
    world.settle();
    assert_eq!(world.summary(), "");
}

#[test]
fn one_is_made_for_each_volume_that_a_policy_selects() {
    let mut world = World::local();
    let decision = world.decide();
    let [Effect::Create(health)] = decision.effects.as_slice() else { panic!("{decision:?}") };
    let owner = &health.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("PersistentVolume", "uid-v"));
    world.settle();
    assert_eq!(world.condition("Ready"), "True Monitored");
    let selector = json!({ "selector": { "storageClasses": ["none"] } });
    world.seen.policies = vec![policy("other", selector)];
    assert_eq!(world.decide().reason, "NoLongerSelected");
    world.settle();
    assert!(world.seen.health.is_none());
    assert_eq!(world.decide().reason, "NotSelected");
}

fn by_a_person(owners: Value) -> Arc<crate::api::volume_health::VolumeHealth> {
    Arc::new(parse(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "VolumeHealth",
        "metadata": { "name": "v", "uid": "uid-vh", "resourceVersion": "1", "generation": 1, "ownerReferences": owners },
        "spec": { "manualTaints": [{ "key": "VolumeNotUsable", "reason": "mine" }] },
    })))
}

#[test]
fn one_that_a_person_made_is_completed_and_never_deleted_unasked() {
    let mut world = World::local();
    world.seen.health = Some(by_a_person(json!([])));
    assert_eq!(world.decide().reason, "NotOwned");
    world.settle();
    assert_eq!((world.summary(), world.condition("Ready").as_str()), ("VolumeNotUsable", "True Monitored"));

    let mut waiting = World::local();
    waiting.seen.health = Some(by_a_person(json!([])));
    waiting.seen.volume = None;
    waiting.settle();
    assert_eq!(waiting.condition("Ready"), "False PersistentVolumeGone");

    let mut unselected = World::local();
    unselected.seen.health = Some(by_a_person(json!([])));
    unselected.seen.policies.clear();
    assert_eq!(unselected.decide().reason, "NotSelected");
    unselected.settle();
    assert_eq!(unselected.condition("Ready"), "False NotSelected");
}

/// A slip in the selector of a policy loses nothing that a person wrote, or has still to see.
#[test]
fn what_a_person_has_a_share_in_stays_when_no_policy_selects_the_volume() {
    type Case = (&'static str, Option<(&'static str, bool)>, fn(&mut World));
    let cases: [Case; 4] = [
        ("nothing", None, |_| {}),
        ("a manual taint", Some(("example.com/mine", false)), |world| {
            world.want(json!({ "manualTaints": [{ "key": "example.com/mine", "reason": "mine" }] }));
        }),
        ("a suppression", Some(("", false)), |world| {
            let until = world.now.wall + chrono::TimeDelta::hours(1);
            world
                .want(json!({ "suppressTaints": [{ "key": "VolumeNotAttached", "until": until, "reason": "known" }] }));
        }),
        ("a loss", Some(("", true)), |world| {
            let lost = finding("BadBlocks", "DataLoss", "DataLoss", world.ago(3));
            world.report("n1", &[lost]);
        }),
    ];
    for (case, left, change) in cases {
        let mut world = settled_local();
        world.seen.policies = vec![policy("p", json!({ "selector": {}, "enforcement": "Enforce" }))];
        world.report("n1", &[finding("Device", "Inaccessible", "DeviceMissing", world.ago(3))]);
        change(&mut world);
        world.settle();
        assert!(world.summary().starts_with("VolumeNotUsable"), "{case}");
        let before = world.status().clone();
        let policies = std::mem::take(&mut world.seen.policies);
        world.settle();
        let Some((summary, lost)) = left else {
            assert!(world.seen.health.is_none(), "{case}");
            continue;
        };
        assert_eq!((world.summary(), world.condition("Ready").as_str()), (summary, "False NotSelected"), "{case}");
        let status = world.status();
        assert_eq!(
            (status.phase, status.enforcement, &status.suppressions),
            (None, None, &before.suppressions),
            "{case}"
        );
        assert_eq!((status.data_loss_token.is_some(), status.observations.len()), (lost, usize::from(lost)), "{case}");
        let labels = world.seen.volume.as_ref().unwrap().metadata.labels.clone().unwrap_or_default();
        let level = labels.get(crate::api::names::TAINTED_LABEL).map(String::as_str);
        assert_eq!(level, (!summary.is_empty()).then_some("Observe"), "{case}: nothing is enforced");
        world.seen.policies = policies;
        world.settle();
        assert_eq!(world.status().data_loss_token, before.data_loss_token, "{case}");
        assert_eq!(world.condition("Ready"), "True Monitored", "{case}");
    }
}

#[test]
fn another_volume_of_the_same_name_begins_anew() {
    let mut world = World::local();
    world.report("n1", &[finding("Device", "DataLoss", "DataLoss", world.ago(3))]);
    world.settle();
    Arc::make_mut(world.seen.volume.as_mut().unwrap()).metadata.uid = Some("uid-next".into());
    assert_eq!(world.decide().reason, "AnotherVolume");
    world.report("n1", &[]);
    world.settle();
    assert_eq!((world.phase().as_str(), world.status().volume.as_ref().unwrap().uid.as_str()), ("Healthy", "uid-next"));
}

#[test]
fn one_that_goes_is_left_alone() {
    let mut world = settled_local();
    world.report("n1", &[finding("Device", "Inaccessible", "DeviceMissing", world.ago(3))]);
    let now = time::to_k8s(world.now.wall);
    world.health().metadata.deletion_timestamp = Some(now);
    assert_eq!((world.decide().reason, world.decide().effects.len()), ("BeingDeleted", 0));
    world.seen.volume = None;
    assert_eq!(world.decide().effects.len(), 0);
}

#[test]
fn enforcement_tells_what_it_rests_on() {
    let mut world = settled_local();
    assert_eq!(world.condition("Enforced"), "False ObserveOnly");
    world.seen.policies = vec![policy("p", json!({ "selector": {}, "enforcement": "Enforce" }))];
    world.settle();
    assert_eq!(world.condition("Enforced"), "True NothingToEnforce");
    world.report("n1", &[finding("Device", "Inaccessible", "DeviceMissing", world.ago(3))]);
    world.settle();
    assert_eq!(world.condition("Enforced"), "True PodsBlocked");
    world.seen.can_enforce = false;
    world.settle();
    assert_eq!(world.condition("Enforced"), "False AdmissionPolicyMissing");
}
