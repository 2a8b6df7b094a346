//! When volumes are looked at. Pure: times come from the caller.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// What happens at once is looked at once: a pod that starts mounts one volume after the other.
const SETTLES: Duration = Duration::from_millis(50);
/// Looks at everything are this far apart, however much happens.
const BETWEEN: Duration = Duration::from_millis(500);
/// What may be about to change is looked at again so soon. Twice the time between two samples that count, and a bit: what
/// is good and bad in turn is seen to be.
const AGAIN: Duration = Duration::from_millis(550);
/// Without any sign everything is looked at this often, or as often as a policy says.
pub const LONGEST: Duration = Duration::from_secs(10);
/// Nothing announces that a folder was deleted: where there are local volumes that are no mount points, this often.
pub const LOCAL: Duration = Duration::from_secs(2);

/// When to look at what can be told without waiting.
#[derive(Clone, Debug)]
pub struct Looks {
    next: Instant,
    last: Option<Instant>,
}

impl Looks {
    /// The first one is now.
    pub fn new(now: Instant) -> Self {
        Self { next: now, last: None }
    }

    /// Something happened.
    pub fn something_happened(&mut self, now: Instant) {
        let earliest = self.last.map_or(now, |last| last + BETWEEN);
        self.next = self.next.min(earliest.max(now + SETTLES));
    }

    /// A look began then. `every` is how often they are made; `wavers` whether anything may be about to change.
    pub fn looked(&mut self, at: Instant, every: Duration, wavers: bool) {
        self.next = at + if wavers { AGAIN.min(every) } else { every };
        self.last = Some(at);
    }

    /// When the next one is due.
    pub fn next(&self) -> Instant {
        self.next
    }
}

/// When to ask what may keep us waiting: of each key one question at a time.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    due: BTreeMap<String, Instant>,
    asked: BTreeSet<String>,
}

impl Rounds {
    /// The keys that are due, which count as asked from now on. The first time of a key is anywhere within its interval,
    /// and within ten seconds at most; `random` gives numbers from 0 to 1. A key that is not wanted any more is forgotten.
    pub fn start(
        &mut self,
        wanted: &BTreeMap<String, Duration>,
        now: Instant,
        mut random: impl FnMut() -> f64,
    ) -> Vec<String> {
        self.due.retain(|key, _| wanted.contains_key(key));
        let mut due = Vec::new();
        for (key, interval) in wanted {
            if self.asked.contains(key) {
                continue;
            }
            let at = *self.due.entry(key.clone()).or_insert_with(|| now + (*interval).min(LONGEST).mul_f64(random()));
            if now >= at {
                self.due.remove(key);
                self.asked.insert(key.clone());
                due.push(key.clone());
            }
        }
        due
    }

    /// The answer is there. The next question is at that time.
    pub fn answered(&mut self, key: &str, next: Instant) {
        if self.asked.remove(key) {
            self.due.insert(key.to_owned(), next);
        }
    }

    /// When something is due.
    pub fn next(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }
}

/// The pause until the next question: the interval give or take a tenth, so that many do not ask together; but soon while
/// the answer may be about to change, and not quite so soon while there is none.
pub fn pause(interval: Duration, wavers: bool, silent: bool, random: f64) -> Duration {
    let usual = interval.mul_f64(0.9 + random.clamp(0.0, 1.0) / 5.0);
    match (wavers, silent) {
        (_, true) => usual.min(LONGEST),
        (true, false) => usual.min(AGAIN * 2),
        (false, false) => usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn everything_is_looked_at_in_time_and_soon_after_a_sign() {
        let start = Instant::now();
        let mut looks = Looks::new(start);
        assert_eq!(looks.next(), start);
        looks.looked(start, LONGEST, false);
        assert_eq!(looks.next(), start + LONGEST);
        looks.something_happened(start + SECOND);
        assert_eq!(looks.next(), start + SECOND + SETTLES);
        looks.looked(start + SECOND + SETTLES, LONGEST, false);
        looks.something_happened(start + SECOND + SETTLES);
        assert_eq!(looks.next(), start + SECOND + SETTLES + BETWEEN, "however much happens");
        looks.looked(start + SECOND * 2, LONGEST, true);
        assert_eq!(looks.next(), start + SECOND * 2 + AGAIN, "what wavers is looked at again");
    }

    #[test]
    fn one_question_at_a_time_spread_at_first_and_forgotten_when_not_wanted() {
        let start = Instant::now();
        let mut rounds = Rounds::default();
        let wanted = BTreeMap::from([("a".to_owned(), SECOND * 60), ("b".to_owned(), SECOND * 4)]);
        let mut random = [0.0, 0.5].into_iter();
        assert_eq!(rounds.start(&wanted, start, || random.next().unwrap()), ["a"]);
        assert_eq!(rounds.next(), Some(start + SECOND * 2));
        assert_eq!(rounds.start(&wanted, start + SECOND * 90, || 0.0), ["b"], "a has not answered");
        rounds.answered("a", start + SECOND * 100);
        assert_eq!(rounds.next(), Some(start + SECOND * 100));
        assert_eq!(rounds.start(&wanted, start + SECOND * 100, || 0.0), ["a"]);
        rounds.answered("a", start + SECOND * 150);
        rounds.answered("b", start + SECOND * 150);
        assert!(rounds.start(&BTreeMap::new(), start + SECOND * 200, || 0.0).is_empty());
        assert_eq!(rounds.next(), None);
    }

    #[test]
    fn pauses() {
        assert_eq!(pause(SECOND * 60, false, false, 0.0), SECOND * 54);
        assert_eq!(pause(SECOND * 60, false, false, 1.0), SECOND * 66);
        assert_eq!(pause(SECOND * 60, true, false, 1.0), AGAIN * 2);
        assert_eq!(pause(SECOND * 60, true, true, 1.0), LONGEST);
    }
}
