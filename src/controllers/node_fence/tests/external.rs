//! An external fencer: what its answers are worth, when it is asked at all, and when it may give the node its power again.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::fence_request::{Desired, FenceOutcome, FencerMethodType};
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::node_fence::{
    Channel, Evidence, NodeFenceStatus, Phase, PodStatusState, Timeline, VOLUME_TAINT, VolumeStatusState,
};
use crate::api::resiliency_policy::{ResiliencyPolicyStatus, Restraint, RestraintType};
use crate::controllers::testing::*;

use super::super::decide::{Effect, Settings};
use super::super::memory::{Found, Incident};
use super::build::{found, planned};
use super::world::{Fencer, World};

/// A failed node with a pod whose volume is cut off by these methods, in their order.
fn fenced_by(minimum: &str, methods: &[Value]) -> World {
    let fencing = json!({ "minimumProof": minimum, "methods": methods, "callTimeout": "5s", "giveUpAfter": "20s" });
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({ "fencing": fencing }));
    world.fencers.insert(POWER.into(), Fencer::Proves(Proof::PowerOff));
    world
}

fn asks(world: &World, fencer: &str) -> bool {
    world.seen.request(fencer).is_some()
}

/// Too many nodes are suspected.
fn outage(world: &mut World) {
    let restraint = Restraint { type_: RestraintType::CorrelatedOutage, name: None, since: at(100_000), until: None };
    let status = ResiliencyPolicyStatus { restraints: vec![restraint], ..ResiliencyPolicyStatus::default() };
    Arc::make_mut(&mut world.seen.policies[0]).status = Some(status);
}

/// Whoever cuts the volume off so has failed, or says that what it proved holds no more. It is asked again, and has not begun with that.
fn asked_again(method: &Value, fencer: &str, first: Fencer) -> World {
    let minimum = if fencer == POWER { "PowerOff" } else { "Verified" };
    let mut world = fenced_by(minimum, std::slice::from_ref(method));
    world.fencers.insert(fencer.into(), first);
    while !world.did("v1 is Fenced") && !world.did("v1 is Failed") {
        assert!(world.pass() || world.others_act(), "{:#?}", world.log);
    }
    for request in &mut world.seen.requests {
        for row in &mut Arc::make_mut(request).status.as_mut().unwrap().volumes {
            (row.result, row.proof, row.reason) = (FenceOutcome::Failed, Proof::None, Some("PowerRestored".into()));
        }
    }
    world.fencers.insert(fencer.into(), Fencer::Silent);
    world.wait(5.0);
    world.run_controller();
    assert!(world.did("ask Fenced v1 round 2") && !world.did("delete"), "{:#?}", world.log);
    world
}

/// It proved that the node had no power, and somebody switched that on.
fn switched_on() -> World {
    asked_again(&external(), POWER, Fencer::Proves(Proof::PowerOff))
}

/// A scheduler had not heard of the taint, and attach/detach attached to a node without power what the pod before it had there.
#[test]
fn what_is_attached_to_a_node_without_power_needs_no_other_proof() {
    let mut world = fenced_by("PowerOff", &[external()]);
    world.run_until("pg is Released");
    world.seen.attachments.clear();
    world.wait(0.1);
    world.attach("v1", "va-late", true);
    let late = pod("late", "n1", &[csi("v1")]);
    let row = planned(&late);
    world.plan().pods.push(row);
    world.seen.pods.push(late);
    world.run();
    assert!(world.did("delete late grace 0") && world.seen.attachments.is_empty(), "{:#?}", world.log);
    assert_eq!((world.volume("v1").refences, world.volume("v1").proof), (None, Proof::PowerOff));
}

#[test]
fn a_node_without_power_frees_its_pods() {
    let mut world = fenced_by("PowerOff", &[external()]);
    world.run();
    world.assert_order(&["taint fenced", "ask Fenced v1 round 1", "Started v1", "Fenced v1", "delete pg grace 0"]);
    let row = world.volume("v1");
    assert_eq!((row.method, row.proof), (Some(FenceMethodType::External), Proof::PowerOff));
    let request = world.seen.request(POWER).unwrap();
    assert_eq!(request.spec.volumes[0].methods[0].type_, FencerMethodType::External);
    assert!(!asks(&world, DRIVER), "the sidecar is not asked for a proof that it cannot give");
}

#[test]
fn nobody_else_can_say_that_a_node_has_no_power() {
    let unpublish = json!({ "type": "Unpublish" });
    let mut world = fenced_by("Verified", std::slice::from_ref(&unpublish));
    world.fencers.insert(DRIVER.into(), Fencer::Proves(Proof::PowerOff));
    world.run();
    assert!(!world.did("delete") && !world.did("v1 is Fenced"), "a sidecar was believed: {:#?}", world.log);
    let mut world = fenced_by("Verified", &[unpublish, external()]);
    world.fencers.insert(DRIVER.into(), Fencer::Fails("StillPublished"));
    world.fencers.insert(POWER.into(), Fencer::Hangs);
    world.run();
    let request = world.seen.requests.iter_mut().find(|it| it.spec.fencer_name == POWER).unwrap();
    let answer = &mut Arc::make_mut(request).status.as_mut().unwrap().volumes[0];
    answer.result = FenceOutcome::Fenced;
    (answer.proof, answer.method) = (Proof::Verified, Some(FencerMethodType::Unpublish));
    world.run_controller();
    assert!(!world.did("delete"), "an answer by a method that was not asked for: {:#?}", world.log);
}

#[test]
fn while_nobody_answers_the_pod_waits_and_that_is_told() {
    for (name, fencer) in
        [("silent", Fencer::Silent), ("hangs", Fencer::Hangs), ("fails", Fencer::Fails("WrongMachine"))]
    {
        let mut world = fenced_by("PowerOff", &[external()]);
        world.fencers.insert(POWER.into(), fencer);
        for _ in 0..6 {
            world.run();
            world.wait(7.0);
        }
        assert!(!world.did("delete") && !world.did("detach"), "{name}: {:#?}", world.log);
        let reason = if name == "silent" { "FencerSilent" } else { "ProofTooWeak" };
        assert_eq!(world.condition("Stalled"), Some(("True".into(), reason.into())), "{name}");
    }
}

#[test]
fn the_next_method_is_tried_when_one_gives_way_and_not_before() {
    let unpublish = json!({ "type": "Unpublish" });
    for (name, first, methods) in [
        ("the sidecar fails", Fencer::Fails("StillPublished"), [unpublish.clone(), external()]),
        ("the sidecar proves too little", Fencer::Proves(Proof::Acknowledged), [unpublish.clone(), external()]),
        ("the sidecar refuses", Fencer::Refuses("Unimplemented"), [unpublish.clone(), external()]),
        ("the sidecar is silent", Fencer::Silent, [unpublish.clone(), external()]),
        ("the sidecar hangs", Fencer::Hangs, [unpublish.clone(), external()]),
        ("the external one is silent", Fencer::Silent, [external(), unpublish.clone()]),
    ] {
        let (first_name, second) = if methods[0] == external() { (POWER, DRIVER) } else { (DRIVER, POWER) };
        let mut world = fenced_by("Verified", &methods);
        world.fencers.insert(first_name.into(), first.clone());
        world.run();
        let waits = matches!(first, Fencer::Silent | Fencer::Hangs);
        assert_eq!(asks(&world, second), !waits, "{name}: {:#?}", world.log);
        world.wait(6.9);
        world.run();
        assert_eq!(asks(&world, second), !waits, "{name}, within the time of a call: {:#?}", world.log);
        world.wait(0.2);
        world.run();
        assert!(asks(&world, second) && world.did("delete pg grace 0"), "{name}: {:#?}", world.log);
    }
}

#[test]
fn the_next_controller_tries_the_next_method_too() {
    let mut world = fenced_by("Verified", &[json!({ "type": "Unpublish" }), external()]);
    world.fencers.insert(DRIVER.into(), Fencer::Silent);
    world.run();
    world.restart();
    world.wait(6.8);
    world.run();
    assert!(!asks(&world, POWER), "it looks for less than a call may take: {:#?}", world.log);
    world.wait(0.2);
    world.run();
    assert!(asks(&world, POWER) && world.did("delete pg grace 0"), "{:#?}", world.log);
}

#[test]
fn in_an_outage_nobody_else_begins() {
    let mut world = fenced_by("Verified", &[json!({ "type": "Unpublish" }), external()]);
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    outage(&mut world);
    world.wait(60.0);
    world.run();
    assert!(!asks(&world, POWER), "{:#?}", world.log);
    Arc::make_mut(&mut world.seen.policies[0]).status = None;
    world.run();
    assert!(asks(&world, POWER) && world.did("delete pg grace 0"), "{:#?}", world.log);
}

#[test]
fn a_node_that_is_held_off_stays_proved() {
    let mut world = fenced_by("PowerOff", &[external()]);
    // Decided, and not yet deleted.
    world.run_until("pg is Releasing");
    world.wait(120.0);
    world.run_controller();
    assert!(world.did("delete pg grace 0") && !world.did("round 2"), "{:#?}", world.log);
}

#[test]
fn after_a_restart_the_fencer_is_asked_whether_it_still_holds_the_node_off() {
    let mut world = fenced_by("PowerOff", &[external()]);
    world.asks_again_after_a_restart();
}

#[test]
fn a_node_that_is_well_is_not_switched_off_for_its_volumes() {
    let mut world = fenced_by("Verified", &[json!({ "type": "Unpublish" }), external()]);
    let triggers = json!({ "triggers": { "volumeTaints": ["VolumeNotUsable"] } });
    let mut policy = policy("db", &triggers);
    policy.spec.fencing = world.seen.policies[0].spec.fencing.clone();
    world.seen.policies = vec![Arc::new(policy)];
    world.plan().evidence.iter_mut().for_each(|it| it.channel = Channel::Volume);
    world.plan().pods.iter_mut().for_each(|row| row.reason = VOLUME_TAINT.into());
    let health = tainted("v1", "VolumeNotUsable", &["n1"]);
    world.seen.healths = Some(BTreeMap::from([("v1".into(), Arc::new(health))]));
    world.node_returns();
    world.fencers.insert(DRIVER.into(), Fencer::Fails("StillPublished"));
    for _ in 0..4 {
        world.run();
        world.wait(10.0);
    }
    assert!(asks(&world, DRIVER) && !asks(&world, POWER), "{:#?}", world.log);
    assert!(!world.did("delete"), "{:#?}", world.log);
    // It fails meanwhile, with nobody more to move.
    let unreachable = Evidence { channel: Channel::Kubelet, ..world.seen.fence.spec.plan.evidence[0].clone() };
    world.plan().evidence.push(unreachable);
    world.node_fails();
    world.seen.lease_is_still = true;
    for _ in 0..4 {
        world.run();
        world.wait(10.0);
    }
    assert!(asks(&world, POWER), "{:#?}", world.log);
}

#[test]
fn before_started_it_is_called_off() {
    let mut world = fenced_by("PowerOff", &[external()]);
    world.fencers.insert(POWER.into(), Fencer::Silent);
    world.run();
    world.node_returns();
    world.run_controller();
    world.assert_order(&["ask Fenced v1 round 1", "ask Unfenced", "untaint fenced", "phase Recovered"]);
    assert_eq!(world.pod("pg").0, PodStatusState::Undone);
    assert!(!world.did("delete"), "{:#?}", world.log);
}

#[test]
fn a_round_that_was_not_begun_is_called_off_when_the_node_is_back() {
    type Case = (&'static str, Value, &'static str, Fencer, fn(&mut World), bool);
    let off = Fencer::Proves(Proof::PowerOff);
    let cases: [Case; 4] = [
        ("proved, and booted since", external(), POWER, off.clone(), World::node_reboots, true),
        ("never proved", external(), POWER, Fencer::Fails("DeadlineExceeded"), World::node_returns, true),
        // It is on record that its pod goes by force: the deletion may be on its way, and what runs there would be let in.
        ("proved, and back in that boot", external(), POWER, off, World::node_returns, false),
        ("its driver", unpublish(), DRIVER, Fencer::Fails("StillPublished"), World::node_returns, false),
    ];
    for (name, method, fencer, first, comes_back, is_called_off) in cases {
        let mut world = asked_again(&method, fencer, first);
        assert_eq!(world.did("pg is Releasing"), world.did("v1 is Fenced"), "{name}: {:#?}", world.log);
        comes_back(&mut world);
        world.run_controller();
        assert_eq!(world.did("ask Unfenced"), is_called_off, "{name}: {:#?}", world.log);
        assert!(world.did("delete pg graceful"), "its kubelet ends it, {name}: {:#?}", world.log);
        let proof = if fencer == POWER { Proof::PowerOff } else { Proof::Verified };
        world.fencers.insert(fencer.into(), Fencer::Proves(proof));
        world.run();
        let begun = world.log.iter().filter(|entry| *entry == "Started v1").count();
        assert_eq!(begun, if is_called_off { 1 } else { 2 }, "{name}: {:#?}", world.log);
    }
}

/// In an outage that is another switch-off, and nobody begins.
#[test]
fn one_that_was_called_off_is_asked_anew_when_the_node_fails_again() {
    for is_outage in [false, true] {
        let mut world = switched_on();
        if is_outage {
            outage(&mut world);
        }
        world.node_reboots();
        world.run();
        world.assert_order(&["ask Fenced v1 round 2", "ask Unfenced", "delete pg graceful", "Unfenced v1"]);
        world.fencers.insert(POWER.into(), Fencer::Proves(Proof::PowerOff));
        world.node_fails();
        world.run();
        if is_outage {
            assert!(!world.did("ask Fenced v1 round 3"), "{:#?}", world.log);
            Arc::make_mut(&mut world.seen.policies[0]).status = None;
            world.run();
        }
        world.assert_order(&["Unfenced v1", "ask Fenced v1 round 3", "Started v1", "Fenced v1", "delete pg grace 0"]);
        world.node_reboots();
        world.run();
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{:#?}", world.log);
        assert!(world.seen.requests.is_empty(), "{:#?}", world.log);
    }
}

#[test]
fn an_outage_calls_off_what_was_asked_anew_and_not_begun() {
    let mut world = switched_on();
    world.node_reboots();
    world.run();
    world.node_fails();
    world.fencers.insert(POWER.into(), Fencer::Silent);
    world.run();
    world.assert_order(&["ask Unfenced", "ask Fenced v1 round 3"]);
    outage(&mut world);
    world.run();
    world.assert_order(&["ask Fenced v1 round 3", "ask Unfenced"]);
    assert_eq!(world.seen.request(POWER).unwrap().spec.desired, Desired::Unfenced, "it comes to rest");
}

#[test]
fn a_fencer_that_is_first_to_begin_with_a_further_round_is_not_called_off() {
    let mut world = switched_on();
    world.node_reboots();
    // Everything up to the write that turns the request round.
    while !world.decide().effects.iter().any(|effect| matches!(effect, Effect::AskAgain(_))) {
        assert!(world.pass(), "the request is turned round: {:#?}", world.log);
    }
    world.fencers.insert(POWER.into(), Fencer::Proves(Proof::PowerOff));
    world.fencers_act();
    world.run_controller();
    assert!(!world.did("ask Unfenced") && world.did("delete pg graceful"), "{:#?}", world.log);
}

#[test]
fn when_all_has_moved_the_node_may_have_its_power_again() {
    let mut world = fenced_by("PowerOff", &[external()]);
    world.run();
    assert!(!world.did("ask Unfenced"), "while what comes back is watched for: {:#?}", world.log);
    world.wait(61.0);
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Detached));
    assert_eq!(world.seen.request(POWER).unwrap().spec.desired, Desired::Unfenced);
    assert!(world.seen.our_taint().is_some(), "nothing may start there before it is clean");
    world.wait(30.0);
    world.run();
    assert_eq!(world.volume("v1").state, VolumeStatusState::Detached);
    world.node_reboots();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Recovered));
    assert!(world.seen.requests.is_empty() && world.seen.our_taint().is_none());
}

#[test]
fn a_proof_of_power_ends_when_the_node_is_seen_again() {
    let mut world = fenced_by("PowerOff", &[external()]);
    while !world.did("v1 is Fenced") {
        if !world.pass() {
            world.fencers_act();
        }
    }
    assert!(!world.did("delete pg"), "{:#?}", world.log);
    // Somebody gave it power, it runs its pod again, and is lost again; its fencer knows of nothing.
    world.fencers.insert(POWER.into(), Fencer::Silent);
    world.node_reboots();
    world.node_fails();
    world.run();
    assert!(!world.did("delete pg grace 0"), "{:#?}", world.log);
    // The fencer runs again: what it proves now, in a round that was asked for since, counts.
    world.fencers.insert(POWER.into(), Fencer::Proves(Proof::PowerOff));
    world.wait(11.0);
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
}

#[test]
fn a_node_is_another_when_it_has_booted_or_its_return_is_recorded() {
    let mut world = fenced_by("PowerOff", &[external()]);
    let mut incident = Incident::default();
    let mut changed_at = |world: &World| {
        let found = Found { node: world.seen.node.clone(), ..found(&world.seen.fence) };
        incident.look(found, Settings::default(), world.now).node_changed_at
    };
    assert_eq!(changed_at(&world), None, "it is seen for the first time");
    world.node_fails();
    world.wait(1.0);
    assert_eq!(changed_at(&world), None, "it is as it was");
    world.node_reboots();
    let booted = Some(world.now.mono);
    assert_eq!(changed_at(&world), booted);
    world.wait(1.0);
    assert_eq!(changed_at(&world), booted);
    let timeline = Timeline { returned_at: Some(at(5)), ..Timeline::default() };
    let status = NodeFenceStatus { timeline: Some(timeline), ..NodeFenceStatus::default() };
    Arc::make_mut(&mut world.seen.fence).status = Some(status);
    assert_eq!(changed_at(&world), Some(world.now.mono));
}

#[test]
fn an_attachment_is_deleted_where_nobody_else_can_be_asked() {
    let mut world = fenced_by("Acknowledged", &[json!({ "type": "Detach" }), external()]);
    world.run();
    world.assert_order(&["ask Fenced v1 round 1", "Fenced v1", "delete pg grace 0"]);
    assert_eq!(world.volume("v1").method, Some(FenceMethodType::External), "{:#?}", world.log);
}
