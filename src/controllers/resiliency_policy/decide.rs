//! One serial pass over the cluster: policies, evidence and open NodeFences in; which NodeFences to open or to grow,
//! and what each policy reports, out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::api::driver_report::DriverReport;
use crate::api::node_fence::{NodeFence, Phase};
use crate::api::resiliency_policy::{ResiliencyPolicy, Restraint, RestraintType};
use crate::api::slim::Node;
use crate::api::time::Now;
use crate::api::usage::PodView;
use crate::api::volume_health::VolumeHealth;
use crate::mutants::{self, Mutant};

use super::brakes::{self, Cluster};
use super::evidence::{self, Silence};
use super::plan::{self, LiveNode, NamespaceLabels};
use super::select::Effective;
use super::volumes::{self, Troubles, Unmoved};
use super::{episodes, heartbeat, policies};

/// What a pass sees.
#[derive(Default)]
pub struct Seen {
    /// All policies.
    pub policies: Vec<Arc<ResiliencyPolicy>>,
    /// All nodes, with what is known of their kubelets.
    pub nodes: Vec<(Arc<Node>, Silence)>,
    /// Pods that use volumes, by node name.
    pub pods: BTreeMap<String, Vec<PodView>>,
    /// Labels of the namespaces.
    pub namespaces: NamespaceLabels,
    /// All NodeFences.
    pub fences: Vec<Arc<NodeFence>>,
    /// What the drivers can answer.
    pub reports: BTreeMap<String, Arc<DriverReport>>,
    /// Drivers whose sidecar has not been heard of lately.
    pub silent_fencers: BTreeSet<String>,
    /// Nodes that were read from the API for this pass.
    pub live: BTreeMap<String, LiveNode>,
    /// Health of the volumes, by PersistentVolume name; none before all of it is known.
    pub healths: BTreeMap<String, Arc<VolumeHealth>>,
    /// Time since this process last saw more nodes suspected than a policy's `maxUnhealthy`, by policy.
    pub outage_seen: BTreeMap<String, Duration>,
    /// The same of nodes with tainted volumes.
    pub array_outage_seen: BTreeMap<String, Duration>,
    /// Whether counts of pods may be written in this pass.
    pub counts_due: bool,
}

/// What to do; each carries what makes it safe to do late or twice.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Put our finalizer on a policy.
    Guard(Arc<ResiliencyPolicy>),
    /// Take our finalizer off a policy that is being deleted.
    Unguard(Arc<ResiliencyPolicy>),
    /// Create a NodeFence with its plan.
    Open(Box<NodeFence>),
    /// Replace the spec of a NodeFence at the resourceVersion it carries: a new episode, or a grown plan.
    Replan(Box<NodeFence>),
    /// Write a policy's status at the resourceVersion it carries.
    Record(Box<ResiliencyPolicy>),
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
}

/// The outcome of a pass.
#[derive(Debug, Default)]
pub struct Decision {
    /// Nodes to read from the API before anything is opened for them; decide again with them.
    pub look_at: Vec<String>,
    /// What to do, in order.
    pub effects: Vec<Effect>,
    /// Nodes whose heartbeat is lost. They do not count for `maxUnhealthy`.
    pub lost: BTreeSet<String>,
    /// Suspected nodes, with those.
    pub suspected: BTreeSet<String>,
    /// Policies for which more nodes are suspected than `maxUnhealthy`.
    pub outage: BTreeSet<String>,
    /// Policies for which volumes of more nodes are tainted than `maxUnhealthy`.
    pub array_outage: BTreeSet<String>,
    /// Nodes that a brake holds back.
    pub restrained: Vec<Restrained>,
    /// Pods that stay though their volumes are tainted.
    pub unmoved: Vec<Unmoved>,
    /// When to look again though nothing changed.
    pub look_again: Option<Duration>,
}

/// Decides the next step of the whole cluster.
pub fn decide(seen: &Seen, now: Now) -> Decision {
    let mut decision = Decision { suspected: suspected(seen), ..Decision::default() };
    let cluster = Cluster { nodes: seen.nodes.len(), suspected: decision.suspected.len() };
    let troubles = Troubles::new(seen);
    let mut brakes: BTreeMap<&str, PolicyBrakes> = BTreeMap::new();
    for policy in &seen.policies {
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        let outage = brakes::outage_restraint(policy, cluster, seen.outage_seen.get(name).copied(), now.wall);
        if brakes::is_outage(&policy.spec.limits, cluster) {
            decision.outage.insert(name.to_owned());
        }
        let array = troubled(seen, &troubles, policy, &decision.suspected);
        if array.is_some_and(|cluster| brakes::is_outage(&policy.spec.limits, cluster)) {
            decision.array_outage.insert(name.to_owned());
        }
        let array = brakes::array_restraint(policy, array, seen.array_outage_seen.get(name).copied(), now.wall);
        brakes.insert(name, PolicyBrakes::new(policy, seen, (outage, array), now));
    }
    let candidates = candidates(seen, &troubles, &mut decision.unmoved, now);
    for candidate in candidates {
        consider(seen, &troubles, &candidate, &mut brakes, &mut decision, now);
    }
    policies::guard(seen, &mut decision);
    policies::record_all(seen, &brakes, &mut decision, now);
    decision.lost = lost(seen);
    decision.suspected.extend(decision.lost.iter().cloned());
    decision.look_again = look_again(seen, &decision, now);
    decision
}

/// The nodes that a taint of a volume speaks of, as `maxUnhealthy` counts them: together with those that are suspected.
fn troubled(
    seen: &Seen,
    troubles: &Troubles,
    policy: &ResiliencyPolicy,
    suspected: &BTreeSet<String>,
) -> Option<Cluster> {
    let troubled = troubles.nodes(policy);
    let all = seen.nodes.iter().filter_map(|(node, _)| node.metadata.name.as_ref());
    let counted = all.filter(|name| troubled.contains(*name) || suspected.contains(*name)).count();
    (!troubled.is_empty()).then_some(Cluster { nodes: seen.nodes.len(), suspected: counted })
}

/// The brakes of a policy in a pass.
pub(super) struct PolicyBrakes {
    /// Too many nodes are suspected, or were lately.
    pub(super) outage: Option<Restraint>,
    /// Volumes of too many nodes are tainted, or were lately.
    pub(super) array: Option<Restraint>,
    /// Nodes that count.
    pub(super) acted_on: usize,
    /// How many may.
    pub(super) limit: usize,
    /// The budget has held a node back.
    pub(super) exhausted: bool,
}

impl PolicyBrakes {
    fn new(
        policy: &ResiliencyPolicy,
        seen: &Seen,
        (outage, array): (Option<Restraint>, Option<Restraint>),
        now: Now,
    ) -> Self {
        Self {
            outage,
            array,
            acted_on: if mutants::is_on(Mutant::BrakeCountedPerPass) {
                0
            } else {
                brakes::acted_on(policy, &seen.fences, now.wall)
            },
            limit: brakes::limit(&policy.spec.limits, seen.nodes.len()),
            exhausted: false,
        }
    }

    /// The brake that holds a node; one that counts already needs no further budget.
    fn held_by(&self, cause: Cause, is_counted: bool) -> Option<&'static str> {
        match &self.outage {
            Some(restraint) if restraint.type_ == RestraintType::CorrelatedOutage => Some("CorrelatedOutage"),
            Some(_) => Some("Cooldown"),
            None if cause == Cause::VolumeTaint && self.array.is_some() => Some("ArrayOutage"),
            None if !is_counted && self.acted_on >= self.limit => Some("BudgetExhausted"),
            None => None,
        }
    }
}

fn suspected(seen: &Seen) -> BTreeSet<String> {
    let after = seen.policies.iter().map(|policy| policy.spec.detection.kubelet.suspect_after.get()).min();
    let after = after.unwrap_or(Duration::MAX);
    let nodes = seen
        .nodes
        .iter()
        .filter(|(node, silence)| evidence::is_suspected(node, *silence, after) || is_tainted_for_a_pod(seen, node));
    nodes.filter_map(|(node, _)| node.metadata.name.clone()).collect()
}

fn lost(seen: &Seen) -> BTreeSet<String> {
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

/// The policies that protect a pod.
pub(super) fn effective<'a>(seen: &'a Seen, pod: &PodView) -> Option<Effective<'a>> {
    let none = BTreeMap::new();
    let labels = seen.namespaces.get(pod.namespace()).unwrap_or(&none);
    Effective::of(pod, labels, live_policies(seen))
}

/// Policies that may still act: not those that are being deleted.
fn live_policies(seen: &Seen) -> impl Iterator<Item = &ResiliencyPolicy> + Clone {
    seen.policies.iter().map(Arc::as_ref).filter(|policy| policy.metadata.deletion_timestamp.is_none())
}

/// Why pods of a node are to be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// It has failed.
    NodeFailure,
    /// It is well, and their volumes are tainted there.
    VolumeTaint,
}

/// A node, with the pods that are to be released.
struct Candidate<'a> {
    node: &'a str,
    cause: Cause,
    pods: Vec<(&'a PodView, Effective<'a>)>,
}

/// Nodes that the stores show failed for a protected pod, and then those where volumes of protected pods are tainted; of
/// each the one with the highest pod priority first.
fn candidates<'a>(seen: &'a Seen, troubles: &'a Troubles, unmoved: &mut Vec<Unmoved>, now: Now) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    for (node, silence) in &seen.nodes {
        let Some(name) = node.metadata.name.as_deref() else { continue };
        let pods = seen.pods.get(name).map(Vec::as_slice).unwrap_or_default();
        let failing = pods.iter().filter(|pod| may_be_released(pod)).filter_map(|pod| {
            let policies = effective(seen, pod).filter(Effective::releases_on_node_failure)?;
            evidence::declares(node, *silence, &pod.pod, &policies, now).map(|_| (pod, policies))
        });
        let failing: Vec<_> = failing.collect();
        if !failing.is_empty() {
            found.push(Candidate { node: name, cause: Cause::NodeFailure, pods: failing });
            continue;
        }
        let running = volumes::running(fence_of(seen, name));
        let troubled = troubles.on_node(node, pods, running, now);
        unmoved.extend(troubled.unmoved);
        let movers: Vec<_> = troubled.movers.into_iter().map(|mover| (mover.pod, mover.policies)).collect();
        if !movers.is_empty() {
            found.push(Candidate { node: name, cause: Cause::VolumeTaint, pods: movers });
        }
    }
    let priority = |it: &Candidate| it.pods.iter().filter_map(|(pod, _)| pod.pod.spec.priority).max().unwrap_or(0);
    found.sort_by_cached_key(|it| (it.cause, std::cmp::Reverse(priority(it)), it.node));
    found
}

fn fence_of<'a>(seen: &'a Seen, node: &str) -> Option<&'a NodeFence> {
    seen.fences.iter().map(Arc::as_ref).find(|fence| fence.metadata.name.as_deref() == Some(node))
}

/// Whether a pod is of those that are released at all.
pub(super) fn may_be_released(pod: &PodView) -> bool {
    let kind = pod.pod.controller_kind();
    !pod.volumes.is_empty()
        && kind.is_some_and(|kind| kind != "DaemonSet")
        && !pod.pod.is_finished()
        && !pod.pod.is_static()
}

fn consider(
    seen: &Seen,
    troubles: &Troubles,
    candidate: &Candidate,
    brakes: &mut BTreeMap<&str, PolicyBrakes>,
    decision: &mut Decision,
    now: Now,
) {
    let (name, pods) = (candidate.node, &candidate.pods);
    let fence = fence_of(seen, name);
    let phase = fence.map(brakes::phase);
    let begins = match candidate.cause {
        Cause::NodeFailure => matches!(phase, None | Some(Phase::Recovered | Phase::Cleaning)),
        // What an incident of the node has cut off is in trouble because of it: that must be over first.
        Cause::VolumeTaint => matches!(phase, None | Some(Phase::Recovered)),
    };
    let is_other = candidate.cause == Cause::VolumeTaint && volumes::running(fence).is_none();
    if fence.is_some() && !begins && (is_other || !lacks(fence, pods)) {
        return;
    }
    // A plan that grows by the pods of a further policy is that policy's doing, and in an outage nothing grows.
    if let Some(held) = held(candidate, fence, brakes, now) {
        decision.restrained.push(held);
        return;
    }
    let Some(live) = seen.live.get(name) else {
        decision.look_at.push(name.to_owned());
        // No more nodes are read than could be acted on.
        count(pods, fence, brakes, now);
        return;
    };
    // The live Lease moved: the node is back, whatever the watch says (KEP-5647's lesson).
    let is_back = candidate.cause == Cause::NodeFailure && !live.lease_is_still;
    if is_back && !mutants::is_on(Mutant::NoLiveReread) {
        return;
    }
    let episode = fence.map_or(1, |fence| if begins { fence.spec.episode + 1 } else { fence.spec.episode });
    let draft = match candidate.cause {
        Cause::NodeFailure => plan::draft(live, live_policies(seen), &seen.namespaces, episode, now),
        Cause::VolumeTaint => troubles.draft(live, volumes::running(fence), episode, now),
    };
    let effect = draft.and_then(|draft| match fence {
        None => Some(episodes::open(name, live, draft)),
        Some(fence) if begins => Some(episodes::reopen(fence, live, draft)),
        Some(fence) => episodes::grow(fence, live, draft, now),
    });
    if let Some(effect) = effect {
        count(pods, fence, brakes, now);
        decision.effects.push(effect);
    }
}

/// Counts the node against the budgets of the policies that would act, where it does not count already.
fn count(
    pods: &[(&PodView, Effective)],
    fence: Option<&NodeFence>,
    brakes: &mut BTreeMap<&str, PolicyBrakes>,
    now: Now,
) {
    for (name, policy) in acting(pods) {
        let is_counted = fence.is_some_and(|fence| brakes::counts(policy, fence, now.wall));
        if let Some(brake) = brakes.get_mut(name).filter(|_| !is_counted) {
            brake.acted_on += 1;
        }
    }
}

/// Whether the plan of an open NodeFence lacks one of these pods. One that came later and never started there is no
/// victim of the failure: its owner put it back (by `nodeName`, or since it tolerates every taint), and would do so again
/// each time it is released.
fn lacks(fence: Option<&NodeFence>, pods: &[(&PodView, Effective)]) -> bool {
    let Some(fence) = fence else { return true };
    let started = pods.iter().filter(|(pod, _)| pod.pod.is("Initialized"));
    started.into_iter().any(|(pod, _)| !fence.spec.plan.pods.iter().any(|row| row.uid == pod.uid()))
}

/// The policies that would act, each once.
fn acting<'a>(pods: &[(&PodView, Effective<'a>)]) -> BTreeMap<&'a str, &'a ResiliencyPolicy> {
    let policies = pods.iter().flat_map(|(_, effective)| effective.policies().to_vec());
    policies.filter_map(|policy| Some((policy.metadata.name.as_deref()?, policy))).collect()
}

fn held(
    candidate: &Candidate,
    fence: Option<&NodeFence>,
    brakes: &mut BTreeMap<&str, PolicyBrakes>,
    now: Now,
) -> Option<Restrained> {
    for (policy_name, policy) in acting(&candidate.pods) {
        let Some(brake) = brakes.get_mut(policy_name) else { continue };
        let is_counted = fence.is_some_and(|fence| brakes::counts(policy, fence, now.wall));
        if let Some(held_by) = brake.held_by(candidate.cause, is_counted) {
            brake.exhausted |= held_by == "BudgetExhausted";
            return Some(Restrained { node: candidate.node.into(), policy: policy_name.into(), brake: held_by });
        }
    }
    None
}

/// Time alone changes a decision where a span must pass: then look again, never for nothing.
fn look_again(seen: &Seen, decision: &Decision, now: Now) -> Option<Duration> {
    let soon = Duration::from_secs(1);
    let mut waits = Vec::new();
    if !decision.suspected.is_empty() {
        waits.push(soon);
    }
    for restraint in seen.policies.iter().flat_map(|p| p.status.iter()).flat_map(|status| &status.restraints) {
        if let Some(until) = restraint.until {
            waits.push((until - now.wall).to_std().unwrap_or(soon).max(soon));
        }
    }
    if !seen.policies.is_empty() && !seen.nodes.is_empty() {
        waits.push(Duration::from_secs(5));
    }
    waits.into_iter().min()
}
