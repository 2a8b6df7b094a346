//! Holds, modes and pauses: nothing destructive while one of them holds, nothing undone that was begun, and all of it goes
//! on when it is over.

use std::sync::Arc;

use serde_json::json;

use crate::api::conditions;
use crate::api::fencing::PolicyMode;
use crate::api::node_fence::{Approval, Hold, Phase, PodStatusState};
use crate::controllers::testing::*;

use super::world::{Fencer, World};

fn world(mode: &str) -> World {
    World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({ "mode": mode }))
}

fn held(world: &World) -> (String, String) {
    let status = world.seen.fence.status.clone().unwrap();
    let held = conditions::find(&status.conditions, "Held").unwrap();
    (held.status.clone(), held.reason.clone())
}

fn is_held_by(world: &World, reason: &str) -> bool {
    held(world) == ("True".into(), reason.into())
}

fn hold(world: &mut World, reason: Option<&str>) {
    Arc::make_mut(&mut world.seen.fence).spec.hold = reason.map(|reason| Hold { reason: reason.into() });
}

fn approve(world: &mut World, digest: &str) {
    let approval = Approval { plan_digest: digest.into(), reason: None };
    Arc::make_mut(&mut world.seen.fence).spec.approval = Some(approval);
}

fn live_mode(world: &mut World, mode: PolicyMode) {
    Arc::make_mut(&mut world.seen.policies[0]).spec.mode = mode;
}

/// Passes and fencers until something is in the log.
fn until(world: &mut World, what: &str) {
    for _ in 0..100 {
        if world.did(what) {
            return;
        }
        if !world.pass() {
            world.fencers_act();
        }
    }
    panic!("never {what}: {:#?}", world.log);
}

/// What is destructive.
const STEPS: [&str; 5] = ["ask Fenced", "delete", "detach", "taint out-of-service", "Releasing"];

fn steps(world: &World) -> Vec<String> {
    let is_step = |line: &&String| STEPS.iter().any(|step| line.contains(step));
    world.log.iter().filter(is_step).cloned().collect()
}

#[test]
fn a_rehearsal_is_recorded_and_never_begins() {
    let mut world = world("DryRun");
    world.run();
    approve(&mut world, "sha256:00000000");
    world.wait(600.0);
    world.run();
    assert!(is_held_by(&world, "DryRun") && steps(&world).is_empty(), "{:#?}", world.log);
    assert!(!world.did("active") && !world.did("taint"), "{:#?}", world.log);
    assert_eq!(world.seen.fence.status.clone().unwrap().phase, Some(Phase::Planned));
    world.node_returns();
    world.run();
    assert_eq!(world.seen.fence.status.clone().unwrap().phase, Some(Phase::Recovered));
    assert!(steps(&world).is_empty() && !world.did("active"), "{:#?}", world.log);
}

#[test]
fn only_the_approval_of_this_plan_starts_it() {
    let mut world = world("RequireApproval");
    world.run();
    assert!(is_held_by(&world, "AwaitingApproval"), "{:?}", held(&world));
    approve(&mut world, "sha256:11111111");
    world.run();
    assert!(is_held_by(&world, "ApprovalOutdated") && steps(&world).is_empty(), "{:#?}", world.log);
    assert!(!world.did("active") && !world.did("taint"), "{:#?}", world.log);
    // Another process goes on from what is recorded.
    world.restart();
    world.run();
    assert!(steps(&world).is_empty(), "{:#?}", world.log);
    approve(&mut world, "sha256:00000000");
    world.restart();
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
    assert_eq!(held(&world), ("False".into(), "NotHeld".into()));
}

#[test]
fn a_plan_that_has_grown_waits_for_another_approval() {
    let mut world = world("RequireApproval");
    approve(&mut world, "sha256:00000000");
    until(&mut world, "v1 is Fencing");
    world.plan().digest = "sha256:22222222".into();
    let before = steps(&world);
    world.run();
    assert!(is_held_by(&world, "ApprovalOutdated"), "{:?}", held(&world));
    assert_eq!(steps(&world), before);
    approve(&mut world, "sha256:22222222");
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
}

#[test]
fn a_later_edit_may_only_make_it_stricter() {
    for (planned, live, reason) in [
        ("Enforce", PolicyMode::DryRun, Some("DryRun")),
        ("Enforce", PolicyMode::RequireApproval, Some("AwaitingApproval")),
        ("RequireApproval", PolicyMode::Enforce, Some("AwaitingApproval")),
        ("DryRun", PolicyMode::Enforce, Some("DryRun")),
        ("Enforce", PolicyMode::Enforce, None),
    ] {
        let mut world = world(planned);
        live_mode(&mut world, live);
        world.run();
        match reason {
            Some(reason) => assert!(is_held_by(&world, reason) && steps(&world).is_empty(), "{planned} {live:?}"),
            None => assert!(world.did("delete pg grace 0"), "{planned} {live:?}"),
        }
    }
}

#[test]
fn a_policy_that_is_gone_takes_no_rehearsal_back() {
    let mut world = world("DryRun");
    world.seen.policies.clear();
    world.run();
    assert!(is_held_by(&world, "DryRun") && steps(&world).is_empty(), "{:#?}", world.log);
}

/// Held at every step on the way, and after every step a restart: nothing more is done while it is held, and everything
/// when it is not.
#[test]
fn a_hold_stops_before_the_next_step_wherever_it_comes() {
    for (point, restarts) in
        ["", "active", "taint fenced", "ask Fenced", "v1 is Fencing", "v1 is Fenced", "pg is Releasing"]
            .into_iter()
            .flat_map(|point| [(point, false), (point, true)])
    {
        let mut world = world("Enforce");
        if !point.is_empty() {
            until(&mut world, point);
        }
        hold(&mut world, Some("the array is looked at"));
        let before = steps(&world);
        world.run();
        world.wait(60.0);
        if restarts {
            world.restart();
        }
        world.run();
        let after: Vec<_> = steps(&world).split_off(before.len());
        assert!(after.is_empty(), "held at {point:?}, and then {after:?}");
        assert!(is_held_by(&world, "HeldByPerson"), "{point:?}: {:?}", held(&world));
        hold(&mut world, None);
        world.run();
        assert!(world.did("delete pg grace 0") && world.seen.attachments.is_empty(), "{point:?}: {:#?}", world.log);
    }
}

#[test]
fn after_a_hold_the_proof_is_asked_for_again() {
    let mut world = world("Enforce");
    until(&mut world, "pg is Releasing");
    hold(&mut world, Some("wait"));
    world.run();
    world.wait(11.0);
    hold(&mut world, None);
    world.pass();
    assert!(!world.did("delete"), "on a proof from before: {:#?}", world.log);
    world.run();
    assert!(world.did("ask Fenced v1 round 2") && world.did("delete pg grace 0"), "{:#?}", world.log);
}

#[test]
fn what_no_fencer_has_begun_with_is_taken_back() {
    let mut world = world("Enforce");
    world.fencers.insert(DRIVER.into(), Fencer::Silent);
    until(&mut world, "ask Fenced");
    hold(&mut world, Some("wait"));
    world.run_controller();
    world.fencers.clear();
    world.run();
    assert!(world.did("ask Unfenced") && !world.did("Started"), "{:#?}", world.log);
    hold(&mut world, None);
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
}

#[test]
fn what_was_begun_is_not_undone() {
    let mut world = world("Enforce");
    until(&mut world, "v1 is Fencing");
    hold(&mut world, Some("wait"));
    world.run();
    assert!(!world.did("ask Unfenced") && !world.did("untaint"), "{:#?}", world.log);
}

#[test]
fn a_node_that_returns_is_given_back_though_it_is_held() {
    let mut world = world("Enforce");
    until(&mut world, "taint fenced");
    hold(&mut world, Some("wait"));
    world.node_returns();
    world.run();
    assert_eq!(world.seen.fence.status.clone().unwrap().phase, Some(Phase::Recovered), "{:#?}", world.log);
    assert_eq!(world.pod("pg").0, PodStatusState::Undone);
    assert!(steps(&world).is_empty(), "{:#?}", world.log);
}

#[test]
fn on_a_node_that_is_back_a_hold_keeps_the_pods_that_were_to_go() {
    let mut world = world("Enforce");
    until(&mut world, "v1 is Fencing");
    hold(&mut world, Some("wait"));
    world.node_returns();
    world.run();
    assert!(!world.did("delete") && is_held_by(&world, "HeldByPerson"), "{:#?}", world.log);
    hold(&mut world, None);
    world.run();
    assert!(world.did("delete pg graceful"), "{:#?}", world.log);
}

/// Nothing can be approved for a node that is back: what was cut off goes to its end.
#[test]
fn on_a_node_that_is_back_nobody_is_asked_for_an_approval() {
    let mut world = world("RequireApproval");
    approve(&mut world, "sha256:00000000");
    until(&mut world, "v1 is Fencing");
    world.plan().digest = "sha256:22222222".into();
    world.node_returns();
    world.run();
    assert!(world.did("delete pg graceful"), "{:#?}", world.log);
}

#[test]
fn what_is_held_is_no_failure() {
    let mut world = world("RequireApproval");
    world.run();
    world.wait(3600.0);
    world.run();
    let status = world.seen.fence.status.clone().unwrap();
    assert!(!conditions::is_true(&status.conditions, "Stalled"), "{:?}", status.conditions);
    let ready = conditions::find(&status.conditions, "Ready").unwrap();
    assert_eq!(
        (ready.reason.as_str(), ready.message.contains("kubectl bulkhead approve node n1")),
        ("AwaitingApproval", true)
    );
}
