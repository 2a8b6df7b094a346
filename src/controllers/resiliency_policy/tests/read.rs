//! Which nodes a pass reads from the API, how often, and what becomes of the others when one cannot be read.

use std::collections::BTreeSet;

use serde_json::json;

use crate::controllers::testing::*;

use super::super::decide::{Decision, LOOKS};
use super::super::memory::{Found, Memory};
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
fn where_many_cannot_be_read_they_keep_their_places() {
    for (nodes, wanted) in [(1, 1), (LOOKS, LOOKS), (LOOKS + 1, 0)] {
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
