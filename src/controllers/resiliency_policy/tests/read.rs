//! Which nodes a pass reads from the API, how often, and what becomes of the others when one cannot be read.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::controllers::testing::*;
use crate::error::{ErrorClass, Result};

use super::super::decide::{Decision, LOOKS};
use super::super::memory::{Found, Memory};
use super::super::read::{in_time, is_blind};
use super::World;

/// Thirty nodes of which the first four have failed, and so many may be acted on.
fn world(max_nodes: usize) -> World {
    World::with_failed(30, 4, &json!({ "limits": { "maxNodes": max_nodes } }))
}

/// A pass; the nodes that have a NodeFence after it.
fn opened(world: &mut World) -> Vec<String> {
    world.pass();
    world.seen.fences.iter().filter_map(|fence| fence.metadata.name.clone()).collect()
}

#[test]
fn one_that_is_gone_is_read_once_and_takes_no_place() {
    let mut world = world(1);
    world.gone.insert("n0".into());
    assert_eq!(opened(&mut world), ["n1"]);
    assert_eq!(world.reads, ["n0", "n1"]);
    world.pass();
    assert_eq!(world.reads, [""; 0], "the budget is exhausted");
}

#[test]
fn none_is_read_twice_in_a_pass() {
    let mut world = world(4);
    world.gone.insert("n1".into());
    world.unreadable.insert("n2".into());
    assert_eq!(opened(&mut world), ["n0", "n3"]);
    assert_eq!(world.reads, ["n0", "n1", "n2", "n3"]);
}

#[test]
fn one_that_cannot_be_read_holds_up_none_that_is_asked_for_later() {
    let mut world = world(2);
    world.unreadable.insert("n0".into());
    // Nothing is to be done on the next one after all: its place is free.
    let mut live = world.look_at("n1").expect("it is there");
    live.pods.clear();
    world.live.insert("n1".into(), live);
    assert_eq!(opened(&mut world), ["n2"]);
    assert_eq!(world.reads, ["n0", "n1", "n2"]);
    assert_eq!(world.failed.as_deref(), Some("n0"), "and it is told");
    world.unreadable.clear();
    assert_eq!(opened(&mut world), ["n2", "n0"], "it is tried again");
    assert_eq!(world.failed, None);
}

/// A moment's error gives the place of the most important node to nobody; but it must not stop all failover for good.
#[test]
fn one_that_cannot_be_read_again_takes_no_place() {
    let mut world = world(1);
    world.unreadable.insert("n0".into());
    assert_eq!(opened(&mut world), [""; 0]);
    assert_eq!(world.reads, ["n0"]);
    assert_eq!(opened(&mut world), ["n1"]);
    assert_eq!(world.reads, ["n0", "n1"]);
    assert_eq!(world.failed.as_deref(), Some("n0"));
}

fn unread(nodes: usize) -> BTreeSet<String> {
    (0..nodes).map(|number| format!("n{number}")).collect()
}

#[test]
fn however_many_cannot_be_read_none_takes_a_place_for_good() {
    for (nodes, wanted) in [(1, 1), (LOOKS + 1, LOOKS + 1), (20, 20)] {
        let mut memory = Memory::default();
        memory.note(&Decision { unread: unread(nodes), ..Decision::default() }, now());
        let seen = memory.look(Found::default(), (1, 1), now());
        assert_eq!(seen.unread, unread(wanted), "{nodes}");
    }
}

#[test]
fn one_that_could_not_be_read_was_not_looked_at_for_pods_without_volumes() {
    let looked_for_volumeless = vec!["n0".to_owned(), "n1".to_owned()];
    let mut memory = Memory::default();
    let decision = Decision { unread: unread(1), looked_for_volumeless, ..Decision::default() };
    memory.note(&decision, now());
    let seen = memory.look(Found::default(), (1, 1), now());
    assert_eq!(seen.looked_for_volumeless, ["n1".to_owned()].into());
}

/// By the passes of one process. The places of those that cannot be read are free again, one by one.
#[test]
fn the_next_has_its_turn_however_many_cannot_be_read() {
    let (mut world, mut memory) =
        (World::with_failed(30, 7, &json!({ "limits": { "maxNodes": 1 } })), Memory::default());
    world.unreadable = unread(6);
    for _ in 0..7 {
        let decision = world.decide();
        memory.note(&decision, world.now);
        world.pass();
        world.seen.unread = memory.look(Found::default(), (1, 1), world.now).unread;
    }
    assert!(world.fence("n6").is_some());
}

#[test]
fn what_is_to_be_done_waits_for_no_further_look_once_one_has_failed() {
    let mut world = world(3);
    world.unreadable.insert("n0".into());
    // The place of this one would be free for the fourth.
    let mut live = world.look_at("n2").expect("it is there");
    live.pods.clear();
    world.live.insert("n2".into(), live);
    assert_eq!(opened(&mut world), ["n1"]);
    assert_eq!(world.reads, ["n0", "n1", "n2"]);
    assert_eq!(opened(&mut world), ["n1", "n3"], "that is the next pass's");
}

/// A pass that fails is not tried again for up to a minute and more, and what time alone decides of other nodes waits as long.
#[test]
fn a_pass_fails_only_where_many_could_not_be_read_and_nothing_is_to_be_done() {
    type Case = (&'static str, usize, fn(&mut World), bool);
    let cases: [Case; 5] = [
        ("one", 1, |_| {}, false),
        ("a few", LOOKS, |_| {}, false),
        ("many", LOOKS + 1, |_| {}, true),
        ("many, and one is gone", LOOKS + 2, |world| world.gone.extend(["n0".to_owned()]), false),
        (
            "many, and a policy is to be guarded",
            LOOKS + 1,
            |world| {
                let policy = &mut world.seen.policies[0];
                Arc::make_mut(policy).metadata.finalizers = None;
            },
            false,
        ),
    ];
    for (name, failed, change, wanted) in cases {
        let mut world = World::with_failed(30, failed, &json!({ "limits": { "maxNodes": 10 } }));
        world.unreadable = unread(failed);
        world.rest();
        change(&mut world);
        world.unreadable.retain(|name| !world.gone.contains(name));
        let decision = world.decide();
        assert_eq!(world.reads.len(), failed, "{name}");
        assert_eq!(is_blind(&world.seen, &decision), wanted, "{name}: {:?}", decision.effects);
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_that_hangs_is_given_up_long_before_the_pass_is() {
    let began = Instant::now();
    let look = in_time(pending::<Result<()>>()).await;
    assert_eq!(look.map_err(|error| error.class()), Err(ErrorClass::Deadline));
    let all_of_a_pass = began.elapsed() * u32::try_from(LOOKS).unwrap();
    assert!(all_of_a_pass < Duration::from_secs(60), "{all_of_a_pass:?}, and the queue gives a pass a minute");
}
