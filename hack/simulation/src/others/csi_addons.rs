//! csi-addons with its habits: an object is worked on when its generation is new, its result tells how the last operation ended
//! and not which, its deletion lifts nothing, and what one object lifts is lifted for all. What it has the storages do is in
//! [`operations`](super::operations). And the addresses by which the storages know the machines.

use std::collections::BTreeMap;

use bulkhead::api::cidr::Cidr;
use bulkhead::api::names;
use bulkhead::api::network_fence::{FenceState, NetworkFence, NetworkFenceSpec};
use bulkhead::csi_sidecar::network_fence::decide::Step;
use kube::ResourceExt;

use crate::array::Array;
use crate::chance::{Chance, Choice};
use crate::shape::fence_class;
use crate::time::{Millis, SECOND, stamp};
use crate::world::World;

use super::Actor;
use super::operations::Operation;

/// What it remembers, and the objects that it works on.
#[derive(Clone, Debug, Default)]
pub struct CsiAddons {
    /// NetworkFences by name.
    pub fences: BTreeMap<String, NetworkFence>,
    /// The generation that was worked on, by uid.
    pub(super) worked_on: BTreeMap<String, i64>,
    /// Of which generation the last operation failed, when it is tried again, and the pause before that, by uid.
    pub(super) failed: BTreeMap<String, (i64, Millis, Millis)>,
    /// What the storages were asked for and have not carried out, or answered, in the order of the asking.
    pub(super) operations: BTreeMap<u64, Operation>,
    made: u64,
    versions: u64,
}

impl World {
    /// The address that a machine has itself.
    pub(crate) fn own_address(&self, node: &str) -> String {
        self.address_in("10.0.0", node)
    }

    /// By what the storages know a machine, if they do.
    pub(crate) fn client_address(&self, node: &str) -> Option<Cidr> {
        let net = if self.shape.network?.is_behind_nat { "192.0.2" } else { "10.0.0" };
        self.address_in(net, node).parse().ok()
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

    /// The API server takes a write of a NetworkFence, or refuses it: it is there already, or is another one by now.
    pub(crate) fn write_network_fence(&mut self, step: &Step, chance: &mut dyn Chance) {
        let deleted_at = stamp(self.now);
        let csi_addons = &mut self.others.csi_addons;
        let gone = match step {
            Step::Create(fence) => {
                let is_made = csi_addons.create(fence);
                self.counts.shut_out += u64::from(is_made && is_ours(fence));
                None
            }
            Step::Replace(wanted) => csi_addons.change(wanted, |known| {
                let is_changed = known.spec != wanted.spec;
                known.spec = wanted.spec.clone();
                known.metadata.labels.clone_from(&wanted.metadata.labels);
                known.metadata.annotations.clone_from(&wanted.metadata.annotations);
                known.metadata.finalizers.clone_from(&wanted.metadata.finalizers);
                known.metadata.generation = known.metadata.generation.map(|known| known + i64::from(is_changed));
            }),
            Step::Delete(fence) => csi_addons.change(fence, |known| {
                known.metadata.deletion_timestamp.get_or_insert(deleted_at);
                known.metadata.generation = known.metadata.generation.map(|known| known + 1);
            }),
            _ => None,
        };
        self.tell(|| format!("    {}", told(step)));
        gone.iter().for_each(|fence| self.judge_gone(fence));
        let late = chance.between(Choice::Others, 50, 2 * SECOND);
        self.wake(Actor::CsiAddons, self.now + late);
    }

    /// It starts again: it does not know what it has worked on, nor hears the answers that it waited for.
    pub(crate) fn restart_csi_addons(&mut self, chance: &mut dyn Chance) {
        let csi_addons = &mut self.others.csi_addons;
        csi_addons.worked_on.clear();
        csi_addons.failed.clear();
        csi_addons.operations.values_mut().for_each(Operation::forget);
        let late = chance.between(Choice::Network, SECOND, 10 * SECOND);
        self.wake(Actor::CsiAddons, self.now + late);
    }

    /// Somebody lets a machine in, by objects that are none of ours.
    pub(crate) fn lift_network(&mut self, node: &str, chance: &mut dyn Chance) {
        let Some(client) = self.client_address(node) else { return };
        for driver in self.arrays.keys().cloned().collect::<Vec<_>>() {
            let spec = NetworkFenceSpec {
                network_fence_class_name: Some(fence_class(&driver)),
                fence_state: FenceState::Unfenced,
                cidrs: vec![client.to_string()],
                others: BTreeMap::new(),
            };
            let fence = NetworkFence::new(&format!("of-a-person-{driver}"), spec);
            self.write_network_fence(&Step::Create(Box::new(fence)), chance);
        }
    }

    /// And takes these objects away.
    pub(crate) fn forget_lifts(&mut self) {
        self.others.csi_addons.fences.retain(|_, fence| is_ours(fence));
    }

    /// What shuts machines out.
    pub(crate) fn network_fences_left(&self) -> Vec<String> {
        let fences = self.others.csi_addons.fences.values().filter(|fence| is_ours(fence));
        let fences = fences.map(|fence| format!("NetworkFence {} is there", fence.name_any()));
        let arrays = self.arrays.iter().filter(|(_, array)| !array.shut_out.is_empty());
        fences.chain(arrays.map(|(driver, array)| format!("{driver} shuts {:?} out", array.shut_out))).collect()
    }
}

impl CsiAddons {
    /// Takes a new object, unless there is one of that name.
    fn create(&mut self, fence: &NetworkFence) -> bool {
        let name = fence.name_any();
        if self.fences.contains_key(&name) {
            return false;
        }
        self.made += 1;
        let mut fence = fence.clone();
        fence.metadata.uid = Some(format!("fence-{}", self.made));
        fence.metadata.generation = Some(1);
        fence.metadata.resource_version = Some(self.next_version());
        self.fences.insert(name, fence);
        true
    }

    /// Changes the object, if it is still that one. It goes when it is being deleted and nothing holds it, and is returned then.
    fn change(&mut self, object: &NetworkFence, change: impl FnOnce(&mut NetworkFence)) -> Option<NetworkFence> {
        let name = object.name_any();
        let version = self.next_version();
        let known = self.fences.get_mut(&name).filter(|known| known.metadata.uid == object.metadata.uid)?;
        change(known);
        known.metadata.resource_version = Some(version);
        let is_over = known.metadata.deletion_timestamp.is_some() && known.finalizers().is_empty();
        if is_over { self.fences.remove(&name) } else { None }
    }

    /// A version that no object had before.
    pub(super) fn next_version(&mut self) -> String {
        self.versions += 1;
        self.versions.to_string()
    }
}

pub(crate) fn is_ours(fence: &NetworkFence) -> bool {
    fence.labels().contains_key(names::FENCE_REQUEST_LABEL)
}

fn told(step: &Step) -> String {
    let of = |what: &str, fence: &NetworkFence| {
        format!("{what} {} {:?} {:?}", fence.name_any(), fence.spec.fence_state, fence.spec.cidrs)
    };
    match step {
        Step::Create(fence) => of("makes", fence),
        Step::Replace(fence) => of("changes", fence),
        Step::Delete(fence) => of("deletes", fence),
        other => format!("{other:?}"),
    }
}
