//! A policy that ignores failed nodes, and what it does all the same.

use serde_json::{Value, json};

use crate::api::conditions;
use crate::controllers::testing::*;

use super::World;

/// Status, reason and message of condition Ready of a policy with a pod.
fn ready(spec: &Value) -> (String, String, String) {
    let nodes = (0..3).map(|i| node(&format!("n{i}"))).collect();
    let mut world = World::new(nodes, vec![pod("db", "n0", &[csi("v1")])], vec![policy("db", spec)]);
    world.rest();
    let conditions = world.seen.policies[0].status.clone().unwrap().conditions;
    let ready = conditions::find(&conditions, "Ready").unwrap().clone();
    (ready.status, ready.reason, ready.message)
}

#[test]
fn a_policy_that_ignores_failed_nodes_says_what_it_does_all_the_same() {
    let triggers = |others: Value| {
        let mut triggers = json!({ "nodeFailure": "Ignore" });
        json_patch::merge(&mut triggers, &others);
        json!({ "triggers": triggers })
    };
    let with = |mut spec: Value, other: Value| {
        json_patch::merge(&mut spec, &other);
        spec
    };
    let off = || json!({ "storagePathLoss": "Ignore", "crashLoop": { "action": "Ignore" } });
    let (path, plugin) = ("storagePathLoss: Ignore", "driverPluginDown: Ignore");
    let both = "storagePathLoss: Ignore, crashLoop.action: Ignore";
    let unasked = json!({ "detection": { "storage": { "connectivityCheck": "Disabled" } } });
    let cases = [
        ("the defaults", json!({}), None),
        ("the others by default", triggers(json!({})), Some(both)),
        ("all are off", triggers(off()), None),
        ("no array is asked", with(triggers(json!({})), unasked), Some("crashLoop.action: Ignore")),
        ("crash loops wait for no person", with(triggers(json!({})), json!({ "mode": "RequireApproval" })), Some(path)),
        ("nothing is done", with(triggers(json!({})), json!({ "mode": "DryRun" })), None),
        (
            "a taint",
            with(triggers(off()), json!({ "triggers": { "volumeTaints": ["example.com/bad"] } })),
            Some("volumeTaints: []"),
        ),
        ("a plugin", with(triggers(off()), json!({ "triggers": { "driverPluginDown": "TaintNode" } })), Some(plugin)),
    ];
    for (name, spec, set) in cases {
        let (status, reason, message) = ready(&spec);
        assert_eq!((status.as_str(), reason.as_str()), ("True", "Accepted"), "{name}");
        let told = message.split_once("; nodeFailure is Ignore, and other triggers act on: to turn them off too, set ");
        assert_eq!(told.map(|(_, set)| set), set, "{name}: {message}");
    }
}
