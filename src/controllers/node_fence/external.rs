//! What rests on an external fencer. It gives back all that it did when its request is turned round, so the processes of pods that
//! went by force on its word would write again, beside their replacements. A driver gives access by a publish only.

use crate::api::fence_request::{FenceOutcome, FenceRequest, FencerMethodType};
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
    let is_let_in = mutants::is_on(Mutant::ProcessesLetIn);
    let may_run = |(plan, row): (&PlannedVolume, &VolumeStatus)| is_denied || row.is_short_of_power(plan);
    let is_relied_on = relied_on(seen, request).any(may_run) || is_begun_beside_another(seen, request);
    !is_clean && !is_off && !is_let_in && is_relied_on
}

/// Whether pods went by force on what an external fencer proves of a machine that may have power.
pub fn keeps_out(seen: &Seen, request: &FenceRequest) -> bool {
    relied_on(seen, request).any(|(plan, row)| row.leaves_power(plan)) || is_begun_beside_another(seen, request)
}

/// Whether an external fencer has begun with what it has never proved, and another machine has the name of the Node. The first may be
/// cut off all the same: the kubelet of the other knows nothing of its processes and lets its pods go at once, and given back, they
/// would write beside those that came after.
fn is_begun_beside_another(seen: &Seen, request: &FenceRequest) -> bool {
    let is_another = seen.node.as_ref().is_some_and(|node| seen.fence.has_other_addresses(node));
    let recorded = seen.fence.status.as_ref().map(|status| status.volumes.as_slice()).unwrap_or_default();
    let is_open = |plan: &&PlannedVolume| {
        let row = recorded.iter().find(|row| row.episode == plan.episode && row.name == plan.name);
        row.is_some_and(|row| !row.has_ended() && !row.is_proved_externally())
    };
    let is_begun = |plan: &PlannedVolume| request.result_of(plan.episode, &plan.name).is_some_and(fencers::is_begun);
    let is_forgotten = mutants::is_on(Mutant::BegunGivenBack);
    is_another
        && !is_forgotten
        && is_external(request)
        && seen.fence.spec.plan.volumes.iter().filter(is_open).any(is_begun)
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
