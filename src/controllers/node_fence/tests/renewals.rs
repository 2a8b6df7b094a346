//! A kubelet that was there in the incident, and of which a node lifecycle controller that lags behind says that it is silent.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::api::fencing::Proof;
use crate::api::node_fence::{Channel, NodeFence, NodeFenceStatus, Phase, Timeline};
use crate::api::resiliency_policy::CheckSwitch;
use crate::api::slim::Lease;
use crate::api::time::Now;
use crate::controllers::testing::*;

use super::super::decide::{NodeState, Settings};
use super::super::io;
use super::super::memory::{Found, Incident, Live};
use super::super::rows::node_state;
use super::build::found;
use super::world::{Fencer, World};

fn world() -> World {
    World::new(vec![pod("pg", "n1", &[csi("v1")])], &json!({}))
}

/// It was back in the episode that was decided on then.
fn was_back(world: &mut World, decided_at: i64) {
    let timeline = Timeline { decided_at: Some(at(decided_at)), returned_at: Some(at(100_000)), ..Timeline::default() };
    let status = NodeFenceStatus { timeline: Some(timeline), ..NodeFenceStatus::default() };
    Arc::make_mut(&mut world.seen.fence).status = Some(status);
}

fn decided_by(world: &mut World, channel: Channel) {
    world.plan().evidence.iter_mut().for_each(|it| it.channel = channel);
}

fn asked(world: &World) -> usize {
    world.log.iter().filter(|entry| entry.starts_with("ask")).count()
}

fn failed_boots(world: &World) -> &[String] {
    &world.seen.fence.status.as_ref().unwrap().failed_boot_ids
}

/// What was committed is asked for again, and its pods go by force beside their kubelet, only when that has missed a renewal.
#[test]
fn a_kubelet_that_may_renew_its_lease_ends_its_pods_itself() {
    let mut world = world();
    world.fencers.insert(DRIVER.into(), Fencer::Hangs);
    world.run();
    world.node_reboots();
    world.run();
    assert!(world.did("delete pg graceful"), "{:#?}", world.log);
    let before = asked(&world);
    world.node_fails();
    world.seen.renewed_lately = true;
    world.fencers.insert(DRIVER.into(), Fencer::Proves(Proof::Verified));
    for _ in 0..3 {
        world.run();
        world.wait(11.0);
    }
    assert_eq!(asked(&world), before, "{:#?}", world.log);
    assert!(!world.did("delete pg grace 0"), "{:#?}", world.log);
    assert_eq!(failed_boots(&world), [""; 0], "{:#?}", world.log);
    world.seen.renewed_lately = false;
    world.run();
    assert!(asked(&world) > before && world.did("delete pg grace 0"), "{:#?}", world.log);
    assert_eq!(failed_boots(&world), ["boot-1-again"], "{:#?}", world.log);
}

#[test]
fn who_may_renew_its_lease_is_not_away_by_the_word_of_kubernetes() {
    type Case = (&'static str, fn(&mut World), NodeState);
    let cases: [Case; 5] = [
        ("it was back", |world| was_back(world, 100_000), NodeState::Back),
        ("it was back in an earlier episode", |world| was_back(world, 99_000), NodeState::Away),
        ("it was declared silent, and not back since", |_| {}, NodeState::Away),
        // By default `unreachable` counts: it says no more than the condition does.
        ("it had a taint, which is gone", |world| decided_by(world, Channel::Taint), NodeState::Back),
        (
            "heartbeats had declared it, it was back, and another process leads",
            |world| {
                world.heartbeats_tell();
                was_back(world, 100_000);
                world.node_fails();
            },
            NodeState::Back,
        ),
    ];
    for (name, change, expected) in cases {
        let mut world = world();
        change(&mut world);
        assert_eq!(node_state(&world.seen), NodeState::Away, "{name}, and its renewal is overdue");
        world.seen.renewed_lately = true;
        assert_eq!(node_state(&world.seen), expected, "{name}");
    }
}

/// It is decided within a renewal of its Lease, not half a minute later.
#[test]
fn who_may_renew_its_lease_is_looked_at_soon() {
    let mut world = world();
    world.run();
    world.node_returns();
    world.run();
    world.node_fails();
    world.run();
    assert_eq!(world.seen.phase(), Some(Phase::Cleaning), "{:#?}", world.log);
    for (renewed_lately, seconds) in [(false, 30), (true, 1)] {
        world.seen.renewed_lately = renewed_lately;
        world.run();
        assert_eq!(world.decide().look_again, Some(Duration::from_secs(seconds)), "{renewed_lately}");
    }
}

#[test]
fn io_stops_a_decision_while_the_kubelet_may_renew_its_lease() {
    let mut world = world();
    world.seen.reports.insert(DRIVER.into(), Arc::new(report(DRIVER, &["Unpublish", "IOInProgress"])));
    decided_by(&mut world, Channel::Storage);
    for (renewed_lately, expected) in [(true, CheckSwitch::Enabled), (false, CheckSwitch::Disabled)] {
        world.seen.renewed_lately = renewed_lately;
        assert_eq!(io::check(&world.seen, DRIVER, world.now), expected, "{renewed_lately}");
    }
}

fn lease(renewed: i64, duration: Option<i64>) -> Lease {
    let spec = json!({ "renewTime": at(renewed), "leaseDurationSeconds": duration });
    serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap()
}

/// What a process sees of the Lease in its store.
fn stored(incident: &mut Incident, fence: &Arc<NodeFence>, lease: Option<Lease>, now: Now) -> bool {
    let found = Found { lease: lease.map(Arc::new), ..found(fence) };
    incident.look(found, Settings::default(), now).renewed_lately
}

#[test]
fn a_renewal_counts_until_the_next_is_overdue_by_our_own_clock() {
    let (fence, begin) = (world().seen.fence, now());
    for (duration, seconds) in [(None, 15.0), (Some(40), 15.0), (Some(8), 3.0), (Some(0), 15.0), (Some(36_000), 60.0)] {
        let mut incident = Incident::default();
        let mut at_second =
            |renewed, second| stored(&mut incident, &fence, Some(lease(renewed, duration)), later(begin, second));
        assert!(at_second(10, 0.0), "{duration:?}: it is found");
        assert!(at_second(10, seconds - 0.1), "{duration:?}");
        assert!(!at_second(10, seconds), "{duration:?}");
        assert!(at_second(20, 100.0), "{duration:?}: it has moved");
        assert!(!at_second(20, 100.0 + seconds), "{duration:?}");
        assert!(!at_second(10, 101.0 + seconds), "{duration:?}: a store that is behind shows nothing new");
    }
    assert!(!stored(&mut Incident::default(), &fence, None, begin), "a node without a Lease renews none");
}

#[test]
fn what_the_api_said_of_a_lease_is_no_news_when_the_store_has_it() {
    let (fence, begin) = (world().seen.fence, now());
    let mut incident = Incident::default();
    let seen =
        incident.look(Found { lease: Some(Arc::new(lease(10, None))), ..found(&fence) }, Settings::default(), begin);
    let live = Live {
        fence: Some(fence.clone()),
        node: None,
        lease: Some(lease(20, None)),
        pods: Vec::new(),
        attachments: Vec::new(),
        node_report: None,
    };
    assert!(incident.look_live(seen, live, later(begin, 20.0)).renewed_lately);
    assert!(stored(&mut incident, &fence, Some(lease(10, None)), later(begin, 30.0)));
    assert!(!stored(&mut incident, &fence, Some(lease(20, None)), later(begin, 35.0)));
}

/// Whoever declared it failed has seen the Lease stand still.
#[test]
fn what_was_renewed_before_the_node_was_declared_failed_counts_no_more() {
    let mut world = world();
    let mut incident = Incident::default();
    assert!(stored(&mut incident, &world.seen.fence, Some(lease(10, None)), now()));
    let again = world.plan().evidence[0].clone();
    world.plan().evidence.push(again);
    assert!(!stored(&mut incident, &world.seen.fence, Some(lease(10, None)), now()));
    assert!(stored(&mut incident, &world.seen.fence, Some(lease(20, None)), now()), "it has renewed it since");
}
