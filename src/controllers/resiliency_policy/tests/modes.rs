//! DryRun records what would be done, RequireApproval waits for a person; and what holds where policies differ.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::fencing::PolicyMode;
use crate::api::names;
use crate::api::node_fence::{Approval, Hold, NodeFence, Phase, PodAction};
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::controllers::testing::*;

use super::World;

fn mode(mode: &str) -> Value {
    json!({ "mode": mode })
}

/// A policy for the pod of that name alone.
fn policy_for(name: &str, pod: &str, mode: &str) -> ResiliencyPolicy {
    policy(name, &json!({ "mode": mode, "selector": { "podSelector": { "matchLabels": { "app": pod } } } }))
}

/// A failed node with a pod of each mode, and one that is well.
fn mixed() -> World {
    let pods = vec![pod("acts", "n0", &[csi("v0")]), pod("dry", "n0", &[csi("v1")])];
    let policies = vec![policy_for("earnest", "acts", "Enforce"), policy_for("rehearsal", "dry", "DryRun")];
    World::new(vec![unreachable("n0"), node("n1"), node("n2")], pods, policies)
}

fn is_active(fence: &NodeFence) -> bool {
    fence.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(names::ACTIVE_LABEL))
}

fn row<'a>(fence: &'a NodeFence, pod: &str) -> (PodAction, &'a str) {
    let row = fence.spec.plan.pods.iter().find(|row| row.name == pod).unwrap();
    (row.action, row.reason.as_str())
}

/// What a person writes.
fn write(world: &mut World, approval: Option<Approval>, hold: Option<Hold>) {
    let spec = &mut Arc::make_mut(&mut world.seen.fences[0]).spec;
    (spec.approval, spec.hold) = (approval, hold);
}

fn people(world: &mut World) -> (Option<Approval>, Option<Hold>) {
    let spec = &world.seen.fences[0].spec;
    let approval = Approval { plan_digest: spec.plan.digest.clone(), reason: Some("ticket 4711".into()) };
    let hold = Hold { reason: "the array is looked at".into() };
    write(world, Some(approval.clone()), Some(hold.clone()));
    (Some(approval), Some(hold))
}

#[test]
fn every_mode_writes_the_same_plan_and_only_enforce_is_active_at_once() {
    let mut plans = Vec::new();
    for (name, active) in [("Enforce", true), ("RequireApproval", false), ("DryRun", false)] {
        let mut world = World::with_failed(3, 1, &mode(name));
        world.rest();
        let fence = world.fence("n0").unwrap();
        assert_eq!(is_active(fence), active, "{name}");
        assert_eq!(serde_json::to_value(fence.spec.policies[0].mode).unwrap(), json!(name));
        plans.push(fence.spec.plan.clone());
    }
    assert_eq!(row(&NodeFence::new("n0", spec_of(&plans[2])), "p0"), (PodAction::Release, "NodeFailure"));
    assert!(plans.iter().all(|plan| plan == &plans[0]), "{plans:#?}");
}

fn spec_of(plan: &crate::api::node_fence::Plan) -> crate::api::node_fence::NodeFenceSpec {
    let node = crate::api::fencing::NodeIdentity {
        uid: "uid-n0".into(),
        boot_id: None,
        provider_id: None,
        addresses: Vec::new(),
    };
    let plan = plan.clone();
    crate::api::node_fence::NodeFenceSpec { episode: 1, node, policies: Vec::new(), plan, approval: None, hold: None }
}

#[test]
fn beside_a_pod_that_goes_in_earnest_a_rehearsed_one_is_kept() {
    let mut world = mixed();
    world.rest();
    let fence = world.fence("n0").unwrap();
    assert_eq!(row(fence, "acts"), (PodAction::Release, "NodeFailure"));
    assert_eq!(row(fence, "dry"), (PodAction::Keep, "DryRun"));
    let policies: Vec<_> = fence.spec.policies.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!((policies, is_active(fence)), (vec!["earnest"], true));
}

#[test]
fn the_strictest_mode_of_all_policies_of_a_pod_holds() {
    for (modes, wanted) in [
        (["Enforce", "RequireApproval"], PolicyMode::RequireApproval),
        (["RequireApproval", "DryRun"], PolicyMode::DryRun),
        (["DryRun", "Enforce"], PolicyMode::DryRun),
    ] {
        let policies = vec![policy("a", &mode(modes[0])), policy("b", &mode(modes[1]))];
        let pods = vec![pod("p0", "n0", &[csi("v0")])];
        let mut world = World::new(vec![unreachable("n0"), node("n1"), node("n2")], pods, policies);
        world.rest();
        let fence = world.fence("n0").unwrap();
        assert_eq!(fence.spec.policies.iter().map(|policy| policy.mode).min(), Some(wanted), "{modes:?}");
        assert!(!is_active(fence), "{modes:?}");
    }
}

#[test]
fn a_rehearsal_ends_with_the_episode_that_acts() {
    let mut world = World::with_failed(3, 1, &mode("DryRun"));
    world.rest();
    world.reach("n0", Phase::Planned);
    world.policy(&policy("db", &json!({})), |policy| policy.spec.mode = PolicyMode::Enforce);
    world.wait(1.0);
    world.rest();
    let fence = world.fence("n0").unwrap();
    assert_eq!((fence.spec.episode, fence.spec.policies[0].mode), (2, PolicyMode::Enforce));
    assert!(fence.spec.plan.volumes.iter().all(|row| row.episode == 2), "nothing of a rehearsal is carried over");
    world.policy(&policy("db", &json!({})), |policy| policy.spec.mode = PolicyMode::DryRun);
    world.rest();
    assert_eq!(world.fence("n0").unwrap().spec.episode, 2, "no incident becomes a rehearsal");
}

#[test]
fn a_rehearsed_pod_that_comes_later_leaves_an_incident_as_it_is() {
    let mut world = mixed();
    let dry = world.seen.pods.get_mut("n0").unwrap().pop().unwrap();
    world.rest();
    let digest = world.fence("n0").unwrap().spec.plan.digest.clone();
    world.seen.pods.insert("n0".into(), vec![dry]);
    world.rest();
    let fence = world.fence("n0").unwrap();
    assert_eq!((fence.spec.episode, &fence.spec.plan.digest), (1, &digest));
}

#[test]
fn what_people_wrote_survives_growth() {
    let mut world = World::with_failed(3, 1, &mode("RequireApproval"));
    world.rest();
    let (approval, hold) = people(&mut world);
    let digest = world.fence("n0").unwrap().spec.plan.digest.clone();
    world.seen.pods.get_mut("n0").unwrap().push(pod("late", "n0", &[csi("late")]));
    world.rest();
    let spec = &world.fence("n0").unwrap().spec;
    assert_ne!(spec.plan.digest, digest, "it has grown");
    assert_eq!((&spec.approval, &spec.hold), (&approval, &hold));
}

#[test]
fn the_next_episode_keeps_the_hold_and_drops_the_approval() {
    let mut world = World::with_failed(3, 1, &mode("RequireApproval"));
    world.rest();
    let (_, hold) = people(&mut world);
    world.reach("n0", Phase::Recovered);
    world.wait(1.0);
    world.rest();
    let spec = &world.fence("n0").unwrap().spec;
    assert_eq!((spec.episode, &spec.approval, &spec.hold), (2, &None, &hold));
}

#[test]
fn a_rehearsal_holds_up_no_deletion_of_its_policy() {
    for (name, finalizers) in [("DryRun", None), ("RequireApproval", Some(vec![names::POLICY_FINALIZER.to_owned()]))] {
        let mut world = World::with_failed(3, 1, &mode(name));
        world.rest();
        world.policy(&policy("db", &json!({})), |policy| {
            policy.metadata.deletion_timestamp = Some(crate::api::time::to_k8s(at(100_000)));
        });
        world.rest();
        assert_eq!(world.seen.policies[0].metadata.finalizers, finalizers, "{name}");
    }
}
