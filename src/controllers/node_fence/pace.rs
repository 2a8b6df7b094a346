//! How soon what nothing rests on is recorded: a few writes for a hundred pods instead of a hundred, and none in the way of the first
//! release.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::conditions;
use crate::api::node_fence::{NodeFenceStatus, Phase, VolumeStatus, VolumeStatusState};

use super::decide::{Seen, is_settled};
use super::pods;
use super::rows::Rows;

/// While pods go and volumes are cut off.
const PACE: Duration = Duration::from_secs(2);
/// While nobody but the attacher works: it takes five attachments a second as shipped, and a node may have hundreds.
const ATTACHERS_PACE: Duration = Duration::from_secs(15);

/// How long the record waits still; `None` when it is due. What completes a step does not wait. Only where there is no step may it wait
/// long: one that is refused again and again must not hide what has happened before it.
pub(super) fn pace(
    seen: &Seen,
    rows: &Rows,
    is_there_a_step: bool,
    recorded: &NodeFenceStatus,
    wanted: &NodeFenceStatus,
) -> Option<Duration> {
    let begun =
        |status: &NodeFenceStatus| status.phase.filter(|phase| !matches!(phase, Phase::Planned | Phase::Fencing));
    let waits =
        |status: &NodeFenceStatus| ["Held", "Stalled"].map(|type_| conditions::is_true(&status.conditions, type_));
    let complete = begun(wanted) != begun(recorded) || waits(wanted) != waits(recorded);
    let is_news = !is_there_a_step && wanted != recorded;
    let is_quiet = is_news && is_only_of_attachments(recorded, wanted) && is_left_to_attacher(seen, rows);
    let longest = if is_quiet { ATTACHERS_PACE } else { PACE };
    let wait = longest.saturating_sub(seen.recorded_for);
    (!complete && !wait.is_zero()).then_some(wait)
}

/// Whether all pods have gone that can, and every attachment that is to go for them is being deleted.
fn is_left_to_attacher(seen: &Seen, rows: &Rows) -> bool {
    if !rows.pods.iter().all(|row| is_settled(row.state) || pods::is_blocked(row)) {
        return false;
    }
    let left = rows.attachments_to_remove(seen);
    !left.is_empty() && left.iter().all(|it| it.metadata.deletion_timestamp.is_some())
}

/// Whether nothing is news but that some attachments have gone, and not the last of them: that completes the detach.
fn is_only_of_attachments(recorded: &NodeFenceStatus, wanted: &NodeFenceStatus) -> bool {
    // All fields by name: whoever adds one says here whether it may wait.
    let NodeFenceStatus {
        observed_generation,
        conditions,
        phase,
        weakest_proof,
        progress,
        volumes,
        pods,
        failed_boot_ids,
        timeline,
        history,
    } = wanted;
    *observed_generation == recorded.observed_generation
        && *phase == recorded.phase
        && *weakest_proof == recorded.weakest_proof
        && *progress == recorded.progress
        && *timeline == recorded.timeline
        && *failed_boot_ids == recorded.failed_boot_ids
        && *history == recorded.history
        && without_messages(conditions) == without_messages(&recorded.conditions)
        && *pods == recorded.pods
        && volumes.len() == recorded.volumes.len()
        && recorded.volumes.iter().zip(volumes).all(|(before, now)| before == now || is_detached_since(before, now))
}

/// How many have gone is said in words too.
fn without_messages(conditions: &[Condition]) -> Vec<Condition> {
    let mut conditions = conditions.to_vec();
    conditions.iter_mut().for_each(|condition| condition.message.clear());
    conditions
}

fn is_detached_since(before: &VolumeStatus, now: &VolumeStatus) -> bool {
    let detached = VolumeStatus { state: VolumeStatusState::Detached, ..before.clone() };
    before.state == VolumeStatusState::Fenced && *now == detached
}
