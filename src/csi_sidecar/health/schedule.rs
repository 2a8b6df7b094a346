//! When which volumes are due: those with the same interval together, so that one list serves them all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::memory::Volumes;

/// This part of an interval is left to chance, so that the sidecars of many drivers do not march in step.
const JITTER: f64 = 0.1;

/// When each interval comes round.
#[derive(Debug, Default)]
pub struct Schedule(BTreeMap<Duration, Instant>);

impl Schedule {
    /// The volumes that are due now; they are next when their interval has passed. One that is new waits for the others
    /// of its interval. `chance` gives numbers in `0.0..1.0`.
    pub fn due(&mut self, volumes: &Volumes, now: Instant, chance: impl Fn() -> f64) -> Volumes {
        let intervals: BTreeSet<_> = volumes.values().map(|volume| volume.interval).collect();
        self.0.retain(|interval, _| intervals.contains(interval));
        let mut due = BTreeSet::new();
        for interval in intervals {
            let next = self.0.entry(interval).or_insert(now);
            if *next <= now {
                *next = now + interval.mul_f64(1.0 - JITTER * chance());
                due.insert(interval);
            }
        }
        let of_these = volumes.iter().filter(|(_, volume)| due.contains(&volume.interval));
        of_these.map(|(handle, volume)| (handle.clone(), volume.clone())).collect()
    }

    /// When something is due next.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }
}
