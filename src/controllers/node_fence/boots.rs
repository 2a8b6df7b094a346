//! Boots of a node within one episode: in which it failed again, and whether a kubelet has only just begun with one. A pod that goes
//! by force is proved to be cut off in the boot of that moment; that the node is back in that very boot shows nothing of its processes.

use crate::api::node_fence::{PlannedPod, PodAction, PodStatus, PodStatusState, UNKNOWN_BOOT};
use crate::api::slim::Node;
use crate::api::time::Now;
use crate::mutants::{self, Mutant};

use super::decide::{NodeState, Seen, is_settled};
use super::rows::Rows;
use super::volumes;

/// The boot in which the node has failed again, if that is not on record yet.
///
/// The node fails again in a boot when, after its kubelet was there in it, it is held for failed in it too, while a pod of the plan has
/// not gone: the kubelet may have started it there. That is so
///
/// - when Kubernetes says that it fell silent, by Ready `Unknown`, and its Lease does not contradict. A kubelet tells its boot and whether
///   it is ready in one write, so that it was there needs no witness: this process may have begun since. (It writes what differs from
///   what it has read: where `Unknown` comes in between, a new boot stands beside that until its next write, and may be put on record
///   for nothing.) And before that write has arrived it mounts nothing that has to be attached: a boot that was never told holds no
///   volume of the plan;
/// - when the kubelet talks, for its Lease was seen to move, and the incident lasts for something else (a taint, a lost path), with the
///   first pod that may go: by force all the same, or, where it is asked to end for the sake of its volumes, without them;
/// - when its Node is deleted: its pods go by force, and nobody sees any more whether a kubelet ends them. It is the boot that the
///   Node told last. A process that has not seen it there cannot tell which that was; where the record says that the node was back
///   before ([`UNKNOWN_BOOT`]), it is the boot in which it is seen next, or one before that, of which nothing runs any more. Where it
///   was not, nobody knows of another boot than the planned one, in which it failed in any case.
///
/// A boot that is merely seen has not failed ([`has_just_begun`]), nor has one in which the node is back.
pub fn failed_again<'a>(seen: &'a Seen, rows: &Rows, now: Now) -> Option<&'a str> {
    let Some(node) = &seen.node else { return deleted_in(seen) };
    if seen.fence.is_last_boot_unknown() {
        return node.boot_id();
    }
    if rows.node != NodeState::Away {
        return None;
    }
    let has_failed = match told(node) {
        Some("Unknown") if !volumes::may_renew(seen) => left(seen).next().is_some(),
        _ if has_just_begun(seen, rows.node) => false,
        _ => rows.pods.iter().any(|row| goes(seen, row, now)),
    };
    node.boot_id().filter(|_| has_failed && seen.fence.is_rebooted(node))
}

/// The boot in which the Node was deleted. Where the plan has no boot id none proves anything, and nobody asks for it.
fn deleted_in(seen: &Seen) -> Option<&str> {
    seen.fence.spec.node.boot_id.as_ref()?;
    let boot_id = seen.last_boot.as_deref().or_else(|| seen.fence.was_back().then_some(UNKNOWN_BOOT))?;
    let is_news = !seen.fence.is_failed_boot(boot_id) && left(seen).next().is_some();
    (is_news && !mutants::is_on(Mutant::DeletedBootForgotten)).then_some(boot_id)
}

/// Whether a boot in which the node has not failed is merely seen: Kubernetes does not say that its kubelet fell silent, and this process
/// has not seen that renew its Lease. In a moment it does, or Kubernetes says so. Until then nothing goes by force: it would go in a boot
/// that is not on record, and perhaps beside a kubelet that can end it.
pub fn has_just_begun(seen: &Seen, state: NodeState) -> bool {
    let node = seen.node.as_ref().filter(|node| state == NodeState::Away && seen.fence.is_rebooted(node));
    node.is_some_and(|node| match told(node) {
        None => true,
        Some("Unknown") => false,
        Some(_) => seen.lease_is_still,
    })
}

/// What the Ready condition of a Node says, if it has one yet.
fn told(node: &Node) -> Option<&str> {
    let ready = node.status.conditions.iter().find(|condition| condition.type_ == "Ready");
    ready.map(|ready| ready.status.as_str())
}

/// The pods that are to go and have not, by the record: what goes in this pass goes in the boot of now.
fn left(seen: &Seen) -> impl Iterator<Item = &PlannedPod> {
    let recorded = recorded(seen);
    let planned = seen.fence.spec.plan.pods.iter().filter(|pod| pod.action == PodAction::Release);
    planned.filter(move |pod| {
        let row = recorded.iter().find(|row| row.episode == pod.episode && row.uid == pod.uid);
        row.is_none_or(|row| !is_settled(row.state))
    })
}

/// Whether a pod goes in the boot of now, beside a kubelet that talks: it is recorded with its boot before it does. One that was to go
/// before, and has time left to end since it was asked to, may have been cut off from its volumes in another boot: no kubelet starts
/// a pod that is being deleted.
fn goes(seen: &Seen, row: &PodStatus, now: Now) -> bool {
    let was_to_go = recorded(seen).contains(row);
    let pod = seen.pods.iter().find(|pod| pod.uid() == row.uid);
    row.state == PodStatusState::Releasing && pod.is_some_and(|pod| !was_to_go || !volumes::is_ending(seen, pod, now))
}

/// The rows of pods, as they are on record.
fn recorded(seen: &Seen) -> &[PodStatus] {
    seen.fence.status.as_ref().map(|status| status.pods.as_slice()).unwrap_or_default()
}
