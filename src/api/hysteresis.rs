//! When samples become a settled state: reports carry settled states only, so that nothing is written while nothing
//! changes. Agents and sidecars count with this, each for its own samples.

use chrono::{DateTime, TimeDelta, Utc};

use super::volume::VolumeState;
use super::volume_health_policy::Thresholds;

/// What one look at a volume gave. `R` is how the reporter names causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sample<R = &'static str> {
    /// Nothing is wrong.
    Good,
    /// Something is.
    Bad(Trouble<R>),
    /// Nobody answered: never counts as good, and as bad only after `unreachableAfter`.
    NoAnswer(Trouble<R>),
    /// It cannot be told; counts in neither direction.
    Unknown,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble<R = &'static str> {
    /// Never Healthy.
    pub state: VolumeState,
    /// CamelCase cause.
    pub reason: R,
    /// Detail for people. It may change with every sample; a report keeps the first.
    pub message: String,
}

/// A settled trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled<T = Trouble> {
    /// What is wrong.
    pub trouble: T,
    /// Since when, by the first sample that led to it.
    pub since: DateTime<Utc>,
}

/// The samples of one check of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streak<R = &'static str> {
    settled: Option<Settled<Trouble<R>>>,
    bad: Option<(Settled<Trouble<R>>, u32)>,
    good: u32,
    silent: Option<DateTime<Utc>>,
}

impl<R> Default for Streak<R> {
    fn default() -> Self {
        Self { settled: None, bad: None, good: 0, silent: None }
    }
}

impl<R: PartialEq> Streak<R> {
    /// Goes on where a report of an earlier process stands: what it says stays until there are enough good samples.
    pub fn from_report(settled: Settled<Trouble<R>>) -> Self {
        Self { settled: Some(settled), ..Self::default() }
    }

    /// What is wrong, settled; nothing while Healthy or not yet known.
    pub fn settled(&self) -> Option<&Settled<Trouble<R>>> {
        self.settled.as_ref()
    }

    /// Whether a good sample, or enough bad ones, were ever seen: else nothing is known yet.
    pub fn is_known(&self) -> bool {
        self.settled.is_some() || self.good > 0
    }

    /// Whether the next sample may change what is settled: worth a second look soon.
    pub fn is_wavering(&self) -> bool {
        self.bad.is_some() || self.silent.is_some() || (self.settled.is_some() && self.good > 0)
    }

    /// Counts a sample. Returns whether what is settled changed.
    pub fn add(&mut self, sample: Sample<R>, thresholds: &Thresholds, now: DateTime<Utc>) -> bool {
        match sample {
            Sample::Unknown => false,
            Sample::Good => self.good(thresholds),
            Sample::Bad(trouble) => {
                self.silent = None;
                self.bad(trouble, thresholds.failure, now)
            }
            Sample::NoAnswer(trouble) => self.no_answer(trouble, thresholds, now),
        }
    }

    fn good(&mut self, thresholds: &Thresholds) -> bool {
        (self.bad, self.silent) = (None, None);
        self.good = self.good.saturating_add(1);
        let over = self.settled.is_some() && self.good >= thresholds.success;
        if over {
            self.settled = None;
        }
        over
    }

    fn bad(&mut self, trouble: Trouble<R>, needed: u32, now: DateTime<Utc>) -> bool {
        self.good = 0;
        let same = |settled: &Settled<Trouble<R>>| {
            (settled.trouble.state, &settled.trouble.reason) == (trouble.state, &trouble.reason)
        };
        if self.settled.as_ref().is_some_and(same) {
            self.bad = None;
            return false;
        }
        let (first, count) = match self.bad.take() {
            Some((first, count)) if same(&first) => (first, count.saturating_add(1)),
            _ => (Settled { trouble, since: now }, 1),
        };
        if count < needed {
            self.bad = Some((first, count));
            return false;
        }
        self.settled = Some(first);
        true
    }

    fn no_answer(&mut self, trouble: Trouble<R>, thresholds: &Thresholds, now: DateTime<Utc>) -> bool {
        self.good = 0;
        let first = *self.silent.get_or_insert(now);
        let after = TimeDelta::from_std(thresholds.unreachable_after.get()).unwrap_or(TimeDelta::MAX);
        // What was wrong before it fell silent is still the best that is known of it.
        if now - first < after || self.settled.is_some() {
            return false;
        }
        self.settled = Some(Settled { trouble, since: first });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    fn trouble(reason: &'static str) -> Trouble {
        Trouble { state: VolumeState::Inaccessible, reason, message: String::new() }
    }

    fn run(samples: &[Sample]) -> (Streak, usize) {
        let mut streak = Streak::default();
        let mut changes = 0;
        for (second, sample) in (0..).zip(samples) {
            changes += usize::from(streak.add(sample.clone(), &Thresholds::default(), at(second)));
        }
        (streak, changes)
    }

    #[test]
    fn two_bad_samples_settle_and_three_good_ones_clear() {
        let bad = || Sample::Bad(trouble("IOError"));
        let (streak, changes) = run(&[Sample::Good, bad(), Sample::Unknown, bad()]);
        assert_eq!((streak.settled().unwrap().since, changes), (at(1), 1), "unknown counts in neither direction");
        let (streak, _) = run(&[bad(), bad(), Sample::Good, Sample::Good]);
        assert!(streak.settled().is_some());
        let (streak, changes) = run(&[bad(), bad(), Sample::Good, Sample::Good, Sample::Good]);
        assert_eq!((streak.settled(), changes), (None, 2));
    }

    #[test]
    fn what_flaps_changes_nothing() {
        let samples: Vec<_> =
            (0..300).map(|i| if i % 2 == 0 { Sample::Bad(trouble("IOError")) } else { Sample::Good }).collect();
        assert_eq!(run(&samples).1, 0);
    }

    #[test]
    fn silence_counts_only_after_its_time_and_never_clears() {
        let silent = || Sample::NoAnswer(trouble("BackendUnreachable"));
        let mut streak = Streak::default();
        for (second, changes) in [(0, false), (119, false), (120, true), (500, false)] {
            assert_eq!(streak.add(silent(), &Thresholds::default(), at(second)), changes, "{second}");
        }
        assert_eq!(streak.settled().unwrap().since, at(0));
        let mut streak = Streak::from_report(Settled { trouble: trouble("IOError"), since: at(0) });
        streak.add(silent(), &Thresholds::default(), at(1));
        streak.add(silent(), &Thresholds::default(), at(900));
        assert_eq!(streak.settled().unwrap().trouble.reason, "IOError", "an error never clears, nor hides the cause");
    }

    #[test]
    fn an_answer_ends_a_silence() {
        let silent = || Sample::NoAnswer(trouble("BackendUnreachable"));
        let mut streak = Streak::default();
        streak.add(silent(), &Thresholds::default(), at(0));
        streak.add(Sample::Good, &Thresholds::default(), at(100));
        assert!(!streak.add(silent(), &Thresholds::default(), at(130)), "the time begins anew");
    }
}
