//! What a fencer that switches nodes off is used for: never on a node that is well (I3), and what it proved is so (I2).

use std::collections::BTreeSet;

use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::node_fence::NodeFence;

use crate::others::Power;
use crate::time::{MINUTE, Millis};
use crate::world::World;

/// A write is on its way for so long at most.
const FLIGHT: Millis = MINUTE;

impl World {
    /// It has written that it begins, and will switch the node off.
    pub(crate) fn judge_power_off(&mut self, request: &FenceRequest) {
        let node = request.spec.node_name.clone();
        let boot = request.spec.node.boot_id.clone().unwrap_or_default();
        self.oracle.cut.entry(node.clone()).or_default().insert(boot);
        if self.is_well_but_for_volumes(&node) {
            let what = format!("{node} is switched off for the sake of some volumes, and is well");
            self.oracle.break_("I3", self.now, what);
        }
    }

    /// Whether a node is well, and its incident is for the sake of some volumes only.
    pub(super) fn is_well_but_for_volumes(&self, node: &str) -> bool {
        let fence = self.api.get::<NodeFence>(node);
        let is_well = self.machines.get(node).is_some_and(|machine| machine.well_since.is_some());
        is_well && fence.is_some_and(|fence| !fence.spec.plan.is_of_node())
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

    /// The same of the moment when a write was sent that has been on its way for long.
    pub(super) fn was_stopped(&self, node: &str, volume: &str, sent: Millis) -> Result<(), String> {
        match self.oracle.held.get(&(volume.to_owned(), node.to_owned())) {
            Some((since, until)) if *since <= sent && until.is_none_or(|until| until > sent) => {
                Err(format!("something ran there with it when it was sent: from {since} to {until:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Which machines with power have which volumes changes.
    pub(super) fn notice_held(&mut self) {
        let now = self.now;
        let mut held = BTreeSet::new();
        for (node, machine) in self.machines.iter().filter(|(_, machine)| machine.power != Power::Off) {
            let volumes = machine.running.iter().flat_map(|it| &it.volumes);
            let accepted = volumes.filter(|volume| self.accepts(node, volume));
            held.extend(accepted.map(|volume| (volume.clone(), node.clone())));
        }
        let spans = &mut self.oracle.held;
        for (_, (_, until)) in spans.iter_mut().filter(|(key, _)| !held.contains(*key)) {
            until.get_or_insert(now);
        }
        spans.retain(|_, (_, until)| until.is_none_or(|until| until + FLIGHT >= now));
        for key in held {
            let span = spans.entry(key).or_insert((now, None));
            if span.1.is_some() {
                *span = (now, None);
            }
        }
    }
}
