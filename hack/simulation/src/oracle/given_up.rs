//! I17: that Kubernetes gave a node up declares it failed only when the next renewal of its Lease is overdue.

use bulkhead::api::node_fence::{Channel, Evidence, EvidenceState, LEASE_NOT_RENEWED, NodeFence};
use bulkhead::api::slim::{Lease, Node};
use kube::ResourceExt;

use crate::time::{Millis, SECOND, micro};
use crate::world::World;

/// A kubelet renews its Lease every 10 s; half as much again for who is late.
const OVERDUE: Millis = 15 * SECOND;

impl World {
    /// A pass has decided to begin with a node, or to go on with it. Only what rests on Kubernetes' word is judged, while that stands
    /// and where it is new: a plan that grows keeps its evidence. Whoever decides has read the Lease in this very moment, so that no
    /// watch excuses it.
    pub(super) fn judge_given_up(&mut self, fence: &NodeFence) {
        let node = fence.name_any();
        let is_new = self.api.get::<NodeFence>(&node).is_none_or(|known| known.spec.episode < fence.spec.episode);
        let is_given_up = self.api.get::<Node>(&node).is_some_and(|node| node.ready() == "Unknown");
        let rests_on_it = |it: &Evidence| {
            it.channel == Channel::Kubelet && it.state == EvidenceState::Failed && it.reason != LEASE_NOT_RENEWED
        };
        if !is_new || !is_given_up || !fence.spec.plan.evidence.iter().any(rests_on_it) {
            return;
        }
        let renewed = self.api.get::<Lease>(&node).and_then(|lease| lease.spec.renew_time.clone());
        if renewed.is_some_and(|renewed| renewed.0 > micro(self.now.saturating_sub(OVERDUE)).0) {
            let what = format!("{node} is declared failed as Kubernetes gave it up, and its kubelet renews its Lease");
            self.oracle.break_("I17", self.now, what);
        }
    }
}
