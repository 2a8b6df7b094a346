//! Pods without volumes, where a policy releases them with its failed node. They are in no cache (a cluster has many, and
//! nothing of theirs can be fenced), so a failed node that holds no others is looked at for them, now and then.

use std::collections::BTreeMap;

use crate::api::resiliency_policy::{PodsWithoutVolumes, ResiliencyPolicy};
use crate::api::slim::Node;

use super::brakes;
use super::decide::{self, Decision, Seen};
use super::policy_brakes::PolicyBrakes;

/// Nodes that the kubelet channel gives up and that may hold nothing but such pods.
pub(super) fn look_for(seen: &Seen, brakes: &BTreeMap<&str, PolicyBrakes>, decision: &mut Decision) {
    let unrestrained = |name: &str| brakes.get(name).is_some_and(|brake| brake.outage.is_none());
    if !asking(seen).any(|policy| policy.metadata.name.as_deref().is_some_and(unrestrained)) {
        return;
    }
    for (node, _) in seen.nodes.iter().filter(|(node, _)| is_given_up(seen, node)) {
        let Some(name) = node.metadata.name.clone() else { continue };
        if !seen.looked_for_volumeless.contains(&name) {
            if !seen.live.contains_key(&name) {
                decision.look(&name);
            }
            decision.looked_for_volumeless.push(name);
        }
    }
}

/// Whether the kubelet channel gives the node up, and no incident that is open has taken all its pods in.
pub(super) fn is_given_up(seen: &Seen, node: &Node) -> bool {
    let fence = || node.metadata.name.as_deref().and_then(|name| decide::fence_of(seen, name));
    node.is_unreachable() && !fence().is_some_and(brakes::in_progress)
}

/// Whether a policy has the node looked at for them, as soon as nothing holds it.
pub(super) fn is_looked_for_on(seen: &Seen, node: &Node) -> bool {
    is_given_up(seen, node) && asking(seen).next().is_some()
}

/// Policies that release them.
fn asking(seen: &Seen) -> impl Iterator<Item = &ResiliencyPolicy> {
    decide::live_policies(seen).filter(|policy| policy.spec.release.pods_without_volumes == PodsWithoutVolumes::Release)
}
