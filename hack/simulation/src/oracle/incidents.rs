//! What a wrong name, and what our out-of-service taint, make others do.

use bulkhead::api::fence_request::{FenceRequest, RequestedVolume};
use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::slim::{Node, Pod};
use k8s_openapi::api::core::v1::Taint;
use kube::ResourceExt;

use crate::shape::volumes_of;
use crate::world::World;

impl World {
    /// I3: a call names the machine that the incident is about, or none that is well.
    pub(crate) fn judge_name(&mut self, request: &FenceRequest, volume: &RequestedVolume) {
        let named = self.machines.iter().find(|(_, machine)| machine.node_id == volume.node_id);
        let wrong = named.filter(|(name, machine)| **name != request.spec.node_name && machine.well_since.is_some());
        if let Some((name, _)) = wrong {
            let what = format!("{name} is cut off from {}, for an incident of {}", volume.name, request.spec.node_name);
            self.oracle.break_("I3", self.now, what);
        }
    }

    /// I2: podGC removes a pod because of our out-of-service taint.
    pub(crate) fn judge_collected(&mut self, pod: &Pod, node: &Node) {
        if !is_ours(node) || pod.is_finished() {
            return;
        }
        for volume in volumes_of(pod).map(str::to_owned).collect::<Vec<_>>() {
            if let Err(why) = self.is_proved_on(node, &volume) {
                let what = format!("our key lets podGC remove {}, and {volume} is not proved: {why}", pod.name_any());
                self.oracle.break_("I2", self.now, what);
            }
        }
    }

    /// I2: attach/detach detaches a mounted volume because of our out-of-service taint.
    pub(crate) fn judge_forced_detach(&mut self, volume: &str, node: &Node) {
        if is_ours(node)
            && let Err(why) = self.is_proved_on(node, volume)
        {
            let what = format!("our key lets {volume} be detached from {}, unproved: {why}", node.name_any());
            self.oracle.break_("I2", self.now, what);
        }
    }

    fn is_proved_on(&self, node: &Node, volume: &str) -> Result<(), String> {
        let fence = self.api.get::<NodeFence>(&node.name_any()).ok_or("there is no NodeFence")?;
        self.is_proved(&fence, volume, None)
    }
}

impl super::Oracle {
    /// podGC removes a pod.
    pub(crate) fn collected(&mut self, pod: &Pod, node: Option<&Node>) {
        if !node.is_some_and(is_ours) {
            self.by_others.insert(pod.uid().unwrap_or_default());
        }
    }
}

/// Whether the node carries our out-of-service taint.
fn is_ours(node: &Node) -> bool {
    let ours = |taint: &Taint| taint.value.as_deref().is_some_and(|value| value.starts_with("bulkhead-"));
    node.taints().iter().any(|taint| taint.key == names::OUT_OF_SERVICE_TAINT && ours(taint))
}
