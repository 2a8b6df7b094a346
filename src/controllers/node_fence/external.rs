//! What rests on an external fencer. It gives back all that it did when its request is turned round, so the processes of pods that
//! went by force on its word would write again, beside their replacements. A driver gives access by a publish only.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::api::fence_request::{Desired, FenceOutcome, FenceRequest, FenceResult};
use crate::api::node_fence::{COMPLETED, PlannedPod, PlannedVolume, PodStatus, PodStatusState, VolumeStatus};
use crate::api::time::Now;
use crate::mutants::{self, Mutant};

use super::clean::{self, CleanBy};
use super::decide::{NodeState, Seen, Step};
use super::rows::{self, Rows, VolumeRow};
use super::{again, fencers};

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
    let is_off = !is_denied && clean::is_said_to_be_off(seen);
    let is_let_in = mutants::is_on(Mutant::ProcessesLetIn);
    let may_run = |(plan, row): (&PlannedVolume, &VolumeStatus)| is_denied || row.is_short_of_power(plan);
    let is_begun = is_begun(seen, request) && is_out_of_sight(seen, pods) && (is_denied || !has_lost_its_power(seen));
    !is_clean && !is_off && !is_let_in && (is_begun || relied_on(seen, request).any(may_run))
}

/// Whether an external fencer keeps out a machine that may have power: pods went by force on its proof; or it has begun, and no kubelet is
/// there that knows what runs on the machine.
pub fn keeps_out(seen: &Seen, request: &FenceRequest) -> bool {
    let is_begun = is_begun(seen, request) && is_beyond_its_kubelet(seen) && !has_lost_its_power(seen);
    is_begun || relied_on(seen, request).any(|(plan, row)| row.leaves_power(plan))
}

/// Whether no pod went by force on what this fencer proves: it may have cut the machine off, or have done nothing.
pub fn has_only_begun(seen: &Seen, request: &FenceRequest) -> bool {
    relied_on(seen, request).next().is_none()
}

fn is_begun(seen: &Seen, request: &FenceRequest) -> bool {
    !mutants::is_on(Mutant::BegunGivenBack) && seen.fence.is_begun_externally(request)
}

fn has_lost_its_power(seen: &Seen) -> bool {
    seen.fence.has_lost_its_power(seen.requests.iter().map(Arc::as_ref))
}

fn is_beyond_its_kubelet(seen: &Seen) -> bool {
    seen.fence.is_beyond_its_kubelet(seen.node.as_deref())
}

/// Whether processes may run whose pods are gone, and write when the machine is let in: a fencer cuts off all of it, whichever volume it
/// has begun with. Of the pods of an earlier episode there is no record any more.
fn is_out_of_sight(seen: &Seen, pods: &[PodStatus]) -> bool {
    let gone = seen.fence.spec.plan.pods.iter().filter(|pod| is_gone(seen, pods, pod));
    let lost: BTreeSet<&String> = gone.flat_map(|pod| &pod.volumes).collect();
    let mut exposed = seen.fence.exposed_volumes();
    is_beyond_its_kubelet(seen)
        || exposed.any(|volume| volume.episode != seen.fence.spec.episode || lost.contains(&volume.name))
}

/// Whether a planned pod is gone, whoever removed it. Of one that stays no row tells; should it only be missing from the store, which has
/// all pods with volumes, it is there in a moment.
fn is_gone(seen: &Seen, pods: &[PodStatus], plan: &PlannedPod) -> bool {
    let row = pods.iter().find(|row| row.episode == plan.episode && row.uid == plan.uid);
    let is_there = || seen.pods.iter().any(|pod| pod.uid() == plan.uid);
    match row.map(|row| row.state) {
        Some(PodStatusState::Released) => true,
        Some(PodStatusState::Kept | PodStatusState::Undone) => plan.reason != COMPLETED && !is_there(),
        _ => false,
    }
}

/// Asks again for what was begun with a machine whose Node is deleted and has not been proved, though no pod waits for it any more: that it
/// has no power ends the wait.
pub fn again(seen: &Seen, rows: &Rows, now: Now) -> Option<Step> {
    if rows.node != NodeState::Gone || rows.is_held() {
        return None;
    }
    let is_kept = |request: &&Arc<FenceRequest>| {
        request.spec.desired == Desired::Fenced && lets_processes_in(seen, &rows.pods, request)
    };
    let raised = |request: &Arc<FenceRequest>| {
        let is_short = |row: &VolumeRow, answer: &FenceResult| {
            let is_weak = answer.proof < fencers::minimum(row, &request.spec.fencer_name);
            answer.is_begun()
                && (answer.result == FenceOutcome::Failed || answer.result == FenceOutcome::Fenced && is_weak)
        };
        again::raised(seen, rows, request, is_short, now)
    };
    let effects: Vec<_> = seen.requests.iter().filter(is_kept).filter_map(raised).collect();
    if effects.is_empty() { None } else { Step::new("Fencing", effects) }
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
