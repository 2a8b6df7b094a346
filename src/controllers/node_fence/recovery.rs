//! How an incident ends: what was asked for in vain is turned round, a node whose rows are all closed is given back, and
//! what is left is a record, to be forgotten.

use std::time::Duration;

use chrono::TimeDelta;

use crate::api::fence_request::{FenceOutcome, FenceRequest, RequestedVolume};
use crate::api::names;
use crate::api::node_fence::{AWAITING_STORAGE, Phase};
use crate::api::time::Now;

use super::decide::{Effect, NodeState, Seen, Step, is_settled};
use super::rows::Rows;
use super::{clean, fencers, requests, storage};

/// The step that turns requests round.
pub(super) const UNDOING: &str = "Undoing";
/// How long a Recovered NodeFence is kept.
const RECORD_LIFETIME: TimeDelta = TimeDelta::days(7);
/// How soon is looked again whether a node that is back reaches its storage, though nothing changed.
const LOOK_AT_STORAGE: Duration = Duration::from_secs(30);

/// A recovered incident only waits to be forgotten. `kubectl delete` takes effect here, not earlier.
pub fn after_recovery(seen: &Seen, now: Now) -> Option<Step> {
    let status = seen.fence.status.as_ref()?;
    let begun = seen.fence.spec.plan.decided_at;
    let current = status.timeline.as_ref().and_then(|timeline| timeline.decided_at) == Some(begun);
    if status.phase != Some(Phase::Recovered) || !current || clean::is_back_uncleaned(seen) {
        return None;
    }
    // A request whose creation arrived long after its sender gave it up is taken back, and nothing else is done.
    if let Some(step) = requests::withdraw(seen, &status.pods) {
        return Some(step);
    }
    // So is a taint that arrived as late: nobody else would take it off.
    if let (Some(node), Some(taint)) = (&seen.node, seen.our_taint()) {
        return Step::new("Untainting", vec![Effect::RemoveTaint { taint: taint.clone(), node: node.clone() }]);
    }
    let guarded = seen.fence.metadata.finalizers.iter().flatten().any(|f| f == names::NODE_CLEAN_FINALIZER);
    if seen.fence.metadata.deletion_timestamp.is_some() {
        return Step::new("Forgetting", if guarded { vec![Effect::RemoveFinalizer] } else { Vec::new() });
    }
    let recovered = status.timeline.as_ref().and_then(|timeline| timeline.recovered_at).unwrap_or(now.wall);
    let left = RECORD_LIFETIME - now.wall.signed_duration_since(recovered);
    match left.to_std() {
        Ok(left) if !left.is_zero() => Step::wait("Recovered", left),
        _ => Step::new("Forgetting", vec![Effect::Forget]),
    }
}

/// The node came back, or is gone with its pods, before any fence call could have been sent: nothing happened, so
/// nothing may remain. Nor is a node that is back switched off once more by a round that nobody has begun.
pub fn undo(seen: &Seen, rows: &Rows) -> Option<Step> {
    // What was begun of a node that is gone is brought to its end. Turned round, it would be asked for again, and so on
    // for ever.
    let is_needed = |request: &FenceRequest| {
        rows.volumes.iter().any(|row| row.needed && fencers::all(row).contains(&request.spec.fencer_name.as_str()))
    };
    let have_pods_gone = || rows.pods.iter().all(|row| is_settled(row.state));
    let effects = requests::turn_round(seen, rows, |request| match rows.node {
        NodeState::Back => requests::may_be_undone(request) || is_asked_in_vain(request),
        NodeState::Gone => requests::may_be_undone(request) && have_pods_gone() && !is_needed(request),
        NodeState::Away => false,
    });
    if effects.is_empty() { None } else { Step::live(UNDOING, effects) }
}

/// Whether an external fencer was asked again and has not begun with that: it would act on the whole node, whose kubelet is there
/// to end the pods. A driver would only take once more what it has taken.
fn is_asked_in_vain(request: &FenceRequest) -> bool {
    request.is_external() && request.spec.volumes.iter().any(|volume| !has_begun_round(request, volume))
}

/// Whether the fencer has begun with the round that is asked for. That it gave access back before is no beginning.
fn has_begun_round(request: &FenceRequest, volume: &RequestedVolume) -> bool {
    let row = request.result_of(volume.episode, &volume.name);
    row.is_some_and(|row| row.round >= volume.round && row.result != FenceOutcome::Unfenced)
}

/// All rows are clean or undone: take requests, taint and label back, in the reverse of the order they came.
pub fn give_back(seen: &Seen, rows: &Rows) -> Option<Step> {
    if !rows.is_over() {
        return None;
    }
    if let Some(step) = requests::withdraw(seen, &rows.pods) {
        return Some(step);
    }
    if storage::is_awaited(seen, rows) {
        return Step::wait(AWAITING_STORAGE, LOOK_AT_STORAGE);
    }
    if let (Some(node), Some(taint)) = (&seen.node, seen.our_taint()) {
        let effect = Effect::RemoveTaint { taint: taint.clone(), node: node.clone() };
        return Step::new("Untainting", vec![effect]);
    }
    if seen.is_active() { Step::new("Deactivating", vec![Effect::SetActive(false)]) } else { None }
}
