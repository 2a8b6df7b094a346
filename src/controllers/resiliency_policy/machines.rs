//! A network fence shuts out the addresses of the machine that its incident has frozen, and an external fencer keeps that machine out.
//! Another one may take the name of the Node while that one is only cut off. No incident is begun for it then: a fencer has one
//! FenceRequest for both, whose end lets in all that it shut out. Nor does the open one grow by it: its fence proves nothing of another
//! machine (docs/adr/0027).

use std::sync::Arc;

use crate::api::fence_request::FenceRequest;
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::node_fence::{MACHINE_MAY_RUN, NodeFence, VolumeStatus, VolumeStatusState};
use crate::api::slim::Node;

use super::brakes;
use super::candidates::{Candidate, Cause};
use super::decide::{Restrained, Seen};
use super::holding::acting;

/// What holds a node whose NodeFence is of another machine; `begins`: it would begin the next episode. The store will do to hold
/// it, so that nothing is read for as long as that takes; what is begun rests on what was read.
pub(super) fn held(seen: &Seen, candidate: &Candidate, fence: &NodeFence, begins: bool) -> Option<Restrained> {
    let name = candidate.node;
    let live = seen.live.get(name);
    let mut stored = seen.nodes.iter().map(|(node, _)| node).filter(|node| node.metadata.name.as_deref() == Some(name));
    let node = live.map(|live| &live.node).or_else(|| stored.next())?;
    if !fence.may_be_another_machine(node) {
        return None;
    }
    // Rows name the method that was tried or has proved last; whether somebody is shut out, or a fencer has begun, their FenceRequests say.
    let stored = seen.requests.get(name).into_iter().flatten();
    let requests: Vec<_> = stored.chain(live.into_iter().flat_map(|live| &live.requests)).map(Arc::as_ref).collect();
    let keeper = keeper(fence, node, &requests);
    let about = if begins { unbegun(fence, keeper) } else { ungrown(fence, keeper, candidate.cause) };
    let policy = acting(&candidate.pods).into_keys().next().unwrap_or_default().to_owned();
    about.map(|about| Restrained { node: name.to_owned(), policy, brake: MACHINE_MAY_RUN, about: Some(about) })
}

/// The machine of the last episode is kept out and may run, and this is another one.
fn unbegun(fence: &NodeFence, keeper: Option<&str>) -> Option<String> {
    let keeper = keeper.filter(|_| !fence.is_machine_said_to_be_off())?;
    Some(format!(
        "{keeper} may keep out the machine that failed under this name before, and this may be another one. Is that one off, or \
         gone: {}",
        fence.machine_off_command(fence.failed_boot_ids())
    ))
}

/// The incident that is open is of another machine, whose fence would be taken for a proof of this one.
fn ungrown(fence: &NodeFence, keeper: Option<&str>, cause: Cause) -> Option<String> {
    // Nobody is shut out for the sake of volumes, or of a path.
    let is_of_node = cause == Cause::NodeFailure || fence.spec.plan.is_of_node();
    let mut methods = fence.spec.plan.volumes.iter().flat_map(|row| &row.methods);
    let is_listed = is_of_node && methods.any(|method| method.type_ == FenceMethodType::NetworkFence);
    let name = fence.metadata.name.as_deref().unwrap_or_default();
    let who = if is_cut_off(fence) {
        "Should this one be off for good, delete its Node"
    } else {
        "The first one is not cut off, and its pods would go with the Node too: make sure that both are off for good, and only \
         then delete it"
    };
    (is_listed || keeper.is_some()).then(|| {
        format!(
            "the incident that is open under this name may be of another machine: it takes in nothing of this one until all its \
             pods are gone and its node is back. {who}: kubectl delete node {name}"
        )
    })
}

/// Whether the machine of the episode is proved to be cut off from all its volumes. With the Node Kubernetes removes its pods and
/// attachments too, whoever writes on there.
fn is_cut_off(fence: &NodeFence) -> bool {
    use VolumeStatusState::{Detached, Fenced};
    fence.spec.plan.volumes.iter().all(|plan| {
        let row = fence.recorded_volume(plan.episode, &plan.name);
        row.is_some_and(|row| matches!(row.state, Fenced | Detached) && row.proof > Proof::None)
    })
}

/// Who may keep the machine of the episode out, in words; that its Node was deleted shows nothing. Of what an external fencer has proved
/// the record tells alone: no pod goes by force before it is there, and a plan is written only beside the record that it rests on. Whether
/// the fencer has given back what it took it does not tell: that is on a person's word, or when the row is about to be clean.
fn keeper(fence: &NodeFence, node: &Node, requests: &[&FenceRequest]) -> Option<&'static str> {
    let is_open = brakes::in_progress(fence);
    let mut rows = fence.status.iter().flat_map(|status| &status.volumes);
    let by_network = |row: &VolumeStatus| row.method == Some(FenceMethodType::NetworkFence) && !row.has_ended();
    if requests.iter().any(|request| request.shuts_out()) || is_open && rows.any(by_network) {
        return Some("a NetworkFence");
    }
    let is_kept_out = fence.proved_externally().any(|(plan, row)| row.leaves_power(plan));
    let may_run = fence.is_beyond_its_kubelet(Some(node)) && !fence.has_lost_its_power(requests.iter().copied());
    let is_begun = may_run && requests.iter().any(|request| fence.is_begun_externally(request));
    (is_open && (is_kept_out || is_begun)).then_some("an external fencer")
}
