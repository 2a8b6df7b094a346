//! What the agent reports: its clean-up and the health of its volumes, in the one status that both parts write. Nothing is
//! removed because of it, but for one thing: mounts that were reported are looked for again after a restart.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::conditions::{self, State};
use crate::api::node_volume_report::{
    Cleanup, CleanupState, MountKind, NodeVolumeReportStatus, Remnant, RemnantKind, ReportedMount, ReportedVolume,
};
use crate::api::time::{self, Now};
use crate::api::volume::VolumeState;

use super::decide::{Seen, Stand};
use super::mounts::inventory::{Mounted, Remains};
use super::mounts::layout::Wanted;
use super::volumes::report::{NodeHealth, VOLUMES_MAX};

/// Limits of the API.
const REMAINING_MAX: usize = 64;
const MOUNTS_MAX: usize = 32;
const TEXT_MAX: usize = 1024;
/// What people have to know of probes that hang.
pub const PROBES_HUNG: &str = "child processes wait for storage that does not answer, and cannot be killed: what may wait as \
                               they do is not asked any more. An answer or a reboot ends them";
/// Condition: whether the agent has stopped protected pods, since its node was alone. Absent where it never has.
pub const SELF_FENCED: &str = "SelfFenced";
/// How often a report says only that something else of the same kind is left.
const AT_MOST_EVERY: Duration = Duration::from_secs(60);

/// The status for what a pass saw and decided.
pub fn compute(seen: &Seen, stand: Option<&Stand>, now: Now) -> NodeVolumeReportStatus {
    let before = before(seen);
    let mut conditions = before.conditions.clone();
    let (state, reason, message) = ready(seen);
    conditions::set(&mut conditions, "Ready", state, reason, message, 0, now.wall);
    if let Some((is_over, message)) = &seen.self_fencing {
        let (state, reason) = match is_over {
            false => (State::True, "ApiAndPeersLost"),
            true => (State::False, "AccessGivenBack"),
        };
        conditions::set(&mut conditions, SELF_FENCED, state, reason, text(message), 0, now.wall);
    }
    let cleanup = match stand {
        Some(stand) => Some(cleanup(stand, before.cleanup.as_ref(), now)),
        // The record stays as long as what it is about.
        None => before.cleanup.clone().filter(|_| seen.has_fence),
    };
    let goes_on = stand.is_some_and(|stand| stand.state == CleanupState::Cleaning)
        && before.cleanup.as_ref().is_some_and(|before| {
            before.state == CleanupState::Cleaning && cleanup.as_ref().is_some_and(|now| same_clean_up(now, before))
        });
    // While it is cleaned it would change with every mount that goes.
    let of_incident = match goes_on || keeps_record(seen, &before) {
        true => recorded(seen, &before.volumes),
        false => volumes(seen),
    };
    let health = seen.health.as_deref().cloned().unwrap_or_else(|| said(seen, &before));
    NodeVolumeReportStatus {
        conditions,
        node_uid: Some(seen.node_uid.clone()),
        boot_id: Some(seen.boot_id.clone()),
        addresses: seen.addresses.clone(),
        heartbeat: seen.heartbeat.clone(),
        agent_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        checked: Some(health.checked).filter(|checked| *checked > 0),
        unhealthy: Some(health.unhealthy).filter(|_| health.checked > 0),
        volumes: together(health.volumes, of_incident),
        cleanup,
    }
}

/// What was reported of this Node. Of another machine of its name nothing is taken over; of this very boot under an earlier
/// Node object what an incident left, for that is known from nowhere else, but no judgement.
fn before(seen: &Seen) -> NodeVolumeReportStatus {
    let before = seen.report.status.clone().unwrap_or_default();
    if before.node_uid.as_ref().is_none_or(|uid| *uid == seen.node_uid) {
        return before;
    }
    match before.boot_id.as_ref() == Some(&seen.boot_id) {
        true => NodeVolumeReportStatus {
            volumes: recorded(seen, &before.volumes),
            checked: None,
            unhealthy: None,
            ..before
        },
        false => NodeVolumeReportStatus::default(),
    }
}

/// The record of the incident's mounts, as it was reported.
fn recorded(seen: &Seen, before: &[ReportedVolume]) -> Vec<ReportedVolume> {
    let of_it = |row: &&ReportedVolume| !row.mounts.is_empty() && (is_fenced(seen, &row.name) || has_private(row));
    before.iter().filter(of_it).map(unjudged).collect()
}

/// What an earlier process said of health. Mounts without a judgement are there for an incident alone.
fn said(seen: &Seen, before: &NodeVolumeReportStatus) -> NodeHealth {
    let of_it = |row: &&ReportedVolume| unjudged(row) != **row || row.mounts.is_empty();
    let without = |row: &ReportedVolume| match is_fenced(seen, &row.name) || has_private(row) {
        true => ReportedVolume { mounts: Vec::new(), ..row.clone() },
        false => row.clone(),
    };
    NodeHealth {
        checked: before.checked.unwrap_or_default(),
        unhealthy: before.unhealthy.unwrap_or_default(),
        volumes: before.volumes.iter().filter(of_it).map(without).collect(),
    }
}

fn is_fenced(seen: &Seen, volume: &str) -> bool {
    seen.fenced.contains(volume)
        || seen.fence.iter().flat_map(|fence| &fence.wanted).any(|wanted| wanted.name == volume)
}

fn has_private(row: &ReportedVolume) -> bool {
    row.mounts.iter().any(|mount| mount.kind == MountKind::Private)
}

/// A row about mounts alone.
fn unjudged(row: &ReportedVolume) -> ReportedVolume {
    ReportedVolume { state: VolumeState::Unknown, findings: Vec::new(), ..row.clone() }
}

/// Health and mounts of the incident, one row for each volume. Device and mounts of the incident belong together.
fn together(health: Vec<ReportedVolume>, of_incident: Vec<ReportedVolume>) -> Vec<ReportedVolume> {
    let mut rows: BTreeMap<String, ReportedVolume> =
        of_incident.into_iter().map(|row| (row.name.clone(), row)).collect();
    // Of too many, those that are Healthy are left out.
    let (healthy, other): (Vec<_>, Vec<_>) = health.into_iter().partition(|row| row.state == VolumeState::Healthy);
    for row in other.into_iter().chain(healthy) {
        // Nothing may take the place of what is known of an incident.
        let is_place = rows.len() < VOLUMES_MAX;
        match rows.get_mut(&row.name) {
            Some(found) => (found.state, found.findings) = (row.state, row.findings),
            None if is_place => _ = rows.insert(row.name.clone(), row),
            None => {}
        }
    }
    rows.into_values().collect()
}

fn ready(seen: &Seen) -> (State, &'static str, String) {
    let Seen { boot_id, node_boot_id, .. } = seen;
    if !node_boot_id.is_empty() && node_boot_id != boot_id {
        let message = format!(
            "the kubelet reports boot id {node_boot_id}, --boot-id-file says {boot_id}: what is reported counts for nothing \
             while they differ"
        );
        return (State::False, "BootIdMismatch", text(&message));
    }
    match seen.probes_hung {
        true => (State::False, "ProbesHung", PROBES_HUNG.to_owned()),
        false => (State::True, "Reporting", String::new()),
    }
}

/// Whether the volumes stay as they were reported: they are the only record of a driver's own mounts, and nothing but a
/// look that answered for every volume says that these are gone.
fn keeps_record(seen: &Seen, before: &NodeVolumeReportStatus) -> bool {
    let of_this_boot = |cleanup: &Cleanup| match &seen.fence {
        Some(fence) => fence.key.is_same_incident(cleanup),
        None => seen.has_fence && cleanup.boot_id == seen.boot_id,
    };
    !seen.is_complete() && before.cleanup.as_ref().is_some_and(of_this_boot)
}

fn same_clean_up(one: &Cleanup, other: &Cleanup) -> bool {
    (&one.fence_uid, one.episode, &one.digest, &one.boot_id)
        == (&other.fence_uid, other.episode, &other.digest, &other.boot_id)
}

fn cleanup(stand: &Stand, before: Option<&Cleanup>, now: Now) -> Cleanup {
    let mut remaining: Vec<_> = stand.remaining.iter().map(shown).collect();
    remaining.truncate(REMAINING_MAX);
    // Another process of the same name is nothing new.
    if let Some(before) = before.filter(|before| without_pids(&before.remaining) == without_pids(&remaining)) {
        remaining.clone_from(&before.remaining);
    }
    let mut next = Cleanup {
        fence_uid: stand.key.fence_uid.clone(),
        episode: stand.key.episode,
        digest: stand.key.digest.clone(),
        state: stand.state,
        clean_passes: stand.passes,
        boot_id: stand.key.boot_id.clone(),
        finished_at: before.and_then(|before| before.finished_at),
        remaining,
    };
    if before != Some(&next) {
        next.finished_at = Some(time::stamp(now.wall));
    }
    next
}

fn without_pids(remaining: &[Remnant]) -> Vec<Remnant> {
    let name = |id: &str| id.strip_prefix("pid ").and_then(|id| id.split_once(' ')).map(|(_, name)| name.to_owned());
    let mut rows: Vec<_> = remaining.to_vec();
    for row in rows.iter_mut().filter(|row| row.kind == RemnantKind::Process) {
        row.id = name(&row.id).unwrap_or_default();
    }
    rows.sort();
    rows
}

/// Whether a report is worth a write. What keeps a node Blocked may change with every look: as long as it is of the same
/// kinds, for the same reasons and of the same volumes, once a minute is enough.
pub fn is_news(before: Option<&NodeVolumeReportStatus>, wanted: &NodeVolumeReportStatus, now: Now) -> bool {
    let Some(before) = before else { return true };
    let written = before.cleanup.as_ref().and_then(|cleanup| cleanup.finished_at);
    let of_late = written.is_some_and(|written| (now.wall - written).to_std().is_ok_and(|past| past < AT_MOST_EVERY));
    let blocked = wanted.cleanup.as_ref().is_some_and(|cleanup| cleanup.state == CleanupState::Blocked);
    if blocked && of_late { outline(before) != outline(wanted) } else { before != wanted }
}

/// All that a report says, but for what exactly is left.
fn outline(status: &NodeVolumeReportStatus) -> NodeVolumeReportStatus {
    let mut status = status.clone();
    if let Some(cleanup) = &mut status.cleanup {
        cleanup.finished_at = None;
        cleanup.remaining.iter_mut().for_each(|row| row.id.clear());
        cleanup.remaining.sort();
        cleanup.remaining.dedup();
    }
    status
}

fn shown(remnant: &Remnant) -> Remnant {
    Remnant { id: text(&remnant.id), ..remnant.clone() }
}

/// Fit for the API and for a terminal.
fn text(text: &str) -> String {
    let mut shown: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    conditions::truncate(&mut shown, TEXT_MAX);
    if shown.is_empty() { "?".to_owned() } else { shown }
}

fn volumes(seen: &Seen) -> Vec<ReportedVolume> {
    let wanted = seen.fence.iter().flat_map(|fence| &fence.wanted);
    let with = |volume: &Wanted| {
        let (_, remains) = seen.left().find(|(name, _)| *name == volume.name)?;
        Some(reported(volume, remains))
    };
    wanted.filter_map(with).take(VOLUMES_MAX).collect()
}

fn reported(volume: &Wanted, remains: &Remains) -> ReportedVolume {
    let mount = |kind: MountKind, mount: &Mounted, pod: Option<&String>| ReportedMount {
        kind,
        path: text(&mount.path),
        pod_uid: pod.cloned().filter(|uid| uid.len() <= 36),
    };
    let targets = remains
        .targets
        .iter()
        .flat_map(|place| place.mounts.iter().map(|found| mount(MountKind::Target, found, place.pod.as_ref())));
    let staging =
        remains.staging.iter().flat_map(|place| &place.mounts).map(|found| mount(MountKind::Staging, found, None));
    let private =
        remains.elsewhere.iter().map(|elsewhere| mount(MountKind::Private, &elsewhere.mount, elsewhere.pod.as_ref()));
    // Private ones first: they are the ones that nothing on the disk tells of.
    let mut mounts: Vec<_> = private.chain(staging).chain(targets).take(MOUNTS_MAX).collect();
    mounts.sort();
    mounts.dedup();
    let private = remains.elsewhere.iter().map(|elsewhere| elsewhere.mount.device).min();
    ReportedVolume {
        name: volume.name.clone(),
        driver: Some(volume.driver.clone()),
        volume_handle: Some(volume.handle.clone()),
        device: private.or_else(|| remains.mounts().map(|mount| mount.device).min()).map(|device| device.to_string()),
        state: VolumeState::Unknown,
        mounts,
        findings: Vec::new(),
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
