//! What is done for the sake of a lost path, to nodes that are well: only while the array says so, and never when it says it
//! of most.

use std::collections::BTreeSet;

use bulkhead::api::driver_report::{DriverReport, PathState};
use bulkhead::api::node_fence::{NodeFence, PlannedPod};
use kube::ResourceExt;

use crate::api::Op;
use crate::process::Pid;
use crate::world::World;

use super::knowledge::Knowledge;

impl World {
    /// What an array says of its nodes has changed.
    pub(crate) fn notice_paths(&mut self, driver: &str) {
        let now = self.now;
        let report = self.api.get::<DriverReport>(driver);
        let pairs = report.iter().flat_map(|report| &report.status).flat_map(|status| &status.unreachable);
        let lost = pairs.filter(|pair| pair.state == PathState::Disconnected).map(|pair| pair.node.clone());
        let lost: BTreeSet<String> = lost.collect();
        for ((_, node), until) in self.oracle.lost_paths.iter_mut().filter(|((it, _), _)| it == driver) {
            if !lost.contains(node) {
                until.get_or_insert(now);
            }
        }
        for node in lost {
            self.oracle.lost_paths.insert((driver.to_owned(), node), None);
        }
    }

    /// Whether what is done by force is done for the sake of a lost path: that is no reason to be unwell.
    pub(super) fn is_for_paths(&self, op: &Op) -> bool {
        let fence = |node: Option<&String>| {
            node.and_then(|node| self.api.get::<NodeFence>(node)).is_some_and(|it| it.spec.plan.is_by_path())
        };
        match op {
            Op::CreateFence(fence) => fence.spec.plan.is_by_path(),
            Op::DeleteAttachment(attachment) => fence(Some(&attachment.spec.node_name)),
            Op::DeletePod(pod, Some(0)) | Op::FailPod(pod) => fence(pod.spec.node_name.as_ref()),
            _ => false,
        }
    }

    /// I3: no pod is moved for a path that the array does not call lost. A pass reads live what it says, so whoever decides
    /// knows it, and no grace is needed (docs/adr/0022).
    pub(super) fn judge_path(&mut self, fence: &NodeFence, known: Knowledge) {
        let node = fence.name_any();
        if !fence.spec.plan.is_by_path() {
            return;
        }
        let is_lost = |row: &PlannedPod| {
            let drivers = fence.spec.plan.volumes.iter().filter(|volume| row.volumes.contains(&volume.name));
            let mut drivers = drivers.filter_map(|volume| volume.driver.clone());
            drivers.any(|driver| {
                let until = self.oracle.lost_paths.get(&(driver, node.clone()));
                until.is_some_and(|until| until.is_none_or(|until| until >= known.as_of))
            })
        };
        let moved = self.newly_moved(fence);
        let wrong = moved.into_iter().find(|row| !is_lost(row)).map(|row| row.name.clone());
        if let Some(pod) = wrong {
            self.oracle.break_("I3", self.now, format!("{pod} is moved off {node}, which reaches its storage"));
        }
    }

    /// I6: nothing is moved for an array that most nodes have lost. What the process cannot have seen yet does not count.
    pub(super) fn judge_backend_outage(&mut self, pid: Pid, fence: &NodeFence) {
        let views = &self.controllers[pid].views;
        if !fence.spec.plan.is_by_path() || views.reports.next() != self.api.reports.next() {
            return;
        }
        let out = fence.spec.plan.lost_backends().find(|backend| self.is_lost_by_most(backend));
        if let Some(backend) = out.map(str::to_owned) {
            let what = format!("pods move off {} while {backend} is out for everyone", fence.name_any());
            self.oracle.break_("I6", self.now, what);
        }
    }

    /// Whether more than half of the nodes, and at least two, have no path to an array now.
    fn is_lost_by_most(&self, driver: &str) -> bool {
        let until = |node: &String| self.oracle.lost_paths.get(&(driver.to_owned(), node.clone()));
        let lost = self.shape.nodes.iter().filter_map(until).filter(|until| until.is_none()).count();
        lost >= 2 && lost * 2 > self.shape.nodes.len()
    }
}
