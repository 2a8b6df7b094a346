//! What rests on an external fencer. It gives back all that it did when its request is turned round, so the processes of pods that
//! went by force on its word would write again, beside their replacements. A driver gives access by a publish only.

use crate::api::fence_request::{FenceOutcome, FenceRequest, FencerMethodType};
use crate::api::fencing::Proof;
use crate::api::node_fence::{PlannedVolume, VolumeStatus};
use crate::mutants::{self, Mutant};

use super::clean::{self, CleanBy};
use super::decide::{NodeState, Seen};
use super::{fencers, rows};

/// Whether an external fencer is asked, and nobody else.
pub fn is_external(request: &FenceRequest) -> bool {
    let methods = request.spec.volumes.iter().flat_map(|volume| &volume.methods);
    methods.into_iter().all(|method| method.type_ == FencerMethodType::External)
}

/// Whether the end of a request would let in processes of pods that are gone, or are ended by a kubelet that knows nothing of them: nothing
/// shows that they have ended. Neither the deletion of the Node does, nor another machine that has taken its name.
pub fn lets_processes_in(seen: &Seen, request: &FenceRequest) -> bool {
    let is_denied = is_power_denied(seen);
    let is_clean = match clean::by(seen) {
        Some(CleanBy::Rebooted) => true,
        // What the agent of a node that is silent again has said is of the time before.
        Some(CleanBy::TwoCleanPasses) => rows::node_state(seen) == NodeState::Back,
        Some(CleanBy::NodeDeleted) | None => false,
    };
    let is_off = !is_denied && seen.fence.is_machine_said_to_be_off();
    let is_let_in = mutants::is_on(Mutant::ProcessesLetIn);
    let may_run = |(plan, row): (&PlannedVolume, &VolumeStatus)| is_denied || row.is_short_of_power(plan);
    let is_out_of_sight = |plan: &PlannedVolume| is_beyond_its_kubelet(seen) || seen.fence.has_gone(plan);
    let is_relied_on = relied_on(seen, request).any(may_run) || begun(seen, request).any(is_out_of_sight);
    !is_clean && !is_off && !is_let_in && is_relied_on
}

/// Whether pods went by force on what an external fencer proves of a machine that may have power, or go gracefully by another machine.
pub fn keeps_out(seen: &Seen, request: &FenceRequest) -> bool {
    let is_left_its_power = relied_on(seen, request).any(|(plan, row)| row.leaves_power(plan));
    is_left_its_power || is_beyond_its_kubelet(seen) && begun(seen, request).next().is_some()
}

/// Whether the machine is there in a boot in which it failed: it never lost its power, and is not off, whoever has said so.
fn is_power_denied(seen: &Seen) -> bool {
    let is_back = rows::node_state(seen) == NodeState::Back;
    is_back && seen.node.as_ref().is_some_and(|node| seen.fence.has_failed_in(node))
}

/// Whether no kubelet that is there knows the processes of the machine that failed: its Node is deleted, and with it Kubernetes removes the
/// pods by force; or another machine has its name, whose kubelet lets them go at once.
fn is_beyond_its_kubelet(seen: &Seen) -> bool {
    seen.node.as_ref().is_none_or(|node| seen.fence.has_other_addresses(node))
}

/// What an external fencer has begun with and never proved. It may have cut that off all the same: given back, processes whose pods are gone
/// would write beside those that came after.
fn begun<'a>(seen: &'a Seen, request: &'a FenceRequest) -> impl Iterator<Item = &'a PlannedVolume> {
    let recorded = seen.fence.status.as_ref().map(|status| status.volumes.as_slice()).unwrap_or_default();
    let is_open = |plan: &PlannedVolume| {
        let row = recorded.iter().find(|row| row.episode == plan.episode && row.name == plan.name);
        row.is_some_and(|row| !row.has_ended() && !row.is_proved_externally())
    };
    let is_begun = |plan: &PlannedVolume| request.result_of(plan.episode, &plan.name).is_some_and(fencers::is_begun);
    let is_forgotten = mutants::is_on(Mutant::BegunGivenBack);
    let is_without_power = has_ended_its_power(seen, request);
    let is_asked = is_external(request) && !is_forgotten && !is_without_power;
    seen.fence.spec.plan.volumes.iter().filter(move |plan| is_asked && is_open(plan) && is_begun(plan))
}

/// Whether this fencer has proved by another volume that the machine lost its power: that ended the processes of all its volumes. Not when
/// it failed again in a boot after that.
fn has_ended_its_power(seen: &Seen, request: &FenceRequest) -> bool {
    let episode = seen.fence.spec.episode;
    let has_failed_again = seen.fence.status.as_ref().is_some_and(|status| !status.failed_boot_ids.is_empty());
    let mut rows = seen.fence.status.iter().flat_map(|status| &status.volumes);
    let is_proof = |row: &VolumeStatus| {
        let is_its_own = row.episode == episode && request.result_of(episode, &row.name).is_some();
        is_its_own && row.is_proved_externally() && row.external_proof == Some(Proof::PowerOff)
    };
    !is_power_denied(seen) && !has_failed_again && rows.any(is_proof)
}

/// The recorded rows that this fencer may have proved, and whose pods may have gone by force on that: a row names the method and not
/// who carried it out. Who has given access back has let in whom it could.
fn relied_on<'a>(
    seen: &'a Seen,
    request: &'a FenceRequest,
) -> impl Iterator<Item = (&'a PlannedVolume, &'a VolumeStatus)> {
    let is_external = is_external(request);
    seen.fence.proved_externally().filter(move |(_, row)| {
        let answer = request.result_of(row.episode, &row.name);
        is_external && answer.is_some_and(|answer| answer.result != FenceOutcome::Unfenced)
    })
}
