//! What rests on an external fencer. It gives back all that it did when its request is turned round, so the processes of pods that
//! went by force on its word would write again, beside their replacements. A driver gives access by a publish only.

use crate::api::fence_request::{FenceOutcome, FenceRequest, FencerMethodType};
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::node_fence::{PlannedPod, PlannedVolume, PodStatusState, VolumeStatus, VolumeStatusState};

use super::clean::{self, CleanBy};
use super::decide::{NodeState, Seen};
use super::rows;

/// Whether an external fencer is asked, and nobody else.
pub fn is_external(request: &FenceRequest) -> bool {
    let methods = request.spec.volumes.iter().flat_map(|volume| &volume.methods);
    methods.into_iter().all(|method| method.type_ == FencerMethodType::External)
}

/// Whether the end of a request would let in processes of pods that went by force: nothing shows that they have ended. Neither the
/// deletion of the Node does, nor another machine that has taken its name.
pub fn lets_processes_in(seen: &Seen, request: &FenceRequest) -> bool {
    let is_back = rows::node_state(seen) == NodeState::Back;
    // It never lost its power, and is not off, whoever has said so.
    let is_denied = is_back && seen.node.as_ref().is_some_and(|node| seen.fence.has_failed_in(node));
    let is_clean = match clean::by(seen) {
        Some(CleanBy::Rebooted) => true,
        // What the agent of a node that is silent again has said is of the time before.
        Some(CleanBy::TwoCleanPasses) => is_back,
        Some(CleanBy::NodeDeleted) | None => false,
    };
    let is_off = !is_denied && seen.fence.is_machine_said_to_be_off();
    let may_run = |(plan, row): (&PlannedVolume, &VolumeStatus)| is_denied || is_short_of_power(plan, row);
    !is_clean && !is_off && relied_on(seen, request).any(may_run)
}

/// Whether pods went by force on what an external fencer proves of a machine that may have power. A proof that was taken back keeps
/// nobody out: most often the machine was off, and has power again in another boot.
pub fn keeps_out(seen: &Seen, request: &FenceRequest) -> bool {
    let stands = |row: &VolumeStatus| row.proof > Proof::None;
    relied_on(seen, request).any(|(plan, row)| stands(row) && is_short_of_power(plan, row))
}

/// The recorded rows that this fencer has proved, and whose pods may have gone by force on that. A row that is clean has no process
/// left, but for one that is only taken for clean since the Node was deleted.
fn relied_on<'a>(
    seen: &'a Seen,
    request: &'a FenceRequest,
) -> impl Iterator<Item = (&'a PlannedVolume, &'a VolumeStatus)> {
    let status = seen.fence.status.as_ref().filter(|_| is_external(request));
    let recorded = status.map(|status| status.volumes.as_slice()).unwrap_or_default();
    let proved = recorded.iter().filter(move |row| is_proved_by(request, row) && !has_ended(row));
    let planned = proved.filter_map(move |row| {
        let mut plans = seen.fence.spec.plan.volumes.iter();
        let plan = plans.find(|plan| plan.episode == row.episode && plan.name == row.name)?;
        Some((plan, row))
    });
    planned.filter(move |(plan, _)| may_have_gone(seen, plan))
}

/// Whether the proof of a row may be this fencer's: a row names the method and not who carried it out. Who has given access back has
/// let in whom it could.
fn is_proved_by(request: &FenceRequest, row: &VolumeStatus) -> bool {
    let mut answers = request.status.iter().flat_map(|status| &status.volumes);
    row.method == Some(FenceMethodType::External)
        && row.proved_at.is_some()
        && answers.any(|it| it.episode == row.episode && it.name == row.name && it.result != FenceOutcome::Unfenced)
}

fn has_ended(row: &VolumeStatus) -> bool {
    let is_clean = row.state == VolumeStatusState::Clean && !row.is_clean_by_deletion();
    is_clean || row.state == VolumeStatusState::Undone
}

/// Whether a pod of a row has gone, or was to: what deletes it by force may be on its way. Of an earlier episode's pods there is no
/// record any more.
fn may_have_gone(seen: &Seen, plan: &PlannedVolume) -> bool {
    let recorded = seen.fence.status.as_ref().map(|status| status.pods.as_slice()).unwrap_or_default();
    let goes = |pod: &PlannedPod| {
        let row = recorded.iter().find(|row| row.episode == pod.episode && row.uid == pod.uid);
        row.is_some_and(|row| matches!(row.state, PodStatusState::Releasing | PodStatusState::Released))
    };
    let mut pods = seen.fence.spec.plan.pods.iter();
    plan.episode != seen.fence.spec.episode || pods.any(|pod| pod.volumes.contains(&plan.name) && goes(pod))
}

/// Whether a row was proved by less than the end of the machine's power, after which none of its processes lives. A proof that was
/// taken back since does not tell any more; what the plan demands does.
fn is_short_of_power(plan: &PlannedVolume, row: &VolumeStatus) -> bool {
    let is_demanded = plan.minimum_proof == Proof::PowerOff || plan.is_unattached();
    row.proof < Proof::PowerOff && !is_demanded
}
