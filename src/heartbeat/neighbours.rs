//! Introduces agents to each other, while a policy lets nodes cut themselves off: each heard agent is told every now and then
//! who its neighbours are, in a ring by the names of their keys, so that of two each is the other's. No socket, no clock.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::time::{Duration, Instant};

use super::keys::KeyId;
use super::tracker::Tracker;
use super::wire::{Message, NEIGHBOURS_MAX, Neighbour};

/// How often an agent is told.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Who was told, and who is to be told.
#[derive(Debug, Default)]
pub struct Introductions {
    is_on: bool,
    told: HashMap<KeyId, Instant>,
    due: BTreeSet<KeyId>,
}

impl Introductions {
    /// Whether anybody is to be told anything.
    pub fn set(&mut self, is_on: bool) {
        if !is_on {
            *self = Self::default();
        }
        self.is_on = is_on;
    }

    /// An agent was heard.
    pub fn heard(&mut self, id: KeyId, now: Instant) {
        if self.is_on && self.told.get(&id).is_none_or(|told| now >= *told + TELL_EVERY) {
            self.due.insert(id);
        }
    }

    /// What is to be told now, and whom.
    pub fn due(&mut self, tracker: &Tracker, now: Instant) -> Vec<(KeyId, Message)> {
        let due = std::mem::take(&mut self.due);
        self.told.retain(|id, _| tracker.by_key(*id).is_some());
        self.told.extend(due.iter().map(|id| (*id, now)));
        due.into_iter().map(|id| (id, Message::Introduce(neighbours(tracker, id)))).collect()
    }
}

/// Half of them before it in the ring, and half after it.
fn neighbours(tracker: &Tracker, id: KeyId) -> Vec<Neighbour> {
    let ring = tracker.ring();
    let after = (Bound::Excluded(id), Bound::Unbounded);
    let half = NEIGHBOURS_MAX / 2;
    let next = ring.range(after).chain(ring.range(..id)).take(half);
    let last = ring.range(..id).rev().chain(ring.range(after).rev()).take(half);
    let chosen: BTreeSet<_> = next.chain(last).copied().collect();
    let known = chosen.into_iter().filter_map(|id| tracker.by_key(id));
    known.map(|agent| Neighbour { key: agent.known.key, at: agent.known.at }).collect()
}
