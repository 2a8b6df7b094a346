//! The decisions of leader election, pure: what was seen of the Lease and when, in; the next step, out.
//! See [`leader`](super::leader) for why this is safe.

use std::time::{Duration, Instant};

/// Timing of an election: `renew < give_up < lease`; all candidates must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// A Lease that stood still for this long may be taken over.
    pub lease: Duration,
    /// The leader renews this often.
    pub renew: Duration,
    /// Without a successful renewal a leader stops leading after this.
    pub give_up: Duration,
    /// Followers look, and failed renewals are repeated, this often.
    pub retry: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew: Duration::from_secs(5),
            give_up: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// What matters of a Lease object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Who holds it; `None` after a release.
    pub holder: Option<String>,
    /// Changes with every write.
    pub version: String,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read the Lease: what we know of it may be old.
    Read,
    /// Write ourselves as holder, if it is still as it was seen.
    Claim,
    /// Nothing for this long.
    Wait(Duration),
}

/// The Lease as last seen.
#[derive(Clone, Debug)]
struct Seen {
    /// `None`: there is no Lease.
    record: Option<Record>,
    /// When exactly this record was first seen.
    since: Instant,
    /// When it was last read.
    read: Instant,
}

/// One candidate's knowledge. All times are its own monotonic clock.
#[derive(Clone, Debug)]
pub struct Candidate {
    me: String,
    times: LeaseTimes,
    seen: Option<Seen>,
    /// When the last successful claim was *sent*, while leading.
    renewed: Option<Instant>,
    /// When a claim last failed; cleared by success.
    failed: Option<Instant>,
}

impl Candidate {
    /// A candidate of that name, which knows nothing yet.
    pub fn new(me: String, times: LeaseTimes) -> Self {
        Self { me, times, seen: None, renewed: None, failed: None }
    }

    /// Until when we lead; past once a renewal is overdue.
    pub fn leads_until(&self) -> Option<Instant> {
        self.renewed.map(|renewed| renewed + self.times.give_up)
    }

    /// The Lease was read; `now` is when the answer arrived.
    pub fn saw(&mut self, record: Option<Record>, now: Instant) {
        if !self.is_me(record.as_ref()) {
            self.renewed = None;
        }
        let since = self.seen.as_ref().filter(|seen| seen.record == record).map_or(now, |seen| seen.since);
        self.seen = Some(Seen { record, since, read: now });
    }

    /// A claim that was sent at `sent` was written as `record`.
    pub fn claimed(&mut self, record: Record, sent: Instant, now: Instant) {
        self.saw(Some(record), now);
        self.renewed = Some(sent);
        self.failed = None;
    }

    /// A claim or read failed, or its outcome is unknown.
    pub fn failed(&mut self, now: Instant) {
        self.failed = Some(now);
    }

    /// The next step. Total; asked again after each step.
    pub fn step(&self, now: Instant) -> Step {
        let pause = self.failed.map(|failed| failed + self.times.retry);
        if let Some(wait) = pause.and_then(|until| left(until, now)) {
            return Step::Wait(wait);
        }
        let Some(seen) = &self.seen else {
            return Step::Read;
        };
        // After a failure, what we know may be what made it fail.
        if self.failed.is_some_and(|failed| seen.read <= failed) {
            return Step::Read;
        }
        if let Some(renewed) = self.renewed {
            return left(renewed + self.times.renew, now).map_or(Step::Claim, Step::Wait);
        }
        let held_by_other =
            seen.record.as_ref().is_some_and(|record| record.holder.is_some()) && !self.is_me(seen.record.as_ref());
        if held_by_other && left(seen.since + self.times.lease, now).is_some() {
            return left(seen.read + self.times.retry, now).map_or(Step::Read, Step::Wait);
        }
        Step::Claim
    }

    fn is_me(&self, record: Option<&Record>) -> bool {
        record.is_some_and(|record| record.holder.as_deref() == Some(&self.me))
    }
}

/// The time from `now` to `until`; `None` when it has come.
fn left(until: Instant, now: Instant) -> Option<Duration> {
    until.checked_duration_since(now).filter(|left| !left.is_zero())
}

#[cfg(test)]
#[path = "election_tests.rs"]
mod tests;
