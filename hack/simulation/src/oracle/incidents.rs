//! I3: nobody who is well is fenced. I4: no more nodes at once than the budget of a policy. I5: no taint of ours goes
//! while what was cut off may still run. And what our out-of-service taint makes others do (I2).

use bulkhead::api::fence_request::{FenceRequest, RequestedVolume};
use bulkhead::api::names;
use bulkhead::api::node_fence::{Channel, NodeFence, Phase};
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::api::slim::{Node, Pod};
use bulkhead::controllers::resiliency_policy::brakes;
use k8s_openapi::api::core::v1::Taint;
use kube::ResourceExt;

use crate::shape::volumes_of;
use crate::time::{Millis, SECOND, wall};
use crate::world::World;

/// A kubelet that was well for so long has said so: its Lease moved, and its Node is Ready.
const HAS_SAID_SO: Millis = 5 * SECOND;

impl World {
    /// I3, I4: an incident, or a further episode of it, that was decided then is written.
    pub(crate) fn judge_incident(&mut self, fence: &NodeFence, decided: Millis) {
        let name = fence.name_any();
        let known = self.api.get::<NodeFence>(&name);
        if known.as_ref().and_then(|known| known.resource_version()) != fence.resource_version() {
            // It will be refused.
            return;
        }
        let begins = known.is_none_or(|known| known.spec.episode < fence.spec.episode);
        let by_taint = fence.spec.plan.evidence.iter().any(|evidence| evidence.channel == Channel::Taint);
        let well_since = self.machines.get(&name).and_then(|machine| machine.well_since);
        if begins && !by_taint && well_since.is_some_and(|since| since + HAS_SAID_SO <= decided) {
            self.oracle.break_("I3", self.now, format!("an incident of {name} begins, and the node is well"));
        }
        if begins {
            let planned = fence.spec.policies.iter().filter_map(|planned| {
                let policy = self.api.get::<ResiliencyPolicy>(&planned.name)?;
                // A budget that was edited since is not the one that was decided on.
                (policy.metadata.generation == Some(planned.generation)).then_some(policy)
            });
            for policy in planned.collect::<Vec<_>>() {
                self.judge_budget(&policy, &name);
            }
        }
    }

    fn judge_budget(&mut self, policy: &ResiliencyPolicy, opens: &str) {
        let now = wall(self.now);
        let names = |fence: &NodeFence| fence.spec.policies.iter().any(|it| it.name == policy.name_any());
        let open = |fence: &&std::sync::Arc<NodeFence>| {
            names(fence) && fence.status.as_ref().is_none_or(|status| status.phase != Some(Phase::Recovered))
        };
        let others = self.api.fences.values().filter(open).filter(|fence| fence.name_any() != opens).count();
        let budget = brakes::limit(&policy.spec.limits, self.api.nodes.iter().count());
        let recent = self.api.get::<NodeFence>(opens).is_some_and(|known| brakes::counts(policy, &known, now));
        if others + 1 > budget && !recent {
            let what = format!("{opens} is the {}th node at once, and the budget is {budget}", others + 1);
            self.oracle.break_("I4", self.now, what);
        }
    }

    /// I3: a call names the machine that the incident is about, or none that is well.
    pub(crate) fn judge_unpublish(&mut self, request: &FenceRequest, volume: &RequestedVolume) {
        let named = self.machines.iter().find(|(_, machine)| machine.node_id == volume.node_id);
        let wrong = named.filter(|(name, machine)| **name != request.spec.node_name && machine.well_since.is_some());
        if let Some((name, _)) = wrong {
            let what = format!("{name} is cut off from {}, for an incident of {}", volume.name, request.spec.node_name);
            self.oracle.break_("I3", self.now, what);
        }
    }

    /// I5: our taint goes.
    pub(crate) fn judge_untaint(&mut self, node: &Node, taint: &Taint) {
        let name = node.name_any();
        let Some(boot_id) = self.machines.get(&name).map(|machine| machine.boot_id()) else { return };
        let there = |known: std::sync::Arc<Node>| known.taints().contains(taint) && known.taints() == node.taints();
        let goes = self.api.get::<Node>(&name).is_some_and(there);
        let cut = self.oracle.cut.get(&name).is_some_and(|boots| boots.contains(&boot_id));
        if taint.key == names::FENCED_TAINT && goes && cut {
            let what = format!("{name} is untainted, and what was cut off there may run: it has not booted since");
            self.oracle.break_("I5", self.now, what);
        }
    }

    /// I2: podGC removes a pod because of our out-of-service taint.
    pub(crate) fn judge_collected(&mut self, pod: &Pod, node: &Node) {
        let name = node.name_any();
        if !is_ours(node) || pod.is_finished() {
            return;
        }
        for volume in volumes_of(pod).map(str::to_owned).collect::<Vec<_>>() {
            if let Err(why) = self.why_unproved(&name, &volume) {
                let what = format!("our key lets podGC remove {}, and {volume} is not proved: {why}", pod.name_any());
                self.oracle.break_("I2", self.now, what);
            }
        }
    }

    /// I2: attach/detach detaches a mounted volume because of our out-of-service taint.
    pub(crate) fn judge_forced_detach(&mut self, volume: &str, node: &Node) {
        let name = node.name_any();
        if is_ours(node)
            && let Err(why) = self.why_unproved(&name, volume)
        {
            let what = format!("our key lets {volume} be detached from {name}, and it is not proved: {why}");
            self.oracle.break_("I2", self.now, what);
        }
    }

    fn why_unproved(&self, node: &str, volume: &str) -> Result<(), String> {
        let fence = self.api.get::<NodeFence>(node).ok_or("there is no NodeFence")?;
        self.is_proved(&fence, volume, None)
    }
}

/// Whether the node carries our out-of-service taint.
fn is_ours(node: &Node) -> bool {
    let ours = |taint: &Taint| taint.value.as_deref().is_some_and(|value| value.starts_with("bulkhead-"));
    node.taints().iter().any(|taint| taint.key == names::OUT_OF_SERVICE_TAINT && ours(taint))
}
