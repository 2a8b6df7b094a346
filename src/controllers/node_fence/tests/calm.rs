//! A node that has lost the paths to two backends, with a pod of each under a policy of its own, and the brake of one policy.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::json;

use crate::api::driver_report::{Backend, BackendState, PathState, UnreachablePair};
use crate::api::node_fence::{Channel, Phase, PodStatusState, STORAGE_PATH_LOSS};
use crate::api::resiliency_policy::{ResiliencyPolicyStatus, Restraint, RestraintType};
use crate::api::time;
use crate::controllers::testing::*;

use super::world::{Fencer, World};

const OTHER: &str = "file.example.com";

/// Pod `pg` moves for one backend, and `web`, whose policy has pods elsewhere that use that one too, for the other.
fn of_two_policies() -> World {
    let pods = vec![pod("pg", "n1", &[csi("v1")]), pod("web", "n1", &[csi_of(OTHER, "v2")])];
    let mut world = World::new(pods, &json!({}));
    world.seen.policies.push(Arc::new(policy("web", &json!({}))));
    let plan = world.plan();
    plan.pods.iter_mut().for_each(|row| row.reason = STORAGE_PATH_LOSS.into());
    plan.pods.iter_mut().filter(|row| row.name == "web").for_each(|row| row.policy = Some("web".into()));
    let lost = |driver: &str| {
        let mut evidence = plan.evidence[0].clone();
        (evidence.channel, evidence.backend) = (Channel::Storage, Some(driver.into()));
        evidence
    };
    plan.evidence = vec![lost(DRIVER), lost(OTHER)];
    world.node_returns();
    loses(&mut world, DRIVER);
    loses(&mut world, OTHER);
    world
}

/// The array says so, and answers about the others.
fn loses(world: &mut World, driver: &str) {
    let mut told = report(driver, &["Unpublish", "ListPublishedNodes", "Connectivity"]);
    let status = told.status.as_mut().unwrap();
    status.backends =
        vec![Backend { name: driver.into(), state: BackendState::Answering, nodes: Some(9), since: at(1) }];
    status.unreachable = vec![UnreachablePair {
        node: "n1".into(),
        backend: driver.into(),
        state: PathState::Disconnected,
        reason: None,
        since: at(99_000),
    }];
    world.seen.reports.insert(driver.into(), Arc::new(told));
}

/// The brake of the policy of `web` on the backend that `pg` moves for.
fn restrain(world: &mut World, since: DateTime<Utc>, until: Option<DateTime<Utc>>) {
    let restraint = Restraint { type_: RestraintType::ArrayOutage, name: Some(DRIVER.into()), since, until };
    let status = ResiliencyPolicyStatus { restraints: vec![restraint], ..ResiliencyPolicyStatus::default() };
    Arc::make_mut(&mut world.seen.policies[1]).status = Some(status);
}

/// What `resiliency_policy` does where an incident is over and the paths are lost still: to none of the two pods that brake says
/// anything.
fn decided_on_again(world: &mut World) {
    world.wait(1.0);
    let decided_at = time::stamp(world.now.wall);
    let spec = &mut Arc::make_mut(&mut world.seen.fence).spec;
    spec.episode += 1;
    spec.plan.decided_at = decided_at;
    spec.plan.pods.iter_mut().for_each(|row| row.episode = spec.episode);
    spec.plan.volumes.iter_mut().for_each(|row| row.episode = spec.episode);
}

#[test]
fn an_incident_that_was_decided_on_in_a_calm_is_not_undone_for_it() {
    let mut world = of_two_policies();
    restrain(&mut world, at(99_000), Some(at(200_000)));
    for _ in 0..4 {
        world.run();
        if world.seen.phase() == Some(Phase::Recovered) {
            decided_on_again(&mut world);
        }
    }
    assert_eq!(world.seen.fence.spec.episode, 1, "undone and decided on again, in every round: {:#?}", world.log);
    assert!(world.did("delete pg grace 0") && world.did("delete web grace 0"), "{:#?}", world.log);
    assert_eq!(world.condition("Held"), Some(("False".into(), "NotHeld".into())));
}

/// As long as an outage lasts nobody says of a node that it has lost its path, so nothing is decided on again either.
#[test]
fn an_outage_that_lasts_and_one_that_came_since_undo_it() {
    let lasts = |world: &mut World| restrain(world, at(99_000), None);
    let came_since = |world: &mut World| {
        let since = time::stamp(world.now.wall);
        restrain(world, since, Some(at(200_000)));
    };
    for (name, happens) in [("it lasts", lasts as fn(&mut World)), ("it came since, and is over", came_since)] {
        let mut world = of_two_policies();
        for driver in [DRIVER, OTHER] {
            world.fencers.insert(driver.into(), Fencer::Silent);
        }
        world.run();
        assert!(world.did("ask Fenced v1 round 1") && world.did("ask Fenced v2 round 1"), "{name}: {:#?}", world.log);
        happens(&mut world);
        world.run_controller();
        assert!(world.did("ask Unfenced") && !world.did("delete"), "{name}: {:#?}", world.log);
        assert_eq!(world.seen.phase(), Some(Phase::Recovered), "{name}: {:#?}", world.log);
        assert_eq!(world.pod("pg").0, PodStatusState::Undone, "{name}");
    }
}
