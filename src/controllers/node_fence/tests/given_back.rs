//! What an external fencer gives back, and what it must not: it may cut a node off that keeps its power, and what ran there would write
//! again, beside the replacements of its pods.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::fence_request::{Desired, FenceOutcome};
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::node_fence::{Hold, Phase, PodStatusState, VolumeStatusState};
use crate::api::resiliency_policy::{ResiliencyPolicyStatus, Restraint, RestraintType};
use crate::api::slim::Node;
use crate::api::time;
use crate::api::usage::PodView;
use crate::controllers::testing::*;

use super::build::fence;
use super::cleaning::{clean, says};
use super::network::{ADDRESS, say_that_it_is_off, with_address};
use super::world::{Fencer, World};

pub const ANOTHER: &str = "10.0.0.9";
const OTHER_FENCER: &str = "hypervisor.example.com";

/// The pods of a failed node, whom these methods cut off.
fn failed(pods: Vec<PodView>, methods: &[Value]) -> World {
    failed_at("Verified", pods, methods)
}

pub fn failed_at(minimum: &str, pods: Vec<PodView>, methods: &[Value]) -> World {
    let fencing = json!({ "minimumProof": minimum, "methods": methods, "callTimeout": "5s" });
    let mut world = World::new(pods, &json!({ "fencing": fencing }));
    Arc::make_mut(&mut world.seen.fence).spec.node.addresses = vec![ADDRESS.into()];
    world.node_becomes(|node| with_address(node, ADDRESS));
    world
}

/// Its pod has gone by force, on this proof.
fn cut_off(proof: Proof) -> World {
    let mut world = failed(vec![pod("a", "n1", &[csi("v1")])], &[external()]);
    world.fencers.insert(POWER.into(), Fencer::Proves(proof));
    world.run();
    assert!(world.did("delete a grace 0"), "{:#?}", world.log);
    let row = world.volume("v1");
    assert_eq!((row.method, row.proof), (Some(FenceMethodType::External), proof), "{:#?}", world.log);
    world
}

/// The first of two pods has gone by force, and for the other one the fencer has not begun.
fn half_cut_off() -> World {
    let mut world = failed(vec![pod("a", "n1", &[csi("v1")]), pod("b", "n1", &[csi("v2")])], &[external()]);
    world.fencers.insert(POWER.into(), Fencer::BeginsOnly("v1"));
    world.run();
    assert!(world.did("delete a grace 0") && !world.did("Started v2"), "{:#?}", world.log);
    world
}

/// Two pods of one volume: the first has gone by force on this proof. A finalizer keeps the second, so that it is asked for again.
fn half_gone(methods: &[Value], proof: Proof) -> World {
    let kept = but(pod("b", "n1", &[csi("v1")]), |pod| {
        pod.metadata.finalizers = Some(vec!["batch.kubernetes.io/job-tracking".into()]);
    });
    let mut world = failed(vec![pod("a", "n1", &[csi("v1")]), kept], methods);
    world.fencers.insert(POWER.into(), Fencer::Proves(proof));
    world.run();
    assert!(world.did("delete a grace 0") && world.seen.pods.len() == 1, "{:#?}", world.log);
    let row = world.volume("v1");
    assert_eq!((row.method, row.external_proof), (Some(FenceMethodType::External), Some(proof)), "{:#?}", world.log);
    world
}

/// The proof of its volume holds no more, and its fencer says nothing new.
fn taken_back(world: &mut World, reason: &str) {
    world.fencers.insert(POWER.into(), Fencer::Silent);
    world.wait(2.0);
    if reason == "Reattached" {
        world.attach("v1", "va-again", true);
    } else {
        for request in &mut world.seen.requests {
            for row in &mut Arc::make_mut(request).status.as_mut().unwrap().volumes {
                (row.result, row.proof, row.reason) = (FenceOutcome::Failed, Proof::None, Some(reason.into()));
            }
        }
    }
    world.run();
    world.wait(60.0);
    world.run();
}

/// The node was back in that boot, and fails again with another pod: what was cut off before is carried over.
pub fn failed_again(first: Fencer) -> World {
    let mut world = failed(vec![pod("a", "n1", &[csi("v1")])], &[external()]);
    world.fencers.insert(POWER.into(), first);
    world.run();
    assert!(world.did("Started v1"), "{:#?}", world.log);
    world.node_returns();
    world.run();
    let again = pod("b", "n1", &[csi("v2")]);
    let mut next = fence(std::slice::from_ref(&again), &world.seen.policies[0]).spec;
    next.episode = 2;
    next.node = world.seen.fence.spec.node.clone();
    next.plan.decided_at = time::stamp(world.now.wall);
    next.plan.pods.iter_mut().for_each(|row| row.episode = 2);
    next.plan.volumes.iter_mut().for_each(|row| row.episode = 2);
    next.plan.volumes.extend(world.seen.fence.spec.plan.volumes.clone());
    Arc::make_mut(&mut world.seen.fence).spec = next;
    world.seen.pods.push(again);
    world.attach("v2", "va-v2", true);
    world.fencers.insert(POWER.into(), Fencer::Silent);
    world.seen.lease_is_still = true;
    world.node_fails();
    world.run();
    assert!(world.did("ask Fenced v2 round 1"), "{:#?}", world.log);
    world
}

fn outage(world: &mut World) {
    let restraint = Restraint { type_: RestraintType::CorrelatedOutage, name: None, since: at(100_000), until: None };
    let status = ResiliencyPolicyStatus { restraints: vec![restraint], ..ResiliencyPolicyStatus::default() };
    Arc::make_mut(&mut world.seen.policies[0]).status = Some(status);
}

fn hold(world: &mut World) {
    Arc::make_mut(&mut world.seen.fence).spec.hold = Some(Hold { reason: "looking".into() });
}

pub fn desired(world: &World, fencer: &str) -> Option<Desired> {
    world.seen.request(fencer).map(|request| request.spec.desired)
}

pub fn machine_may_run() -> Option<(String, String)> {
    Some(("True".into(), "MachineMayRun".into()))
}

/// A Node of that name, made anew.
pub fn created_again(boot_id: &str, address: &str) -> Node {
    let mut node = with_address(node("n1"), address);
    node.metadata.uid = Some("uid-again".into());
    node.status.node_info.boot_id = boot_id.into();
    node
}

#[test]
fn what_an_earlier_episode_has_cut_off_is_not_given_back_for_a_hold_or_an_outage() {
    for (name, stops) in [("a hold", hold as fn(&mut World)), ("an outage", outage)] {
        let mut world = failed_again(Fencer::Proves(Proof::Verified));
        stops(&mut world);
        world.run();
        assert!(!world.did("ask Unfenced"), "{name}: {:#?}", world.log);
    }
}

#[test]
fn a_node_that_is_back_in_that_boot_is_let_in_when_its_agent_finds_it_clean() {
    let mut world = half_cut_off();
    world.node_returns();
    world.run();
    assert!(!world.did("ask Unfenced"), "{:#?}", world.log);
    assert_eq!(world.pod("b").0, PodStatusState::Pending, "its fencer may begin with it: {:#?}", world.log);
    let status = clean(&world);
    says(&mut world, status);
    world.run();
    assert!(world.did("ask Unfenced") && !world.did("delete b"), "{:#?}", world.log);
    assert_eq!(world.pod("b").0, PodStatusState::Undone, "{:#?}", world.log);
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
}

#[test]
fn the_word_that_a_machine_is_off_counts_for_nothing_while_it_is_there() {
    let mut world = half_cut_off();
    say_that_it_is_off(&mut world, "1");
    world.node_returns();
    world.run();
    assert!(!world.did("ask Unfenced"), "{:#?}", world.log);
}

#[test]
fn a_fencer_that_is_silent_is_told_of_when_the_node_is_back_too() {
    let mut world = half_cut_off();
    world.node_returns();
    world.run();
    assert_eq!(world.condition("Stalled"), None, "{:#?}", world.log);
    world.wait(400.0);
    world.run();
    assert_eq!(world.condition("Stalled"), Some(("True".into(), "FencerSilent".into())), "{:#?}", world.log);
}

#[test]
fn a_node_that_has_booted_is_let_in_where_it_is_the_same_machine() {
    for address in [ADDRESS, ANOTHER] {
        let mut world = half_cut_off();
        world.node_becomes(|node| with_address(node, address));
        world.node_reboots();
        world.run();
        assert_eq!(world.did("ask Unfenced"), address == ADDRESS, "{address}: {:#?}", world.log);
        if address == ANOTHER {
            assert_eq!(world.condition("Stalled"), machine_may_run(), "{:#?}", world.log);
            say_that_it_is_off(&mut world, "1");
            world.run();
        }
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{address}: {:#?}", world.log);
    }
}

#[test]
fn a_deleted_node_is_not_let_in_for_what_was_not_begun() {
    let mut world = half_cut_off();
    world.seen.node = None;
    world.remove_pod("b");
    world.seen.attachments.clear();
    world.run();
    assert!(!world.did("ask Unfenced"), "{:#?}", world.log);
    assert_eq!(world.condition("Stalled"), machine_may_run(), "{:#?}", world.log);
    say_that_it_is_off(&mut world, "1");
    world.run();
    assert!(world.did("ask Unfenced"), "{:#?}", world.log);
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
}

#[test]
fn a_deleted_node_that_had_power_stays_cut_off_until_it_is_there_in_another_boot() {
    for (name, boot_id, address, is_let_in) in [
        ("rebooted", "boot-2", ADDRESS, true),
        ("another machine", "boot-2", ANOTHER, false),
        ("the same boot", "boot-1", ADDRESS, false),
        ("silent", "", ADDRESS, false),
    ] {
        let mut world = cut_off(Proof::Verified);
        world.seen.node = None;
        world.run();
        assert_eq!(desired(&world, POWER), Some(Desired::Fenced), "{name}: {:#?}", world.log);
        assert_eq!(world.condition("Stalled"), machine_may_run(), "{name}: {:#?}", world.log);
        world.seen.node = Some(Arc::new(created_again(boot_id, address)));
        world.run();
        assert_eq!(world.did("ask Unfenced"), is_let_in, "{name}: {:#?}", world.log);
        assert_eq!(world.seen.phase() == Some(Phase::Recovered), is_let_in, "{name}: {:#?}", world.log);
    }
    let mut world = cut_off(Proof::PowerOff);
    world.seen.node = None;
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered), "without power nothing writes on: {:#?}", world.log);
}

#[test]
fn a_node_that_is_away_and_has_power_is_not_let_in_though_all_has_moved() {
    for (proof, wanted) in [(Proof::Verified, Desired::Fenced), (Proof::PowerOff, Desired::Unfenced)] {
        let mut world = cut_off(proof);
        world.wait(61.0);
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Detached), "{proof:?}: {:#?}", world.log);
        assert_eq!(desired(&world, POWER), Some(wanted), "{proof:?}: {:#?}", world.log);
        if proof == Proof::Verified {
            say_that_it_is_off(&mut world, "1");
            world.run();
            assert_eq!(desired(&world, POWER), Some(Desired::Unfenced), "{:#?}", world.log);
        }
        world.node_reboots();
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{proof:?}: {:#?}", world.log);
    }
}

#[test]
fn a_fencer_that_has_done_nothing_is_called_off_beside_one_that_has() {
    let other = json!({ "type": "External", "external": { "fencerName": OTHER_FENCER } });
    let mut world = failed(vec![pod("a", "n1", &[csi("v1")])], &[external(), other]);
    world.fencers.insert(POWER.into(), Fencer::Fails("DeadlineExceeded"));
    world.fencers.insert(OTHER_FENCER.into(), Fencer::Silent);
    world.run();
    assert_eq!(desired(&world, OTHER_FENCER), Some(Desired::Fenced), "{:#?}", world.log);
    world.fencers.insert(POWER.into(), Fencer::Proves(Proof::Verified));
    world.wait(5.0);
    world.run();
    assert!(world.did("delete a grace 0"), "{:#?}", world.log);
    world.node_returns();
    world.run_controller();
    assert_eq!(desired(&world, OTHER_FENCER), Some(Desired::Unfenced), "{:#?}", world.log);
    assert_eq!(desired(&world, POWER), Some(Desired::Fenced), "{:#?}", world.log);
}

#[test]
fn what_no_pod_went_for_is_given_back() {
    let mut world = failed(vec![pod("a", "n1", &[csi("v1"), csi("v2")])], &[external()]);
    world.fencers.insert(POWER.into(), Fencer::BeginsOnly("v1"));
    world.run();
    assert_eq!(world.volume("v1").state, VolumeStatusState::Fenced, "{:#?}", world.log);
    assert!(!world.did("a is Releasing"), "{:#?}", world.log);
    world.node_returns();
    world.run_controller();
    assert_eq!(desired(&world, POWER), Some(Desired::Unfenced), "{:#?}", world.log);
    assert!(world.did("delete a graceful"), "{:#?}", world.log);
}

/// What ran there writes on as soon as it is let in, whatever its fencer says of it by now.
#[test]
fn a_machine_that_had_power_is_kept_out_of_its_name_though_its_proof_was_taken_back() {
    for (reason, proof, address, is_let_in) in [
        ("DeadlineExceeded", Proof::Verified, ANOTHER, false),
        ("Reattached", Proof::Verified, ANOTHER, false),
        ("DeadlineExceeded", Proof::Verified, ADDRESS, true),
        ("Reattached", Proof::Verified, ADDRESS, true),
        ("PowerRestored", Proof::PowerOff, ANOTHER, true),
    ] {
        let mut world = half_gone(&[external()], proof);
        taken_back(&mut world, reason);
        assert_eq!(world.volume("v1").proof, Proof::None, "{reason}: {:#?}", world.log);
        world.remove_pod("b");
        world.node_becomes(|node| with_address(node, address));
        world.node_reboots();
        world.run();
        assert_eq!(world.did("ask Unfenced"), is_let_in, "{reason} {address}: {:#?}", world.log);
        if !is_let_in {
            assert_eq!(world.condition("Stalled"), machine_may_run(), "{reason}: {:#?}", world.log);
            say_that_it_is_off(&mut world, "1");
            world.run();
        }
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{reason} {address}: {:#?}", world.log);
    }
}

#[test]
fn so_it_is_where_its_node_was_deleted_first() {
    for reason in ["DeadlineExceeded", "Reattached"] {
        let mut world = half_gone(&[external()], Proof::Verified);
        taken_back(&mut world, reason);
        world.remove_pod("b");
        world.seen.attachments.clear();
        world.seen.node = None;
        world.run();
        assert_eq!(world.condition("Stalled"), machine_may_run(), "{reason}: {:#?}", world.log);
        world.seen.node = Some(Arc::new(created_again("boot-2", ANOTHER)));
        world.run();
        assert!(!world.did("ask Unfenced"), "{reason}: {:#?}", world.log);
        assert_eq!(world.condition("Stalled"), machine_may_run(), "{reason}: {:#?}", world.log);
    }
}

/// Which of its pods went on whose word is not on record. Nothing that ran there before the end of its power lives.
#[test]
fn what_a_fencer_has_proved_stands_though_the_driver_proves_it_since() {
    for (proof, wanted) in [(Proof::Verified, Desired::Fenced), (Proof::PowerOff, Desired::Unfenced)] {
        let mut world = half_gone(&[external(), unpublish()], proof);
        taken_back(&mut world, "DeadlineExceeded");
        let row = world.volume("v1");
        let (method, state) = (Some(FenceMethodType::Unpublish), VolumeStatusState::Fenced);
        assert_eq!((row.method, row.state, row.external_proof), (method, state, Some(proof)), "{:#?}", world.log);
        world.remove_pod("b");
        world.run();
        world.wait(61.0);
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Detached), "{proof:?}: {:#?}", world.log);
        assert_eq!(desired(&world, POWER), Some(wanted), "{proof:?}: {:#?}", world.log);
    }
}
