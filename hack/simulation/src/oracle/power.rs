//! What a fencer that switches nodes off is used for: never on a node that is well (I3), and what it proved is so (I2).

use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::node_fence::NodeFence;

use crate::others::Power;
use crate::world::World;

impl World {
    /// It has written that it begins, and will switch the node off.
    pub(crate) fn judge_power_off(&mut self, request: &FenceRequest) {
        let node = request.spec.node_name.clone();
        let boot = request.spec.node.boot_id.clone().unwrap_or_default();
        self.oracle.cut.entry(node.clone()).or_default().insert(boot);
        let Some(fence) = self.api.get::<NodeFence>(&node) else { return };
        let plan = &fence.spec.plan;
        let is_well = self.machines.get(&node).is_some_and(|machine| machine.well_since.is_some());
        if is_well && (plan.is_by_volume() || plan.is_by_path()) {
            let what = format!("{node} is switched off for the sake of some volumes, and is well");
            self.oracle.break_("I3", self.now, what);
        }
    }

    /// Whether nothing on the node writes to the volume: what was proved of its power.
    pub(super) fn is_stopped(&self, node: &str, volume: &str) -> Result<(), String> {
        let runs = self.machines.get(node).is_some_and(|machine| machine.power != Power::Off);
        let holder = self.holders(node, |held| held == volume).next();
        match holder.filter(|_| runs && self.accepts(node, volume)) {
            None => Ok(()),
            Some(holder) => Err(format!("{} ({}) runs there with it", holder.pod, holder.uid)),
        }
    }
}
