//! What a network fence is used for: it shuts out the machine of its incident, and no other, nor one that is well (I3); the
//! machine is let in when nothing of before holds a volume there (I5); and the fence stays until it is (I16).

use bulkhead::api::cidr::{Cidr, readable};
use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::names::{FENCE_REQUEST_LABEL, FENCED_ADDRESSES_ANNOTATION};
use bulkhead::api::network_fence::{FenceState, NetworkFence};
use bulkhead::api::node_fence::{NodeFence, VolumeStatusState};
use kube::ResourceExt;

use crate::others::node_of;
use crate::process::Pid;
use crate::shape::fence_class;
use crate::world::World;

impl World {
    /// A sidecar makes a NetworkFence.
    pub(crate) fn judge_shut_out(&mut self, pid: Pid, request: &FenceRequest, cidrs: &[String]) {
        let node = &request.spec.node_name;
        // As with an unpublish: one that came back is cut off until it is clean.
        if self.api.nodes.get(node).is_some() && !self.api.is_fenced(node) {
            self.judge_health(pid, node, self.now, "a network fence");
        }
        if self.is_well_but_for_volumes(request) && !self.was_shut_out(request) {
            let what = format!("{node} is shut out for the sake of some volumes, and is well");
            self.oracle.break_("I3", self.now, what);
        }
        let boot = request.spec.node.boot_id.clone().unwrap_or_default();
        self.oracle.cut.entry(node.clone()).or_default().insert(boot);
        let cidrs: Vec<Cidr> = cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect();
        let meant = self.meant_by(request);
        let is_hit = |other: &&String| {
            let client = self.client_address(other);
            **other != meant && client.is_some_and(|client| cidrs.iter().any(|cidr| cidr.overlaps(client)))
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

    /// I5: a storage lets a machine in by an object of ours. Of a Node that is gone nobody but a person can tell: I1 is for that.
    pub(crate) fn judge_lifted(&mut self, machine: &str, driver: &str) {
        let node = node_of(machine);
        if self.api.nodes.get(node).is_none() || !self.is_in_old_boot(machine) {
            return;
        }
        let rows = self.api.get::<NodeFence>(node).and_then(|fence| fence.status.clone()).unwrap_or_default().volumes;
        let was_cut_off = |volume: &str| {
            let mut rows = rows.iter().filter(|row| row.state != VolumeStatusState::Undone);
            self.shape.driver_of(volume) == Some(driver) && rows.any(|row| row.name == volume)
        };
        if let Some(zombie) = self.zombie(machine, was_cut_off) {
            self.oracle.break_("I5", self.now, format!("{machine} is let in, and {zombie} is left there"));
        }
    }

    /// I16: an object of ours is gone when what it shut out is let in. Another one may still want that out, and will be asked.
    pub(crate) fn judge_gone(&mut self, fence: &NetworkFence) {
        let class = fence.spec.network_fence_class_name.clone().unwrap_or_default();
        let made = fence.annotations().get(FENCED_ADDRESSES_ANNOTATION).cloned().unwrap_or_default();
        let made = readable(made.split(','));
        let others = self.others.csi_addons.fences.values();
        let wanted = others.filter(|it| it.spec.fence_state == FenceState::Fenced);
        let wanted: Vec<_> = wanted.flat_map(|it| readable(&it.spec.cidrs)).collect();
        let overlap = |some: &[Cidr], cidr: &Cidr| some.iter().any(|it| it.overlaps(*cidr));
        let arrays = self.arrays.iter().filter(|(driver, _)| fence_class(driver) == class);
        let mut left = arrays.flat_map(|(_, array)| &array.shut_out);
        let left = left.find(|cidr| overlap(&made, cidr) && !overlap(&wanted, cidr)).copied();
        if let Some(left) = left {
            let what = format!("NetworkFence {} is gone, and {left} is still shut out", fence.name_any());
            self.oracle.break_("I16", self.now, what);
        }
    }
}
