//! What a fencer that cuts nodes off as a whole is used for: never on a node that is well (I3), what it proved is so (I2), and nothing
//! of before writes where it gives back what it took (I5).

use std::collections::BTreeSet;

use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::fencing::FenceMethodType;
use bulkhead::api::node_fence::{NodeFence, VolumeStatus, VolumeStatusState};

use crate::others::Power;
use crate::time::{MINUTE, Millis};
use crate::world::World;

/// A write is on its way for so long at most.
const FLIGHT: Millis = MINUTE;

impl World {
    /// It has written that it begins, and will cut the node off.
    pub(crate) fn judge_power_off(&mut self, request: &FenceRequest) {
        let node = request.spec.node_name.clone();
        let boot = request.spec.node.boot_id.clone().unwrap_or_default();
        self.oracle.cut.entry(node.clone()).or_default().insert(boot);
        if self.is_well_but_for_volumes(&node) {
            let what = format!("{node} is cut off as a whole for the sake of some volumes, and is well");
            self.oracle.break_("I3", self.now, what);
        }
    }

    /// I5: a machine that kept its power is let in again. What its array has taken from it meanwhile, or a network fence, stays taken; and
    /// of a Node that is gone nobody but a person can tell: I1 is for that.
    pub(crate) fn judge_given_back(&mut self, node: &str) {
        if self.api.nodes.get(node).is_none() || !self.is_in_old_boot(node) {
            return;
        }
        let rows = self.api.get::<NodeFence>(node).and_then(|fence| fence.status.clone()).unwrap_or_default().volumes;
        let rests_on_it = |row: &VolumeStatus| {
            row.method == Some(FenceMethodType::External)
                && row.proved_at.is_some()
                && row.state != VolumeStatusState::Undone
        };
        let writes =
            |volume: &str| self.accepts(node, volume) && rows.iter().any(|row| row.name == volume && rests_on_it(row));
        if let Some(zombie) = self.zombie(node, writes) {
            self.oracle.break_("I5", self.now, format!("{node} is let in by its fencer, and {zombie} is left there"));
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
