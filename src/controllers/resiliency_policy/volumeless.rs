//! Pods without volumes, where a policy releases them with its failed node. They are in no cache (a cluster has many, and
//! nothing of theirs can be fenced), so a failed node that holds no others is looked at for them, now and then.

use std::collections::BTreeMap;

use crate::api::resiliency_policy::PodsWithoutVolumes;
use crate::api::usage::PodView;

use super::brakes;
use super::decide::{self, Decision, Seen};
use super::policy_brakes::PolicyBrakes;

/// Nodes that the kubelet channel gives up and that may hold nothing but such pods.
pub(super) fn look_for(seen: &Seen, brakes: &BTreeMap<&str, PolicyBrakes>, decision: &mut Decision) {
    let unrestrained = |name: &str| brakes.get(name).is_some_and(|brake| brake.outage.is_none());
    let mut asking = decide::live_policies(seen)
        .filter(|policy| policy.spec.release.pods_without_volumes == PodsWithoutVolumes::Release);
    if !asking.any(|policy| policy.metadata.name.as_deref().is_some_and(unrestrained)) {
        return;
    }
    for (node, _) in seen.nodes.iter().filter(|(node, _)| node.is_unreachable()) {
        let Some(name) = node.metadata.name.clone() else { continue };
        let known = decide::fence_of(seen, &name).is_some_and(brakes::in_progress);
        if !known && !seen.looked_for_volumeless.contains(&name) {
            if !seen.live.contains_key(&name) {
                decision.look(&name);
            }
            decision.looked_for_volumeless.push(name);
        }
    }
}

/// The pods of a node: those that use volumes; all of one that was read from the API and is given up.
pub(super) fn pods_of<'a>(seen: &'a Seen, node: &str) -> &'a [PodView] {
    let live = seen.live.get(node).filter(|live| live.node.is_unreachable());
    live.map(|live| &live.pods).or_else(|| seen.pods.get(node)).map(Vec::as_slice).unwrap_or_default()
}
