//! Brakes that come to hold after the plan was written, and proofs that grow old during a pass.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::api::conditions;
use crate::api::node_fence::{Hold, PlannedPod, PlannedVolume, PodStatusState};
use crate::api::resiliency_policy::{ResiliencyPolicyStatus, Restraint, RestraintType};
use crate::api::time::Now;
use crate::controllers::testing::*;

use super::super::decide::{Effect, PROOF_LIFETIME};
use super::super::memory::is_too_late;
use super::build::planned;
use super::world::{Fencer, World};

fn one_pod() -> World {
    World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}))
}

/// Nodes fall silent one after the other, and now there are too many.
fn outage(world: &mut World, type_: Option<RestraintType>) {
    let restraint = |type_| Restraint { type_, name: None, since: at(100_000), until: None };
    let restraints = type_.map(restraint).into_iter().collect();
    let status = ResiliencyPolicyStatus { restraints, ..ResiliencyPolicyStatus::default() };
    Arc::make_mut(&mut world.seen.policies[0]).status = Some(status);
}

fn held(world: &World) -> (String, String) {
    let status = world.seen.fence.status.clone().unwrap();
    let held = conditions::find(&status.conditions, "Held").unwrap();
    (held.status.clone(), held.reason.clone())
}

#[test]
fn it_holds_an_incident_that_has_not_begun_until_it_is_over() {
    for brake in [RestraintType::CorrelatedOutage, RestraintType::Cooldown] {
        let mut world = one_pod();
        outage(&mut world, Some(brake));
        world.run();
        assert!(!world.did("ask Fenced") && !world.did("delete"), "{brake:?}: {:#?}", world.log);
        assert_eq!(held(&world), ("True".into(), "CorrelatedOutage".into()), "{brake:?}");
        outage(&mut world, None);
        world.run();
        assert!(world.did("delete pg grace 0"), "{brake:?}: {:#?}", world.log);
    }
}

#[test]
fn a_budget_that_is_spent_holds_nothing_that_is_open() {
    let mut world = one_pod();
    outage(&mut world, Some(RestraintType::BudgetExhausted));
    world.run();
    assert!(world.did("delete pg grace 0"), "{:#?}", world.log);
}

#[test]
fn a_request_that_was_not_begun_is_turned_round() {
    let mut world = one_pod();
    world.fencers.insert(DRIVER.into(), Fencer::Silent);
    world.run();
    outage(&mut world, Some(RestraintType::CorrelatedOutage));
    world.run_controller();
    world.fencers.clear();
    world.run();
    assert!(world.did("ask Unfenced") && !world.did("Started") && !world.did("delete"), "{:#?}", world.log);
}

#[test]
fn what_was_cut_off_is_brought_to_its_end() {
    let mut world = one_pod();
    while !world.did("v1 is Fencing") {
        if !world.pass() {
            world.fencers_act();
        }
    }
    outage(&mut world, Some(RestraintType::CorrelatedOutage));
    world.run();
    assert!(world.did("delete pg grace 0"), "its pod has lost its volume: {:#?}", world.log);
}

#[test]
fn a_request_that_is_begun_in_part_is_not_turned_round() {
    let mut world = World::new(vec![pod("pg", "n1", &[csi("v1")]), pod("web", "n1", &[csi("v2")])], &json!({}));
    world.fencers.insert(DRIVER.into(), Fencer::BeginsOnly("v1"));
    world.run();
    world.assert_order(&["Started v1"]);
    outage(&mut world, Some(RestraintType::CorrelatedOutage));
    // It comes to rest: a request that is turned round with what was begun would be asked for again, and so on.
    world.run();
    assert!(!world.did("ask Unfenced") && !world.did("Started v2") && !world.did("delete web"), "{:#?}", world.log);
    assert!(world.did("delete pg grace 0"), "its pod has lost its volume: {:#?}", world.log);
}

/// The node has failed again, with a row that is begun and needed still, and a new one.
fn begun_before() -> World {
    let mut world = one_pod();
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world.remove_pod("pg");
    let web = pod("web", "n1", &[csi("v2")]);
    let row = PlannedVolume {
        episode: 2,
        name: "v2".into(),
        volume_handle: Some("handle-v2".into()),
        attachment_uid: Some("va-v2".into()),
        ..world.plan().volumes[0].clone()
    };
    world.plan().volumes.push(row);
    world.plan().pods = vec![PlannedPod { episode: 2, ..planned(&web) }];
    Arc::make_mut(&mut world.seen.fence).spec.episode = 2;
    world.seen.pods.push(web);
    world.attach("v2", "va-v2", true);
    world.fencers.insert(DRIVER.into(), Fencer::Silent);
    world.run();
    assert!(world.did("ask Fenced v1 round 2, v2 round 1"), "{:#?}", world.log);
    world
}

/// Turned round for the new row, the request would be asked again for the other, in every pass.
#[test]
fn what_an_earlier_episode_has_begun_is_not_turned_round_either() {
    let mut world = begun_before();
    outage(&mut world, Some(RestraintType::CorrelatedOutage));
    world.run();
    assert!(!world.did("ask Unfenced"), "{:#?}", world.log);
}

#[test]
fn nor_is_it_while_a_person_holds_it() {
    let mut world = begun_before();
    Arc::make_mut(&mut world.seen.fence).spec.hold = Some(Hold { reason: "looking".into() });
    world.run();
    assert!(!world.did("ask Unfenced"), "{:#?}", world.log);
}

#[test]
fn a_kubelet_that_is_back_detaches_itself() {
    let mut world = one_pod();
    while !world.did("pg is Releasing") {
        if !world.pass() {
            world.fencers_act();
        }
    }
    world.node_returns();
    world.run_controller();
    world.remove_pod("pg");
    world.run_controller();
    assert!(!world.did("detach v1") && !world.did("taint out-of-service"), "{:#?}", world.log);
}

#[test]
fn a_deletion_carries_the_end_of_its_proof() {
    let mut world = one_pod();
    while !world.did("pg is Releasing") {
        if !world.pass() {
            world.fencers_act();
        }
    }
    assert_eq!(world.pod("pg").0, PodStatusState::Releasing);
    let asked = world.seen.asked.values().next().unwrap();
    let limit = Now { wall: asked.wall, mono: asked.at }.after(PROOF_LIFETIME);
    let effects = world.decide().effects;
    let deletion = effects.iter().find(|effect| matches!(effect, Effect::DeletePod { .. })).unwrap();
    assert!(matches!(deletion, Effect::DeletePod { not_after: Some(at), .. } if *at == limit), "{deletion:?}");

    // A machine that slept knows it by its wall clock alone; one that was set back ends nothing, and prolongs nothing.
    const SECOND: Duration = Duration::from_secs(1);
    let before = Now { mono: limit.mono - SECOND, wall: limit.wall - SECOND };
    assert!(!is_too_late(deletion, before));
    assert!(is_too_late(deletion, before.after(SECOND)));
    assert!(is_too_late(deletion, Now { wall: limit.wall, ..before }));
    assert!(!is_too_late(deletion, Now { wall: asked.wall - SECOND, ..before }));
    assert!(is_too_late(deletion, Now { mono: limit.mono, wall: asked.wall - SECOND }));
}
