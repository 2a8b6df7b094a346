//! What this process remembers of one clean-up: since when it waits for what, the work under way, the passes that found
//! nothing. Pure. Lost on a restart, and then waited for and counted anew: what is left is never taken from here.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::decide::{Failure, Key, Looked, Seen};

/// How far apart two passes are at least.
pub const BETWEEN_PASSES: Duration = Duration::from_secs(1);

/// Pause after a failure; doubles with each, up to the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What this process remembers.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The clean-up it is about.
    pub key: Option<Key>,
    /// Pods that are gone for the API, and since when we know it.
    pub gone: BTreeMap<String, Instant>,
    /// Volumes of which something is left, and since when we know it.
    pub left: BTreeMap<String, Instant>,
    /// Since when the node as a whole cannot be told.
    pub unsure: Option<Instant>,
    /// Since when we know of pods of the incident that the API still has: the kubelet may start them again.
    pub bound: Option<Instant>,
    /// Work by volume.
    pub work: BTreeMap<String, Work>,
    /// When the last work ended.
    pub worked: Option<Instant>,
    /// Passes in a row that found nothing, and when the last of them ended.
    pub passes: Option<(i32, Instant)>,
}

/// Work for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Whether it is under way.
    pub running: bool,
    /// How often in a row it has failed.
    pub attempts: u32,
    /// When it ended the last time.
    pub ended: Option<Instant>,
    /// Why it failed then. Kept while it is tried again.
    pub failure: Option<Failure>,
}

impl Work {
    /// Whether it is under way or ended after a look began, so that what was seen says nothing of now.
    pub fn is_newer_than(&self, look: Option<Instant>) -> bool {
        self.running || self.ended > look
    }
}

impl Memory {
    /// Takes note of what a pass sees.
    pub fn note(&mut self, seen: &Seen, now: Instant) {
        let key = seen.fence.as_ref().map(|fence| fence.key.clone());
        if self.key != key {
            // Work under way goes on, and is waited for: it is about volumes of this node all the same.
            let running = |work: &Work| work.running;
            let work = std::mem::take(&mut self.work).into_iter().filter(|(_, work)| running(work)).collect();
            *self = Self { key, work, worked: self.worked, ..Self::default() };
        }
        self.gone.retain(|pod, _| !seen.is_live(pod));
        let Some(looked) = &seen.looked else { return };
        for pod in looked.pods().filter(|pod| !seen.is_live(pod)) {
            self.gone.entry(pod.to_owned()).or_insert(now);
        }
        let left: BTreeMap<_, _> = seen.left().map(|(name, _)| (name.to_owned(), now)).collect();
        self.left.retain(|name, _| left.contains_key(name));
        self.work.retain(|name, work| work.running || left.contains_key(name));
        for (name, at) in left {
            self.left.entry(name).or_insert(at);
        }
        self.unsure = seen.is_unsure().then(|| self.unsure.unwrap_or(now));
        self.bound = seen.bound().next().map(|_| self.bound.unwrap_or(now));
        self.count(seen, looked);
    }

    /// Counts a pass that found nothing, if it began after all work had ended and long enough after the one before.
    fn count(&mut self, seen: &Seen, looked: &Looked) {
        let idle = self.work.values().all(|work| !work.running);
        let after_work = self.worked.is_none_or(|worked| looked.began >= worked);
        if !idle || !after_work || self.unsure.or(self.bound).is_some() || seen.left().next().is_some() {
            self.passes = None;
        } else {
            self.passes = match self.passes {
                None => Some((1, looked.ended)),
                Some((passes, last)) if looked.began >= last + BETWEEN_PASSES => {
                    Some(((passes + 1).min(2), looked.ended))
                }
                counted => counted,
            };
        }
    }

    /// Why a volume could not be cleaned the last time, and when it may be tried again.
    pub fn failure(&self, volume: &str) -> Option<(&Failure, Instant)> {
        let work = self.work.get(volume)?;
        let doubled = PAUSE.0.saturating_mul(1 << work.attempts.saturating_sub(1).min(8));
        Some((work.failure.as_ref()?, work.ended? + doubled.min(PAUSE.1)))
    }

    /// Work begins.
    pub fn begins(&mut self, volume: &str) {
        let work = self.work.entry(volume.to_owned());
        work.or_insert(Work { running: true, attempts: 0, ended: None, failure: None }).running = true;
        self.passes = None;
    }

    /// Work has ended.
    pub fn ended(&mut self, volume: &str, outcome: Result<(), Failure>, at: Instant) {
        let attempts = self.work.get(volume).map_or(0, |work| work.attempts);
        let work = match outcome {
            Ok(()) => Work { running: false, attempts: 0, ended: Some(at), failure: None },
            Err(failure) => Work { running: false, attempts: attempts + 1, ended: Some(at), failure: Some(failure) },
        };
        self.work.insert(volume.to_owned(), work);
        self.worked = Some(at);
    }
}
