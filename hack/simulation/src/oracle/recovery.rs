//! I5: no node is given back while something of before runs there that holds what it was cut off from.

use std::sync::Arc;

use bulkhead::api::names;
use bulkhead::api::node_fence::{NodeFence, VolumeStatus, VolumeStatusState};
use bulkhead::api::slim::{Node, Pod};
use bulkhead::controllers::resiliency_policy::brakes;
use k8s_openapi::api::core::v1::Taint;
use kube::ResourceExt;

use crate::others::node_of;
use crate::world::World;

impl World {
    /// A row is recorded as Clean: nothing of before may run there that holds the volume. A pod that the API has was put there
    /// since, by name. Of a node that is gone it is only an assumption, until one of that name is back.
    pub(super) fn judge_cleaned(&mut self, fence: &NodeFence) {
        let name = fence.name_any();
        let in_old_boot = self.api.nodes.get(&name).is_some() && self.is_in_old_boot(&name);
        for row in fence.status.iter().flat_map(|status| &status.volumes) {
            let known = (fence.uid().unwrap_or_default(), row.episode, row.name.clone());
            if row.state != VolumeStatusState::Clean {
                self.oracle.cleaned.remove(&known);
            } else if in_old_boot && self.oracle.cleaned.insert(known) {
                let is_there = |uid: &str| self.api.pods.values().any(|pod| pod.metadata.uid.as_deref() == Some(uid));
                let zombie = self.holders(&name, |volume| volume == row.name).find(|it| !is_there(&it.uid));
                if let Some(zombie) = zombie {
                    let holder = format!("{} ({})", zombie.pod, zombie.uid);
                    let what = format!("{name} is held to be clean of {}, and {holder} is left there", row.name);
                    self.oracle.break_("I5", self.now, what);
                }
            }
        }
    }

    /// A node that did not boot since it was cut off is given back only when every row says that it is clean.
    pub(super) fn judge_untaint(&mut self, node: &Node, taint: &Taint) {
        let name = node.name_any();
        // One that arrives late is refused: the taint has gone already, or is that of a later episode.
        let is_there = |it: &Node| it.uid() == node.uid() && it.taints().contains(taint);
        let same = self.api.nodes.get(&name).is_some_and(|it| is_there(it));
        if !same || !self.is_in_old_boot(&name) {
            return;
        }
        // A taint that arrived when all was over goes too.
        let is_open =
            |fence: &NodeFence| fence.labels().contains_key(names::ACTIVE_LABEL) || !brakes::in_progress(fence);
        let fence = self.api.get::<NodeFence>(&name).filter(|fence| is_open(fence));
        let uid = fence.as_ref().and_then(|fence| fence.uid()).unwrap_or_default();
        let mut rows = fence.iter().flat_map(|fence| &fence.status).flat_map(|status| &status.volumes);
        let judged = |row: &VolumeStatus| self.oracle.cleaned.contains(&(uid.clone(), row.episode, row.name.clone()));
        if fence.is_none() || rows.any(|row| row.state != VolumeStatusState::Undone && !judged(row)) {
            let what = format!("{name} is given back though it did not boot since it was cut off, and is not clean");
            self.oracle.break_("I5", self.now, what);
        }
        self.counts.cleaned += 1;
    }

    /// We removed a pod by force. If it runs there, in another boot than that which failed first, this one has been cut off too, whether
    /// its kubelet is silent or not. Its Node tells it, or is gone: one that is about to tell it was not known to who decided so.
    pub(super) fn note_forced(&mut self, pod: &Pod) {
        let (name, uid) = (pod.spec.node_name.clone().unwrap_or_default(), pod.uid().unwrap_or_default());
        let Some(machine) = self.machines.get(&name) else { return };
        let boot = machine.boot_id();
        let runs = machine.running.iter().any(|it| it.uid == uid && !it.volumes.is_empty());
        let another = |fence: &Arc<NodeFence>| fence.spec.node.boot_id.as_ref() != Some(&boot);
        let is_told = self.api.nodes.get(&name).is_none_or(|node| node.status.node_info.boot_id == boot);
        if runs && is_told && self.api.fences.get(&name).is_some_and(another) {
            self.oracle.cut.entry(name).or_default().insert(boot);
        }
    }

    /// What runs on a machine and holds such a volume, though its pod went by force, and by us.
    pub(super) fn zombie(&self, node: &str, held: impl Fn(&str) -> bool) -> Option<String> {
        let is_there = |uid: &str| self.api.pods.values().any(|pod| pod.metadata.uid.as_deref() == Some(uid));
        let is_by_others = |uid: &str| self.oracle.by_others.contains(uid);
        let zombie = self.holders(node, held).find(|it| !is_there(&it.uid) && !is_by_others(&it.uid))?;
        Some(format!("{} ({})", zombie.pod, zombie.uid))
    }

    /// Whether the machine did not boot since it was cut off.
    pub(super) fn is_in_old_boot(&self, machine: &str) -> bool {
        let boot = self.machines.get(machine).map(|machine| machine.boot_id());
        boot.is_some_and(|boot| self.oracle.cut.get(node_of(machine)).is_some_and(|boots| boots.contains(&boot)))
    }
}
