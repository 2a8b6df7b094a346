//! What is done for the sake of volumes, to nodes that are well: only while a taint asks for it, and as gently as may be.

use std::collections::BTreeSet;

use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::volume_health::VolumeHealth;
use bulkhead::controllers::resiliency_policy::brakes::{self, Cluster};
use kube::ResourceExt;

use crate::api::Op;
use crate::process::Pid;
use crate::time::{Millis, SECOND, wall};
use crate::world::World;

use super::knowledge::{Knowledge, WATCH_LAG};

/// How long after its grace period a pod that does not end is ended at the earliest.
const STUCK_AFTER: Millis = 30 * SECOND;

impl World {
    /// The taints of a volume have changed: where it is in trouble, and not everywhere.
    pub(crate) fn notice_taints(&mut self, volume: &str) {
        let now = self.now;
        let named: BTreeSet<String> = self.api.get::<VolumeHealth>(volume).map(|it| named(&it)).unwrap_or_default();
        for ((_, node), until) in self.oracle.troubles.iter_mut().filter(|((it, _), _)| it == volume) {
            if !named.contains(node) {
                until.get_or_insert(now);
            }
        }
        for node in named {
            self.oracle.troubles.insert((volume.to_owned(), node), None);
        }
    }

    /// Whether what is done by force is done for the sake of volumes, and gently: that is no reason to be unwell.
    pub(super) fn is_for_volumes(&self, op: &Op, sent: Millis) -> bool {
        let fence = |node: Option<&String>| {
            node.and_then(|node| self.api.get::<NodeFence>(node)).is_some_and(|it| it.spec.plan.is_by_volume())
        };
        match op {
            Op::CreateFence(fence) => fence.spec.plan.is_by_volume(),
            Op::DeleteAttachment(attachment) => fence(Some(&attachment.spec.node_name)),
            Op::DeletePod(pod, Some(0)) | Op::FailPod(pod) => {
                let told = pod.metadata.deletion_timestamp.as_ref().map(bulkhead::api::time::from_k8s);
                let patience = chrono::TimeDelta::milliseconds(i64::try_from(STUCK_AFTER).unwrap_or(0));
                fence(pod.spec.node_name.as_ref()) && told.is_some_and(|told| told + patience <= wall(sent))
            }
            _ => false,
        }
    }

    /// I3: no pod is moved for a volume that works where it is, or that works nowhere. A pass goes by what its watch has
    /// brought of that.
    pub(super) fn judge_plan(&mut self, fence: &NodeFence, known: Knowledge) {
        let node = fence.name_any();
        if !fence.spec.plan.is_by_volume() || known.has_stood_still {
            return;
        }
        let troubled = |volume: &String| {
            let until = self.oracle.troubles.get(&(volume.clone(), node.clone()));
            until.is_some_and(|until| until.is_none_or(|until| until + WATCH_LAG >= known.as_of))
        };
        let moved = self.newly_moved(fence);
        let wrong = moved.into_iter().find(|row| !row.volumes.iter().any(troubled)).map(|row| row.name.clone());
        if let Some(pod) = wrong {
            self.oracle.break_("I3", self.now, format!("{pod} is moved off {node}, where its volumes are well"));
        }
    }

    /// I6: nothing is moved while volumes of so many nodes are tainted that the array must be at fault. What the process
    /// cannot have seen yet does not count.
    pub(super) fn judge_array_outage(&mut self, pid: Pid, fence: &NodeFence) {
        let views = &self.controllers[pid].views;
        if !fence.spec.plan.is_by_volume() || views.healths.next() != self.api.healths.next() {
            return;
        }
        let nodes = self.api.nodes.values().count();
        let named = self.api.healths.values().flat_map(|health| named(health));
        let troubled: BTreeSet<_> = named.filter(|node| self.api.nodes.get(node).is_some()).collect();
        let cluster = Cluster { nodes, suspected: troubled.len() };
        let policies = self.api.policies.values().filter(|policy| {
            let is_named = fence.spec.policies.iter().any(|it| it.name == policy.name_any());
            is_named && brakes::is_outage(&policy.spec.limits, cluster)
        });
        if policies.count() > 0 {
            let what = format!("pods move off {} while volumes of {troubled:?} are tainted", fence.name_any());
            self.oracle.break_("I6", self.now, what);
        }
    }
}

fn named(health: &VolumeHealth) -> BTreeSet<String> {
    health.taints().iter().flat_map(|taint| taint.nodes.iter().cloned()).collect()
}
