//! What is done for programs that fail: I14 (no program is moved more often than its budget allows, whoever leads), and
//! taints of plugins, which come with their cause and move nobody.

use std::collections::BTreeSet;
use std::sync::Arc;

use bulkhead::api::names;
use bulkhead::api::slim::{Node, Pod};
use k8s_openapi::api::core::v1::Taint;
use kube::ResourceExt;

use crate::api::Op;
use crate::time::{Millis, SECOND, millis, wall};
use crate::world::World;

use super::knowledge::{Knowledge, WATCH_LAG};

/// How late a process may know how a plugin is. A kubelet that is back looks within 2 s, a pod that is told to end does so
/// within 3 s and is not Ready until then; and then a watch brings it.
const KNOWN_WITHIN: Millis = 5 * SECOND + WATCH_LAG;

impl World {
    /// The programs that fail have changed.
    pub(crate) fn notice_programs(&mut self) {
        let now = self.now;
        let failing: BTreeSet<String> = self.failing.clone();
        for (name, until) in &mut self.oracle.failed {
            if !failing.contains(name) {
                until.get_or_insert(now);
            }
        }
        for name in failing {
            self.oracle.failed.insert(name, None);
        }
    }

    /// I14: a pod is deleted so that it starts on another node. Who edits policies, or sets clocks, gets what he asks for.
    pub(super) fn judge_reschedule(&mut self, op: &Op, name: &str) {
        // The server takes a deletion of the version that it has, and of no other: it is what the process has seen.
        let takes = self.api.clone().write(op, self.now).is_ok();
        let pod = self.api.get::<Pod>(name).filter(|pod| takes && !pod.is_terminating());
        let Some(pod) = pod.filter(|_| !self.oracle.are_policies_edited && !self.oracle.are_clocks_set) else { return };
        let owner = pod.controller().map(|owner| owner.uid.clone()).unwrap_or_default();
        self.counts.rescheduled += 1;
        if pod.crash_looping().is_none() || pod.controller_kind() == Some("DaemonSet") {
            return self.oracle.break_("I14", self.now, format!("{name} is moved, and does not fail"));
        }
        let app = pod.labels().get("app");
        let policies = self.api.policies.values().filter(|policy| crate::shape::selects(policy, app));
        let budgets: Vec<_> = policies.map(|policy| &policy.spec.triggers.crash_loop).collect();
        // What nobody protects is not to be moved at all.
        let max = budgets.iter().map(|it| usize::try_from(it.max_deletes).unwrap_or(0)).min().unwrap_or(0);
        let window = budgets.iter().map(|it| it.window.get()).max().unwrap_or_default();
        let now = self.now;
        let moved = self.oracle.moved.entry(owner).or_default();
        moved.retain(|at| at + millis(window) > now);
        moved.push(now);
        if moved.len() > max {
            let what = format!("{name} is moved {} times within {window:?}, which is more than {max}", moved.len());
            self.oracle.break_("I14", now, what);
        }
    }

    /// I3: a taint of a plugin comes only while the plugin is down.
    pub(super) fn judge_plugin_taint(&mut self, node: &Node, taint: &Taint, known: Knowledge) {
        let Some(driver) = taint.key.strip_prefix(names::DRIVER_DOWN_PREFIX) else { return };
        self.counts.plugins_tainted += 1;
        if known.has_stood_still {
            return;
        }
        let until = self.oracle.failed.get(&plugin(driver));
        // The lifecycle controller calls all pods of a silent node not ready, until its kubelet has told of itself again.
        let well = self.machines.get(&node.name_any()).and_then(|machine| machine.well_since);
        let told = self.api.get::<Node>(&node.name_any()).filter(|node| node.ready() == "True");
        let told = told.and_then(|node| node.ready_since());
        let long_ago = wall(known.as_of.saturating_sub(KNOWN_WITHIN));
        let is_well = well.is_some_and(|since| since + KNOWN_WITHIN <= known.as_of);
        let is_well = is_well && told.is_some_and(|since| since <= long_ago);
        let failed = until.is_some_and(|until| until.is_none_or(|until| until + KNOWN_WITHIN >= known.as_of));
        if is_well && !failed {
            let what = format!("{} is tainted for the plugin of {driver}, which is well", node.name_any());
            self.oracle.break_("I3", self.now, what);
        }
    }

    /// Taints of plugins that are left though the plugins are ready.
    pub(crate) fn plugin_taints_left(&self) -> Vec<String> {
        let of = |node: &Arc<Node>| {
            let left = node.taints().iter().filter_map(|taint| taint.key.strip_prefix(names::DRIVER_DOWN_PREFIX));
            left.map(|driver| format!("node {} is tainted for {driver}", node.name_any())).collect::<Vec<_>>()
        };
        self.api.nodes.values().flat_map(of).collect()
    }
}

/// The workload that is the plugin of a driver.
pub(crate) fn plugin(driver: &str) -> String {
    format!("{PLUGIN}{driver}")
}

/// What the names of plugins begin with.
pub(crate) const PLUGIN: &str = "plugin-";
