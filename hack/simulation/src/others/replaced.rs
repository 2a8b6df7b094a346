//! Another machine takes the name of one that runs on, cut off from the API: spare hardware that joins under it, or an instance that is made
//! anew while the first is only not heard. For everybody else it is as if that one had booted by another address. But the first goes on:
//! nothing of it reaches the API, a controller or a peer any more, and its writers write as long as a storage takes what they write.
//!
//! The first is kept in `World::machines` beside the other one. Both have the CSI node id that is made of their name, so what is published
//! to the one is published to the other.

use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::fencing::NodeIdentity;
use bulkhead::api::node_fence::NodeFence;

use crate::world::World;

use super::{Incarnation, Machine, Power};

/// What the key of a machine ends with whose name another one has.
const FIRST: &str = "~first";

/// The key of the machine that had a name before another one took it.
pub(crate) fn first_of(node: &str) -> String {
    format!("{node}{FIRST}")
}

/// The name that a machine has, or had.
pub(crate) fn node_of(machine: &str) -> &str {
    machine.strip_suffix(FIRST).unwrap_or(machine)
}

/// The keys of the machines that have a name, or had it. The second is seldom there.
pub(crate) fn machines_of(node: &str) -> [String; 2] {
    [node.to_owned(), first_of(node)]
}

impl Machine {
    fn has_been_in(&self, boot_id: &str) -> bool {
        (1..=self.boot).any(|boot| self.boot_id_of(boot) == boot_id)
    }
}

impl World {
    /// The machines that are nodes: all but those whose names others have by now.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&String, &Machine)> {
        self.machines.iter().filter(|(name, _)| node_of(name) == name.as_str())
    }

    /// The machine that an incident has frozen, as whoever knows the machines can tell (`providerID`, a serial number): by its boots.
    pub(crate) fn meant(&self, node: &str, identity: &NodeIdentity) -> String {
        let first = first_of(node);
        let boot_id = identity.boot_id.as_deref().unwrap_or_default();
        let is_it = self.machines.get(&first).is_some_and(|machine| machine.has_been_in(boot_id));
        if is_it { first } else { node.to_owned() }
    }

    /// The machine that a request is about.
    pub(crate) fn meant_by(&self, request: &FenceRequest) -> String {
        self.meant(&request.spec.node_name, &request.spec.node)
    }

    /// Another machine joins under the name, and registers its Node: the one that is there, or, where somebody has deleted that, another.
    pub(crate) fn replace(&mut self, node: &str, is_anew: bool) {
        let machine = self.machines.get(node).filter(|machine| self.may_be_replaced(node, machine));
        let replaced_at = Some(self.now);
        let first = machine.map(|machine| Machine { is_connected: false, replaced_at, ..machine.clone() });
        let Some(first) = first else { return };
        self.tell(|| format!("another machine is {node}, and the first one is left to itself"));
        self.counts.replaced += 1;
        self.machines.insert(first_of(node), first);
        self.machine(node, |machine| machine.is_off_fabric = false);
        self.others.agents.remove(node);
        if is_anew {
            self.delete_node(node);
        }
        // The first has its address, so this one gets another.
        self.boot(node);
    }

    /// Whether a machine writes to a volume only since that was published to the other one of its name, and so to both: nobody can keep it
    /// from that.
    pub(crate) fn is_published_to_the_other(&self, machine: &str, volume: &str) -> bool {
        let first = self.machines.get(machine);
        first.is_some_and(|it| it.replaced_at.is_some_and(|at| self.oracle.is_published_since(volume, &it.node_id, at)))
    }

    /// Whether it runs on where nobody hears it, and writes nothing for a pod that is left: the kubelet of the other one would start that too,
    /// and whoever put it there would have made the second writer himself. Nor is it said to be off: that was right. Behind a NAT nobody
    /// tells the two apart.
    fn may_be_replaced(&self, node: &str, machine: &Machine) -> bool {
        let is_cut_off = match machine.power {
            Power::Running => !machine.is_connected,
            Power::Frozen => true,
            Power::Off => false,
        };
        let is_left = |it: &Incarnation| self.api.pods.values().any(|pod| pod.metadata.uid.as_ref() == Some(&it.uid));
        let writes = |it: &Incarnation| it.volumes.iter().any(|volume| self.accepts(node, volume));
        let is_needed = machine.running.iter().any(|it| is_left(it) && writes(it));
        let is_said_to_be_off = self.api.get::<NodeFence>(node).is_some_and(|fence| fence.is_machine_said_to_be_off());
        let is_behind_nat = self.shape.network.is_some_and(|network| network.is_behind_nat);
        let is_second = self.machines.contains_key(&first_of(node));
        is_cut_off && !is_needed && !is_said_to_be_off && !is_behind_nat && !is_second
    }
}
