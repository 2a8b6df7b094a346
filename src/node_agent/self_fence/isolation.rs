//! Whether the node is alone: neither the API nor any neighbour has answered for how long. Pure.
//!
//! Alone is who lost both together. The API's silence says nothing while a neighbour answers, nor when neighbours have not
//! answered for long before: then it may be their port that is closed. Who never heard two of them is never alone: in a
//! cluster of one node, or of two, the API's own death would look the same. And time in which we did not look is nobody's
//! silence.

use std::time::{Duration, Instant};

/// Neighbours without whose silence nobody is alone.
pub const NEIGHBOURS_MIN: usize = 2;
/// The API is asked when no neighbour has answered for this time: they are asked once a second.
const SILENT: Duration = Duration::from_millis(1_500);
/// Neighbours that were silent for this long while the API answered say nothing by their silence.
const DEAF: Duration = Duration::from_secs(10);
/// Questions that the API leaves without an answer, at least.
const UNANSWERED_MIN: u32 = 2;
/// Longest pause between two ticks; a longer one is ours.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What is known of the world outside.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// When anybody answered last.
    contact: Instant,
    ticked: Instant,
    /// When a neighbour answered this process last.
    echo: Option<Instant>,
    /// How many neighbours answered until then.
    neighbours: usize,
    /// Questions to the API since the last contact that nobody answered.
    unanswered: u32,
}

impl Isolation {
    /// At the start of a process; `neighbours` is how many answered an earlier one of this boot, a short time ago. The time in
    /// which there was none does not count.
    pub fn new(neighbours: usize, now: Instant) -> Self {
        Self { contact: now, ticked: now, echo: None, neighbours, unanswered: 0 }
    }

    /// Time goes on.
    pub fn tick(&mut self, now: Instant) {
        if now.saturating_duration_since(self.ticked) > PAUSE_MAX {
            self.is_in_contact(now);
        }
        self.ticked = now;
    }

    /// What is heard of the neighbours: when one answered last, and how many do.
    pub fn neighbours(&mut self, at: Option<Instant>, count: usize) {
        if at.is_none() && self.echo.is_none() {
            return;
        }
        // Those that said good-bye are none. What was told before is told again and again: of neighbours whose silence was found
        // to mean nothing it makes no witnesses.
        let Some(at) = at.filter(|at| Some(*at) > self.echo) else {
            self.neighbours = self.neighbours.min(count);
            return;
        };
        (self.echo, self.neighbours) = (Some(at), count);
        self.is_in_contact(at);
    }

    /// What came of a question to the API that was asked then.
    pub fn api(&mut self, asked: Instant, has_answered: bool, now: Instant) {
        if has_answered {
            let is_deaf = self.echo.is_none_or(|echo| now.saturating_duration_since(echo) >= DEAF);
            if is_deaf {
                self.neighbours = 0;
            }
            self.is_in_contact(now);
        } else if asked >= self.contact {
            self.unanswered = self.unanswered.saturating_add(1);
        }
    }

    fn is_in_contact(&mut self, at: Instant) {
        if at > self.contact {
            self.contact = at;
        }
        self.unanswered = 0;
    }

    /// Whether the API is to be asked: at rest it never is.
    pub fn asks_api(&self, now: Instant) -> bool {
        self.neighbours >= NEIGHBOURS_MIN && self.echo.is_none_or(|echo| now.saturating_duration_since(echo) >= SILENT)
    }

    /// How many neighbours there were to fall silent.
    pub fn witnesses(&self) -> usize {
        self.neighbours
    }

    /// For how long the node has been alone; none while it is not.
    pub fn alone_for(&self, now: Instant) -> Option<Duration> {
        let is_alone = self.neighbours >= NEIGHBOURS_MIN && self.unanswered >= UNANSWERED_MIN;
        is_alone.then(|| now.saturating_duration_since(self.contact))
    }
}

#[cfg(test)]
#[path = "isolation_tests.rs"]
mod tests;
