//! Whether a node still holds something of its incident: what proves that it does not, and what only seems to.

use kube::ResourceExt;

use crate::api::names;
use crate::api::node_fence::{NODE_DELETED, VolumeStatus};
use crate::api::node_volume_report::Cleanup;
use crate::mutants::{self, Mutant};

use super::decide::Seen;
use super::external;

/// What shows that the node holds nothing of the incident any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanBy {
    /// The Node object is gone, with its pods and attachments. It is believed until a node comes back under the boot id.
    NodeDeleted,
    /// A new, non-empty boot id, in which the node has not failed: no process of those before lives.
    Rebooted,
    /// The agent looked for every volume that was cut off, in this boot, and found nothing twice.
    TwoCleanPasses,
}

impl CleanBy {
    /// The reason in rows and conditions.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NodeDeleted => NODE_DELETED,
            Self::Rebooted => "Rebooted",
            Self::TwoCleanPasses => "TwoCleanPasses",
        }
    }
}

/// Whether the node is clean, and what shows it. Where a network fence shuts a machine out, or an external fencer keeps it out, nothing
/// that another machine of the same name has counts.
pub fn by(seen: &Seen) -> Option<CleanBy> {
    if seen.node.is_none() {
        return Some(CleanBy::NodeDeleted);
    }
    if is_another_machine(seen) && !is_said_to_be_off(seen) {
        return None;
    }
    if is_rebooted(seen) {
        return Some(CleanBy::Rebooted);
    }
    cleanup(seen).filter(|cleanup| cleanup.is_clean()).map(|_| CleanBy::TwoCleanPasses)
}

/// Whether it is back in a boot in which it has not failed. A kubelet may have started pods of the plan in those before.
pub fn is_rebooted(seen: &Seen) -> bool {
    let forgets = mutants::is_on(Mutant::SecondBootForgotten);
    seen.node.as_ref().is_some_and(|node| seen.fence.is_rebooted(node) || forgets && seen.fence.is_another_boot(node))
}

/// What the agent says of this episode, on this node and in this boot.
pub fn cleanup(seen: &Seen) -> Option<&Cleanup> {
    let node = seen.node.as_ref()?;
    let uid = node.metadata.uid.as_deref()?;
    seen.node_report.as_ref()?.cleanup_of(&seen.fence, uid, &node.status.node_info.boot_id)
}

/// Whether a Node that was deleted, and its volumes with it held for clean, came back under a boot id in which it failed:
/// what ran there may run still.
pub fn is_back_uncleaned(seen: &Seen) -> bool {
    was_node_deleted(seen) && seen.node.as_ref().is_some_and(|node| seen.fence.has_failed_in(node))
}

/// Whether the machine may write on as soon as it is let in again: its Node was deleted, which says nothing of the machine, or
/// another machine has its name; and neither has another boot of it come back nor has anybody said that it is off. A driver gives
/// access by a publish only, which that machine does not get; addresses that are let in need none, nor does what an external fencer gives
/// back.
pub fn may_write_on(seen: &Seen) -> bool {
    let is_let_in = mutants::is_on(Mutant::DeletedNodeLetIn);
    let may_run = is_another_machine(seen) || was_node_deleted(seen) && !is_rebooted(seen);
    may_run && !is_said_to_be_off(seen) && !is_let_in
}

/// Whether somebody who knows says that the machine is off, or exists no more, since it failed last.
pub fn is_said_to_be_off(seen: &Seen) -> bool {
    let is_any_word = mutants::is_on(Mutant::FormerWordBelieved);
    seen.fence.is_machine_said_to_be_off()
        || is_any_word && seen.fence.annotations().contains_key(names::MACHINE_OFF_ANNOTATION)
}

/// Whether a machine is shut out, or kept out by an external fencer that has not taken its power, and what is there by the name of its
/// Node may be another one.
pub fn is_another_machine(seen: &Seen) -> bool {
    let may_be = seen.node.as_ref().is_some_and(|node| seen.fence.may_be_another_machine(node));
    may_be && seen.requests.iter().any(|request| request.shuts_out() || external::keeps_out(seen, request))
}

fn was_node_deleted(seen: &Seen) -> bool {
    let mut rows = seen.fence.status.iter().flat_map(|status| &status.volumes);
    rows.any(VolumeStatus::is_clean_by_deletion)
}
