//! What whoever sent a write could know. What is done to nodes that are well is judged by the moment of its decision, with no
//! more grace than this world's own delays.

use bulkhead::api::node_fence::{NodeFence, PlannedPod, PodAction};
use kube::ResourceExt;

use crate::time::{MINUTE, Millis, SECOND};
use crate::world::{World, Write};

/// A slow watch delivers so late at most.
pub(super) const WATCH_LAG: Millis = 15 * SECOND;
/// A pass sends its writes one after the other and gives each up after 5 s; it has no more than a dozen here.
const HELD_UP: Millis = MINUTE;

/// What the sender of a write could know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knowledge {
    /// What the server had at this moment it could read; what was over by then is no reason.
    pub as_of: Millis,
    /// It stood still until it decided, or since: its watches may be as old as that.
    pub has_stood_still: bool,
}

impl World {
    /// What the sender of a write could know.
    pub(super) fn knowledge(&self, write: &Write) -> Knowledge {
        let has_stood_still = self.processes[write.pid].woke_at.is_some_and(|woke| woke >= write.decided);
        let earliest = if has_stood_still { 0 } else { write.sent.saturating_sub(HELD_UP) };
        Knowledge { as_of: write.decided.max(earliest), has_stood_still }
    }

    /// The pods that a plan moves, and the one before it does not. A plan of another version is refused.
    pub(super) fn newly_moved<'a>(&self, fence: &'a NodeFence) -> Vec<&'a PlannedPod> {
        let known = self.api.get::<NodeFence>(&fence.name_any());
        if known.as_ref().is_some_and(|it| it.metadata.resource_version != fence.metadata.resource_version) {
            return Vec::new();
        }
        let is_known = |uid: &str| known.iter().any(|it| it.spec.plan.pods.iter().any(|row| row.uid == uid));
        let rows = fence.spec.plan.pods.iter();
        rows.filter(|row| row.action == PodAction::Release && !is_known(&row.uid)).collect()
    }
}
