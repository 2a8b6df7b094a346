//! What a look at a node showed lately that no store has: its pods without volumes, and those into which virtual machines are being
//! migrated. Where they are why nothing is begun there, they are remembered: the node is not read in every pass, it takes no place
//! of others, and what is told of it is the same between two looks. Nothing is begun by what is remembered: that takes another
//! look. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::api::slim::Node;
use crate::api::usage::PodView;

use super::decide::{Decision, Seen};
use super::memory::VOLUMELESS_PACE;
use super::plan::LiveNode;
use super::volumes::Troubles;
use super::{storage, volumeless};

/// A node on which nothing is begun by what a look showed is looked at again after this time, or when the stores show that something
/// is to be begun all the same.
pub const AGAIN_AFTER: Duration = VOLUMELESS_PACE;

/// What a look at a node showed that no store had.
#[derive(Clone, Debug, PartialEq)]
pub struct Lately {
    /// Time since that look.
    pub age: Duration,
    /// Uid of the Node that was read: of another one of that name nothing is known by it.
    pub node: Option<String>,
    /// Its pods that no store had.
    pub pods: Vec<PodView>,
    /// Uids of the pods into which virtual machines were being migrated.
    pub migration_targets: BTreeSet<String>,
}

impl Lately {
    fn of(live: &LiveNode, stored: &[PodView]) -> Self {
        let unstored = live.pods.iter().filter(|pod| !pod.pod.is_finished() && !is_among(stored, pod));
        Self {
            age: Duration::ZERO,
            node: live.node.metadata.uid.clone(),
            pods: unstored.cloned().collect(),
            migration_targets: live.migration_targets.clone(),
        }
    }
}

/// The pods of the nodes, as far as they are known: of nodes that were read for this pass as the API has them, of others as the
/// stores do, with what a look showed lately.
pub(super) struct Known<'a> {
    seen: &'a Seen,
    /// The pods of nodes that were looked at lately.
    together: BTreeMap<&'a str, Vec<PodView>>,
}

impl<'a> Known<'a> {
    pub(super) fn new(seen: &'a Seen) -> Self {
        let remembered = seen.lately.keys().filter_map(|name| Some((name, of_node(seen, name)?)));
        let together = remembered.map(|(name, lately)| {
            let stored = stored(seen, name);
            let unstored = lately.pods.iter().filter(|pod| !is_among(stored, pod));
            (name.as_str(), stored.iter().chain(unstored).cloned().collect::<Vec<_>>())
        });
        Self { seen, together: together.collect() }
    }

    /// All that are known of the node of that name.
    pub(super) fn pods(&self, name: &str) -> &[PodView] {
        if let Some(live) = self.seen.live.get(name) {
            return &live.pods;
        }
        self.together.get(name).map_or_else(|| stored(self.seen, name), Vec::as_slice)
    }

    /// Those that may have to go since the node has failed: all of them where Kubernetes has given it up.
    pub(super) fn pods_of_failed(&self, node: &Node, name: &str) -> &[PodView] {
        let is_given_up = match self.seen.live.get(name) {
            Some(live) => live.node.is_unreachable(),
            None => volumeless::is_given_up(self.seen, node),
        };
        if is_given_up { self.pods(name) } else { stored(self.seen, name) }
    }

    /// Whether the pod is known from an earlier look alone.
    pub(super) fn is_remembered(&self, name: &str, pod: &PodView) -> bool {
        !self.seen.live.contains_key(name) && !is_among(stored(self.seen, name), pod)
    }

    /// How long ago the node of that name was looked at last, where it is time to look again.
    pub(super) fn outdated(&self, name: &str) -> Option<Duration> {
        of_node(self.seen, name).map(|lately| lately.age).filter(|age| *age >= AGAIN_AFTER)
    }
}

/// The pods of the node of that name that the stores have.
pub(super) fn stored<'a>(seen: &'a Seen, name: &str) -> &'a [PodView] {
    seen.pods.get(name).map(Vec::as_slice).unwrap_or_default()
}

/// Uids of the pods of the node of that name into which virtual machines are being migrated, as far as the API was asked of late.
pub(super) fn migration_targets<'a>(seen: &'a Seen, name: &str) -> Option<&'a BTreeSet<String>> {
    if let Some(live) = seen.live.get(name) {
        return Some(&live.migration_targets);
    }
    of_node(seen, name).filter(|lately| lately.age < AGAIN_AFTER).map(|lately| &lately.migration_targets)
}

/// Whether virtual machines were being migrated into pods of the node of that name when it was looked at.
pub(super) fn had_migrations(seen: &Seen, name: &str) -> bool {
    of_node(seen, name).is_some_and(|lately| !lately.migration_targets.is_empty())
}

/// How many of the nodes that were looked at before have been read for this pass again.
pub(super) fn looked_again(seen: &Seen) -> usize {
    let is_read = |name: &&String| seen.live.contains_key(*name) || seen.gone.contains(*name);
    seen.lately.keys().filter(is_read).count()
}

/// What a look has shown of the node of that name, where it was not read for this pass. Of another Node of that name it says nothing.
fn of_node<'a>(seen: &'a Seen, name: &str) -> Option<&'a Lately> {
    let lately = seen.lately.get(name).filter(|_| !seen.live.contains_key(name))?;
    let (node, _) = seen.nodes.iter().find(|(node, _)| node.metadata.name.as_deref() == Some(name))?;
    (lately.node == node.metadata.uid).then_some(lately)
}

/// Hands on to the next pass what looks have shown of nodes in trouble, now and before, if it is anything. What is over is
/// forgotten.
pub(super) fn remember(seen: &Seen, troubles: &Troubles, decision: &mut Decision) {
    if seen.live.is_empty() && seen.lately.is_empty() {
        return;
    }
    let (pathless, tainted) = (storage::nodes(seen), troubles.places());
    for (node, _) in &seen.nodes {
        let Some(name) = node.metadata.name.as_deref() else { continue };
        let Some(lately) = latest(seen, node, name) else { continue };
        let is_in_trouble =
            pathless.contains(name) || tainted.contains(name) || volumeless::is_looked_for_on(seen, node);
        if is_in_trouble {
            decision.lately.insert(name.to_owned(), lately);
        }
    }
}

fn latest(seen: &Seen, node: &Node, name: &str) -> Option<Lately> {
    let lately = match seen.live.get(name) {
        Some(live) => Lately::of(live, stored(seen, name)),
        None => seen.lately.get(name)?.clone(),
    };
    let is_nothing = lately.pods.is_empty() && lately.migration_targets.is_empty();
    (!is_nothing && lately.node == node.metadata.uid).then_some(lately)
}

fn is_among(pods: &[PodView], wanted: &PodView) -> bool {
    pods.iter().any(|pod| pod.uid() == wanted.uid())
}
