//! When the API is asked what becomes of stopped pods: at once, and ever more rarely while they have to wait. Pure.

use std::time::{Duration, Instant};

/// Pause after the first question; doubles with each.
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(30);

/// What was asked before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asking {
    /// When, and how often before that.
    asked: Option<(Instant, u32)>,
}

impl Asking {
    /// Whether it is time for a question.
    pub fn is_due(&self, now: Instant) -> bool {
        let pause = |times: u32| SHORTEST.saturating_mul(1 << times.min(8)).min(LONGEST);
        self.asked.is_none_or(|(at, times)| now >= at + pause(times))
    }

    /// It was asked, and somebody has to wait still.
    pub fn has_asked(&mut self, now: Instant) {
        let times = self.asked.map_or(0, |(_, times)| times.saturating_add(1));
        self.asked = Some((now, times));
    }

    /// A stopped pod has changed: its fate may be another.
    pub fn changed(&mut self) {
        if let Some((_, times)) = &mut self.asked {
            *times = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_asked_about_ever_more_rarely() {
        let start = Instant::now();
        let mut asking = Asking::default();
        assert!(asking.is_due(start), "at once");
        for pause in [2, 4, 8, 16, 30, 30, 30] {
            asking.has_asked(start);
            let at = |seconds| start + Duration::from_secs(seconds);
            assert!(!asking.is_due(at(pause - 1)) && asking.is_due(at(pause)), "{pause}");
        }
        asking.changed();
        assert!(!asking.is_due(start + Duration::from_secs(1)), "but never at once again");
        assert!(asking.is_due(start + SHORTEST));
    }
}
