//! csi-addons with its habits: an object is worked on when its generation is new, its result tells how the last operation ended
//! and not which, its deletion lifts nothing, and what one object lifts is lifted for all. And the addresses by which the
//! storages know the machines.

use std::collections::BTreeMap;

use bulkhead::api::cidr::Cidr;
use bulkhead::api::names;
use bulkhead::api::network_fence::{FenceState, NetworkFence, NetworkFenceSpec, NetworkFenceStatus};
use bulkhead::csi_sidecar::network_fence::decide::Step;
use kube::ResourceExt;
use serde_json::json;

use crate::array::Array;
use crate::chance::{Chance, Choice};
use crate::shape::fence_class;
use crate::time::{SECOND, stamp};
use crate::world::World;

use super::Actor;

/// What it remembers, and the objects that it works on.
#[derive(Clone, Debug, Default)]
pub struct CsiAddons {
    /// NetworkFences by name.
    pub fences: BTreeMap<String, NetworkFence>,
    /// The generation that was worked on, by uid.
    worked_on: BTreeMap<String, i64>,
    made: u64,
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
        match step {
            Step::Create(fence) if !csi_addons.fences.contains_key(&fence.name_any()) => {
                csi_addons.made += 1;
                self.counts.shut_out += u64::from(is_ours(fence));
                let mut fence = NetworkFence::clone(fence);
                fence.metadata.uid = Some(format!("fence-{}", csi_addons.made));
                fence.metadata.generation = Some(1);
                csi_addons.fences.insert(fence.name_any(), fence);
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
            _ => {}
        }
        self.tell(|| format!("    {}", told(step)));
        let late = chance.between(Choice::Others, 50, 2 * SECOND);
        self.wake(Actor::CsiAddons, self.now + late);
    }

    /// It starts again, and does not know what it has worked on.
    pub(crate) fn restart_csi_addons(&mut self, chance: &mut dyn Chance) {
        self.others.csi_addons.worked_on.clear();
        let late = chance.between(Choice::Network, SECOND, 10 * SECOND);
        self.wake(Actor::CsiAddons, self.now + late);
    }

    /// It works on what is new.
    pub(crate) fn csi_addons(&mut self) {
        if self.api.down {
            return self.wake(Actor::CsiAddons, self.now + SECOND);
        }
        let CsiAddons { fences, worked_on, .. } = &mut self.others.csi_addons;
        let is_new = |fence: &&mut NetworkFence| {
            let known = worked_on.get(fence.metadata.uid.as_deref().unwrap_or_default());
            fence.metadata.deletion_timestamp.is_none() && known.copied() != fence.metadata.generation
        };
        let mut done = Vec::new();
        for fence in fences.values_mut().filter(is_new) {
            let class = fence.spec.network_fence_class_name.clone().unwrap_or_default();
            let Some((_, array)) = self.arrays.iter_mut().find(|(driver, _)| fence_class(driver) == class) else {
                continue;
            };
            // With its finalizer it writes the whole object, and fields of it that nobody wrote.
            if fence.spec.others.is_empty() {
                fence.spec.others = [("driver".to_owned(), json!("")), ("secret".to_owned(), json!({}))].into();
                fence.metadata.generation = fence.metadata.generation.map(|known| known + 1);
            }
            let is_done = !array.mood.is_down;
            if is_done {
                done.extend(fence.metadata.uid.clone().zip(fence.metadata.generation));
                operate(array, fence);
            }
            fence.status = Some(result(&fence.spec, is_done));
        }
        if !done.is_empty() {
            self.others.csi_addons.worked_on.extend(done);
            self.oracle.touch();
        }
        if self.arrays.values().any(|array| array.mood.is_down) {
            self.wake(Actor::CsiAddons, self.now + 2 * SECOND);
        }
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
    /// Changes the object, if it is still that one; it goes when it is being deleted and nothing holds it.
    fn change(&mut self, object: &NetworkFence, change: impl FnOnce(&mut NetworkFence)) {
        let name = object.name_any();
        let Some(known) = self.fences.get_mut(&name).filter(|known| known.metadata.uid == object.metadata.uid) else {
            return;
        };
        change(known);
        if known.metadata.deletion_timestamp.is_some() && known.finalizers().is_empty() {
            self.fences.remove(&name);
        }
    }
}

fn is_ours(fence: &NetworkFence) -> bool {
    fence.labels().contains_key(names::FENCE_REQUEST_LABEL)
}

fn operate(array: &mut Array, fence: &NetworkFence) {
    for cidr in fence.spec.cidrs.iter().filter_map(|cidr| cidr.parse::<Cidr>().ok()) {
        match fence.spec.fence_state {
            FenceState::Fenced => {
                array.shut_out.insert(cidr);
            }
            FenceState::Unfenced => array.shut_out.retain(|known| !known.overlaps(cidr)),
        }
    }
}

fn result(spec: &NetworkFenceSpec, is_done: bool) -> NetworkFenceStatus {
    let (result, message) = match (is_done, spec.fence_state) {
        (true, FenceState::Fenced) => ("Succeeded", "fencing operation successful"),
        (true, FenceState::Unfenced) => ("Succeeded", "unfencing operation successful"),
        (false, _) => ("Failed", "the simulated storage is down"),
    };
    NetworkFenceStatus { result: Some(result.into()), message: Some(message.into()) }
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
