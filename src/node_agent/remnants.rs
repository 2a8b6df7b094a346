//! How that which is left, and cannot be removed or told, is put into words for the report.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::api::node_volume_report::{Remnant, RemnantKind};

use super::decide::{ENDING, Failure, Seen};
use super::memory::Memory;
use super::mounts::inventory::{Holder, Place, Remains, Unknown};
use super::mounts::layout::Wanted;

/// Why the node as a whole cannot be told, once that has lasted.
pub fn unsure(seen: &Seen, memory: &Memory, now: Instant) -> Vec<Remnant> {
    if memory.unsure.is_none_or(|since| now < since + seen.patience) {
        return Vec::new();
    }
    let unknown =
        |unknown: Unknown| Remnant { kind: RemnantKind::Unknown, id: unknown.id, volume: None, reason: unknown.reason };
    seen.unsure().into_iter().map(unknown).collect()
}

/// Pods of the incident that are still bound though nothing of their volumes is left.
pub fn bound(seen: &Seen, memory: &Memory, now: Instant) -> Vec<Remnant> {
    let late = memory.bound.is_some_and(|since| now >= since + ENDING) && seen.left().next().is_none();
    let told = |pod: &str| Remnant {
        kind: RemnantKind::Unknown,
        id: format!("pod {pod}"),
        volume: None,
        reason: "PodNotGone".into(),
    };
    seen.bound().filter(|_| late).map(told).collect()
}

/// What failed the last time.
pub fn remnant(volume: &Wanted, failure: &Failure) -> Remnant {
    Remnant {
        kind: failure.kind,
        id: failure.id.clone(),
        volume: Some(volume.name.clone()),
        reason: failure.reason.clone(),
    }
}

/// What cannot be told of a volume.
pub fn unknown_of(volume: &Wanted, remains: &Remains) -> Vec<Remnant> {
    let told = |unknown: &Unknown| Remnant {
        kind: RemnantKind::Unknown,
        id: unknown.id.clone(),
        volume: Some(volume.name.clone()),
        reason: unknown.reason.clone(),
    };
    remains.unknown.iter().map(told).collect()
}

/// Who holds a volume.
pub fn holders_of(volume: &Wanted, remains: &Remains) -> Vec<Remnant> {
    let told = |holder: &Holder| Remnant {
        kind: RemnantKind::Process,
        id: format!("pid {} ({})", holder.pid, holder.name),
        volume: Some(volume.name.clone()),
        reason: "ProcessHoldsMount".into(),
    };
    // A container has hundreds of processes, and they change: the oldest of each name stands for all.
    let mut first = BTreeMap::<&str, &Holder>::new();
    for holder in &remains.holders {
        let known = first.entry(&holder.name).or_insert(holder);
        if holder.pid < known.pid {
            *known = holder;
        }
    }
    first.into_values().map(told).collect()
}

/// Everything that is left of a volume, with one reason for all.
pub fn told(volume: &Wanted, remains: &Remains, reason: &str) -> Vec<Remnant> {
    let told = |kind: RemnantKind, id: &str| Remnant {
        kind,
        id: id.to_owned(),
        volume: Some(volume.name.clone()),
        reason: reason.to_owned(),
    };
    let path = |place: &Place| place.mounts.first().map_or(place.path.clone(), |mount| mount.path.clone());
    let places = remains.targets.iter().chain(&remains.staging).map(|place| told(RemnantKind::Mount, &path(place)));
    let mounts = remains.elsewhere.iter().map(|elsewhere| told(RemnantKind::Mount, &elsewhere.mount.path));
    let loops = remains.loops.iter().map(|device| told(RemnantKind::Loop, &device.name));
    places.chain(mounts).chain(loops).collect()
}
