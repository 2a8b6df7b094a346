//! Many schedules, on all processors.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::counts::Counts;
use crate::run::{Outcome, run};

/// What many schedules came to.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Schedules run.
    pub schedules: u64,
    /// What happened in all of them.
    pub counts: Counts,
    /// In how many schedules each thing happened at all.
    pub schedules_with: Counts,
    /// Those that broke an invariant, by seed.
    pub broken: Vec<Outcome>,
    /// How long it took.
    pub took: Duration,
}

impl Batch {
    /// Runs so many schedules from that seed on. Stops at the first few that break an invariant.
    pub fn run(first: u64, schedules: u64) -> Self {
        /// More than that tell nothing new.
        const BROKEN_MAX: usize = 10;
        let (next, batch) = (AtomicU64::new(first), Mutex::new(Self::default()));
        let began = Instant::now();
        let work = || {
            let mut own = Self::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= first + schedules || own.broken.len() >= BROKEN_MAX {
                    break;
                }
                own.add(run(seed));
            }
            batch.lock().unwrap_or_else(PoisonError::into_inner).merge(own);
        };
        let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let mut batch = batch.into_inner().unwrap_or_else(PoisonError::into_inner);
        batch.broken.sort_by_key(|outcome| outcome.seed);
        batch.took = began.elapsed();
        batch
    }

    fn add(&mut self, outcome: Outcome) {
        self.schedules += 1;
        self.counts.add(&outcome.counts);
        self.schedules_with.add(&outcome.counts.happened());
        if !outcome.is_clean() {
            self.broken.push(outcome);
        }
    }

    fn merge(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.counts.add(&other.counts);
        self.schedules_with.add(&other.schedules_with);
        self.broken.extend(other.broken);
    }
}
