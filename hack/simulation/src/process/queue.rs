//! The work queue of a process, with the rules of `bulkhead::runtime::queue`: each key once at a time, a change cuts a
//! pause short down to a floor, failures wait longer and longer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::time::{Millis, millis};

/// What a pass is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The whole cluster (resiliency_policy).
    Cluster,
    /// A node (node_fence).
    Node(String),
    /// A FenceRequest (csi_sidecar).
    Request(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failure {
    count: u32,
    not_before: Millis,
    floor: Millis,
}

/// A work queue.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    due: BTreeMap<Key, Millis>,
    running: BTreeSet<Key>,
    again: BTreeSet<Key>,
    failures: BTreeMap<Key, Failure>,
}

impl Queue {
    /// Something relevant changed. Returns when the key is due.
    pub fn add(&mut self, key: &Key, now: Millis) -> Option<Millis> {
        if self.running.contains(key) {
            self.again.insert(key.clone());
            return None;
        }
        let floor = self.failures.get_mut(key).map_or(now, |failure| {
            failure.not_before = failure.not_before.min(failure.floor);
            failure.not_before.max(now)
        });
        Some(self.schedule(key, floor))
    }

    /// Looks at the key at that time at the latest.
    pub fn add_at(&mut self, key: &Key, at: Millis) -> Option<Millis> {
        if self.running.contains(key) {
            self.again.insert(key.clone());
            return None;
        }
        let not_before = self.failures.get(key).map_or(0, |failure| failure.not_before);
        Some(self.schedule(key, at.max(not_before)))
    }

    /// The key's time has come, if it has: its pass begins.
    pub fn start(&mut self, key: &Key, now: Millis) -> bool {
        if self.running.contains(key) || self.due.get(key).is_none_or(|due| *due > now) {
            return false;
        }
        self.due.remove(key);
        self.running.insert(key.clone());
        true
    }

    /// Its pass is over: look again after so long. Returns when the key is due.
    pub fn succeeded(&mut self, key: &Key, look_again: Option<Duration>, now: Millis) -> Option<Millis> {
        self.running.remove(key);
        self.failures.remove(key);
        if self.again.remove(key) {
            return self.add(key, now);
        }
        look_again.map(|wait| self.schedule(key, now + millis(wait)))
    }

    /// Its pass has failed; `retry` is the pause after a first failure.
    pub fn failed(&mut self, key: &Key, retry: Duration, now: Millis) -> Option<Millis> {
        self.running.remove(key);
        let count = self.failures.get(key).map_or(0, |failure| failure.count) + 1;
        let pause = (millis(retry) << (count - 1).min(16)).min(60_000);
        let failure = Failure { count, not_before: now + pause, floor: now + (pause / 4).clamp(200, 2000) };
        self.failures.insert(key.clone(), failure);
        if self.again.remove(key) {
            return self.add(key, now);
        }
        Some(self.schedule(key, failure.not_before))
    }

    /// Every key that waits, and when it is due.
    pub fn waiting(&self) -> Vec<(Key, Millis)> {
        self.due.iter().map(|(key, due)| (key.clone(), *due)).collect()
    }

    fn schedule(&mut self, key: &Key, at: Millis) -> Millis {
        let due = self.due.entry(key.clone()).or_insert(at);
        *due = at.min(*due);
        *due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_runs_once_at_a_time_and_a_change_cuts_a_pause_down_to_its_floor() {
        let (mut queue, key) = (Queue::default(), Key::Cluster);
        assert_eq!(queue.add(&key, 5), Some(5));
        assert!(queue.start(&key, 5) && !queue.start(&key, 5));
        assert_eq!(queue.add(&key, 6), None);
        assert_eq!(queue.succeeded(&key, Some(Duration::from_secs(1)), 10), Some(10), "it was wanted meanwhile");
        assert!(queue.start(&key, 10));
        assert_eq!(queue.failed(&key, Duration::from_secs(4), 10), Some(4010));
        assert_eq!(queue.add_at(&key, 20), Some(4010), "no timer cuts a pause short");
        assert_eq!(queue.add(&key, 20), Some(1010));
    }
}
