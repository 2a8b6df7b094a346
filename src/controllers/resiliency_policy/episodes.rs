//! The NodeFences that a pass writes: the first episode of a node, the next one, and a plan that has grown.

use std::collections::BTreeMap;

use crate::api::names;
use crate::api::node_fence::{NodeFence, NodeFenceSpec, VolumeStatusState};
use crate::api::time::Now;

use super::decide::Effect;
use super::plan::{self, Draft, LiveNode};
use super::{growth, modes};

/// The first episode of a node.
pub(super) fn open(name: &str, live: &LiveNode, draft: Draft) -> Effect {
    let node = plan::identity(live);
    let spec =
        NodeFenceSpec { episode: 1, node, policies: draft.policies, plan: draft.plan, approval: None, hold: None };
    let mut fence = NodeFence::new(name, spec);
    fence.metadata.finalizers = Some(vec![names::NODE_CLEAN_FINALIZER.into()]);
    // The label comes before the taint, and with the plan it costs no write. An incident that will be held for its
    // identity, or that waits for a person, is not active.
    if modes::acts_at_once(&fence.spec.policies)
        && fence.spec.plan.volumes.iter().all(|volume| volume.node_id.is_some() || volume.methods.is_empty())
    {
        fence.metadata.labels = Some(BTreeMap::from([(names::ACTIVE_LABEL.into(), "true".into())]));
    }
    Effect::Open(Box::new(fence))
}

/// The next episode of the same object; rows that are not clean are carried over under their own number.
pub(super) fn reopen(fence: &NodeFence, live: &LiveNode, mut draft: Draft) -> Effect {
    let episode = fence.spec.episode + 1;
    // Of a rehearsal nothing was ever sent.
    let rehearsed = modes::is_rehearsal(&fence.spec.policies);
    let unclean = |episode: i64, name: &str| {
        fence.recorded_volume(episode, name).is_some_and(|row| match row.state {
            VolumeStatusState::Undone | VolumeStatusState::Pending => false,
            // A Node that was deleted and is there again in the same boot holds what it held. Where no boot is told the row would
            // never be looked for, and be carried on for ever.
            VolumeStatusState::Clean => row.is_clean_by_deletion() && fence.has_failed_in(&live.node),
            _ => true,
        })
    };
    let carried = fence.spec.plan.volumes.iter().filter(|row| !rehearsed && unclean(row.episode, &row.name));
    let carried: Vec<_> = carried.cloned().collect();
    draft.plan.volumes.extend(carried);
    draft.plan.digest = plan::digest(&draft.plan);
    let mut next = fence.clone();
    next.status = None;
    // An approval is of the plan that was read, and of no other; a hold lasts until its person takes it away.
    next.spec = NodeFenceSpec {
        episode,
        node: plan::identity(live),
        policies: draft.policies,
        plan: draft.plan,
        approval: None,
        hold: fence.spec.hold.clone(),
    };
    Effect::Replan(Box::new(next))
}

/// The plan grown by what the draft has more; `None` when it has nothing more.
pub(super) fn grow(fence: &NodeFence, live: &LiveNode, draft: Draft, now: Now) -> Option<Effect> {
    let mut wanted = growth::without_early_returns(draft.plan, &fence.spec.plan, live, now);
    // A network fence shuts out the addresses that were frozen, and they may be another machine's; an external fencer cuts off the
    // machine that failed.
    for row in &mut wanted.volumes {
        row.methods.retain(|method| !fence.may_miss(method.type_, &live.node));
    }
    let grown = growth::grown(&fence.spec.plan, &wanted)?;
    let mut next = fence.clone();
    next.status = None;
    next.spec.plan = grown;
    for policy in draft.policies {
        if !next.spec.policies.iter().any(|known| known.name == policy.name) {
            next.spec.policies.push(policy);
        }
    }
    Some(Effect::Replan(Box::new(next)))
}
