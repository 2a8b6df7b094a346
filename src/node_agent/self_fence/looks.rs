//! When the kubelet's folders are looked at, to know which volumes pods have: when pods change, now and then behind that, and
//! ever more rarely while they do not answer. Pure.

use std::time::{Duration, Instant};

/// How often, behind the changes of pods.
const EVERY: Duration = Duration::from_secs(30);
/// Changes that come together are one look.
const GATHER: Duration = Duration::from_millis(500);
/// Pause after a look that failed; doubles with each.
const PAUSE: Duration = Duration::from_secs(1);

/// When the next look is due; at once at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looks {
    due: Option<Instant>,
    failed: u32,
}

impl Looks {
    /// Whether it is time for a look.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| now >= due)
    }

    /// Pods have changed. A look that failed is not repeated sooner for it.
    pub fn changed(&mut self, now: Instant) {
        if self.failed == 0 {
            self.due = self.due.map(|due| due.min(now + GATHER));
        }
    }

    /// A look has ended.
    pub fn ended(&mut self, has_told: bool, now: Instant) {
        self.failed = if has_told { 0 } else { self.failed.saturating_add(1) };
        let pause = match self.failed {
            0 => EVERY,
            failed => PAUSE.saturating_mul(1 << (failed - 1).min(8)).min(EVERY),
        };
        self.due = Some(now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_it_is_looked() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut looks = Looks::default();
        looks.changed(start);
        assert!(looks.is_due(start), "at once");
        looks.ended(true, start);
        assert!(!looks.is_due(at(29_999)) && looks.is_due(at(30_000)), "behind the changes");
        for millis in [1_000, 1_250, 1_499] {
            looks.changed(at(millis));
        }
        assert!(!looks.is_due(at(1_499)) && looks.is_due(at(1_500)), "changes do not put it off");
    }

    #[test]
    fn a_look_that_fails_is_repeated_ever_more_rarely() {
        let mut now = Instant::now();
        let mut looks = Looks::default();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            looks.ended(false, now);
            looks.changed(now);
            let began = now;
            while !looks.is_due(now) {
                now += Duration::from_millis(500);
            }
            pauses.push((now - began).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30]);
        looks.ended(true, now);
        looks.changed(now);
        assert!(looks.is_due(now + GATHER));
    }
}
