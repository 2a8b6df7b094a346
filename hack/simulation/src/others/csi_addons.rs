//! csi-addons with its habits: an object is worked on when its generation is new, its result tells how the last operation ended
//! and not which, its deletion lifts nothing, and what one object lifts is lifted for all. What it has the storages do is in
//! `operations`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead::api::cidr::Cidr;
use bulkhead::api::names;
use bulkhead::api::network_fence::{FenceState, NetworkFence, NetworkFenceSpec};
use bulkhead::csi_sidecar::network_fence::decide::Step;
use kube::ResourceExt;

use crate::api::Refusal;
use crate::array::Array;
use crate::chance::{Chance, Choice};
use crate::shape::fence_class;
use crate::time::{Millis, SECOND, stamp};
use crate::world::World;

use super::Actor;
use super::operations::Operation;

/// An address that no machine has. Who writes it into a fence shuts it out for good, and that is theirs.
const NOBODY: &str = "198.51.100.1/32";

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
    /// Writes of NetworkFences on their way, by when they arrive, each with the call that sent it.
    writes: BTreeMap<(Millis, u64), (u64, Arc<Step>)>,
    /// Something between the sidecars and the API server keeps such writes back until then.
    pub(crate) kept_until: Millis,
    made: u64,
    versions: u64,
}

impl World {
    /// Puts a write of a NetworkFence on its way, for that call; without a moment it never arrives.
    pub(crate) fn post_network_fence(&mut self, call: u64, step: Step, arrives: Option<Millis>) {
        let Some(arrives) = arrives else { return };
        let (arrives, number) = (arrives.max(self.others.csi_addons.kept_until), self.number());
        self.others.csi_addons.writes.insert((arrives, number), (call, Arc::new(step)));
        self.wake(Actor::NetworkWrites, arrives);
    }

    /// The API server takes what has arrived.
    pub(super) fn take_network_writes(&mut self, chance: &mut dyn Chance) {
        while let Some(arrives) = self.others.csi_addons.writes.keys().next().map(|(arrives, _)| *arrives) {
            if arrives > self.now {
                return self.wake(Actor::NetworkWrites, arrives);
            }
            let Some((_, (call, step))) = self.others.csi_addons.writes.pop_first() else { return };
            let taken = if self.api.down { Err(Refusal::Unknown) } else { self.write_network_fence(&step, chance) };
            let is_lost = chance.one_in(Choice::Network, self.weather.loses_answers);
            let answer = if is_lost { Err(Refusal::Unknown) } else { taken };
            self.network_written(call, answer, chance);
        }
    }

    /// The API server takes a write of a NetworkFence, or refuses it: it is there already, is another one by now, or was written
    /// in between.
    pub(crate) fn write_network_fence(&mut self, step: &Step, chance: &mut dyn Chance) -> Result<(), Refusal> {
        let deleted_at = stamp(self.now);
        let csi_addons = &mut self.others.csi_addons;
        let taken = match step {
            Step::Create(fence) => {
                let taken = csi_addons.create(fence);
                self.counts.shut_out += u64::from(taken.is_ok() && is_ours(fence));
                taken
            }
            Step::Replace(wanted) => csi_addons.change(wanted, true, |known| {
                let is_changed = known.spec != wanted.spec;
                known.spec = wanted.spec.clone();
                known.metadata.labels.clone_from(&wanted.metadata.labels);
                known.metadata.annotations.clone_from(&wanted.metadata.annotations);
                known.metadata.finalizers.clone_from(&wanted.metadata.finalizers);
                known.metadata.generation = known.metadata.generation.map(|known| known + i64::from(is_changed));
            }),
            Step::Delete(fence) => csi_addons.change(fence, false, |known| {
                if known.metadata.deletion_timestamp.is_none() {
                    known.metadata.deletion_timestamp = Some(deleted_at);
                    known.metadata.generation = known.metadata.generation.map(|known| known + 1);
                }
            }),
            _ => Ok(None),
        };
        self.tell(|| format!("    {}{}", told(step), if taken.is_ok() { "" } else { ", refused" }));
        self.counts.network_refused += u64::from(taken.is_err());
        let gone = taken?;
        gone.iter().for_each(|fence| self.judge_gone(fence));
        let late = chance.between(Choice::Others, 50, 2 * SECOND);
        self.wake(Actor::CsiAddons, self.now + late);
        Ok(())
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

    /// Somebody writes another address into the fences of a node: what they were made to shut out stays so.
    pub(crate) fn edit_network_fences(&mut self, node: &str, chance: &mut dyn Chance) {
        for mut fence in self.network_fences_of(node) {
            fence.spec.cidrs = vec![NOBODY.into()];
            let _ = self.write_network_fence(&Step::Replace(Box::new(fence)), chance);
        }
    }

    /// Somebody deletes them.
    pub(crate) fn delete_network_fences(&mut self, node: &str, chance: &mut dyn Chance) {
        for fence in self.network_fences_of(node) {
            let _ = self.write_network_fence(&Step::Delete(Box::new(fence)), chance);
        }
    }

    /// Those of ours by which a node is shut out.
    fn network_fences_of(&self, node: &str) -> Vec<NetworkFence> {
        let is_of = |fence: &&NetworkFence| {
            let named = fence.annotations().get(names::FENCED_NODE_ANNOTATION);
            is_ours(fence) && named.is_some_and(|named| named == node)
        };
        self.others.csi_addons.fences.values().filter(is_of).cloned().collect()
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
            // One that is there already lets it in as well.
            let _ = self.write_network_fence(&Step::Create(Box::new(fence)), chance);
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
        let is_somebody = |address: &&Cidr| address.to_string() != NOBODY;
        let shut_out = |array: &Array| array.shut_out.iter().filter(is_somebody).copied().collect::<Vec<_>>();
        let arrays = self.arrays.iter().map(|(driver, array)| (driver, shut_out(array)));
        let arrays = arrays.filter(|(_, shut_out)| !shut_out.is_empty());
        fences.chain(arrays.map(|(driver, shut_out)| format!("{driver} shuts {shut_out:?} out"))).collect()
    }
}

impl CsiAddons {
    /// Takes a new object, unless there is one of that name.
    fn create(&mut self, fence: &NetworkFence) -> Result<Option<NetworkFence>, Refusal> {
        let name = fence.name_any();
        if self.fences.contains_key(&name) {
            return Err(Refusal::Conflict);
        }
        self.made += 1;
        let mut fence = fence.clone();
        fence.metadata.uid = Some(format!("fence-{}", self.made));
        fence.metadata.generation = Some(1);
        fence.metadata.resource_version = Some(self.next_version());
        self.fences.insert(name, fence);
        Ok(None)
    }

    /// Changes the object, if it is still that one, and of that version where that matters. It goes when it is being deleted and
    /// nothing holds it, and is returned then.
    fn change(
        &mut self,
        object: &NetworkFence,
        is_versioned: bool,
        change: impl FnOnce(&mut NetworkFence),
    ) -> Result<Option<NetworkFence>, Refusal> {
        let name = object.name_any();
        let version = self.next_version();
        let Some(known) = self.fences.get_mut(&name) else {
            // Who deletes it has what he wants.
            return if is_versioned { Err(Refusal::NotFound) } else { Ok(None) };
        };
        let (now, seen) = (&known.metadata, &object.metadata);
        if now.uid != seen.uid || is_versioned && now.resource_version != seen.resource_version {
            return Err(Refusal::Conflict);
        }
        change(known);
        known.metadata.resource_version = Some(version);
        let is_over = known.metadata.deletion_timestamp.is_some() && known.finalizers().is_empty();
        Ok(if is_over { self.fences.remove(&name) } else { None })
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
