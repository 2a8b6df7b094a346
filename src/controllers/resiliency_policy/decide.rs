//! One serial pass over the cluster: policies, evidence and open NodeFences in; which NodeFences to open or to grow,
//! and what each policy reports, out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;

use crate::api::driver_report::DriverReport;
use crate::api::fence_request::FenceRequest;
use crate::api::node_fence::{NodeFence, Phase};
use crate::api::proof::Fencers;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::Node;
use crate::api::time::Now;
use crate::api::usage::PodView;
use crate::api::volume_health::VolumeHealth;
use crate::mutants::{self, Mutant};

use super::brakes::{self, Cluster};
use super::candidates::{Candidate, Cause, Storage, candidates};
use super::crash_loops::{self, CrashLoops};
use super::evidence::Silence;
use super::lately::{self, Known, Lately};
use super::plan::{self, LiveNode, NamespaceLabels};
use super::policy_brakes::PolicyBrakes;
use super::power::{self, AllTold, Contradicted};
use super::scope::{Counts, Scope};
use super::select::Effective;
use super::storage::{self, Paths, PluginsAway};
use super::volumes::{self, Troubles, Unmoved};
use super::{episodes, growth, holding, machines, modes, plugins, policies, unhealthy, volumeless};

/// How often a pass looks at nodes: where nothing is begun on one of them after all, the next has its place in the budget.
pub const LOOKS: usize = 4;

/// How soon is looked again while a node is suspected.
pub const SOON: Duration = Duration::from_secs(1);
/// How soon while nothing happens.
pub const AT_REST: Duration = Duration::from_secs(5);

/// What a pass sees.
#[derive(Clone, Default)]
pub struct Seen {
    /// All policies.
    pub policies: Vec<Arc<ResiliencyPolicy>>,
    /// All nodes, with what is known of their kubelets.
    pub nodes: Vec<(Arc<Node>, Silence)>,
    /// Whose pods are looked at.
    pub scope: Scope,
    /// Pods in scope that use volumes, by node name.
    pub pods: BTreeMap<String, Vec<PodView>>,
    /// What was counted of the policies when all pods were looked at last.
    pub counts: Counts,
    /// What overrules which policy, by its name, where all pods were counted for this pass one after the other.
    pub conflicts: Option<BTreeMap<String, String>>,
    /// Labels of the namespaces.
    pub namespaces: NamespaceLabels,
    /// All NodeFences.
    pub fences: Vec<Arc<NodeFence>>,
    /// The FenceRequests of the nodes.
    pub requests: BTreeMap<String, Vec<Arc<FenceRequest>>>,
    /// What the drivers can answer, and external fencers see.
    pub reports: BTreeMap<String, Arc<DriverReport>>,
    /// Drivers whose sidecar has not been heard of lately.
    pub silent_fencers: BTreeSet<String>,
    /// External fencers that a policy names and that have no Lease.
    pub missing_fencers: BTreeSet<String>,
    /// External fencers that a policy names and whose Lease was not seen to move yet: whether they are there is unknown.
    pub unproved_fencers: BTreeSet<String>,
    /// What external fencers say of nodes without power, by node.
    pub off: AllTold,
    /// Nodes that were read from the API for this pass.
    pub live: BTreeMap<String, LiveNode>,
    /// Nodes that were to be read for this pass and are gone.
    pub gone: BTreeSet<String>,
    /// Nodes that could not be read for the last pass.
    pub unread: BTreeSet<String>,
    /// What looks at nodes have shown lately that no store has.
    pub lately: BTreeMap<String, Lately>,
    /// Health of the volumes, by PersistentVolume name; none before all of it is known.
    pub healths: BTreeMap<String, Arc<VolumeHealth>>,
    /// Time since this process last saw more nodes suspected than a policy's `maxUnhealthy`, by policy.
    pub outage_seen: BTreeMap<String, Duration>,
    /// The same of nodes with tainted volumes or a lost path.
    pub array_outage_seen: BTreeMap<String, Duration>,
    /// Nodes that were lately looked at for pods without volumes.
    pub looked_for_volumeless: BTreeSet<String>,
    /// Plugins of drivers that were away when this process saw them last, of paths that are told to be lost.
    pub plugins_away: PluginsAway,
    /// Time since this process last saw a storage backend out for everyone, by backend.
    pub backend_outage_seen: BTreeMap<String, Duration>,
    /// Whether counts of pods may be written in this pass.
    pub counts_due: bool,
}

impl Seen {
    /// What is known of the kubelet of a node.
    pub fn silence(&self, node: &str) -> Silence {
        let known = self.nodes.iter().find(|(known, _)| known.metadata.name.as_deref() == Some(node));
        known.map(|(_, silence)| *silence).unwrap_or_default()
    }

    /// What is known of those who can fence a driver's volumes.
    pub fn fencers<'a>(&'a self, driver: &'a str) -> Fencers<'a> {
        let report = self.reports.get(driver).map(AsRef::as_ref);
        Fencers { driver, report, silent: &self.silent_fencers, missing: &self.missing_fencers }
    }
}

/// What to do; each carries what makes it safe to do late or twice.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Put our finalizer on a policy.
    AddFinalizer(Arc<ResiliencyPolicy>),
    /// Take our finalizer off a policy that is being deleted.
    RemoveFinalizer(Arc<ResiliencyPolicy>),
    /// Create a NodeFence with its plan.
    Open(Box<NodeFence>),
    /// Replace the spec of a NodeFence at the resourceVersion it carries: a new episode, or a grown plan.
    Replan(Box<NodeFence>),
    /// Write a policy's status at the resourceVersion it carries.
    Record(Box<ResiliencyPolicy>),
    /// Delete a pod of this uid and resourceVersion, in its own time: it fails again and again where it is.
    Reschedule {
        /// The pod.
        pod: PodView,
        /// Why, for people.
        note: String,
    },
    /// Add a taint to the node as it was seen.
    AddTaint {
        /// The taint.
        taint: Taint,
        /// The node.
        node: Arc<Node>,
    },
    /// Remove a taint from the node as it was seen.
    RemoveTaint {
        /// The taint.
        taint: Taint,
        /// The node.
        node: Arc<Node>,
    },
}

/// Why a failed node is not acted on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Restrained {
    /// The node.
    pub node: String,
    /// The policy whose brake holds.
    pub policy: String,
    /// The brake.
    pub brake: &'static str,
    /// What the brake is about: a topology domain, a window, a person's reason.
    pub about: Option<String>,
}

/// The outcome of a pass.
#[derive(Debug, Default)]
pub struct Decision {
    /// Nodes to read from the API before anything is opened for them; decide again with them.
    pub look_at: Vec<String>,
    /// Those of them that are looked at for pods without volumes only.
    pub looked_for_volumeless: Vec<String>,
    /// Nodes that could not be read for this pass.
    pub unread: BTreeSet<String>,
    /// How many are read again for this pass after a look in vain.
    pub looked_again: usize,
    /// What looks have shown that the next pass is to know.
    pub lately: BTreeMap<String, Lately>,
    /// What is counted of the policies.
    pub counts: Counts,
    /// What to do, in order.
    pub effects: Vec<Effect>,
    /// Nodes whose heartbeat is lost. They do not count for `maxUnhealthy`.
    pub lost: BTreeSet<String>,
    /// Suspected nodes, with those.
    pub suspected: BTreeSet<String>,
    /// Policies for which more nodes are suspected than `maxUnhealthy`.
    pub outage: BTreeSet<String>,
    /// Policies for which volumes of more nodes are tainted, or paths lost, than `maxUnhealthy`.
    pub array_outage: BTreeSet<String>,
    /// Storage backends that are out for everyone.
    pub backend_outage: BTreeSet<String>,
    /// Nodes that a fencer calls off and that are heard, with what is heard.
    pub contradicted: Contradicted,
    /// Nodes that a brake holds back.
    pub restrained: Vec<Restrained>,
    /// Pods that stay though their volumes are tainted.
    pub unmoved: Vec<Unmoved>,
    /// Pods in CrashLoopBackOff.
    pub crash_loops: CrashLoops,
    /// Taints of plugins that are not ready.
    pub plugins_down: usize,
    /// When to look again though nothing changed.
    pub look_again: Option<Duration>,
}

impl Decision {
    /// Asks for a node to be read from the API.
    pub(super) fn look(&mut self, node: &str) {
        if !self.look_at.iter().any(|known| known == node) {
            self.look_at.push(node.to_owned());
        }
    }
}

/// Decides the next step of the whole cluster.
pub fn decide(seen: &Seen, now: Now) -> Decision {
    let (suspected, looked_again) = (unhealthy::suspected(seen), lately::looked_again(seen));
    let mut decision = Decision { suspected, looked_again, ..Decision::default() };
    let cluster = Cluster { nodes: seen.nodes.len(), suspected: decision.suspected.len() };
    let troubles = Troubles::new(seen);
    let mut brakes: BTreeMap<&str, PolicyBrakes> = BTreeMap::new();
    for policy in seen.policies.iter().map(Arc::as_ref) {
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        let outage = brakes::outage_restraint(policy, cluster, seen.outage_seen.get(name).copied(), now.wall);
        if brakes::is_outage(&policy.spec.limits, cluster) {
            decision.outage.insert(name.to_owned());
        }
        brakes.insert(name, PolicyBrakes::new(policy, seen, outage, now));
    }
    let storage = Storage { troubles: &troubles, paths: &Paths::new(seen, &brakes, now) };
    unhealthy::restrain(seen, storage, &mut brakes, &mut decision, now);
    decision.backend_outage = storage::outages(seen);
    decision.contradicted = power::contradicted(seen);
    volumeless::look_for(seen, &brakes, &mut decision);
    let known = Known::new(seen);
    let candidates = candidates(seen, &known, storage, &mut decision, now);
    let busy: BTreeSet<_> = candidates.iter().map(|candidate| candidate.node.to_owned()).collect();
    for candidate in candidates {
        consider(seen, storage, &candidate, &mut brakes, &mut decision, now);
    }
    lately::remember(seen, &troubles, &mut decision);
    plugins::taint(seen, &mut decision, now);
    crash_loops::reschedule(seen, &busy, &brakes, &mut decision, now);
    policies::guard(seen, &mut decision);
    policies::record_all(seen, &brakes, &mut decision, now);
    decision.lost = unhealthy::lost(seen);
    decision.suspected.extend(decision.lost.iter().cloned());
    decision.look_again = look_again(seen, &decision, now);
    decision
}

/// The policies that protect a pod.
pub fn effective<'a>(seen: &'a Seen, pod: &PodView) -> Option<Effective<'a>> {
    let none = BTreeMap::new();
    let labels = seen.namespaces.get(pod.namespace()).unwrap_or(&none);
    Effective::of(pod, labels, live_policies(seen))
}

/// Policies that may still act: not those that are being deleted.
pub fn live_policies(seen: &Seen) -> impl Iterator<Item = &ResiliencyPolicy> + Clone {
    seen.policies.iter().map(Arc::as_ref).filter(|policy| policy.metadata.deletion_timestamp.is_none())
}

/// The NodeFence of a node.
pub(super) fn fence_of<'a>(seen: &'a Seen, node: &str) -> Option<&'a NodeFence> {
    seen.fences.iter().map(Arc::as_ref).find(|fence| fence.metadata.name.as_deref() == Some(node))
}

/// Whether a pod is of those that are released at all: none that belongs to its node, or has ended.
pub(super) fn may_be_released(pod: &PodView) -> bool {
    pod.pod.controller_kind() != Some("DaemonSet") && !pod.pod.is_finished() && !pod.pod.is_static()
}

fn consider(
    seen: &Seen,
    storage: Storage,
    candidate: &Candidate,
    brakes: &mut BTreeMap<&str, PolicyBrakes>,
    decision: &mut Decision,
    now: Now,
) {
    let (name, pods) = (candidate.node, &candidate.pods);
    let fence = fence_of(seen, name);
    let phase = fence.map(brakes::phase);
    let begins = match candidate.cause {
        Cause::NodeFailure | Cause::StoragePathLoss => {
            matches!(phase, None | Some(Phase::Recovered | Phase::Cleaning))
        }
        // What an incident of the node has cut off is in trouble because of it: that must be over first.
        Cause::VolumeTaint => matches!(phase, None | Some(Phase::Recovered)),
    };
    let begins = begins || modes::ends_rehearsal(fence, pods);
    // Only an incident of the same kind grows by it; one of the whole node holds all its pods.
    let is_other = match candidate.cause {
        Cause::NodeFailure => false,
        Cause::StoragePathLoss => storage::running(fence).is_none(),
        Cause::VolumeTaint => volumes::running(fence).is_none(),
    };
    let widens = candidate.cause == Cause::NodeFailure && fence.is_some_and(|fence| growth::widens(&fence.spec.plan));
    let is_news = widens || growth::lacks(fence, pods);
    if fence.is_some() && !begins && (is_other || !is_news) || modes::disturbs(fence, pods) {
        return;
    }
    // A plan that grows by the pods of a further policy is that policy's doing, and in an outage nothing grows.
    let held = holding::held(candidate, fence, brakes, now);
    if let Some(held) = held.or_else(|| machines::held(seen, candidate, fence?, begins)) {
        holding::tell(candidate, held, brakes, decision);
        return;
    }
    let Some(live) = seen.live.get(name) else {
        if !candidate.waits && !seen.gone.contains(name) {
            holding::ask(seen, candidate, fence, brakes, decision, now);
        }
        return;
    };
    // The live Lease moved: the node is back, whatever the watch says (KEP-5647's lesson).
    let is_back = candidate.cause == Cause::NodeFailure && !live.lease_is_still;
    if is_back && !mutants::is_on(Mutant::NoLiveReread) {
        return;
    }
    let episode = fence.map_or(1, |fence| if begins { fence.spec.episode + 1 } else { fence.spec.episode });
    let draft = match candidate.cause {
        Cause::NodeFailure => plan::draft(live, live_policies(seen), &seen.namespaces, storage.paths, episode, now),
        Cause::StoragePathLoss => storage.paths.draft(live, episode, now),
        Cause::VolumeTaint => storage.troubles.draft(live, volumes::running(fence), episode, now),
    };
    let draft = draft.filter(|draft| modes::fits(fence, begins, draft));
    let effect = draft.and_then(|draft| match fence {
        None => Some(episodes::open(name, live, draft)),
        Some(fence) if begins => Some(episodes::reopen(fence, live, draft)),
        Some(fence) => episodes::grow(fence, live, draft, now),
    });
    if let Some(effect) = effect {
        holding::count(candidate, fence, brakes, now);
        decision.effects.push(effect);
    }
}

/// Time alone changes a decision where a span must pass: then look again, never for nothing.
fn look_again(seen: &Seen, decision: &Decision, now: Now) -> Option<Duration> {
    let mut waits = Vec::new();
    if !decision.suspected.is_empty() {
        waits.push(SOON);
    }
    for restraint in seen.policies.iter().flat_map(|p| p.status.iter()).flat_map(|status| &status.restraints) {
        if let Some(until) = restraint.until {
            waits.push((until - now.wall).to_std().unwrap_or(SOON).max(SOON));
        }
    }
    if !seen.policies.is_empty() && !seen.nodes.is_empty() {
        waits.push(AT_REST);
    }
    waits.into_iter().min()
}
