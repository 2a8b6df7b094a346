//! Whether a queue gets on with its work, for `/readyz` and `/healthz`. A reconcile that fails is tried again and has its
//! metrics; this is about work that is not even done.

use std::fmt;
use std::time::{Duration, Instant};

/// What a queue may take beyond the deadline of one reconcile, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a queue last told of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// How long one of its reconciles may take.
    pub deadline: Duration,
    /// Keys that should run and have not begun. None while another replica leads, or the first lists are not there: then nothing is
    /// to begin.
    pub waiting: usize,
    /// When the oldest of those that run began.
    pub oldest: Option<Instant>,
    /// When a reconcile last ended by itself, or no key waited.
    pub moved: Instant,
}

/// What is wrong with a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stuck {
    /// A reconcile runs on past its deadline: it blocks its thread. Only a restart ends that.
    Blocked(Duration),
    /// Keys wait, and whatever runs hangs until its deadline.
    Starved {
        /// How many keys.
        waiting: usize,
        /// For how long none has come to its end.
        since: Duration,
    },
}

impl Progress {
    /// What is wrong now, if something is.
    pub fn stuck(&self, now: Instant) -> Option<Stuck> {
        let limit = self.deadline + PATIENCE;
        let longer = |since: Instant| Some(now.saturating_duration_since(since)).filter(|it| *it > limit);
        let starved = || longer(self.moved).map(|since| Stuck::Starved { waiting: self.waiting, since });
        self.oldest.and_then(longer).map(Stuck::Blocked).or_else(|| starved().filter(|_| self.waiting > 0))
    }
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked(since) => write!(f, "a reconcile runs for {} s and cannot be ended", since.as_secs()),
            Self::Starved { waiting, since } => {
                write!(f, "{waiting} keys wait, none was done in {} s", since.as_secs())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_wait_and_reconciles_that_run_have_the_deadline_and_a_little_more() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let limit = Duration::from_secs(60) + PATIENCE;
        let progress = Progress { deadline: Duration::from_secs(60), waiting: 3, oldest: None, moved: start };
        assert_eq!(progress.stuck(start + limit), None);
        let starved = progress.stuck(start + limit + second).unwrap();
        assert_eq!(starved.to_string(), "3 keys wait, none was done in 91 s");
        assert_eq!(Progress { waiting: 0, ..progress }.stuck(start + limit * 9), None, "there is nothing to do");

        let running = Progress { oldest: Some(start), moved: start + limit, ..progress };
        assert_eq!(running.stuck(start + limit), None);
        let blocked = running.stuck(start + limit + second).unwrap();
        assert_eq!(blocked.to_string(), "a reconcile runs for 91 s and cannot be ended");
    }
}
