//! What the modes of policies mean for a plan. A plan all of whose pods are under `DryRun` is a rehearsal: it is recorded
//! as it would be carried out, and nothing of it is. Where another policy acts on the node in earnest, the pods of a
//! rehearsal are rows that are kept.

use crate::api::fencing::PolicyMode;
use crate::api::node_fence::{NodeFence, PlannedPolicy};
use crate::api::usage::PodView;

use super::brakes;
use super::plan::Draft;
use super::select::Effective;

/// Whether the plan only records what would be done.
pub fn is_rehearsal(policies: &[PlannedPolicy]) -> bool {
    policies.iter().any(|policy| policy.mode == PolicyMode::DryRun)
}

/// Whether the plan may be carried out as soon as it is written.
pub fn acts_at_once(policies: &[PlannedPolicy]) -> bool {
    policies.iter().all(|policy| policy.mode == PolicyMode::Enforce)
}

/// Leaves the pods that are to go in earnest, where there are any: what only rehearses decides nothing beside them.
pub(super) fn leave_the_earnest(pods: &mut Vec<(&PodView, Effective)>) {
    if has_earnest(pods) {
        pods.retain(|(_, policies)| policies.mode() != PolicyMode::DryRun);
    }
}

/// Whether a rehearsal ends because the node is to be acted on: that is the next episode, with a plan of its own.
pub(super) fn ends_rehearsal(fence: Option<&NodeFence>, pods: &[(&PodView, Effective)]) -> bool {
    fence.is_some_and(|fence| is_rehearsal(&fence.spec.policies)) && has_earnest(pods)
}

/// Whether these pods would only be rehearsed in an incident that is carried out. They would be rows that are kept, and
/// an approval would have to be given again for them.
pub(super) fn disturbs(fence: Option<&NodeFence>, pods: &[(&PodView, Effective)]) -> bool {
    let is_earnest = |fence: &NodeFence| brakes::in_progress(fence) && !is_rehearsal(&fence.spec.policies);
    fence.is_some_and(is_earnest) && !has_earnest(pods)
}

/// Whether the draft is still of the kind that it was asked for: pods may have gone since the stores saw them.
pub(super) fn fits(fence: Option<&NodeFence>, begins: bool, draft: &Draft) -> bool {
    let Some(fence) = fence.filter(|fence| brakes::in_progress(fence)) else { return true };
    let rehearses = is_rehearsal(&draft.policies);
    if begins { !rehearses } else { rehearses == is_rehearsal(&fence.spec.policies) }
}

fn has_earnest(pods: &[(&PodView, Effective)]) -> bool {
    pods.iter().any(|(_, policies)| policies.mode() != PolicyMode::DryRun)
}
