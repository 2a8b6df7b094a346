//! What a network fence is used for: it shuts out the machine of its incident, and no other, nor one that is well (I3).

use bulkhead::api::cidr::Cidr;
use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::names::FENCE_REQUEST_LABEL;
use bulkhead::api::network_fence::NetworkFence;
use kube::ResourceExt;

use crate::process::Pid;
use crate::world::World;

impl World {
    /// A sidecar makes a NetworkFence.
    pub(crate) fn judge_shut_out(&mut self, pid: Pid, request: &FenceRequest, cidrs: &[String]) {
        let node = &request.spec.node_name;
        // As with an unpublish: one that came back is cut off until it is clean.
        if self.api.nodes.get(node).is_some() && !self.api.is_fenced(node) {
            self.judge_health(pid, node, self.now, "a network fence");
        }
        if self.is_well_but_for_volumes(node) && !self.was_shut_out(request) {
            let what = format!("{node} is shut out for the sake of some volumes, and is well");
            self.oracle.break_("I3", self.now, what);
        }
        let boot = request.spec.node.boot_id.clone().unwrap_or_default();
        self.oracle.cut.entry(node.clone()).or_default().insert(boot);
        let cidrs: Vec<Cidr> = cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect();
        let is_hit = |other: &&String| {
            let client = self.client_address(other);
            *other != node && client.is_some_and(|client| cidrs.iter().any(|cidr| cidr.overlaps(client)))
        };
        if let Some(other) = self.machines.keys().find(is_hit).cloned() {
            let what = format!("{other} is shut out, for an incident of {node}");
            self.oracle.break_("I3", self.now, what);
        }
    }

    /// Whether it was shut out before, and is again as that does not hold: it takes nothing from who runs there. So it is with what an
    /// incident carries over from an earlier one.
    fn was_shut_out(&self, request: &FenceRequest) -> bool {
        let is_its = |fence: &NetworkFence| fence.labels().get(FENCE_REQUEST_LABEL) == request.metadata.uid.as_ref();
        self.others.csi_addons.fences.values().any(is_its)
            || request.spec.volumes.iter().any(|volume| volume.episode < request.spec.episode)
    }
}
