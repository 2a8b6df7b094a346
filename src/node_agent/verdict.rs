//! What is decided about one volume of which something is left: whose turn it is, what stands in the way, what to remove.

use std::time::{Duration, Instant};

use crate::api::node_volume_report::Remnant;

use super::decide::{ENDING, Incident, Seen, Work, pods_of};
use super::memory::Memory;
use super::mounts::inventory::{Elsewhere, Remains};
use super::mounts::layout::Wanted;
use super::remnants::{holders_of, remnant, told, unknown_of};

/// A container that the kubelet ends has its grace period, of 30 s where nobody chose: nothing to warn of before, and so
/// many times the patience of 3 s.
const GRACE: u32 = 10;

/// What is decided about one volume.
pub(super) enum Verdict {
    /// It is the kubelet's turn, or work is under way.
    Wait,
    /// It cannot be removed, for these reasons.
    Blocked(Vec<Remnant>),
    /// This is to be removed.
    Clean(Box<Work>),
}

/// What to do about what is left of a volume.
pub(super) fn verdict(seen: &Seen, memory: &Memory, volume: &Wanted, remains: &Remains, now: Instant) -> Verdict {
    let since = memory.left.get(&volume.name).copied().unwrap_or(now);
    let patience = if seen.kubelet_is_up { seen.patience } else { Duration::ZERO };
    let (live, dead): (Vec<_>, Vec<_>) = pods_of(remains).partition(|pod| seen.is_live(pod));
    let waits = |blocked: bool, why: Vec<Remnant>| if blocked { Verdict::Blocked(why) } else { Verdict::Wait };
    let failure = memory.failure(&volume.name);
    // What was seen while it was worked on, or before, says nothing of now.
    let began = seen.looked.as_ref().map(|looked| looked.began);
    if memory.work.get(&volume.name).is_some_and(|work| work.is_newer_than(began)) {
        return waits(failure.is_some(), failure.map(|(failure, _)| remnant(volume, failure)).into_iter().collect());
    }
    if !remains.unknown.is_empty() {
        return waits(now >= since + seen.patience, unknown_of(volume, remains));
    }
    // A user of the volume: it is the kubelet's to end, and nobody's to be robbed of its volume half way.
    if remains.holders.iter().any(|holder| !holder.of_the_host) {
        return waits(now >= since + seen.patience * GRACE, holders_of(volume, remains));
    }
    if let Some((failure, until)) = failure
        && now < until
    {
        return Verdict::Blocked(vec![remnant(volume, failure)]);
    }
    if !live.is_empty() && dead.is_empty() {
        return waits(now >= since + ENDING, told(volume, remains, "PodNotGone"));
    }
    let gone = dead.iter().filter_map(|pod| memory.gone.get(*pod)).max().copied().unwrap_or(since);
    if now < gone + patience {
        return Verdict::Wait;
    }
    if nothing_to_do(remains) {
        return waits(now >= since + seen.patience * GRACE, holders_of(volume, remains));
    }
    let Some(fence) = &seen.fence else { return Verdict::Wait };
    let hung = failure.is_some_and(|(failure, _)| failure.is_of_something_that_hangs());
    let force = hung && volume.proved;
    Verdict::Clean(Box::new(work_for(seen, fence, volume, remains, live.is_empty(), force)))
}

/// Whether nothing is left but processes.
fn nothing_to_do(remains: &Remains) -> bool {
    let without = Remains { holders: Vec::new(), ..remains.clone() };
    without.is_nothing()
}

fn work_for(seen: &Seen, fence: &Incident, volume: &Wanted, remains: &Remains, all: bool, force: bool) -> Work {
    let dead = |pod: &Option<String>| pod.as_deref().is_some_and(|pod| !seen.is_live(pod));
    let (of_pods, others): (Vec<Elsewhere>, _) =
        remains.elsewhere.iter().cloned().partition(|elsewhere| elsewhere.pod.is_some());
    Work {
        key: fence.key.clone(),
        volume: volume.clone(),
        targets: remains.targets.iter().filter(|place| dead(&place.pod)).cloned().collect(),
        elsewhere: of_pods.into_iter().filter(|elsewhere| dead(&elsewhere.pod)).collect(),
        rest: all.then(|| Remains { targets: Vec::new(), elsewhere: others, ..remains.clone() }),
        force,
    }
}
