//! I13: nothing is cut off from a node that is doing I/O, where a policy says that this stops every decision.

use std::collections::BTreeSet;

use bulkhead::api::fence_request::{FenceRequest, RequestedVolume};
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::resiliency_policy::{CheckSwitch, WhenIoInProgress};
use kube::ResourceExt;

use crate::array::Mood;
use crate::others::Power;
use crate::time::{Millis, SECOND};
use crate::world::World;

/// The driver was asked that long ago at most when the first call is sent: the record of it may take its time.
const ASKED: Millis = 30 * SECOND;

impl World {
    /// Whether anybody writes to such a volume, and the array takes it.
    pub(crate) fn is_there_io(&self, is_meant: impl Fn(&str) -> bool) -> bool {
        let running = self.machines.iter().filter(|(_, machine)| machine.power == Power::Running);
        running.into_iter().any(|(node, machine)| {
            let mut volumes = machine.running.iter().flat_map(|it| &it.volumes);
            volumes.any(|volume| is_meant(volume) && self.accepts(node, volume))
        })
    }

    /// Who writes to what now.
    pub(super) fn notice_writing(&mut self, writing: BTreeSet<(String, String)>) {
        let now = self.now;
        self.oracle.writing.retain(|key, _| writing.contains(key));
        for key in writing {
            self.oracle.writing.entry(key).or_insert(now);
        }
    }

    /// The first call for a row is sent.
    pub(super) fn judge_io(&mut self, request: &FenceRequest, volume: &RequestedVolume) {
        let key = (request.uid().unwrap_or_default(), volume.episode, volume.name.clone());
        if !self.oracle.begun.insert(key) || self.oracle.are_policies_edited || !self.is_vetoed(request) {
            return;
        }
        let node = request.spec.node_name.clone();
        // Of a volume that others have too nobody knows whose I/O it is.
        let array = self.arrays.get(&request.spec.fencer_name);
        let nodes = array.and_then(|array| array.published.get(&volume.volume_handle));
        let is_shared = nodes.is_none_or(|nodes| nodes.len() > 1);
        let since = self.oracle.writing.get(&(volume.name.clone(), self.meant_by(request))).copied();
        if let Some(since) = since.filter(|since| !is_shared && since + ASKED <= self.now) {
            let since = since as f64 / 1000.0;
            let what =
                format!("{} is cut off from {node}, which has been writing to it since {since:.3} s", volume.name);
            self.oracle.break_("I13", self.now, what);
        }
    }

    /// Whether a policy of the incident wants I/O to stop it, and the driver can be asked.
    fn is_vetoed(&self, request: &FenceRequest) -> bool {
        let driver = &request.spec.fencer_name;
        let is_able = self.shape.drivers.iter().any(|it| it.name == *driver && it.tells_io);
        // An array that is down, or was lately, says nothing; one that lies misleads.
        let unsaid = self.oracle.unsaid.get(driver).is_some_and(|at| at + ASKED >= self.now);
        let is_well = !unsaid && self.arrays.get(driver).is_some_and(|array| array.mood == Mood::default());
        let Some(fence) = self.api.get::<NodeFence>(&request.spec.node_name) else { return false };
        let named = |name: &str| fence.spec.policies.iter().any(|it| it.name == name);
        let mut policies = self.api.policies.values().filter(|policy| named(&policy.name_any()));
        let wanted = policies.any(|policy| {
            let storage = &policy.spec.detection.storage;
            storage.io_in_progress_check == CheckSwitch::Enabled
                && storage.when_io_in_progress == WhenIoInProgress::Veto
        });
        is_able && is_well && wanted
    }
}
