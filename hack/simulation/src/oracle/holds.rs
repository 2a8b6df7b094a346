//! I12: nothing is done by force to a node whose incident a person holds, or whose plan is not approved, or that only
//! rehearses.

use std::collections::BTreeSet;

use bulkhead::api::fencing::PolicyMode;
use bulkhead::api::node_fence::NodeFence;
use kube::ResourceExt;

use crate::process::Pid;
use crate::time::{Millis, SECOND};
use crate::world::World;

/// A pass reads the NodeFence before it destroys anything, and lasts no longer than its proofs and its leadership.
const SEEN: Millis = 20 * SECOND;

impl World {
    /// Notes which incidents are held now, and since when.
    pub(crate) fn note_holds(&mut self) {
        let held: BTreeSet<_> =
            self.api.fences.values().filter(|fence| is_held(fence)).map(|fence| fence.name_any()).collect();
        self.oracle.held_since.retain(|node, _| held.contains(node));
        for node in held {
            self.oracle.held_since.entry(node).or_insert(self.now);
        }
    }

    pub(super) fn judge_held(&mut self, pid: Pid, node: &str, sent: Millis, what: &str) {
        let Some(since) = self.oracle.held_since.get(node).copied() else { return };
        // A process that slept with its machine believes that it leads until it looks.
        let woke = self.processes[pid].woke_at.unwrap_or_default();
        if since.max(woke) + SEEN <= sent {
            let since = since as f64 / 1000.0;
            let text = format!("{what} by process {pid} on {node}, whose incident is held since {since:.3} s");
            self.oracle.break_("I12", self.now, text);
        }
    }
}

fn is_held(fence: &NodeFence) -> bool {
    let spec = &fence.spec;
    let approved = spec.approval.as_ref().is_some_and(|approval| approval.plan_digest == spec.plan.digest);
    spec.hold.is_some()
        || match spec.policies.iter().map(|policy| policy.mode).min() {
            Some(PolicyMode::Enforce) => false,
            Some(PolicyMode::RequireApproval) => !approved,
            Some(PolicyMode::DryRun) | None => true,
        }
}
