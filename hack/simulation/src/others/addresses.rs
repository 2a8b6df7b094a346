//! The addresses of the machines, and by which the storages know them. A machine may get another one while it is well, or when it boots;
//! and another machine may get the one that it had. One that is cut off keeps its own as long as it runs: who gets another one then writes
//! on by that, and nobody can know it (docs/safety.md).

use bulkhead::api::cidr::Cidr;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::slim::{Node, NodeAddress};
use kube::ResourceExt;

use crate::array::Array;
use crate::time::SECOND;
use crate::world::World;

use super::Power;

/// Addresses that no machine has at the beginning have higher numbers.
const FRESH: u64 = 100;

impl World {
    /// The address that a machine has at the beginning.
    pub(crate) fn first_address(&self, node: &str) -> String {
        self.address_in("10.0.0", node)
    }

    /// The address that a machine has itself.
    pub(crate) fn own_address(&self, node: &str) -> String {
        self.machines.get(node).map(|machine| machine.address.clone()).unwrap_or_default()
    }

    /// By what the storages know a machine, if they do. A NAT knows it whatever its own address is.
    pub(crate) fn client_address(&self, node: &str) -> Option<Cidr> {
        let address =
            if self.shape.network?.is_behind_nat { self.address_in("192.0.2", node) } else { self.own_address(node) };
        address.parse().ok()
    }

    fn address_in(&self, net: &str, node: &str) -> String {
        let number = self.shape.nodes.iter().position(|it| it == node).map_or(255, |position| position + 1);
        format!("{net}.{number}")
    }

    /// Whether a storage shuts a machine out.
    pub(crate) fn is_shut_out(&self, node: &str, array: &Array) -> bool {
        let client = self.client_address(node);
        client.is_some_and(|client| array.shut_out.iter().any(|cidr| cidr.overlaps(client)))
    }

    /// Whether what is there by the name of an incident's node may be another machine: another boot, by other addresses.
    pub(crate) fn may_be_another_machine(&self, fence: &NodeFence) -> bool {
        let (frozen, node) = (&fence.spec.node, self.api.nodes.get(&fence.name_any()));
        let node = node.filter(|_| self.shape.network.is_some() || self.shape.leaves_power());
        node.is_some_and(|node| {
            let is_another_boot = frozen.boot_id.as_deref() != Some(node.status.node_info.boot_id.as_str());
            is_another_boot && !node.status.addresses.iter().any(|it| frozen.addresses.contains(&it.address))
        })
    }

    /// A machine gets an address that nobody had: now, if it is well; else when it boots.
    pub(crate) fn renumber(&mut self, node: &str) {
        if self.is_beyond_doubt(node) {
            let fresh = self.fresh_address();
            self.give_address(node, fresh);
        } else if let Some(machine) = self.machines.get_mut(node) {
            machine.is_renumbered = true;
        }
    }

    /// A machine that is well gets the address that another one had at the beginning, if nobody that has power has it.
    pub(crate) fn take_address(&mut self, node: &str, of: &str) {
        let address = self.first_address(of);
        let has_it = |it: &super::Machine| it.address == address && it.power != Power::Off;
        if self.is_beyond_doubt(node) && !self.machines.values().any(has_it) {
            self.give_address(node, address);
        }
    }

    /// One that boots has another address if it was given one, or if its own is another's by now.
    pub(crate) fn address_at_boot(&mut self, node: &str) {
        let Some(machine) = self.machines.get(node) else { return };
        let is_taken = |(name, it): (&String, &super::Machine)| name != node && it.address == machine.address;
        if machine.is_renumbered || self.machines.iter().any(is_taken) {
            let fresh = self.fresh_address();
            let Some(machine) = self.machines.get_mut(node) else { return };
            (machine.address, machine.is_renumbered) = (fresh, false);
        }
    }

    /// Whether a machine is well, nobody acts on it, and what its agent says is heard.
    fn is_beyond_doubt(&self, node: &str) -> bool {
        let since = self.machines.get(node).and_then(|machine| machine.well_since);
        let is_ready = self.api.nodes.get(node).is_some_and(|node| node.ready() == "True");
        since.is_some_and(|since| since + 30 * SECOND <= self.now) && is_ready && !self.api.is_fenced(node)
    }

    fn fresh_address(&mut self) -> String {
        self.others.addresses_given += 1;
        format!("10.0.0.{}", FRESH + self.others.addresses_given)
    }

    /// Its kubelet and its agent say so at once: nobody is renumbered in the second in which it fails.
    fn give_address(&mut self, node: &str, address: String) {
        self.counts.renumbered += 1;
        let addresses = vec![NodeAddress { type_: "InternalIP".into(), address: address.clone() }];
        self.api.update::<Node>(node, |it| it.status.addresses = addresses);
        if let Some(machine) = self.machines.get_mut(node) {
            machine.address = address;
        }
        self.oracle.touch();
    }
}
