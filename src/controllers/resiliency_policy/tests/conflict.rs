//! What is said where two policies of one pod differ: in each field whose value another policy overrules.

use std::collections::BTreeSet;

use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::api::conditions;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::controllers::testing::*;

use super::super::conflict::FIELDS;
use super::World;

/// Fields that no other policy overrules, or of which another field tells, and why.
const UNTOLD: [(&str, &str); 5] = [
    ("selector", "it says whose the policy is"),
    ("detection.kubelet.suspectAfter", "of all policies the shortest counts, whichever pods they select"),
    ("detection.storage.period", "of all policies the shortest counts; the thresholds tell of the time that they take"),
    ("fencing.drivers", "told as fencing.minimumProof and fencing.methods"),
    ("fencing.acknowledgeRisk", "it goes with minimumProof, and does nothing"),
];

/// A world of two policies of one pod.
fn world(policies: [(&str, &Value); 2]) -> World {
    let policies = policies.map(|(name, spec)| policy(name, spec)).into();
    World::new(vec![node("n0"), node("n1")], vec![pod("p0", "n0", &[csi("v0")])], policies)
}

fn conflict(world: &World, name: &str) -> Option<String> {
    let policy = world.seen.policies.iter().find(|policy| policy.metadata.name.as_deref() == Some(name)).unwrap();
    let status = policy.status.as_ref().unwrap();
    let found = conditions::find(&status.conditions, "Conflict")?;
    assert_eq!((found.status.as_str(), found.reason.as_str()), ("True", "StricterPolicyApplies"));
    Some(found.message.clone())
}

fn says(other: &str, fields: &str) -> Option<String> {
    Some(format!("stricter for pods of this policy: policy {other} in {fields}"))
}

/// For each field: what one policy has, and the stricter thing that the other has.
fn cases() -> Vec<(&'static str, Value, Value)> {
    let default = || json!({});
    let triggers = |it: Value| json!({ "triggers": it });
    let crash_loop = |it: Value| json!({ "triggers": { "crashLoop": it } });
    let detection = |it: Value| json!({ "detection": it });
    let storage = |it: Value| json!({ "detection": { "storage": it } });
    let fencing = |it: Value| json!({ "fencing": it });
    let release = |it: Value| json!({ "release": it });
    let limits = |it: Value| json!({ "limits": it });
    let zones = |max: Value| limits(json!({ "topology": [{ "topologyKey": "zone", "maxNodes": max }] }));
    let window = |name: &str, schedule: &str| {
        json!({ "maintenanceWindows": [
            { "name": name, "schedule": schedule, "duration": "1h", "timeZone": "UTC" },
        ] })
    };
    vec![
        ("mode", default(), json!({ "mode": "DryRun" })),
        ("mode", json!({ "mode": "RequireApproval" }), json!({ "mode": "DryRun" })),
        ("triggers.nodeFailure", default(), triggers(json!({ "nodeFailure": "Ignore" }))),
        ("triggers.storagePathLoss", default(), triggers(json!({ "storagePathLoss": "Ignore" }))),
        ("triggers.driverPluginDown", triggers(json!({ "driverPluginDown": "TaintNode" })), default()),
        ("triggers.crashLoop.action", default(), crash_loop(json!({ "action": "Ignore" }))),
        ("triggers.crashLoop.when", default(), crash_loop(json!({ "when": "AfterIncident" }))),
        ("triggers.crashLoop.maxDeletes", default(), crash_loop(json!({ "maxDeletes": 1 }))),
        ("triggers.crashLoop.window", default(), crash_loop(json!({ "window": "2h" }))),
        ("triggers.volumeTaints", triggers(json!({ "volumeTaints": ["example.com/bad"] })), default()),
        ("detection.requiredChannels", default(), detection(json!({ "requiredChannels": 3 }))),
        ("detection.decisiveChannels", default(), detection(json!({ "decisiveChannels": [] }))),
        ("detection.taints", default(), detection(json!({ "taints": [] }))),
        ("detection.kubelet.decisiveAfter", default(), detection(json!({ "kubelet": { "decisiveAfter": "90s" } }))),
        ("detection.agent.suspectAfter", default(), detection(json!({ "agent": { "suspectAfter": "10s" } }))),
        ("detection.storage.connectivityCheck", default(), storage(json!({ "connectivityCheck": "Disabled" }))),
        // A longer period makes both take longer; the period itself is that of whoever wants it shortest.
        (
            "detection.storage.lossThreshold, detection.storage.recoveryThreshold",
            default(),
            storage(json!({ "period": "30s" })),
        ),
        ("detection.storage.lossThreshold", default(), storage(json!({ "lossThreshold": 4 }))),
        ("detection.storage.recoveryThreshold", default(), storage(json!({ "recoveryThreshold": 4 }))),
        ("detection.storage.ioInProgressCheck", storage(json!({ "ioInProgressCheck": "Disabled" })), default()),
        ("detection.storage.whenIOInProgress", default(), storage(json!({ "whenIOInProgress": "Veto" }))),
        ("fencing.minimumProof", fencing(json!({ "minimumProof": "Acknowledged" })), default()),
        ("fencing.methods", default(), fencing(json!({ "methods": [unpublish()] }))),
        ("fencing.callTimeout", default(), fencing(json!({ "callTimeout": "10s" }))),
        ("fencing.giveUpAfter", default(), fencing(json!({ "giveUpAfter": "1m" }))),
        ("sharers", json!({ "sharers": "CleanAll" }), default()),
        ("release.barePods", release(json!({ "barePods": "Delete" })), default()),
        ("release.podsWithoutVolumes", release(json!({ "podsWithoutVolumes": "Release" })), default()),
        ("release.affinityGroups", default(), release(json!({ "affinityGroups": "Together" }))),
        ("release.detach", default(), release(json!({ "detach": "VolumeAttachments" }))),
        ("selfFencing", default(), json!({ "selfFencing": { "mode": "Enabled" } })),
        ("recovery.warnAfter", default(), json!({ "recovery": { "warnAfter": "5m" } })),
        ("limits.maxNodes", default(), limits(json!({ "maxNodes": "5%" }))),
        ("limits.maxNodes", limits(json!({ "maxNodes": 3 })), limits(json!({ "maxNodes": 2 }))),
        ("limits.ceiling", default(), limits(json!({ "ceiling": 9 }))),
        ("limits.window", default(), limits(json!({ "window": "1h" }))),
        ("limits.topology", default(), zones(json!(1))),
        ("limits.topology", zones(json!("20%")), zones(json!("10%"))),
        ("limits.maxUnhealthy", default(), limits(json!({ "maxUnhealthy": "20%" }))),
        ("limits.cooldown", default(), limits(json!({ "cooldown": "1h" }))),
        ("maintenanceWindows", default(), window("sunday", "0 2 * * SUN")),
    ]
}

#[test]
fn the_policy_that_asks_for_less_is_told_by_whom_and_in_what() {
    for (fields, lax, strict) in cases() {
        let mut world = world([("lax", &lax), ("strict", &strict)]);
        world.rest();
        assert_eq!(conflict(&world, "lax"), says("strict", fields));
        assert_eq!(conflict(&world, "strict"), None, "{fields}");
        // They have no pod in common any more.
        world.seen.pods.clear();
        world.rest();
        assert_eq!(conflict(&world, "lax"), None, "{fields}");
    }
}

#[test]
fn every_field_that_is_told_has_its_case() {
    let told: BTreeSet<_> = FIELDS.iter().map(|(field, _)| *field).collect();
    let shown: BTreeSet<_> = cases().iter().flat_map(|(fields, ..)| fields.split(", ")).collect();
    assert_eq!(told, shown);
}

#[test]
fn of_two_policies_each_may_be_the_stricter_in_something() {
    let acknowledged = json!({ "minimumProof": "Acknowledged" });
    let a = json!({ "release": { "detach": "VolumeAttachments" }, "fencing": acknowledged });
    let mut world = world([("a", &a), ("b", &json!({}))]);
    world.rest();
    assert_eq!(conflict(&world, "a"), says("b", "fencing.minimumProof"));
    assert_eq!(conflict(&world, "b"), says("a", "release.detach"));
}

#[test]
fn of_a_number_and_a_share_each_is_told_of_the_other() {
    let mut world = world([("a", &json!({ "limits": { "maxNodes": 2 } })), ("b", &json!({}))]);
    world.rest();
    assert_eq!(conflict(&world, "a"), says("b", "limits.maxNodes"));
    assert_eq!(conflict(&world, "b"), says("a", "limits.maxNodes"));
}

#[test]
fn policies_that_ask_for_the_same_are_in_no_conflict() {
    let window = |name: &str, duration: &str| {
        json!({ "maintenanceWindows": [
            { "name": name, "schedule": "0 2 * * SUN", "duration": duration, "timeZone": "UTC" },
        ] })
    };
    // As many answers over as long a time, and nobody's where one asks nothing.
    let period = |period: &str, answers: i32| {
        let storage = json!({ "period": period, "lossThreshold": answers, "recoveryThreshold": answers });
        json!({ "detection": { "storage": storage } })
    };
    for (a, b) in [
        (json!({}), json!({})),
        (window("sunday", "1h"), window("the-same", "60m")),
        (period("15s", 4), period("30s", 2)),
        (json!({ "detection": { "kubelet": { "suspectAfter": "40s" } } }), json!({})),
    ] {
        let mut world = world([("a", &a), ("b", &b)]);
        world.rest();
        assert_eq!((conflict(&world, "a"), conflict(&world, "b")), (None, None), "{a} {b}");
    }
}

#[test]
fn every_field_of_a_policy_is_told_or_has_its_reason_not_to_be() {
    let definition = serde_json::to_value(ResiliencyPolicy::crd()).unwrap();
    let schema = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
    let mut accounted: BTreeSet<_> = FIELDS.iter().map(|(field, _)| *field).collect();
    accounted.extend(UNTOLD.iter().map(|(field, _)| *field));
    let (mut found, mut missing) = (BTreeSet::new(), Vec::new());
    let mut open = vec![(String::new(), schema)];
    while let Some((path, schema)) = open.pop() {
        if let Some(field) = accounted.get(path.as_str()) {
            found.insert(*field);
        } else if let Some(fields) = schema["properties"].as_object() {
            let within = |name: &String| if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            open.extend(fields.iter().map(|(name, schema)| (within(name), schema)));
        } else {
            missing.push(path);
        }
    }
    assert_eq!(missing, [""; 0], "name it in FIELDS, or in UNTOLD with the reason");
    assert_eq!(found, accounted, "no field of that name");
}
