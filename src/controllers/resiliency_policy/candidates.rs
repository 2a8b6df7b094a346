//! Which nodes there is something to do for, and for which of their pods: nodes that have failed, that have lost the path to
//! storage, or where volumes are tainted.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::api::names;
use crate::api::text::printable;
use crate::api::time::Now;
use crate::api::usage::PodView;

use super::decide::{Decision, Restrained, Seen, effective, fence_of, may_be_released};
use super::evidence::{self, Outside};
use super::select::Effective;
use super::storage::{self, Paths};
use super::volumes::{self, Mover, Troubles};
use super::{modes, volumeless};

/// Why pods of a node are to be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// It has failed.
    NodeFailure,
    /// It has lost the path to the backend of their volumes.
    StoragePathLoss,
    /// It is well, and their volumes are tainted there.
    VolumeTaint,
}

/// What is known of storage in a pass.
#[derive(Clone, Copy)]
pub(super) struct Storage<'a> {
    /// Volumes that are tainted.
    pub(super) troubles: &'a Troubles<'a>,
    /// Paths to storage that are lost.
    pub(super) paths: &'a Paths<'a>,
}

/// A node, with the pods that are to be released.
pub(super) struct Candidate<'a> {
    /// Its name.
    pub(super) node: &'a str,
    /// For which a person has paused the node.
    pub(super) paused: Option<String>,
    /// Why.
    pub(super) cause: Cause,
    /// The pods, with what protects them.
    pub(super) pods: Vec<(&'a PodView, Effective<'a>)>,
}

/// Nodes that the stores show failed for a protected pod, then those that lost the path to its storage, and then those where
/// volumes of protected pods are tainted; of each the one with the highest pod priority first.
pub(super) fn candidates<'a>(
    seen: &'a Seen,
    storage: Storage<'a>,
    decision: &mut Decision,
    now: Now,
) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    let pathless = storage::nodes(seen);
    for (node, silence) in &seen.nodes {
        let Some(name) = node.metadata.name.as_deref() else { continue };
        let pods = volumeless::pods_of(seen, name);
        let paused = names::paused(&node.metadata).map(printable);
        let is_talked_of = pathless.contains(name) || seen.off.contains_key(name);
        let failing = pods.iter().filter(|pod| may_be_released(pod)).filter_map(|pod| {
            let policies = effective(seen, pod).filter(|it| it.releases_on_node_failure() && it.releases(pod))?;
            let outside = match is_talked_of {
                true => storage.paths.outside(node, *silence, &seen.reports, pod, &policies),
                false => Outside::default(),
            };
            evidence::declares(node, *silence, &pod.pod, &policies, outside, now).map(|_| (pod, policies))
        });
        let mut failing: Vec<_> = failing.collect();
        modes::leave_the_earnest(&mut failing);
        if !failing.is_empty() {
            found.push(Candidate { node: name, paused, cause: Cause::NodeFailure, pods: failing });
            continue;
        }
        // Whom a pod must run beside may use no volume: such are seen where the node was read.
        let pods = seen.live.get(name).map_or(pods, |live| live.pods.as_slice());
        if pathless.contains(name) {
            let (lost, restraining) = storage.paths.on_node(node, pods, &seen.reports);
            let held = restraining.into_iter().collect::<BTreeSet<_>>().into_iter();
            decision.restrained.extend(held.map(|policy| Restrained {
                node: name.into(),
                policy,
                brake: "ArrayOutage",
                about: None,
            }));
            decision.unmoved.extend(lost.unmoved);
            let movers = movers(lost.movers);
            if !movers.is_empty() {
                found.push(Candidate { node: name, paused, cause: Cause::StoragePathLoss, pods: movers });
                continue;
            }
        }
        let running = volumes::running(fence_of(seen, name));
        let troubled = storage.troubles.on_node(node, pods, running, now);
        decision.unmoved.extend(troubled.unmoved);
        let movers = movers(troubled.movers);
        if !movers.is_empty() {
            found.push(Candidate { node: name, paused, cause: Cause::VolumeTaint, pods: movers });
        }
    }
    let priority = |it: &Candidate| it.pods.iter().filter_map(|(pod, _)| pod.pod.spec.priority).max().unwrap_or(0);
    found.sort_by_cached_key(|it| (it.cause, Reverse(priority(it)), it.node));
    found
}

/// The pods to move, with what protects them; those of policies in earnest, where there are such.
fn movers<'a>(movers: Vec<Mover<'a>>) -> Vec<(&'a PodView, Effective<'a>)> {
    let mut movers = movers.into_iter().map(|mover| (mover.pod, mover.policies)).collect();
    modes::leave_the_earnest(&mut movers);
    movers
}
