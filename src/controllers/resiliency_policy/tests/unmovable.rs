//! Pods that no proof can move are told at noon.

use std::sync::Arc;

use serde_json::json;

use crate::api::conditions;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::usage::PodView;
use crate::controllers::testing::*;
use crate::runtime::events::EventType;

use super::super::tell::readiness;
use super::World;

/// Three healthy nodes with these pods.
fn world(pods: Vec<PodView>) -> World {
    let nodes = (0..3).map(|i| node(&format!("n{i}"))).collect();
    World::new(nodes, pods, vec![policy("db", &json!({}))])
}

fn db() -> PodView {
    pod("db", "n0", &[csi("v1")])
}

#[test]
fn pods_that_no_method_covers_are_told_by_reason_and_by_name() {
    let cache = || pod("cache", "n1", &[csi("v2"), local("disk")]);
    let web = || pod("web", "n2", &[unknown("share")]);
    let starting = but(cache(), |pod| pod.status.conditions[0].status = "False".into());
    let cases = [
        ("nothing is wrong", vec![db()], "ProofReachable", ""),
        ("one of each", vec![db(), web(), cache()], "PodsUnmovable", "2 pods would be held whatever is proved"),
        ("by reason", vec![db(), web(), cache()], "PodsUnmovable", "(LocalVolume 1, UnknownVolumeKind 1)"),
        ("the first", vec![db(), web(), cache()], "PodsUnmovable", "first shop/cache: volume disk lives on the node"),
        ("no other pods", vec![web()], "PodsUnmovable", "1 pod would be held"),
        ("it has not started", vec![db(), starting], "ProofReachable", ""),
        ("it belongs to its node", vec![db(), owned_by(cache(), Some("DaemonSet"))], "ProofReachable", ""),
        ("no pod at all", vec![], "NothingSelected", ""),
    ];
    for (name, pods, reason, words) in cases {
        let mut world = world(pods);
        world.rest();
        let (state, told, message) = world.fence_ready();
        assert_eq!((told.as_str(), state == "False"), (reason, reason == "PodsUnmovable"), "{name}: {message}");
        assert!(message.contains(words), "{name}: {message}");
        let conditions = world.seen.policies[0].status.clone().unwrap().conditions;
        let ready = conditions::find(&conditions, "Ready").unwrap();
        let is_empty = world.seen.pods.is_empty();
        assert_eq!(ready.reason, if is_empty { "NothingSelected" } else { "Accepted" }, "{name}");
    }
}

#[test]
fn they_are_told_beside_a_proof_that_is_missing() {
    let mut world = world(vec![db(), pod("cache", "n1", &[local("disk")])]);
    world.seen.reports.clear();
    world.rest();
    let (state, reason, message) = world.fence_ready();
    assert_eq!((state.as_str(), reason.as_str()), ("False", "FencerMissing"));
    assert!(message.contains(DRIVER) && message.contains("LocalVolume 1"), "{message}");
}

#[test]
fn policies_without_a_common_method_leave_none() {
    let external = json!({ "type": "External", "external": { "fencerName": POWER } });
    for (second, reason) in [(json!([external]), "PodsUnmovable"), (json!([{ "type": "Unpublish" }]), "ProofReachable")]
    {
        let mut world = world(vec![db()]);
        let methods = |methods: &serde_json::Value| json!({ "fencing": { "methods": methods } });
        world.seen.policies = vec![
            Arc::new(policy("a", &methods(&json!([{ "type": "Unpublish" }])))),
            Arc::new(policy("b", &methods(&second))),
        ];
        world.rest();
        let (_, told, message) = world.fence_ready();
        assert_eq!(told, reason, "{message}");
        if reason == "PodsUnmovable" {
            assert!(message.contains("policies a, b") && message.contains("ProofTooWeak 1"), "{message}");
        }
    }
}

#[test]
fn more_of_them_are_written_when_pods_are_counted() {
    let mut world = world(vec![pod("web", "n2", &[unknown("share")])]);
    world.rest();
    world.seen.counts_due = false;
    world.seen.pods.get_mut("n2").unwrap().push(pod("late", "n2", &[unknown("share")]));
    assert_eq!(world.decide().effects, [], "not now");
    world.seen.counts_due = true;
    world.rest();
    assert!(world.fence_ready().2.contains("2 pods"));
}

#[test]
fn an_event_tells_when_a_policy_cannot_fence_any_more_and_when_it_can_again() {
    let mut world = world(vec![db()]);
    let new = ResiliencyPolicy::clone(&world.seen.policies[0]);
    world.rest();
    let good = ResiliencyPolicy::clone(&world.seen.policies[0]);
    world.seen.pods.get_mut("n0").unwrap().push(pod("web", "n0", &[unknown("share")]));
    world.rest();
    let bad = ResiliencyPolicy::clone(&world.seen.policies[0]);
    world.seen.reports.clear();
    world.rest();
    let worse = ResiliencyPolicy::clone(&world.seen.policies[0]);
    let told = |before: &ResiliencyPolicy, after: &ResiliencyPolicy| {
        readiness(before, after).map(|(kind, reason, note)| {
            (matches!(kind, EventType::Warning), reason, note.split(':').next().unwrap_or_default().to_owned())
        })
    };
    let warning = |cause: &str| Some((true, "FenceNotReady", cause.to_owned()));
    assert_eq!(told(&new, &good), None);
    assert_eq!(told(&new, &bad), warning("PodsUnmovable"));
    assert_eq!(told(&good, &bad), warning("PodsUnmovable"));
    assert_eq!(told(&bad, &bad), None);
    assert_eq!(told(&bad, &worse), warning("FencerMissing"));
    assert_eq!(told(&worse, &good), Some((false, "FenceReady", "FencerMissing is over".to_owned())));
}
