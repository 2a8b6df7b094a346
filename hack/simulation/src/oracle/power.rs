//! What a fencer that cuts nodes off as a whole is used for: never on a node that is well (I3), what it proved is so (I2), and nothing
//! of before writes where it gives back what it took (I5).

use std::collections::BTreeSet;

use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::fencing::FenceMethodType;
use bulkhead::api::node_fence::{NodeFence, VolumeStatus, VolumeStatusState};
use kube::ResourceExt;

use crate::others::{Power, node_of};
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
        if self.is_well_but_for_volumes(request) {
            let what = format!("{node} is cut off as a whole for the sake of some volumes, and is well");
            self.oracle.break_("I3", self.now, what);
        }
    }

    /// I5: a machine that kept its power is let in again. What its array has taken from it meanwhile, or a network fence, stays taken; and
    /// of a Node that is gone nobody but a person can tell: I1 is for that.
    pub(crate) fn judge_given_back(&mut self, machine: &str) {
        let node = node_of(machine);
        if self.api.nodes.get(node).is_none() || !self.is_in_old_boot(machine) {
            return;
        }
        let rows = self.api.get::<NodeFence>(node).and_then(|fence| fence.status.clone()).unwrap_or_default().volumes;
        let rests_on_it = |row: &VolumeStatus| {
            row.method == Some(FenceMethodType::External)
                && row.proved_at.is_some()
                && row.state != VolumeStatusState::Undone
        };
        let is_proved = |volume: &str| rows.iter().any(|row| row.name == volume && rests_on_it(row));
        if let Some(zombie) = self.zombie(machine, |volume| self.accepts(machine, volume) && is_proved(volume)) {
            let what = format!("{machine} is let in by its fencer, and {zombie} is left there");
            self.oracle.break_("I5", self.now, what);
        }
    }

    /// Whether the machine of a request is well, and its incident is for the sake of some volumes only.
    pub(super) fn is_well_but_for_volumes(&self, request: &FenceRequest) -> bool {
        let fence = self.api.get::<NodeFence>(&request.spec.node_name);
        let machine = self.machines.get(&self.meant_by(request));
        let is_well = machine.is_some_and(|machine| machine.well_since.is_some());
        is_well && fence.is_some_and(|fence| !fence.spec.plan.is_of_node())
    }

    /// The machines that must not write when something of an incident goes: that which failed, and that which has its name, as what goes
    /// by the name of the Node may run on either.
    fn machines_in_question(&self, fence: &NodeFence) -> [String; 2] {
        let node = fence.name_any();
        [self.meant(&node, &fence.spec.node), node]
    }

    /// Whether nothing on the machines of an incident writes to the volume: what was proved of their power.
    pub(super) fn is_stopped(&self, fence: &NodeFence, volume: &str) -> Result<(), String> {
        let holder = |machine: &String| {
            let runs = self.machines.get(machine).is_some_and(|machine| machine.power != Power::Off);
            let holder = self.holders(machine, |held| held == volume).next();
            let holder = holder.filter(|_| runs && self.accepts(machine, volume))?;
            Some(format!("{} ({}) runs there with it", holder.pod, holder.uid))
        };
        self.machines_in_question(fence).iter().find_map(holder).map_or(Ok(()), Err)
    }

    /// The same of the moment when a write was sent that has been on its way for long.
    pub(super) fn was_stopped(&self, fence: &NodeFence, volume: &str, sent: Millis) -> Result<(), String> {
        let spans = self.machines_in_question(fence).map(|machine| self.oracle.held.get(&(volume.to_owned(), machine)));
        let ran = |(since, until): &&(Millis, Option<Millis>)| *since <= sent && until.is_none_or(|until| until > sent);
        match spans.into_iter().flatten().find(ran) {
            Some((since, until)) => {
                Err(format!("something ran there with it when it was sent: from {since} to {until:?}"))
            }
            None => Ok(()),
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
