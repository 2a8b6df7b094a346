//! What the writer's log tells: which numbers it tried, which the disk took, and when, by our own clock.
//!
//! The log reaches us late, and the node's clock is not ours. Each line has the writer's own time; the line that came the
//! fastest tells how its time and ours differ, up to how long that line took.

use std::collections::BTreeMap;
use std::time::Duration;

/// Everything the writer said so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriterLog {
    lines: BTreeMap<Line, Duration>,
    /// Our time minus the writer's, in milliseconds.
    ahead: Option<i128>,
}

/// A line: what was said, and when by the writer's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Line {
    Tried(u64),
    Written(u64),
    Refused(u64),
    Alive(Duration),
}

impl WriterLog {
    /// A line that came at this time of ours. One that was heard before is not news.
    pub fn hear(&mut self, line: &str, came: Duration) {
        let Some((line, at)) = parse(line) else { return };
        let ahead = millis(came) - millis(at);
        self.ahead = Some(self.ahead.map_or(ahead, |known| known.min(ahead)));
        self.lines.entry(line).or_insert(at);
    }

    /// When something was said, by our clock.
    fn at(&self, said: Duration) -> Duration {
        let ours = millis(said) + self.ahead.unwrap_or(0);
        Duration::from_millis(u64::try_from(ours.max(0)).unwrap_or(u64::MAX))
    }

    /// Numbers that the disk took, with the time.
    pub fn written(&self) -> impl Iterator<Item = (u64, Duration)> {
        self.lines.iter().filter_map(|(line, at)| match line {
            Line::Written(number) => Some((*number, self.at(*at))),
            _ => None,
        })
    }

    /// Numbers that the disk refused.
    pub fn refused(&self) -> usize {
        self.lines.keys().filter(|line| matches!(line, Line::Refused(_))).count()
    }

    /// Numbers that it began to write, with the time.
    pub fn tried(&self) -> impl Iterator<Item = (u64, Duration)> {
        self.lines.iter().filter_map(|(line, at)| match line {
            Line::Tried(number) => Some((*number, self.at(*at))),
            _ => None,
        })
    }

    /// Whether the last number that it began to write has had no answer for so long, though it lives.
    pub fn hangs(&self, long: Duration) -> bool {
        let Some((last, began)) = self.tried().max() else { return false };
        let is_answered = self
            .lines
            .keys()
            .any(|line| matches!(line, Line::Written(number) | Line::Refused(number) if *number == last));
        !is_answered && self.alive().is_some_and(|alive| alive >= began + long)
    }

    /// The last sign of life.
    pub fn alive(&self) -> Option<Duration> {
        self.lines.values().max().map(|at| self.at(*at))
    }
}

fn millis(time: Duration) -> i128 {
    i128::try_from(time.as_millis()).unwrap_or(i128::MAX)
}

/// `tried 7 at 1234`, `written 7 at 1240`, `refused 7 at 1240: why`, `alive at 1500`.
fn parse(line: &str) -> Option<(Line, Duration)> {
    let (what, rest) = line.trim().split_once(" at ")?;
    let time = rest.split(':').next()?.trim().parse().ok().map(Duration::from_millis)?;
    let said = match what.split_once(' ') {
        None if what == "alive" => Line::Alive(time),
        Some(("tried", number)) => Line::Tried(number.parse().ok()?),
        Some(("written", number)) => Line::Written(number.parse().ok()?),
        Some(("refused", number)) => Line::Refused(number.parse().ok()?),
        _ => return None,
    };
    Some((said, time))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn times_are_ours_however_late_a_line_comes() {
        let mut log = WriterLog::default();
        log.hear("tried 1 at 100", ms(5_140));
        log.hear("written 1 at 110", ms(5_120));
        log.hear("refused 2 at 220: Input/output error (os error 5)", ms(9_000));
        log.hear("alive at 500", ms(9_000));
        // The connection broke, and the whole log came again.
        log.hear("written 1 at 110", ms(9_500));
        log.hear("something else", ms(9_500));
        assert_eq!(log.written().collect::<Vec<_>>(), [(1, ms(5_120))], "the fastest line took no time");
        assert_eq!(log.tried().collect::<Vec<_>>(), [(1, ms(5_110))]);
        assert_eq!((log.refused(), log.alive()), (1, Some(ms(5_510))));
        log.hear("tried 3 at 600", ms(9_600));
        log.hear("alive at 3500", ms(9_700));
        assert!(!log.hangs(ms(3_000)), "not for long enough");
        log.hear("alive at 3600", ms(9_700));
        assert!(log.hangs(ms(3_000)));
        log.hear("refused 3 at 3700", ms(9_800));
        assert!(!log.hangs(ms(3_000)), "it has an answer");
    }
}
