//! The decision table: what each finding of each source leads to.

use serde_json::{Value, json};

use crate::api::volume::{Check, VolumeState};

use super::world::{DRIVER, World, finding, policy};

/// One row per check and state, as a person would see it.
#[test]
fn every_finding_leads_to_what_is_recorded() {
    let mut rows = Vec::new();
    for check in Check::ALL {
        for state in [VolumeState::Unknown, VolumeState::Degraded, VolumeState::Inaccessible, VolumeState::DataLoss] {
            let mut world = World::csi(&["n1"]);
            world.report("n1", &[finding(&format!("{check:?}"), &format!("{state:?}"), "Why", world.ago(3))]);
            world.settle();
            let taint = world.status().taints.first().cloned();
            let taint = taint.map(|taint| format!("{} {:?} {:?}", taint.key, taint.effect(), taint.source));
            let conditions = ["Usable", "Attached", "Mounted"].map(|type_| world.condition(type_));
            rows.push(format!(
                "{check:?} {state:?} -> {}, {}; {}",
                world.phase(),
                taint.as_deref().unwrap_or("no taint"),
                conditions.join(", ")
            ));
        }
    }
    insta::assert_snapshot!(rows.join("\n"));
}

#[test]
fn a_policy_may_give_a_taint_another_effect() {
    let mut world = World::csi(&["n1"]);
    let effects = json!([
        { "key": "VolumeNotMounted", "effect": "NoAttachOrMount" }, { "key": "VolumeNotUsable", "effect": "NoEffect" },
    ]);
    world.seen.policies = vec![policy("p", json!({ "selector": {}, "effects": effects }))];
    world.report(
        "n1",
        &[
            finding("MountPoint", "Inaccessible", "NotMountPoint", world.ago(3)),
            finding("Device", "Inaccessible", "DeviceMissing", world.ago(3)),
        ],
    );
    world.settle();
    let effect = |key| format!("{:?}", world.taint(key).effect());
    assert_eq!(effect("VolumeNotMounted"), "NoAttachOrMount");
    assert_eq!(effect("VolumeNotUsable"), "NoEffect");
    assert_eq!(world.summary(), "VolumeNotUsable,VolumeNotMounted", "the gravest first");
    assert_eq!(world.condition("Usable"), "False DeviceMissing");
}

/// A group of the sidecar's report.
fn group(world: &World, state: &str, reason: &str) -> Value {
    json!({ "state": state, "reason": reason, "message": "says it", "since": world.ago(5), "volumeHandles": ["h"] })
}

fn with_states(states: Value) -> World {
    let mut world = World::csi(&["n1"]);
    world.seen.policies = vec![policy("p", json!({ "selector": {}, "states": states }))];
    world
}

#[test]
fn a_policy_may_give_a_drivers_reason_another_state() {
    let states = json!([
        { "driver": DRIVER, "reason": "Blip", "state": "Degraded" },
        { "driver": DRIVER, "reason": "DeviceMissing", "state": "Degraded" },
        { "driver": DRIVER, "reason": "PublishedNodeMismatch", "state": "Degraded" },
        { "driver": DRIVER, "reason": "Slow", "state": "Inaccessible" },
        { "driver": "another.test", "reason": "TwoDisksFailed", "state": "Degraded" },
    ]);
    for (state, reason, phase, summary, message) in [
        ("DataLoss", "Blip", "Degraded", "", "DataLoss by the driver's word: says it"),
        ("Degraded", "Blip", "Degraded", "", "says it"),
        ("Degraded", "Slow", "Unhealthy", "VolumeNotUsable", "Degraded by the driver's word: says it"),
        ("DataLoss", "TwoDisksFailed", "Unhealthy", "VolumeNotUsable", "says it"),
        // Not the driver's word, but what we compared.
        ("Inaccessible", "PublishedNodeMismatch", "Unhealthy", "VolumeNotAttached", "says it"),
    ] {
        let mut world = with_states(states.clone());
        world.driver(true, "Complete", &[group(&world, state, reason)]);
        world.settle();
        assert_eq!((world.phase().as_str(), world.summary()), (phase, summary), "{state} {reason}");
        let recorded = world.status().clone();
        assert_eq!(recorded.observations[0].message.as_deref(), Some(message), "{state} {reason}");
        // Silence changes nothing of it, nor does a policy that comes meanwhile.
        world.seen.driver_is_heard = false;
        world.seen.policies = vec![policy("p", json!({ "selector": {} }))];
        world.settle();
        assert_eq!(world.status().observations, recorded.observations, "{state} {reason}");
    }
    // The node plugin is the driver too; the agent itself is not.
    for (check, reason, summary) in [("ControllerHealth", "Blip", ""), ("Device", "DeviceMissing", "VolumeNotUsable")] {
        let mut world = with_states(states.clone());
        world.report("n1", &[finding(check, "Inaccessible", reason, world.ago(3))]);
        world.settle();
        assert_eq!(world.summary(), summary, "{check}");
    }
}

#[test]
fn a_loss_that_is_recorded_stays_whatever_a_policy_says_of_its_reason() {
    let mut world = with_states(json!([]));
    world.driver(true, "Complete", &[group(&world, "DataLoss", "Blip")]);
    world.settle();
    let states = json!([{ "driver": DRIVER, "reason": "Blip", "state": "Degraded" }]);
    world.seen.policies = vec![policy("p", json!({ "selector": {}, "states": states }))];
    world.settle();
    assert_eq!((world.phase().as_str(), world.summary()), ("Unhealthy", "VolumeNotUsable"));
    let token = world.status().data_loss_token.clone();
    world.want(json!({ "acknowledgeDataLoss": token }));
    world.settle();
    assert_eq!((world.phase().as_str(), world.summary()), ("Degraded", ""));
}
