//! Whose pods are looked at: of all nodes where there is something to say, and what is decided is what would be decided on all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::api::node_fence::NodeFence;
use crate::api::resiliency_policy::ResiliencyPolicyStatus;
use crate::api::slim::Node;
use crate::api::time::Now;
use crate::controllers::testing::*;

use super::super::conflict;
use super::super::decide::{Decision, decide};
use super::super::heartbeat::Heartbeat;
use super::super::memory::{Found, Memory};
use super::super::scope::{Scope, Tally};
use super::World;

const EPOCH: (u64, u64) = (1, 1);

/// Six nodes with a protected pod each, and a policy that was counted.
fn found(spec: &serde_json::Value) -> Found {
    let mut policy = policy("db", spec);
    policy.status = Some(ResiliencyPolicyStatus { observed_generation: Some(1), ..Default::default() });
    Found {
        policies: vec![Arc::new(policy)],
        nodes: (0..6).map(|i| Arc::new(node(&format!("n{i}")))).collect(),
        pods: (0..6).map(|i| pod(&format!("p{i}"), &format!("n{i}"), &[csi(&format!("v{i}"))])).collect(),
        reports: vec![Arc::new(able(DRIVER))],
        changes: Some(1),
        ..Found::default()
    }
}

fn step(memory: &mut Memory, found: &Found, now: Now) -> (Scope, Decision) {
    let mut found = found.clone();
    found.scope = memory.scope(&found, EPOCH, now);
    found.narrow();
    let scope = found.scope.clone();
    let seen = memory.look(found, EPOCH, now);
    let decision = decide(&seen, now);
    memory.note(&decision, now);
    (scope, decision)
}

fn scope(memory: &Memory, found: &Found, now: Now) -> Scope {
    step(&mut memory.clone(), found, now).0
}

fn names(names: &[&str]) -> Scope {
    Scope::Nodes(names.iter().map(|name| (*name).to_owned()).collect())
}

/// After the first pass.
fn counted(found: &Found) -> Memory {
    let mut memory = Memory::default();
    assert_eq!(step(&mut memory, found, now()).0, Scope::All);
    memory
}

fn become_node(found: &mut Found, changed: Node) {
    let place = found.nodes.iter_mut().find(|node| node.metadata.name == changed.metadata.name).unwrap();
    *place = Arc::new(changed);
}

#[test]
fn while_nothing_changes_no_pod_is_looked_at_again() {
    let mut found = found(&json!({}));
    let mut memory = counted(&found);
    for seconds in [5.0, 30.0, 61.0, 600.0] {
        let (scope, decision) = step(&mut memory, &found, later(now(), seconds));
        assert_eq!((scope, decision.counts["db"].protected), (names(&[]), 6), "after {seconds} s");
        assert_eq!(decision.counts["db"].drivers, [(DRIVER.to_owned(), 6)].into());
    }
    found.changes = Some(2);
    found.pods.pop();
    let (scope, decision) = step(&mut memory, &found, later(now(), 601.0));
    assert_eq!((scope, decision.counts["db"].protected), (Scope::All, 5));
    found.changes = Some(3);
    assert_eq!(step(&mut memory, &found, later(now(), 630.0)).0, names(&[]), "not so soon again");
}

#[test]
fn a_policy_that_is_new_or_asks_for_the_whole_cluster_gets_it() {
    let whole = |spec: &serde_json::Value, change: fn(&mut Found)| {
        let mut found = found(spec);
        let memory = counted(&found);
        change(&mut found);
        scope(&memory, &found, later(now(), 1.0)) == Scope::All
    };
    assert!(!whole(&json!({}), |_| ()));
    assert!(whole(&json!({}), |found| Arc::make_mut(&mut found.policies[0]).metadata.generation = Some(2)));
    assert!(whole(&json!({}), |found| found.policies.push(Arc::new(policy("other", &json!({}))))));
    assert!(whole(&json!({ "triggers": { "driverPluginDown": "TaintNode" } }), |_| ()));
    let taints = json!({ "triggers": { "volumeTaints": ["VolumeNotUsable"] } });
    assert!(!whole(&taints, |_| ()));
    assert!(whole(&taints, |found| found.healths.push(Arc::new(tainted("v1", "VolumeNotUsable", &[])))));
}

/// What is seen, and how it comes about.
type Sign<'a> = (&'a str, fn(&mut Found));

#[test]
fn every_sign_puts_a_node_in_scope() {
    let signs: [Sign; 7] = [
        ("unreachable", |found| become_node(found, unreachable("n1"))),
        ("not ready", |found| become_node(found, with_ready(node("n1"), "False"))),
        ("any taint", |found| become_node(found, with_taint(node("n1"), "a", "", "NoSchedule"))),
        ("a NodeFence", |found| {
            let mut world = World::with_failed(6, 1, &json!({}));
            world.rest();
            let mut fence = NodeFence::clone(&world.seen.fences[0]);
            fence.metadata.name = Some("n1".into());
            found.fences.push(Arc::new(fence));
        }),
        ("a lost path", |found| {
            let report = Arc::make_mut(&mut found.reports[0]).status.as_mut().unwrap();
            let pair = json!([{ "node": "n1", "backend": "b", "state": "Disconnected", "since": at(0) }]);
            report.unreachable = serde_json::from_value(pair).unwrap();
        }),
        ("a lost heartbeat", |found| {
            let silent_for = Some(Duration::from_secs(60));
            found.heartbeats.insert("n1".into(), Heartbeat { silent_for, ..Heartbeat::default() });
        }),
        ("a node that is being deleted", |found| {
            let mut node = node("n1");
            node.metadata.deletion_timestamp = Some(crate::api::time::to_k8s(at(1)));
            become_node(found, node);
        }),
    ];
    for (sign, give) in signs {
        let mut found = found(&json!({}));
        let memory = counted(&found);
        give(&mut found);
        assert_eq!(scope(&memory, &found, later(now(), 1.0)), names(&["n1"]), "{sign}");
    }
}

/// The pods of a large cluster are not there together: what is counted of them is the same.
#[test]
fn pods_that_are_counted_one_by_one_come_to_what_a_look_at_all_comes_to() {
    let mut found = found(&json!({ "release": { "barePods": "Delete" } }));
    let now = now();
    found.policies.push(Arc::new(policy("strict", &json!({ "release": { "barePods": "Keep" } }))));
    found.pods.push(pod("local", "n0", &[unknown("share")]));
    found.pods.push(but(pod("pending", "n0", &[csi("v9")]), |pod| pod.spec.node_name = None));
    found.pods.push(but(pod("done", "n1", &[csi("v8")]), |pod| pod.status.phase = Some("Succeeded".into())));
    let (pods, mut memory) = (found.pods.clone(), Memory::default());
    assert_eq!(memory.scope(&found, EPOCH, now), Scope::All);
    let whole = memory.clone().look(found.clone(), EPOCH, now);
    let decided = decide(&whole, now);
    found.scope = memory.nodes(&found, now);
    assert_eq!(found.scope, names(&[]));
    found.narrow();
    let mut seen = memory.look(found, EPOCH, now);
    let mut tally = Tally::new(&seen);
    pods.iter().for_each(|pod| tally.take(pod));
    let (counts, conflicts) = tally.finish();
    assert_eq!((&counts, &conflicts), (&decided.counts, &conflict::of(&whole)));
    assert_eq!((counts["db"].protected, conflicts.len()), (7, 1), "there is something to compare");
    seen.counts = counts;
    seen.conflicts = Some(conflicts);
    let narrow = decide(&seen, now);
    assert_eq!((narrow.effects, narrow.counts), (decided.effects, decided.counts));
}

#[test]
fn what_is_not_believed_brings_no_pods() {
    let mut found = found(&json!({}));
    let mut memory = counted(&found);
    let lost = Heartbeat { silent_for: Some(Duration::from_secs(30)), ..Heartbeat::default() };
    found.heartbeats = (0..6).map(|i| (format!("n{i}"), lost)).collect();
    let (scope, narrow) = step(&mut memory, &found, later(now(), 1.0));
    assert_eq!((scope, &narrow.lost), (names(&[]), &BTreeSet::new()), "no agent is heard: it is we who are deaf");
    let whole = decide(&memory.clone().look(found.clone(), EPOCH, later(now(), 1.0)), later(now(), 1.0));
    assert_eq!((narrow.effects, narrow.suspected), (whole.effects, whole.suspected));
    found.heartbeats = [("n1".to_owned(), lost)].into();
    assert_eq!(step(&mut memory, &found, later(now(), 60.0)).0, names(&[]), "and for a time after that");
    assert_eq!(step(&mut memory, &found, later(now(), 61.0)).0, names(&["n1"]));
}

#[test]
fn a_crash_loop_brings_the_pods_of_its_node() {
    let mut found = found(&json!({}));
    found.pods[2] = but(found.pods[2].clone(), |pod| {
        let status = json!([{ "name": "main", "state": { "waiting": { "reason": "CrashLoopBackOff" } } }]);
        pod.status.container_statuses = serde_json::from_value(status).unwrap();
    });
    found.scope = Scope::Nodes(BTreeSet::new());
    found.narrow();
    assert_eq!(found.pods.iter().map(|pod| pod.name()).collect::<Vec<_>>(), ["p2"]);
}

#[test]
fn what_is_decided_is_what_would_be_decided_on_all_pods() {
    for state in 0..256_u32 {
        let mut found = found(&json!({ "limits": { "maxNodes": "100%", "maxUnhealthy": "100%" } }));
        let memory = counted(&found);
        for index in 0..4 {
            let name = format!("n{index}");
            match state >> (2 * index) & 3 {
                0 => {}
                1 => become_node(&mut found, unreachable(&name)),
                2 => become_node(&mut found, with_ready(node(&name), "Unknown")),
                _ => become_node(&mut found, with_taint(node(&name), "example.com/broken", "", "NoSchedule")),
            }
        }
        let later = later(now(), 5.0);
        let (scope, narrow) = step(&mut memory.clone(), &found, later);
        let seen = memory.clone().look(found, EPOCH, later);
        let whole = decide(&seen, later);
        assert_ne!(scope, Scope::All);
        assert_eq!((narrow.look_at, narrow.effects), (whole.look_at, whole.effects), "state {state}");
        assert_eq!((narrow.suspected, narrow.counts), (whole.suspected, whole.counts), "state {state}");
    }
}
