//! What rests on an external fencer. It gives back all that it did when its request is turned round, so the processes of pods that
//! went by force on its word would write again, beside their replacements. A driver gives access by a publish only.

use crate::api::fence_request::{FenceOutcome, FenceRequest};
use crate::api::node_fence::{PlannedVolume, PodStatus, VolumeStatus};
use crate::mutants::{self, Mutant};

use super::clean::{self, CleanBy};
use super::decide::{NodeState, Seen};
use super::pods::RELEASED_BY_OTHERS;
use super::rows;

/// Whether the end of a request would let in processes of pods that are gone, or that a kubelet ends which knows nothing of them: nothing
/// shows that they have ended. Neither the deletion of the Node does, nor another machine that has taken its name. `pods` are the rows as
/// this pass has them: what others removed may not be on record yet.
pub fn lets_processes_in(seen: &Seen, pods: &[PodStatus], request: &FenceRequest) -> bool {
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
    let is_let_in = mutants::is_on(Mutant::ProcessesLetIn);
    let may_run = |(plan, row): (&PlannedVolume, &VolumeStatus)| is_denied || row.is_short_of_power(plan);
    let is_out_of_sight = is_beyond_its_kubelet(seen) || have_others_removed_pods(seen, pods);
    let is_begun = is_out_of_sight && is_begun(seen, request) && (is_denied || !seen.fence.has_lost_its_power());
    !is_clean && !is_off && !is_let_in && (is_begun || relied_on(seen, request).any(may_run))
}

/// Whether an external fencer keeps out a machine that may have power: pods went by force on its proof; or it has begun, and no kubelet is
/// there that knows what runs on the machine.
pub fn keeps_out(seen: &Seen, request: &FenceRequest) -> bool {
    let is_begun = is_beyond_its_kubelet(seen) && is_begun(seen, request) && !seen.fence.has_lost_its_power();
    is_begun || relied_on(seen, request).any(|(plan, row)| row.leaves_power(plan))
}

/// Whether no pod went by force on what this fencer proves: it may have cut the machine off, or have done nothing.
pub fn has_only_begun(seen: &Seen, request: &FenceRequest) -> bool {
    relied_on(seen, request).next().is_none()
}

fn is_begun(seen: &Seen, request: &FenceRequest) -> bool {
    !mutants::is_on(Mutant::BegunGivenBack) && seen.fence.is_begun_externally(request)
}

fn is_beyond_its_kubelet(seen: &Seen) -> bool {
    seen.fence.is_beyond_its_kubelet(seen.node.as_deref())
}

/// Whether somebody else has removed a pod without our proof, and nobody but an external fencer may have cut off its volumes: what it runs
/// is cut off by what was begun with any of them, and its replacement may write.
fn have_others_removed_pods(seen: &Seen, pods: &[PodStatus]) -> bool {
    let is_cut_off = |episode: i64, volume: &String| {
        seen.fence.recorded_volume(episode, volume).is_some_and(VolumeStatus::is_proved_by_another)
    };
    seen.fence.spec.plan.pods.iter().any(|plan| {
        let row = pods.iter().find(|row| row.episode == plan.episode && row.uid == plan.uid);
        let is_gone = row.is_some_and(|row| row.reason.as_deref() == Some(RELEASED_BY_OTHERS));
        is_gone && plan.volumes.iter().any(|volume| !is_cut_off(plan.episode, volume))
    })
}

/// The recorded rows that this fencer may have proved, and whose pods may have gone by force on that: a row names the method and not
/// who carried it out. Who has given access back has let in whom it could.
fn relied_on<'a>(
    seen: &'a Seen,
    request: &'a FenceRequest,
) -> impl Iterator<Item = (&'a PlannedVolume, &'a VolumeStatus)> {
    let is_external = request.is_external();
    seen.fence.proved_externally().filter(move |(_, row)| {
        let answer = request.result_of(row.episode, &row.name);
        is_external && answer.is_some_and(|answer| answer.result != FenceOutcome::Unfenced)
    })
}
