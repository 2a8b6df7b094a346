use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::conditions;
use crate::api::slim::PersistentVolume;
use crate::api::volume_health::Phase;
use crate::api::volume_health_policy::{VolumeHealthPolicy, VolumeHealthPolicyStatus};
use crate::controllers::testing::now;

use super::decide::{Decision, Effect, Seen, decide};

fn policy(name: &str, spec: Value) -> Arc<VolumeHealthPolicy> {
    let mut policy = VolumeHealthPolicy::new(name, serde_json::from_value(spec).unwrap());
    policy.metadata.generation = Some(1);
    Arc::new(policy)
}

fn volume(name: &str, class: &str) -> Arc<PersistentVolume> {
    let volume = json!({ "metadata": { "name": name }, "spec": { "storageClassName": class } });
    Arc::new(serde_json::from_value(volume).unwrap())
}

fn seen(policies: Vec<Arc<VolumeHealthPolicy>>) -> Seen {
    Seen {
        policies,
        volumes: vec![volume("a", "fast"), volume("b", "fast"), volume("c", "slow")],
        phases: [("a".to_owned(), Phase::Unhealthy), ("c".to_owned(), Phase::Healthy)].into(),
        can_enforce: true,
        counts_due_in: Duration::ZERO,
    }
}

fn of(decision: &Decision, name: &str) -> Option<VolumeHealthPolicyStatus> {
    decision.effects.iter().find_map(|effect| {
        let Effect::Record { policy, status } = effect;
        (policy.metadata.name.as_deref() == Some(name)).then(|| status.as_ref().clone())
    })
}

fn counts(status: &VolumeHealthPolicyStatus) -> [Option<u32>; 3] {
    [status.volumes, status.unhealthy, status.overruled]
}

fn reason(status: &VolumeHealthPolicyStatus, type_: &str) -> Option<String> {
    conditions::find(&status.conditions, type_).map(|condition| format!("{} {}", condition.status, condition.reason))
}

/// The same policies with the status that was decided.
fn recorded(seen: &Seen, decision: &Decision) -> Seen {
    let written = |policy: &Arc<VolumeHealthPolicy>| {
        let mut policy = policy.as_ref().clone();
        policy.status = of(decision, policy.metadata.name.as_deref().unwrap()).or(policy.status);
        Arc::new(policy)
    };
    Seen { policies: seen.policies.iter().map(written).collect(), ..seen.clone() }
}

#[test]
fn each_policy_counts_what_it_rules_and_what_it_loses() {
    let fast = json!({ "selector": { "storageClasses": ["fast"] }, "priority": 1 });
    let none = json!({ "selector": { "storageClasses": ["none"] } });
    let seen = seen(vec![policy("default", json!({ "selector": {} })), policy("fast", fast), policy("none", none)]);
    let decision = decide(&seen, now());
    let status = |name| of(&decision, name).unwrap();
    assert_eq!(counts(&status("fast")), [Some(2), Some(1), Some(0)]);
    assert_eq!(counts(&status("default")), [Some(1), Some(0), Some(2)]);
    assert_eq!(counts(&status("none")), [Some(0), Some(0), Some(0)]);
    assert_eq!(reason(&status("default"), "Ready").unwrap(), "True Accepted");
    assert_eq!(reason(&status("none"), "Ready").unwrap(), "True NothingSelected");
    assert_eq!(reason(&status("default"), "Conflict"), None, "another priority is no conflict");
    assert_eq!(decide(&recorded(&seen, &decision), now()), Decision::default(), "nothing is written at rest");
}

#[test]
fn the_same_priority_is_a_conflict_that_names_the_winner() {
    let all = || json!({ "selector": {} });
    let before = seen(vec![policy("b", all()), policy("a", all())]);
    let decision = decide(&before, now());
    for (name, rival) in [("a", "b"), ("b", "a")] {
        let status = of(&decision, name).unwrap();
        let conflict = conditions::find(&status.conditions, "Conflict").unwrap();
        assert_eq!(conflict.reason, "SamePriority");
        assert!(conflict.message.contains(&format!("VolumeHealthPolicy {rival} ")), "{}", conflict.message);
        assert!(conflict.message.contains("; a rules"), "{}", conflict.message);
    }
    let mut after = recorded(&before, &decision);
    after.policies.retain(|policy| policy.metadata.name.as_deref() == Some("a"));
    assert_eq!(reason(&of(&decide(&after, now()), "a").unwrap(), "Conflict"), None);
}

#[test]
fn to_enforce_takes_our_admission_policies() {
    let enforce = policy("p", json!({ "selector": {}, "enforcement": "Enforce" }));
    let lacking =
        Seen { can_enforce: false, ..seen(vec![enforce, policy("o", json!({ "selector": {}, "priority": 3 }))]) };
    let decision = decide(&lacking, now());
    assert_eq!(reason(&of(&decision, "p").unwrap(), "Ready").unwrap(), "False AdmissionPolicyMissing");
    assert_eq!(reason(&of(&decision, "o").unwrap(), "Ready").unwrap(), "True Accepted", "it only observes");
    let there = Seen { can_enforce: true, ..recorded(&lacking, &decision) };
    assert_eq!(reason(&of(&decide(&there, now()), "p").unwrap(), "Ready").unwrap(), "True Accepted");
}

#[test]
fn counts_wait_for_their_time_and_the_rest_does_not() {
    let before = seen(vec![policy("p", json!({ "selector": {} }))]);
    let mut after = recorded(&before, &decide(&before, now()));
    after.volumes.push(volume("d", "fast"));
    after.counts_due_in = Duration::from_secs(7);
    let waits = decide(&after, now());
    assert_eq!((waits.effects.len(), waits.look_again), (0, Some(Duration::from_secs(7))));
    let changed = Arc::make_mut(&mut after.policies[0]);
    changed.metadata.generation = Some(2);
    assert_eq!(
        counts(&of(&decide(&after, now()), "p").unwrap()),
        [Some(4), Some(1), Some(0)],
        "a new spec is told at once"
    );
    after.counts_due_in = Duration::ZERO;
    assert_eq!(counts(&of(&decide(&after, now()), "p").unwrap()), [Some(4), Some(1), Some(0)]);
}
