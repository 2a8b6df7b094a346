//! Which nodes something is wrong with: what counts for a policy's `maxUnhealthy`, and what is only told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::Node;
use crate::api::time::Now;

use super::brakes::{Cluster, array_restraint, is_outage};
use super::candidates::Storage;
use super::decide::{Decision, Seen, effective, live_policies};
use super::policy_brakes::PolicyBrakes;
use super::{evidence, heartbeat};

/// Sets the brake of each policy on what is moved for the sake of storage. Those of single backends are set: a path to one
/// that is out for everyone does not count.
pub(super) fn restrain(
    seen: &Seen,
    storage: Storage,
    brakes: &mut BTreeMap<&str, PolicyBrakes>,
    decision: &mut Decision,
    now: Now,
) {
    for policy in &seen.policies {
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        let Some(brake) = brakes.get_mut(name) else { continue };
        let troubled = troubled(seen, storage, policy, &decision.suspected);
        if troubled.is_some_and(|cluster| is_outage(&policy.spec.limits, cluster)) {
            decision.array_outage.insert(name.to_owned());
        }
        brake.array = array_restraint(policy, troubled, seen.array_outage_seen.get(name).copied(), now.wall);
    }
}

/// The nodes that a taint of a volume speaks of, or that have lost a path, as `maxUnhealthy` counts them: together with those
/// that are suspected.
fn troubled(seen: &Seen, storage: Storage, policy: &ResiliencyPolicy, suspected: &BTreeSet<String>) -> Option<Cluster> {
    let mut troubled = storage.troubles.nodes(policy);
    troubled.extend(storage.paths.nodes(policy));
    let all = seen.nodes.iter().filter_map(|(node, _)| node.metadata.name.as_ref());
    let counted = all.filter(|name| troubled.contains(*name) || suspected.contains(*name)).count();
    (!troubled.is_empty()).then_some(Cluster { nodes: seen.nodes.len(), suspected: counted })
}

/// Nodes that are suspected for a policy: their kubelet is silent, or they carry a taint that counts for a pod there.
pub(super) fn suspected(seen: &Seen) -> BTreeSet<String> {
    let after = seen.policies.iter().map(|policy| policy.spec.detection.kubelet.suspect_after.get()).min();
    let after = after.unwrap_or(Duration::MAX);
    let nodes = seen
        .nodes
        .iter()
        .filter(|(node, silence)| evidence::is_suspected(node, *silence, after) || is_tainted_for_a_pod(seen, node));
    nodes.filter_map(|(node, _)| node.metadata.name.clone()).collect()
}

/// Nodes whose heartbeat is lost, which is told. They do not count for `maxUnhealthy`.
pub(super) fn lost(seen: &Seen) -> BTreeSet<String> {
    let after = heartbeat::suspect_after(live_policies(seen)).unwrap_or(Duration::MAX);
    let lost = seen.nodes.iter().filter(|(_, silence)| silence.heartbeat.is_lost(after));
    lost.filter_map(|(node, _)| node.metadata.name.clone()).collect()
}

/// Channel Taint counts for `maxUnhealthy` too: a taint put on every node by mistake must not empty the cluster.
fn is_tainted_for_a_pod(seen: &Seen, node: &Node) -> bool {
    let pods = node.metadata.name.as_ref().and_then(|name| seen.pods.get(name));
    pods.into_iter().flatten().filter(|pod| pod.pod.is("Initialized") && !pod.pod.is("Ready")).any(|pod| {
        effective(seen, pod).is_some_and(|policies| node.taints().iter().any(|taint| policies.counts_taint(taint)))
    })
}
