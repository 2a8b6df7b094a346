//! Whose pods a pass looks at. A large cluster has pods by the ten thousand, and nearly all of them run on nodes of which
//! there is nothing to say: a pass looks at those of the others, and once in a while at all. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::api::resiliency_policy::{DriverPluginDown, ResiliencyPolicy};
use crate::api::slim::Node;
use crate::api::usage::PodView;

use super::conflict::{self, Together};
use super::decide::{self, Seen};
use super::evidence::{self, Silence};
use super::heartbeat;
use super::memory::Found;
use super::unmovable::Unmovable;
use super::{select, storage};

/// The pods that a pass looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All.
    #[default]
    All,
    /// Those of these nodes, and of nodes with pods that fail again and again.
    Nodes(BTreeSet<String>),
}

/// What was counted of a policy when all pods were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Of which generation.
    pub generation: Option<i64>,
    /// Pods that it protects.
    pub protected: usize,
    /// Those of each driver.
    pub drivers: BTreeMap<String, usize>,
    /// Those of these drivers that attach nothing.
    pub unattached: BTreeSet<String>,
    /// Those that would wait whatever is proved.
    pub unmovable: Unmovable,
}

/// What was counted of all policies, by name.
pub type Counts = BTreeMap<String, Counted>;

impl Found {
    /// Leaves the pods that are in scope.
    pub fn narrow(&mut self) {
        let Scope::Nodes(nodes) = &self.scope else { return };
        let node_of = |pod: &PodView| pod.pod.spec.node_name.clone();
        let looping = self.pods.iter().filter(|pod| pod.pod.crash_looping().is_some()).filter_map(node_of);
        let nodes: BTreeSet<_> = nodes.iter().cloned().chain(looping).collect();
        self.pods.retain(|pod| node_of(pod).is_some_and(|node| nodes.contains(&node)));
    }
}

/// Whether something asks for all pods: what is known of a policy is not of now, or what it wants is about the whole cluster.
pub(super) fn is_whole(found: &Found, counts: &Counts) -> bool {
    is_uncounted(found, counts) || is_of_all(found)
}

/// Whether what is counted of a policy is not of now.
fn is_uncounted(found: &Found, counts: &Counts) -> bool {
    found.policies.iter().any(|policy| {
        let status = policy.status.as_ref();
        let known = counts.get(policy.metadata.name.as_deref().unwrap_or_default());
        known.is_none_or(|known| known.generation != policy.metadata.generation)
            || status.and_then(|status| status.observed_generation) != policy.metadata.generation
            || policy.metadata.deletion_timestamp.is_some()
    })
}

/// Whether a policy wants something that is about the whole cluster. Where none does, all pods are looked at only to be counted.
pub(super) fn is_of_all(found: &Found) -> bool {
    let asked: Vec<_> = found.policies.iter().flat_map(|policy| &policy.spec.triggers.volume_taints).collect();
    let is_tainted = || found.healths.iter().any(|it| it.taints().iter().any(|taint| asked.contains(&&taint.key)));
    let asks = |policy: &ResiliencyPolicy| policy.spec.triggers.driver_plugin_down != DriverPluginDown::Ignore;
    found.policies.iter().any(|policy| asks(policy)) || !asked.is_empty() && is_tainted()
}

/// The nodes of which there may be something to say. `nodes`: all of them, with what is believed of their silence.
pub(super) fn nodes<'a>(found: &Found, nodes: impl Iterator<Item = (&'a Node, Silence)>) -> BTreeSet<String> {
    let policies = || found.policies.iter().map(|policy| &policy.spec.detection);
    let kubelet = policies().map(|it| it.kubelet.suspect_after.get()).min().unwrap_or(Duration::MAX);
    let kubelet = kubelet.min(heartbeat::TWO_RENEWALS);
    let agent = policies().map(|it| it.agent.suspect_after.get()).min().unwrap_or(Duration::MAX);
    let talked_of = nodes.filter(|(node, silence)| {
        let is_lost = silence.heartbeat.is_lost(agent) || silence.heartbeat.against.is_some();
        let is_marked = !node.taints().is_empty() || node.metadata.deletion_timestamp.is_some();
        is_marked || is_lost || evidence::is_suspected(node, *silence, kubelet)
    });
    let talked_of = talked_of.filter_map(|(node, _)| node.metadata.name.as_deref());
    let fenced = found.fences.iter().filter_map(|fence| fence.metadata.name.as_deref());
    let pathless = found.reports.iter().flat_map(|report| storage::disconnected(report));
    let off = found.reports.iter().flat_map(|report| report.powered_off()).map(|row| row.node.as_str());
    talked_of.chain(fenced).chain(pathless).chain(off).map(str::to_owned).collect()
}

/// What is counted of each policy: now, where all pods are looked at.
pub(super) fn counts(seen: &Seen) -> Counts {
    match seen.scope {
        Scope::Nodes(_) => seen.counts.clone(),
        Scope::All => {
            let count = |policy: &ResiliencyPolicy| Some((policy.metadata.name.clone()?, counted(seen, policy)));
            seen.policies.iter().filter_map(|policy| count(policy)).collect()
        }
    }
}

/// What is counted of a policy.
pub(super) fn counted(seen: &Seen, policy: &ResiliencyPolicy) -> Counted {
    if let Scope::Nodes(_) = seen.scope {
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        return seen.counts.get(name).cloned().unwrap_or_default();
    }
    let mut counted = Counted::of(policy);
    seen.pods.values().flatten().for_each(|pod| counted.take(seen, policy, pod));
    counted
}

/// Whether the policy protects a pod that may be released.
pub(super) fn is_protected(seen: &Seen, policy: &ResiliencyPolicy, pod: &PodView) -> bool {
    let none = BTreeMap::new();
    let labels = seen.namespaces.get(pod.namespace()).unwrap_or(&none);
    decide::may_be_released(pod) && select::is_releasable(policy, pod) && select::selects(policy, pod, labels)
}

impl Counted {
    /// Nothing is counted yet.
    fn of(policy: &ResiliencyPolicy) -> Self {
        Self { generation: policy.metadata.generation, ..Self::default() }
    }

    /// Counts the pod, if the policy protects it.
    fn take(&mut self, seen: &Seen, policy: &ResiliencyPolicy, pod: &PodView) {
        if !is_protected(seen, policy, pod) {
            return;
        }
        self.protected += 1;
        let unattached = pod.unattached().filter_map(|(_, volume)| volume.csi.as_ref());
        self.unattached.extend(unattached.map(|csi| csi.driver.clone()));
        for driver in pod.drivers().collect::<BTreeSet<_>>() {
            *self.drivers.entry(driver.to_owned()).or_default() += 1;
        }
        self.unmovable.count(seen, pod);
    }
}

/// Counts pods that come one after the other: all of a large cluster need not be there together. What comes of it is what comes
/// of a look at all.
pub(super) struct Tally<'a> {
    seen: &'a Seen,
    counted: Vec<(&'a ResiliencyPolicy, Counted)>,
    together: Together<'a>,
}

impl<'a> Tally<'a> {
    /// Nothing is counted yet. The pods that are seen do not count by themselves.
    pub(super) fn new(seen: &'a Seen) -> Self {
        let counted = seen.policies.iter().map(|policy| (policy.as_ref(), Counted::of(policy))).collect();
        Self { seen, counted, together: Together::new() }
    }

    /// Counts a pod. One that is bound to no node is on none that could fail.
    pub(super) fn take(&mut self, pod: &PodView) {
        if pod.pod.spec.node_name.is_none() {
            return;
        }
        self.counted.iter_mut().for_each(|(policy, counted)| counted.take(self.seen, policy, pod));
        conflict::note(self.seen, pod, &mut self.together);
    }

    /// What was counted of each policy, and what overrules which.
    pub(super) fn finish(self) -> (Counts, BTreeMap<String, String>) {
        let named = self.counted.into_iter().filter_map(|(policy, it)| Some((policy.metadata.name.clone()?, it)));
        (named.collect(), conflict::told(self.seen, &self.together))
    }
}
