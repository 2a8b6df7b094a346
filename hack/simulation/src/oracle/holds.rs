//! I12: nothing is done by force to a node whose incident a person holds, or whose plan is not approved, or that only
//! rehearses; and no program is moved off its node under another mode than Enforce, or while its policy is paused.

use std::collections::BTreeSet;

use bulkhead::api::fencing::PolicyMode;
use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::controllers::resiliency_policy::decide::{Decision, Effect};
use kube::ResourceExt;

use crate::process::Pid;
use crate::shape::selects;
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

    /// What the process cannot have seen yet does not count.
    pub(super) fn judge_moves(&mut self, pid: Pid, decision: &Decision) {
        if self.controllers[pid].views.policies.next() != self.api.policies.next() {
            return;
        }
        for effect in &decision.effects {
            let Effect::Reschedule { pod, .. } = effect else { continue };
            let app = pod.pod.labels().get("app");
            let holding = self.api.policies.values().find(|policy| holds_programs(policy) && selects(policy, app));
            if let Some(policy) = holding {
                let what = format!("{} is moved, and policy {} says not to", pod.name(), policy.name_any());
                self.oracle.break_("I12", self.now, what);
                return;
            }
        }
    }
}

/// Whether people have the policy move no program. One that is being deleted says nothing any more.
fn holds_programs(policy: &ResiliencyPolicy) -> bool {
    let is_held = policy.spec.mode != PolicyMode::Enforce || names::paused(&policy.metadata).is_some();
    is_held && policy.metadata.deletion_timestamp.is_none()
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
