//! The decision table: what each finding of each source leads to.

use serde_json::json;

use crate::api::volume::{Check, VolumeState};

use super::world::{World, finding};

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
    world.seen.policies = vec![super::world::policy("p", json!({ "selector": {}, "effects": effects }))];
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
