//! Which nodes there is something to do for, and for which of their pods: nodes that have failed, that have lost the path to
//! storage, or where volumes are tainted.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::api::names;
use crate::api::slim::Node;
use crate::api::text::printable;
use crate::api::time::Now;
use crate::api::usage::PodView;

use super::decide::{Decision, Restrained, Seen, effective, fence_of, may_be_released};
use super::evidence::{self, Outside, Silence};
use super::holding::acting;
use super::lately::{self, Known};
use super::modes;
use super::select::Effective;
use super::storage::{self, Paths};
use super::volumes::{self, Mover, Troubles};

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
    /// Time since a look showed that nothing is to be begun here, or with more pods. It takes another one to know.
    pub(super) looked_ago: Option<Duration>,
    /// Whether only an earlier look has shown its pods. The next look at them comes in its own time.
    pub(super) waits: bool,
}

/// Nodes that the stores show failed for a protected pod, then those that lost the path to its storage, and then those where
/// volumes of protected pods are tainted; of each the one with the highest pod priority first. Those that are to be looked at again
/// come after the others, by the time of the last look: however many they are, nobody is passed over for good. Such a node is there
/// twice where by that look too something is to be begun: what is told of it, and what holds it, is told by all its pods.
pub(super) fn candidates<'a>(
    seen: &'a Seen,
    known: &'a Known<'a>,
    storage: Storage<'a>,
    decision: &mut Decision,
    now: Now,
) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    let pathless = storage::nodes(seen);
    for (node, silence) in &seen.nodes {
        let Some(name) = node.metadata.name.as_deref() else { continue };
        let place = Place { seen, known, storage, node, name, now };
        let is_pathless = pathless.contains(name);
        let is_talked_of = is_pathless || seen.off.contains_key(name);
        let mut of_node = place.failed(*silence, is_talked_of);
        if of_node.is_empty() && is_pathless {
            of_node = place.without_path(decision);
        }
        if of_node.is_empty() {
            of_node = place.with_tainted_volumes(decision);
        }
        found.extend(of_node);
    }
    let priority = |it: &Candidate| it.pods.iter().filter_map(|(pod, _)| pod.pod.spec.priority).max().unwrap_or(0);
    let again = |it: &Candidate| (it.looked_ago.is_some(), Reverse(it.looked_ago));
    found.sort_by_cached_key(|it| (it.cause, again(it), Reverse(priority(it)), it.node));
    found
}

/// A node, and what is known of it.
struct Place<'a> {
    seen: &'a Seen,
    known: &'a Known<'a>,
    storage: Storage<'a>,
    node: &'a Node,
    name: &'a str,
    now: Now,
}

impl<'a> Place<'a> {
    /// The pods that are to go because the node has failed.
    fn failed(&self, silence: Silence, is_talked_of: bool) -> Vec<Candidate<'a>> {
        let pods = self.known.pods_of_failed(self.node, self.name);
        let failing = pods.iter().filter(|pod| may_be_released(pod)).filter_map(|pod| {
            let policies = effective(self.seen, pod).filter(|it| it.releases_on_node_failure() && it.releases(pod))?;
            let outside = match is_talked_of {
                true => self.storage.paths.outside(self.node, silence, &self.seen.reports, pod, &policies),
                false => Outside::default(),
            };
            let evidence = evidence::declares(self.node, silence, &pod.pod, &policies, outside, self.now);
            evidence.map(|_| (pod, policies))
        });
        let failing: Vec<_> = failing.collect();
        let is_stored = |pod: &PodView| !self.known.is_remembered(self.name, pod);
        let stored: Vec<_> = failing.iter().filter(|(pod, _)| is_stored(pod)).cloned().collect();
        let waits = stored.is_empty();
        let known = self.candidate(Cause::NodeFailure, failing).map(|known| Candidate { waits, ..known });
        with_another_look(known, self.candidate(Cause::NodeFailure, stored), self.known.outdated(self.name))
    }

    /// The pods that are to go because the node has lost the path to their storage. Who would go, and stays, is told.
    fn without_path(&self, decision: &mut Decision) -> Vec<Candidate<'a>> {
        let on_node = |pods: &'a [PodView]| self.storage.paths.on_node(self.node, pods, &self.seen.reports);
        let (found, restraining) = on_node(self.known.pods(self.name));
        let held = restraining.into_iter().collect::<BTreeSet<_>>().into_iter();
        decision.restrained.extend(held.map(|policy| Restrained {
            node: self.name.into(),
            policy,
            brake: "ArrayOutage",
            about: None,
        }));
        decision.unmoved.extend(found.unmoved);
        self.moving(Cause::StoragePathLoss, found.movers, |pods| on_node(pods).0.movers)
    }

    /// The same because their volumes are tainted.
    fn with_tainted_volumes(&self, decision: &mut Decision) -> Vec<Candidate<'a>> {
        let running = volumes::running(fence_of(self.seen, self.name));
        let on_node = |pods: &'a [PodView]| self.storage.troubles.on_node(self.node, pods, running, self.now);
        let found = on_node(self.known.pods(self.name));
        decision.unmoved.extend(found.unmoved);
        self.moving(Cause::VolumeTaint, found.movers, |pods| on_node(pods).movers)
    }

    /// The pods to move. What an earlier look has shown holds back those whom the stores alone would move, until it is time to look
    /// again.
    fn moving(
        &self,
        cause: Cause,
        movers: Vec<Mover<'a>>,
        by_stores: impl FnOnce(&'a [PodView]) -> Vec<Mover<'a>>,
    ) -> Vec<Candidate<'a>> {
        let pods =
            |movers: Vec<Mover<'a>>| movers.into_iter().map(|mover| (mover.pod, mover.policies)).collect::<Vec<_>>();
        let known = self.candidate(cause, pods(movers));
        let outdated = self.known.outdated(self.name);
        if outdated.is_none() {
            return known.into_iter().collect();
        }
        let stored = self.candidate(cause, pods(by_stores(lately::stored(self.seen, self.name))));
        // What has volumes and is in no store by now is gone. And whether machines are still being migrated into its pods nobody
        // knows: that is no reason to begin anything, or to take a place of others.
        let is_reliable = stored.is_some() && !lately::had_migrations(self.seen, self.name);
        with_another_look(known.filter(|_| is_reliable), stored, outdated)
    }

    /// A candidate with these pods, or those of policies in earnest, where there are such; `None` without any.
    fn candidate(&self, cause: Cause, mut pods: Vec<(&'a PodView, Effective<'a>)>) -> Option<Candidate<'a>> {
        modes::leave_the_earnest(&mut pods);
        let paused = names::paused(&self.node.metadata).map(printable);
        (!pods.is_empty()).then_some(Candidate { node: self.name, paused, cause, pods, looked_ago: None, waits: false })
    }
}

/// A node by all that is known of it, and, where it is time to look again, by the stores alone, if that is anything else: pods that
/// are gone since may be why it is held.
fn with_another_look<'a>(
    known: Option<Candidate<'a>>,
    stored: Option<Candidate<'a>>,
    outdated: Option<Duration>,
) -> Vec<Candidate<'a>> {
    let is_the_same = |stored: &Candidate| known.as_ref().is_some_and(|known| are_alike(known, stored));
    let again = stored.filter(|stored| outdated.is_some() && !is_the_same(stored));
    let again = again.map(|stored| Candidate { looked_ago: outdated, ..stored });
    known.into_iter().chain(again).collect()
}

/// Whether both are about the same pods, and the same policies would act.
fn are_alike(one: &Candidate, other: &Candidate) -> bool {
    let pods = |it: &Candidate| it.pods.iter().map(|(pod, _)| pod.uid().to_owned()).collect::<BTreeSet<_>>();
    let policies = |it: &Candidate| acting(&it.pods).into_keys().map(str::to_owned).collect::<BTreeSet<_>>();
    pods(one) == pods(other) && policies(one) == policies(other)
}
