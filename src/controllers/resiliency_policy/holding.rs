//! Which brake holds a node, what is told of that, which nodes are to be read, and who takes a place in the budgets by it. Pure.

use std::collections::BTreeMap;

use crate::api::node_fence::NodeFence;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::time::Now;
use crate::api::usage::PodView;

use super::brakes;
use super::candidates::Candidate;
use super::decide::{Decision, Restrained, Seen};
use super::policy_brakes::PolicyBrakes;
use super::select::Effective;

/// So many nodes on which a look has shown nothing to begin are looked at again for one pass: of some that are held it is a few reads
/// in ten seconds, and of hundreds no flood.
pub(super) const AGAIN_MOST: usize = 8;

/// The brake of the policies that have no place left.
const BUDGET: &str = "BudgetExhausted";

/// The policies that would act, each once.
pub(super) fn acting<'a>(pods: &[(&PodView, Effective<'a>)]) -> BTreeMap<&'a str, &'a ResiliencyPolicy> {
    let policies = pods.iter().flat_map(|(_, effective)| effective.policies().to_vec());
    policies.filter_map(|policy| Some((policy.metadata.name.as_deref()?, policy))).collect()
}

/// Counts the node against the budgets of the policies that would act, where it does not count already.
pub(super) fn count(
    candidate: &Candidate,
    fence: Option<&NodeFence>,
    brakes: &mut BTreeMap<&str, PolicyBrakes>,
    now: Now,
) {
    for (name, policy) in acting(&candidate.pods) {
        let is_counted = fence.is_some_and(|fence| brakes::counts(policy, fence, now.wall));
        if let Some(brake) = brakes.get_mut(name).filter(|_| !is_counted) {
            brake.acted_on += 1;
            brake.topology.count(candidate.node);
        }
    }
}

/// What holds the node.
pub(super) fn held(
    candidate: &Candidate,
    fence: Option<&NodeFence>,
    brakes: &BTreeMap<&str, PolicyBrakes>,
    now: Now,
) -> Option<Restrained> {
    for (policy_name, policy) in acting(&candidate.pods) {
        let Some(brake) = brakes.get(policy_name) else { continue };
        let is_counted = fence.is_some_and(|fence| brakes::counts(policy, fence, now.wall));
        let by_node = candidate.paused.clone().map(|reason| ("Paused", Some(reason)));
        if let Some((held_by, about)) = by_node.or_else(|| brake.held_by(candidate.node, candidate.cause, is_counted)) {
            let (node, policy) = (candidate.node.into(), policy_name.into());
            return Some(Restrained { node, policy, brake: held_by, about });
        }
    }
    None
}

/// Tells what holds the node. Of one that is only to be looked at again that is told by what the last look has shown, and no budget
/// holds it: as long as nobody has read it, nothing is to be begun there.
pub(super) fn tell(
    candidate: &Candidate,
    held: Restrained,
    brakes: &mut BTreeMap<&str, PolicyBrakes>,
    decision: &mut Decision,
) {
    let is_budget = held.brake == BUDGET;
    let is_told = || decision.restrained.iter().any(|it| it.node == held.node);
    if candidate.looked_ago.is_some() && (is_budget || is_told()) {
        return;
    }
    if let Some(brake) = brakes.get_mut(held.policy.as_str()).filter(|_| is_budget) {
        brake.exhausted.insert(held.about.clone());
    }
    decision.restrained.push(held);
}

/// Asks for the node to be read. No more nodes are than could be acted on; but one that was looked at in vain takes no place before
/// it is read, and of these there is a number. One that could not be read before stands in no other's way.
pub(super) fn ask(
    seen: &Seen,
    candidate: &Candidate,
    fence: Option<&NodeFence>,
    brakes: &mut BTreeMap<&str, PolicyBrakes>,
    decision: &mut Decision,
    now: Now,
) {
    let (name, is_again) = (candidate.node, candidate.looked_ago.is_some());
    let is_in_the_way = !seen.unread.contains(name);
    let is_asked_for = decision.look_at.iter().any(|known| known == name);
    let are_too_many = is_in_the_way && decision.looked_again >= AGAIN_MOST;
    if is_again && (is_asked_for || are_too_many) {
        return;
    }
    decision.look(name);
    match (is_in_the_way, is_again) {
        (true, true) => decision.looked_again += 1,
        (true, false) => count(candidate, fence, brakes, now),
        (false, _) => {}
    }
}
