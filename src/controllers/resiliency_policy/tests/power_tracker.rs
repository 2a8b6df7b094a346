//! What is remembered of the words of fencers on power: since when each is said, and whether it was denied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::api::driver_report::{DriverReport, PoweredOffNode};
use crate::api::slim::Node;
use crate::controllers::testing::*;

use super::super::evidence::Silence;
use super::super::heartbeat::Heartbeat;
use super::super::memory::{Found, Memory};
use super::super::power::{PowerTracker, Told};
use super::power::{but_node, lost_for, named, off, row, unready};

/// What a tracker makes of reports, of heartbeats of the first node and of its boot.
struct Tracked {
    tracker: PowerTracker,
    term: u64,
    begun: Instant,
}

impl Tracked {
    fn new() -> Self {
        Self { tracker: PowerTracker::default(), term: 1, begun: Instant::now() }
    }

    fn at(&mut self, seconds: u64, report: Option<DriverReport>, heard: Heartbeat) -> Option<Told> {
        self.of(node("n0"), seconds, report, heard)
    }

    fn of(&mut self, node: Node, seconds: u64, report: Option<DriverReport>, heard: Heartbeat) -> Option<Told> {
        let boot_id = node.status.node_info.boot_id.clone();
        let nodes = [(Arc::new(node), Silence::default())];
        let heartbeats = BTreeMap::from([("n0".to_owned(), heard)]);
        let now = self.begun + Duration::from_secs(seconds);
        let mut told = self.tracker.update(&reports(report), &nodes, &heartbeats, self.term, now);
        told.remove("n0")?.into_iter().find(|told| told.row.boot_id == boot_id)
    }
}

/// A fencer that says it, takes it back and says it again of the same boot was wrong, or is; whatever else it says in between.
#[test]
fn a_word_is_as_old_as_when_it_was_first_said_of_a_boot() {
    let mut known = Tracked::new();
    let other = PoweredOffNode { boot_id: "boot-0".into(), ..row("n0") };
    let again = PoweredOffNode { since: at(99_999), reason: Some("PowerLost".into()), ..row("n0") };
    for (seconds, report, wanted) in [
        (0, Some(off(vec![row("n0")])), Some(0)),
        (10, Some(off(vec![again.clone()])), Some(10)),
        (20, Some(off(vec![])), None),
        (25, Some(unready()), None),
        (30, Some(off(vec![again])), Some(30)),
        (35, Some(off(vec![other.clone()])), None),
        (40, Some(off(vec![other.clone(), row("n0")])), Some(40)),
        (45, Some(off(vec![row("n0"), other])), Some(45)),
        (50, None, None),
        (60, Some(off(vec![row("n0")])), Some(0)),
    ] {
        let told = known.at(seconds, report, Heartbeat::default());
        assert_eq!(told.map(|told| told.known_for.as_secs()), wanted, "after {seconds} s");
    }
    let booted = but_node(|node| node.status.node_info.boot_id = "boot-2".into());
    let row = PoweredOffNode { boot_id: "boot-2".into(), ..row("n0") };
    let told = known.of(Node::clone(&booted), 70, Some(off(vec![row])), Heartbeat::default());
    assert_eq!(told.map(|told| told.known_for), Some(Duration::ZERO), "another boot, another word");
}

/// Whatever becomes of the agent, or of our hearing: once it was heard after the word, the word counts for nothing.
#[test]
fn a_word_that_was_denied_stays_so_for_the_boot() {
    for back in [true, false] {
        let mut known = Tracked::new();
        let said = || Some(off(vec![row("n0")]));
        let mut is_denied = |seconds, report, heard| known.at(seconds, report, heard).map(|told| told.is_denied);
        assert_eq!(is_denied(0, said(), lost_for(100)), Some(false), "it comes");
        assert_eq!(is_denied(2, said(), lost_for(100)), Some(false), "what was under way arrives");
        assert_eq!(is_denied(9, said(), lost_for(7_100)), Some(false), "silent since");
        let between = if back { off(vec![]) } else { off(vec![row("n0")]) };
        is_denied(30, Some(between), lost_for(1_000));
        assert_eq!(is_denied(31, said(), Heartbeat::default()), Some(true), "its agent is replaced");
        assert_eq!(is_denied(99, said(), lost_for(99_000)), Some(true), "nothing is remembered of it");
    }
}

#[test]
fn a_word_came_while_we_looked_or_was_there() {
    let mut known = Tracked::new();
    let said = || Some(off(vec![row("n0")]));
    let was_there = |told: Option<Told>| told.map(|told| told.was_there);
    let booted = |boot_id: &str| PoweredOffNode { boot_id: boot_id.into(), ..row("n0") };
    assert_eq!(was_there(known.at(0, said(), Heartbeat::default())), Some(true), "the first look");
    assert_eq!(was_there(known.at(1, said(), Heartbeat::default())), Some(true), "and for good");
    for (second, boot_id, term, before, wanted) in [
        (10, "boot-2", 1, Some(off(vec![])), false),
        (20, "boot-3", 1, Some(unready()), true),
        (30, "boot-4", 1, None, true),
        (40, "boot-5", 2, Some(off(vec![])), true),
        (50, "boot-6", 2, Some(off(vec![])), false),
    ] {
        let mut node = node("n0");
        node.status.node_info.boot_id = boot_id.into();
        known.of(node.clone(), second, before, Heartbeat::default());
        known.term = term;
        let told = known.of(node, second + 1, Some(off(vec![booted(boot_id)])), Heartbeat::default());
        assert_eq!(was_there(told), Some(wanted), "{boot_id}");
    }
}

#[test]
fn only_of_nodes_that_are_there_something_is_remembered() {
    let mut known = Tracked::new();
    let another = PoweredOffNode { node_uid: "uid-before".into(), ..row("n0") };
    for second in 0..9 {
        let of_nobody = PoweredOffNode { boot_id: format!("boot-{second}"), ..row(&format!("nobody-{second}")) };
        assert_eq!(known.at(second, Some(off(vec![of_nobody, another.clone()])), Heartbeat::default()), None);
    }
    assert_eq!(known.tracker.remembered(), 0, "{:?}", known.tracker);
    let before = PoweredOffNode { boot_id: "boot-0".into(), ..row("n0") };
    known.at(10, Some(off(vec![before])), Heartbeat::default());
    assert_eq!(known.tracker.remembered(), 1, "{:?}", known.tracker);
    known.at(11, Some(off(vec![])), Heartbeat::default());
    assert_eq!(known.tracker.remembered(), 0, "of a boot that is over: {:?}", known.tracker);
}

/// Of a fencer whose Lease was only found, of an agent that was heard once.
#[test]
fn a_pass_knows_who_was_heard() {
    let (mut memory, begun) = (Memory::default(), now());
    let mut seen = |seconds, heard| {
        let found = Found {
            policies: vec![Arc::new(policy("db", &named(&json!({}))))],
            nodes: vec![Arc::new(node("n0"))],
            reports: vec![Arc::new(off(vec![row("n0")]))],
            heartbeats: BTreeMap::from([("n0".to_owned(), heard)]),
            ..Found::default()
        };
        memory.look(found, (0, 1), later(begun, seconds))
    };
    let first = seen(0.0, lost_for(100));
    assert!(first.unproved_fencers.contains(POWER) && !first.off["n0"][0].is_denied, "{:?}", first.off);
    assert!(seen(10.0, lost_for(100)).off["n0"][0].is_denied);
    assert!(seen(20.0, Heartbeat::default()).off["n0"][0].is_denied, "its agent is replaced");
}
