//! The conditions of a NodeFence, each from the rows alone: what it waits for, in the documented reasons.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use kube::ResourceExt;

use crate::api::conditions::{self, State};
use crate::api::fence_request::{Desired, FenceRequest, IO_IN_PROGRESS};
use crate::api::names;
use crate::api::node_fence::{
    ANOTHER_MACHINE, AWAITING_STORAGE, MACHINE_MAY_RUN, NodeFenceStatus, PODS_MAX, Phase, PodStatusState,
    VolumeStatusState,
};
use crate::api::node_volume_report::{CleanupState, Remnant};
use crate::api::resiliency_policy::{Recovery, RestraintType};
use crate::api::text::printable;
use crate::api::time::Now;

use super::clean::{self, CleanBy};
use super::decide::{NodeState, Seen, Step};
use super::rows::{Rows, VolumeRow};
use super::status::Counts;
use super::{external, fencers, io, requests, shut_out, storage};

/// What one condition says.
struct Said {
    type_: &'static str,
    state: State,
    reason: String,
    message: String,
}

fn said(type_: &'static str, state: impl Into<State>, reason: impl Into<String>, message: impl Into<String>) -> Said {
    Said { type_, state: state.into(), reason: reason.into(), message: message.into() }
}

/// Sets all conditions, those of kstatus first; Reconciling and Stalled are there only while they hold.
pub(super) fn set(
    seen: &Seen,
    rows: &Rows,
    counts: &Counts,
    step: Option<&Step>,
    status: &mut NodeFenceStatus,
    now: Now,
) {
    let phase = status.phase.unwrap_or(Phase::Planned);
    let done = phase == Phase::Recovered;
    let waiting = waiting(rows);
    let may_run = awaits_machine(seen, rows, &status.failed_boot_ids).filter(|_| !done);
    // Until its attachments are gone, and were watched, that is what is waited for.
    let awaited = storage::awaited(seen, rows).filter(|_| matches!(phase, Phase::Detached | Phase::Cleaning));
    let stage = if awaited.is_some() { AWAITING_STORAGE } else { reason_or(phase) };
    // What nobody may try yet has not failed.
    let held = held(seen, rows, now).filter(|_| !done);
    let stalled = stalled(seen, rows, awaited.as_deref(), may_run.as_ref(), now)
        .filter(|_| !done && rows.held.is_none() && !is_io(&held));
    let ready = match (&held, &stalled) {
        _ if done => said("Ready", true, "Recovered", ""),
        (Some((reason, message)), _) => said("Ready", false, *reason, message),
        (None, Some((reason, message))) => said("Ready", false, reason, message),
        (None, None) => {
            let message = waiting.as_ref().map(|(_, message)| message.as_str()).or(awaited.as_deref());
            said("Ready", false, step_reason(phase, stage, step, &waiting), message.unwrap_or_default())
        }
    };
    let reconciling = (!done && stalled.is_none()).then(|| said("Reconciling", true, stage, &ready.message));
    let stalled = stalled.map(|(reason, message)| said("Stalled", true, reason, message));
    let held =
        held.map_or_else(|| said("Held", false, "NotHeld", ""), |(why, message)| said("Held", true, why, message));
    for absent in ["Reconciling", "Stalled"] {
        if [&reconciling, &stalled].iter().all(|present| present.as_ref().is_none_or(|it| it.type_ != absent)) {
            conditions::remove(&mut status.conditions, absent);
        }
    }
    let steps = [fenced(counts, waiting.as_ref()), released(seen, counts, waiting.is_some()), detached(rows, counts)];
    let all = [Some(ready), reconciling, stalled, Some(held)].into_iter().flatten().chain(steps);
    let generation = seen.fence.metadata.generation.unwrap_or_default();
    let clean = match may_run {
        Some((reason, message)) => said("NodeClean", State::Unknown, reason, message),
        None => node_clean(seen, rows, done),
    };
    for it in all.chain([clean]) {
        conditions::set(&mut status.conditions, it.type_, it.state, &it.reason, it.message, generation, now.wall);
    }
}

fn fenced(counts: &Counts, waiting: Option<&(String, String)>) -> Said {
    let proved = counts.proved == counts.needed;
    let reason = if proved { "Proved" } else { waiting.map_or("Fencing", |(reason, _)| reason) };
    said("Fenced", proved, reason, format!("{} of {} volumes proved", counts.proved, counts.needed))
}

fn released(seen: &Seen, counts: &Counts, waits: bool) -> Said {
    let all = counts.gone == counts.to_release;
    let reason = match (all, counts.to_release) {
        (true, 0) => "NothingToRelease",
        (true, _) => "AllReleased",
        (false, _) if waits => "PodsHeld",
        (false, _) => "Releasing",
    };
    let mut message = format!("{} of {} pods gone", counts.gone, counts.to_release);
    if seen.fence.spec.plan.is_full() {
        message +=
            &format!("; the plan has all the {PODS_MAX} pods that it may have: those that come to the node later stay");
    }
    said("Released", all, reason, message)
}

fn detached(rows: &Rows, counts: &Counts) -> Said {
    let all = counts.detached == counts.needed;
    let reason = match (all, counts.needed) {
        (true, 0) => "NothingToDetach",
        (true, _) => "AllDetached",
        (false, _) if rows.volumes.iter().any(|row| row.status.refences.unwrap_or(0) > 0) => "Reattached",
        (false, _) => "Detaching",
    };
    said("Detached", all, reason, format!("{} of {} attachments gone", counts.detached, counts.needed))
}

/// Why the whole incident waits.
fn held(seen: &Seen, rows: &Rows, now: Now) -> Option<(&'static str, String)> {
    if let Some(held) = rows.held.clone().or_else(|| io::held(seen, rows, now)) {
        return Some((held.reason, held.message));
    }
    if !rows.is_held() {
        return None;
    }
    if let Some(volume) = &rows.ambiguous {
        return Some(("IdentityAmbiguous", ambiguous(volume)));
    }
    // A calm after an outage is part of it: the reasons of an incident know no Cooldown.
    rows.outage.map(|outage| match outage {
        RestraintType::ArrayOutage => (
            "ArrayOutage",
            "the array does not say for sure that this node alone is cut off: nothing more is begun".into(),
        ),
        _ => ("CorrelatedOutage", "too many nodes are suspected at once: nothing more is begun".into()),
    })
}

fn is_io(held: &Option<(&str, String)>) -> bool {
    held.as_ref().is_some_and(|(reason, _)| *reason == IO_IN_PROGRESS)
}

fn ambiguous(volume: &str) -> String {
    format!(
        "the node id that volume {volume} was published to is in doubt (attachment and pod must be younger than the Node, \
         and CSINode must agree): nothing is done"
    )
}

fn reason_or(phase: Phase) -> &'static str {
    match phase {
        Phase::Planned => "Tainting",
        Phase::Fencing => "Fencing",
        Phase::PodsReleased => "Detaching",
        Phase::Detached => "AwaitingNode",
        Phase::Cleaning => "Cleaning",
        Phase::Recovered => "Recovered",
    }
}

fn step_reason<'a>(
    phase: Phase,
    stage: &'a str,
    step: Option<&Step>,
    waiting: &'a Option<(String, String)>,
) -> &'a str {
    match (phase, waiting) {
        (Phase::Fencing | Phase::Planned, Some((reason, _))) => reason,
        (Phase::Fencing, None) if step.is_some_and(|step| step.reason == "Releasing") => "Releasing",
        _ => stage,
    }
}

/// Why pods wait: the reason of the first, and all of them by volume or name.
fn waiting(rows: &Rows) -> Option<(String, String)> {
    let waiting: Vec<_> = rows.pods.iter().filter(|row| row.state == PodStatusState::Waiting).collect();
    let first = waiting.first()?;
    let own = first.reason.clone().unwrap_or_else(|| "ProofTooWeak".into());
    let failed = rows.volumes.iter().find(|row| row.needed && row.status.state == VolumeStatusState::Failed);
    let (reason, detail) = match failed.filter(|_| own == "ProofTooWeak") {
        Some(row) => (
            documented(row.status.reason.as_deref()),
            format!(
                "volume {} has proof {:?}, {:?} is required ({}{})",
                row.plan.name,
                row.status.proof,
                row.minimum,
                row.status.reason.as_deref().unwrap_or_default(),
                row.status.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default(),
            ),
        ),
        None => (own, first.message.clone().unwrap_or_default()),
    };
    let more = if waiting.len() > 1 { format!("; {} pods wait", waiting.len()) } else { "; its pod stays".into() };
    Some((reason, format!("{detail}{more}")))
}

/// Conditions speak the documented reasons; a gRPC code or a row's reason is in the message.
fn documented(reason: Option<&str>) -> String {
    match reason {
        Some(reason @ ("FencerMissing" | "Unimplemented" | ANOTHER_MACHINE)) => reason.into(),
        Some("DeadlineExceeded") => "FenceTimeout".into(),
        _ => "ProofTooWeak".into(),
    }
}

/// Reported once the policy's `giveUpAfter` has passed without proof; retries go on. `awaited` is what is said while nothing but the
/// path to the storage is waited for, `may_run` while only who knows the machine can end it.
fn stalled(
    seen: &Seen,
    rows: &Rows,
    awaited: Option<&str>,
    may_run: Option<&(String, String)>,
    now: Now,
) -> Option<(String, String)> {
    let patience = seen.policies.iter().map(|policy| policy.spec.fencing.give_up_after.get()).min();
    let patience = patience.unwrap_or(std::time::Duration::from_secs(300));
    let since = now.wall.signed_duration_since(seen.fence.spec.plan.decided_at).to_std().unwrap_or_default();
    let certain = waiting(rows)
        .filter(|(reason, _)| matches!(reason.as_str(), "FencerMissing" | "Unimplemented" | "UnknownVolumeKind"));
    let certain = certain.or_else(|| another_machine(rows)).or_else(|| may_run.cloned());
    let told = match (certain, since >= patience) {
        (Some(known), _) => Some(known),
        (None, is_late) if rows.node == NodeState::Back => {
            // What it was asked for stays open where it cannot be called off, and its pods wait.
            let may_begin = |row: &VolumeRow| is_late && fencers::may_be_started(seen, row, now);
            not_clean_for_long(seen, rows, now).or_else(|| silent(seen, rows, may_begin))
        }
        (None, false) => None,
        (None, true) => silent(seen, rows, |_| true).or_else(|| waiting(rows)).or_else(|| unproved(rows)),
    };
    told.or_else(|| without_storage_for_long(seen, awaited?, now))
}

/// The first fencer that was asked for a volume like this, and has said nothing.
fn silent(seen: &Seen, rows: &Rows, counts: impl Fn(&VolumeRow) -> bool) -> Option<(String, String)> {
    let mut open = rows.volumes.iter().filter(|row| row.needed && !row.is_cut_off() && counts(row));
    let (row, fencer) = open.find_map(|row| Some((row, fencers::silent(seen, row)?)))?;
    let message = if row.plan.driver.as_deref() == Some(fencer) {
        format!("the sidecar of driver {fencer} has not answered")
    } else {
        format!("the external fencer {fencer} has not answered")
    };
    Some(("FencerSilent".into(), message))
}

/// The first volume whose proof is of another machine than the one that may be there now. When that one is back its kubelet ends the pods.
fn another_machine(rows: &Rows) -> Option<(String, String)> {
    let is_told = |row: &&VolumeRow| row.status.state == VolumeStatusState::Failed && shut_out::is_told(row);
    let row = rows.volumes.iter().filter(|row| row.needed).find(is_told).filter(|_| rows.node != NodeState::Back)?;
    let message = row.status.message.as_deref().unwrap_or_default();
    Some((ANOTHER_MACHINE.into(), format!("volume {} is not proved: {message}", row.plan.name)))
}

/// The first volume that is still tried, with what was answered last.
fn unproved(rows: &Rows) -> Option<(String, String)> {
    let row = rows.volumes.iter().find(|row| row.needed && !row.is_cut_off())?;
    let answer = row.status.reason.as_deref().unwrap_or("no answer yet");
    let detail = row.status.message.as_deref().unwrap_or_default();
    let reason = if answer == "DeadlineExceeded" { "FenceTimeout" } else { "ProofTooWeak" };
    Some((reason.into(), format!("volume {} is not proved: {answer}: {detail}; it is tried again", row.plan.name)))
}

/// The node is back and not clean for longer than the policies want to know of. The time that it was away does not count:
/// its agent could do nothing then.
fn not_clean_for_long(seen: &Seen, rows: &Rows, now: Now) -> Option<(String, String)> {
    seen.our_taint()?;
    let returned = seen.fence.status.as_ref()?.timeline.as_ref()?.returned_at?;
    let left = node_clean(seen, rows, false);
    (left.state == State::False && is_long(seen, returned, now)).then(|| ("CleanupBlocked".into(), left.message))
}

/// The path is waited for longer than the policies want to know of: since the node came back, or since everything has moved off one
/// that was never away.
fn without_storage_for_long(seen: &Seen, awaited: &str, now: Now) -> Option<(String, String)> {
    let timeline = seen.fence.status.as_ref()?.timeline.as_ref()?;
    let since = timeline.returned_at.or(timeline.detached_at)?;
    is_long(seen, since, now).then(|| (AWAITING_STORAGE.into(), awaited.to_owned()))
}

/// Whether a policy's `warnAfter` has passed.
fn is_long(seen: &Seen, since: DateTime<Utc>, now: Now) -> bool {
    let patience = seen.policies.iter().map(|policy| policy.spec.recovery.warn_after.get()).min();
    let patience = patience.unwrap_or_else(|| Recovery::default().warn_after.get());
    now.wall.signed_duration_since(since).to_std().unwrap_or_default() >= patience
}

fn node_clean(seen: &Seen, rows: &Rows, done: bool) -> Said {
    let committed = rows.volumes.iter().any(|row| row.is_committed());
    // One that has lost nothing but the path to its storage was never away.
    let is_there = rows.node == NodeState::Back || storage::is_by_path(seen);
    if !committed {
        return said("NodeClean", true, "NoVolumes", "nothing was cut off");
    }
    let recorded = rows.volumes.iter().find(|row| row.status.state == VolumeStatusState::Clean);
    if let Some(row) = recorded.filter(|_| done) {
        let by = row.status.reason.as_deref().unwrap_or(CleanBy::Rebooted.reason());
        return said("NodeClean", true, by, "");
    }
    match clean::by(seen).filter(|_| is_there) {
        Some(by) => said("NodeClean", true, by.reason(), ""),
        None if is_there => still_unclean(seen, rows),
        None => said("NodeClean", State::Unknown, "NodeAway", kept_off(seen, rows).unwrap_or_default()),
    }
}

/// A network fence shuts out a machine whose Node was deleted, or whose name another machine may have, or an external fencer keeps it
/// out: only who knows the machine can say that it is off, since it failed last.
fn awaits_machine(seen: &Seen, rows: &Rows, failed_boot_ids: &[String]) -> Option<(String, String)> {
    let kept = seen.requests.iter().find(|request| requests::keeps_shut_out(seen, &rows.pods, request))?;
    let node = seen.fence.metadata.name.as_deref().unwrap_or_default();
    let how = if kept.shuts_out() {
        "its addresses stay shut out".to_owned()
    } else if external::has_only_begun(seen, kept) {
        format!("fencer {} has begun to cut it off, and has not proved it; it stays so", kept.spec.fencer_name)
    } else {
        format!("fencer {} keeps it cut off", kept.spec.fencer_name)
    };
    let why = if clean::is_another_machine(seen) {
        format!(
            "what is Node {node} now has another boot and none of the addresses that were frozen: it may be another machine, \
             and the one that failed may write on: {how}. Has that one rebooted, is it off, or gone"
        )
    } else {
        format!(
            "Node {node} was deleted, and its machine may write on: {how} until it comes back rebooted. Is it \
             off, or gone"
        )
    };
    let is_something_said = seen.fence.annotations().contains_key(names::MACHINE_OFF_ANNOTATION);
    let since = if is_something_said {
        " (what the annotation says now does not count: it is of an earlier failure, or mistyped)"
    } else {
        ""
    };
    Some((MACHINE_MAY_RUN.into(), format!("{why}{since}: {}", seen.fence.machine_off_command(failed_boot_ids))))
}

/// What is left on a node that is back, in the agent's words.
fn still_unclean(seen: &Seen, rows: &Rows) -> Said {
    const REMEDY: &str = "rebooting the node clears it";
    let kept = kept_off(seen, rows).map(|kept| format!("; {kept}")).unwrap_or_default();
    let Some(cleanup) = clean::cleanup(seen) else {
        let boot = if storage::is_by_path(seen) {
            "the node is in the boot in which its pods lost their storage"
        } else {
            "the node is back in a boot in which it failed"
        };
        let message =
            format!("{boot}, and {}: see that bulkhead-node-agent runs on it; {REMEDY}{kept}", why_unheard(seen));
        return said("NodeClean", false, "AgentMissing", message);
    };
    let told = |left: &Remnant| format!("{} ({})", printable(&left.id), left.reason);
    let left: Vec<_> = cleanup.remaining.iter().take(5).map(told).collect();
    let more = cleanup.remaining.len().saturating_sub(left.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    if cleanup.state == CleanupState::Blocked {
        let message = format!("left on the node: {}{more}; {REMEDY}{kept}", left.join(", "));
        return said("NodeClean", false, "CleanupBlocked", message);
    }
    said("NodeClean", false, "Cleaning", format!("the agent cleans: {:?}", cleanup.state))
}

/// Who keeps the node off its storages, or without power, until it is clean: what hangs there may hang for that.
fn kept_off(seen: &Seen, rows: &Rows) -> Option<String> {
    let mut open = seen.requests.iter().filter(|request| request.spec.desired == Desired::Fenced);
    let kept = open.find(|request| external::lets_processes_in(seen, &rows.pods, request));
    let told = |it: &Arc<FenceRequest>| {
        format!("fencer {} is not told to give back before it has booted again, or is found clean", it.spec.fencer_name)
    };
    kept.map(told)
}

/// Why nothing that an agent says counts.
fn why_unheard(seen: &Seen) -> String {
    let report = seen.node_report.as_ref().and_then(|report| report.status.as_ref());
    let Some(report) = report.filter(|report| report.node_uid.is_some()) else {
        return "no agent has said what is left there".into();
    };
    let node = seen.node.as_ref();
    let boot_id = node.map(|node| node.status.node_info.boot_id.as_str()).unwrap_or_default();
    if report.node_uid.as_deref() != node.and_then(|node| node.metadata.uid.as_deref()) {
        return "what its NodeVolumeReport says is of an earlier Node of that name".into();
    }
    match report.boot_id.as_deref() {
        Some(reported) if reported != boot_id => {
            format!("its agent reports boot id {}, the node {boot_id} (--boot-id-file)", printable(reported))
        }
        _ => "its agent has not spoken of this incident yet".into(),
    }
}
