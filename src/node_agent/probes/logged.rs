//! What the kernel logged of late, and what of it was told. Events count, not looks: one line is one bad sample, however
//! often it is looked at. Pure; times come from the caller.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::kernel_log::{self, COUNTS, Event, Fact};
use super::{HostView, Subject};

/// Lines that are kept: a device that fails may fill the log.
const LINES_MAX: usize = 512;
/// One request that fails may write several lines within this time.
const ECHO: Duration = Duration::from_secs(1);
/// Events are told this far apart: a bit more than samples are counted.
const APART: Duration = Duration::from_millis(1050);

/// The log, as far as it matters.
#[derive(Default)]
pub struct Log {
    lines: Vec<Logged>,
    /// Number of the last event.
    number: u64,
    told: BTreeMap<String, Told>,
}

struct Logged {
    /// Its age counts from its last echo.
    at: Instant,
    first: Instant,
    number: u64,
    device: String,
    sector: Option<u64>,
    event: Event,
    mounts: Vec<u64>,
}

/// What was told of a volume: the number of the last event, and when.
struct Told {
    number: u64,
    at: Instant,
}

impl Log {
    /// Something happened to a device with these mounts.
    pub fn note(&mut self, device: String, sector: Option<u64>, event: Event, mounts: Vec<u64>, now: Instant) {
        let same = |old: &Logged| (&old.device, old.sector, old.event) == (&device, sector, event);
        // A request that fails is told with its sector, and often again by who wanted it, without.
        let is_echo = |old: &Logged| {
            let rest = device.strip_prefix(&old.device).map(|rest| rest.trim_start_matches('p'));
            let is_of_it = rest.is_some_and(|rest| rest.chars().all(|digit| digit.is_ascii_digit()));
            sector.is_none() && (event, old.event) == (Event::IOError, Event::IOError) && is_of_it
        };
        let of_late = |old: &Logged| now.saturating_duration_since(old.first) < ECHO;
        if let Some(old) = self.lines.iter_mut().find(|old| (same(old) || is_echo(old)) && of_late(old)) {
            old.at = now;
            old.mounts.extend(mounts);
            return;
        }
        self.lines.retain(|old| !same(old));
        self.number += 1;
        self.lines.push(Logged { at: now, first: now, number: self.number, device, sector, event, mounts });
        let excess = self.lines.len().saturating_sub(LINES_MAX);
        self.lines.drain(..excess);
    }

    /// What still counts.
    pub fn facts(&mut self, is_mounted: impl Fn(u64) -> bool, now: Instant) -> Vec<Fact> {
        let age = |line: &Logged| now.saturating_duration_since(line.at);
        self.lines.retain(|line| age(line) < COUNTS || line.mounts.iter().any(|id| is_mounted(*id)));
        let fact = |line: &Logged| Fact {
            number: line.number,
            device: line.device.clone(),
            sector: line.sector,
            kind: line.event,
            age: age(line),
            mounts: line.mounts.clone(),
        };
        self.lines.iter().map(fact).collect()
    }

    /// Puts into the view of which of these volumes there is an event that was not counted yet. With each look that is far
    /// enough from the last one that was told, one event of a volume counts as told.
    pub fn tell(&mut self, view: &mut HostView, subjects: &[Subject], now: Instant) {
        self.told.retain(|name, _| subjects.iter().any(|subject| subject.name == *name));
        for subject in subjects {
            let told = self.told.get(&subject.name);
            let last = told.map_or(0, |told| told.number);
            let news =
                kernel_log::facts_of(view, subject).map(|fact| fact.number).filter(|number| *number > last).min();
            let Some(number) = news else { continue };
            if told.is_none_or(|told| now.saturating_duration_since(told.at) >= APART) {
                self.told.insert(subject.name.clone(), Told { number, at: now });
            }
            view.events.insert(subject.name.clone());
        }
    }
}

#[cfg(test)]
#[path = "logged_tests.rs"]
mod tests;
