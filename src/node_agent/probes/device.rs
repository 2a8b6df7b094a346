//! The block device of a volume: that it is there, at work, whole, and without bad blocks. Pure.

use std::time::Duration;

use super::view::BlockDevice;
use super::{HostView, Seen, Subject, degraded, inaccessible, silent};
use crate::api::hysteresis::Sample;
use crate::api::volume::Check;

/// Looks at the device, if the volume is on one.
pub fn look(view: &HostView, subject: &Subject) -> Vec<Seen> {
    // One that was unplugged is found by what was there first.
    let first = subject.baseline.as_ref().and_then(|first| first.device).filter(|device| device.major != 0);
    let Some(facts) = view.device_of(subject).or(first).and_then(|device| view.devices.get(&device)) else {
        return Vec::new();
    };
    let mut seen = vec![Seen::of(subject, Check::Device, present(facts.as_ref(), subject))];
    if let Some(facts) = facts {
        seen.push(Seen::of(subject, Check::BadBlocks, bad_blocks(facts)));
        seen.extend(wear(facts).map(|sample| Seen::of(subject, Check::DeviceHealth, sample)));
    }
    seen
}

fn present(facts: Option<&BlockDevice>, subject: &Subject) -> Sample {
    let Some(facts) = facts else {
        return inaccessible("DeviceMissing", "the kernel has no such block device any more");
    };
    let (name, size) = (&facts.name, facts.size());
    match facts.state.as_deref() {
        Some("offline" | "transport-offline" | "cancel" | "deleted" | "dead" | "deleting" | "deleting (no IO)") => {
            let state = facts.state.as_deref().unwrap_or_default();
            return inaccessible("DeviceMissing", format!("the state of {name} is {state}"));
        }
        // It may come back; until then nobody answers.
        Some("blocked" | "quiesce" | "connecting" | "resetting" | "created-block") => {
            let state = facts.state.as_deref().unwrap_or_default();
            return silent("BackendUnreachable", format!("the state of {name} is {state}"));
        }
        _ => {}
    }
    match &facts.raid {
        Some((state, _)) if matches!(state.as_str(), "clear" | "inactive" | "broken") => {
            return inaccessible("DeviceMissing", format!("the array {name} is {state}"));
        }
        Some((_, missing)) if *missing > 0 => {
            return degraded("DeviceFailing", format!("the array {name} lacks {missing} of its devices"));
        }
        _ => {}
    }
    let was = subject.baseline.as_ref().and_then(|first| first.size).unwrap_or_default();
    if size == 0 {
        inaccessible("DeviceMissing", format!("{name} has no size any more"))
    } else if size < was {
        inaccessible("DeviceShrunk", format!("{name} has {size} bytes, it had {was}"))
    } else if size < subject.capacity {
        // It may have been so from the first: people write round numbers.
        degraded("DeviceShrunk", format!("{name} has {size} bytes, fewer than the capacity {}", subject.capacity))
    } else if facts.suspended {
        silent("IOHung", format!("{name} is suspended"))
    } else {
        Sample::Good
    }
}

fn bad_blocks(facts: &BlockDevice) -> Sample {
    let end = facts.start.saturating_add(facts.sectors);
    let ours = |(first, length): &&(u64, u64)| *first < end && first.saturating_add(*length) > facts.start;
    match facts.bad_blocks.iter().find(ours) {
        Some((first, length)) => inaccessible(
            "BadBlocks",
            format!("{} has bad blocks: {length} sectors from sector {first} of {}", facts.name, facts.disk),
        ),
        None => Sample::Good,
    }
}

fn wear(facts: &BlockDevice) -> Option<Sample> {
    let wear = facts.wear.as_ref()?;
    Some(match wear.pre_end_of_life {
        2.. => degraded("DeviceFailing", format!("{} has used up most of its reserved blocks", facts.disk)),
        _ => Sample::Good,
    })
}

/// Bad blocks as sysfs lists them: first sector and length per line.
pub fn parse_bad_blocks(text: &str) -> Vec<(u64, u64)> {
    let pair = |line: &str| {
        let (first, length) = line.split_once(' ')?;
        Some((first.parse().ok()?, length.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// Requests completed, of a `stat` file of sysfs: reads, writes, discards and flushes.
pub fn parse_completed(text: &str) -> Option<u64> {
    let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let field = |index: usize| fields.get(index).copied();
    Some(field(0)? + field(4)? + field(11).unwrap_or_default() + field(15).unwrap_or_default())
}

/// Requests that wait, of an `inflight` file of sysfs: reads and writes.
pub fn parse_in_flight(text: &str) -> Option<u64> {
    text.split_whitespace().map(|field| field.parse::<u64>().ok()).sum()
}

/// How long requests wait without one completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    completed: u64,
    waited: Duration,
}

impl Stall {
    /// Counts what was seen `since` the last look.
    pub fn add(&mut self, in_flight: u64, completed: u64, since: Duration) -> Option<Duration> {
        if in_flight == 0 || completed != self.completed {
            *self = Self { completed, waited: Duration::ZERO };
            return None;
        }
        self.waited += since;
        Some(self.waited)
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
