//! One serial pass over the cluster: policies, evidence and open NodeFences in; which NodeFences to open or to grow,
//! and what each policy reports, out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::api::driver_report::DriverReport;
use crate::api::names;
use crate::api::node_fence::{NodeFence, NodeFenceSpec, Phase, VolumeStatusState};
use crate::api::resiliency_policy::{ResiliencyPolicy, ResiliencyPolicyStatus, Restraint, RestraintType};
use crate::api::slim::Node;
use crate::api::time::{self, Now};
use crate::api::usage::PodView;
use crate::mutants::{self, Mutant};

use super::brakes::{self, Cluster};
use super::evidence::{self, Silence};
use super::plan::{self, LiveNode, NamespaceLabels};
use super::select::Effective;
use super::status;

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
    /// Time since this process last saw more nodes suspected than a policy's `maxUnhealthy`, by policy.
    pub outage_seen: BTreeMap<String, Duration>,
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
    /// Suspected nodes.
    pub suspected: BTreeSet<String>,
    /// Policies for which more nodes are suspected than `maxUnhealthy`.
    pub outage: BTreeSet<String>,
    /// Nodes that a brake holds back.
    pub restrained: Vec<Restrained>,
    /// When to look again though nothing changed.
    pub look_again: Option<Duration>,
}

/// Decides the next step of the whole cluster.
pub fn decide(seen: &Seen, now: Now) -> Decision {
    let mut decision = Decision { suspected: suspected(seen), ..Decision::default() };
    let cluster = Cluster { nodes: seen.nodes.len(), suspected: decision.suspected.len() };
    let mut brakes: BTreeMap<&str, PolicyBrakes> = BTreeMap::new();
    for policy in &seen.policies {
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        let outage = brakes::outage_restraint(policy, cluster, seen.outage_seen.get(name).copied(), now.wall);
        if brakes::is_outage(&policy.spec.limits, cluster) {
            decision.outage.insert(name.to_owned());
        }
        brakes.insert(name, PolicyBrakes::new(policy, seen, outage, now));
    }
    for (name, pods) in candidates(seen, now) {
        consider(seen, &name, &pods, &mut brakes, &mut decision, now);
    }
    guard_policies(seen, &mut decision);
    record_policies(seen, brakes, &mut decision, now);
    decision.look_again = look_again(seen, &decision, now);
    decision
}

struct PolicyBrakes {
    outage: Option<Restraint>,
    acted_on: usize,
    limit: usize,
    exhausted: bool,
}

impl PolicyBrakes {
    fn new(policy: &ResiliencyPolicy, seen: &Seen, outage: Option<Restraint>, now: Now) -> Self {
        Self {
            outage,
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
    fn held_by(&self, is_counted: bool) -> Option<&'static str> {
        match &self.outage {
            Some(restraint) if restraint.type_ == RestraintType::CorrelatedOutage => Some("CorrelatedOutage"),
            Some(_) => Some("Cooldown"),
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

/// Channel Taint counts for `maxUnhealthy` too: a taint put on every node by mistake must not empty the cluster.
fn is_tainted_for_a_pod(seen: &Seen, node: &Node) -> bool {
    let pods = node.metadata.name.as_ref().and_then(|name| seen.pods.get(name));
    pods.into_iter().flatten().filter(|pod| pod.pod.is("Initialized") && !pod.pod.is("Ready")).any(|pod| {
        effective(seen, pod).is_some_and(|policies| node.taints().iter().any(|taint| policies.counts_taint(taint)))
    })
}

fn effective<'a>(seen: &'a Seen, pod: &PodView) -> Option<Effective<'a>> {
    let none = BTreeMap::new();
    let labels = seen.namespaces.get(pod.namespace()).unwrap_or(&none);
    Effective::of(pod, labels, live_policies(seen))
}

/// Policies that may still act: not those that are being deleted.
fn live_policies(seen: &Seen) -> impl Iterator<Item = &ResiliencyPolicy> + Clone {
    seen.policies.iter().map(Arc::as_ref).filter(|policy| policy.metadata.deletion_timestamp.is_none())
}

/// Nodes that the stores show failed for a protected pod, the one with the highest pod priority first.
fn candidates<'a>(seen: &'a Seen, now: Now) -> Vec<(String, Vec<(&'a PodView, Effective<'a>)>)> {
    let mut found = Vec::new();
    for (node, silence) in &seen.nodes {
        let Some(name) = node.metadata.name.clone() else { continue };
        let pods = seen.pods.get(&name).map(Vec::as_slice).unwrap_or_default();
        let failing = pods.iter().filter(|pod| may_be_released(pod)).filter_map(|pod| {
            let policies = effective(seen, pod).filter(Effective::releases_on_node_failure)?;
            evidence::declares(node, *silence, &pod.pod, &policies, now).map(|_| (pod, policies))
        });
        let failing: Vec<_> = failing.collect();
        let priority = failing.iter().filter_map(|(pod, _)| pod.pod.spec.priority).max().unwrap_or(0);
        if !failing.is_empty() {
            found.push((priority, name, failing));
        }
    }
    found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    found.into_iter().map(|(_, name, pods)| (name, pods)).collect()
}

fn may_be_released(pod: &PodView) -> bool {
    let kind = pod.pod.controller_kind();
    !pod.volumes.is_empty()
        && kind.is_some_and(|kind| kind != "DaemonSet")
        && !pod.pod.is_finished()
        && !pod.pod.is_static()
}

fn consider(
    seen: &Seen,
    name: &str,
    pods: &[(&PodView, Effective)],
    brakes: &mut BTreeMap<&str, PolicyBrakes>,
    decision: &mut Decision,
    now: Now,
) {
    let fence = seen.fences.iter().find(|fence| fence.metadata.name.as_deref() == Some(name));
    let begins = fence.is_none_or(|fence| matches!(brakes::phase(fence), Phase::Recovered | Phase::Cleaning));
    if fence.is_some() && !begins && !lacks(fence, pods) {
        return;
    }
    // A plan that grows by the pods of a further policy is that policy's doing, and in an outage nothing grows.
    if let Some(held) = held(name, fence.map(Arc::as_ref), pods, brakes, now) {
        decision.restrained.push(held);
        return;
    }
    let Some(live) = seen.live.get(name) else {
        decision.look_at.push(name.to_owned());
        // No more nodes are read than could be acted on.
        count(pods, fence.map(Arc::as_ref), brakes, now);
        return;
    };
    // The live Lease moved: the node is back, whatever the watch says (KEP-5647's lesson).
    if !live.lease_is_still && !mutants::is_on(Mutant::NoLiveReread) {
        return;
    }
    let effect = match fence {
        None => open(seen, name, live, now),
        Some(fence) if begins => reopen(seen, fence, live, now),
        Some(fence) => grow(seen, fence, live, now),
    };
    if let Some(effect) = effect {
        count(pods, fence.map(Arc::as_ref), brakes, now);
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
fn lacks(fence: Option<&Arc<NodeFence>>, pods: &[(&PodView, Effective)]) -> bool {
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
    name: &str,
    fence: Option<&NodeFence>,
    pods: &[(&PodView, Effective)],
    brakes: &mut BTreeMap<&str, PolicyBrakes>,
    now: Now,
) -> Option<Restrained> {
    for (policy_name, policy) in acting(pods) {
        let Some(brake) = brakes.get_mut(policy_name) else { continue };
        let is_counted = fence.is_some_and(|fence| brakes::counts(policy, fence, now.wall));
        if let Some(held_by) = brake.held_by(is_counted) {
            brake.exhausted |= held_by == "BudgetExhausted";
            return Some(Restrained { node: name.into(), policy: policy_name.into(), brake: held_by });
        }
    }
    None
}

fn open(seen: &Seen, name: &str, live: &LiveNode, now: Now) -> Option<Effect> {
    let draft = plan::draft(live, live_policies(seen), &seen.namespaces, 1, now)?;
    let mut fence = NodeFence::new(
        name,
        NodeFenceSpec { episode: 1, node: plan::identity(&live.node), policies: draft.policies, plan: draft.plan },
    );
    fence.metadata.finalizers = Some(vec![names::NODE_CLEAN_FINALIZER.into()]);
    // The label comes before the taint, and with the plan it costs no write. An incident that will be held for its
    // identity is not active.
    if fence.spec.plan.volumes.iter().all(|volume| volume.node_id.is_some() || volume.methods.is_empty()) {
        fence.metadata.labels = Some(BTreeMap::from([(names::ACTIVE_LABEL.into(), "true".into())]));
    }
    Some(Effect::Open(Box::new(fence)))
}

/// The next episode of the same object; rows that are not clean are carried over under their own number.
fn reopen(seen: &Seen, fence: &NodeFence, live: &LiveNode, now: Now) -> Option<Effect> {
    let episode = fence.spec.episode + 1;
    let mut draft = plan::draft(live, live_policies(seen), &seen.namespaces, episode, now)?;
    let status = fence.status.clone().unwrap_or_default();
    let unclean = |episode: i64, name: &str| {
        let row = status.volumes.iter().find(|row| row.episode == episode && row.name == name);
        row.is_some_and(|row| {
            !matches!(row.state, VolumeStatusState::Clean | VolumeStatusState::Undone | VolumeStatusState::Pending)
        })
    };
    let carried: Vec<_> =
        fence.spec.plan.volumes.iter().filter(|row| unclean(row.episode, &row.name)).cloned().collect();
    draft.plan.volumes.extend(carried);
    draft.plan.digest = plan::digest(&draft.plan.pods, &draft.plan.volumes);
    let mut next = fence.clone();
    next.status = None;
    next.spec = NodeFenceSpec { episode, node: plan::identity(&live.node), policies: draft.policies, plan: draft.plan };
    Some(Effect::Replan(Box::new(next)))
}

fn grow(seen: &Seen, fence: &NodeFence, live: &LiveNode, now: Now) -> Option<Effect> {
    let draft = plan::draft(live, live_policies(seen), &seen.namespaces, fence.spec.episode, now)?;
    let wanted = plan::without_early_returns(draft.plan, &fence.spec.plan, live, now);
    let grown = plan::grown(&fence.spec.plan, &wanted)?;
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

fn guard_policies(seen: &Seen, decision: &mut Decision) {
    for policy in &seen.policies {
        let guarded = is_guarded(policy);
        let deleted = policy.metadata.deletion_timestamp.is_some();
        if !deleted && !guarded {
            decision.effects.insert(0, Effect::Guard(policy.clone()));
        } else if deleted && guarded && status::unfinished(policy, &seen.fences).is_empty() {
            decision.effects.push(Effect::Unguard(policy.clone()));
        }
    }
}

fn is_guarded(policy: &ResiliencyPolicy) -> bool {
    policy.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == names::POLICY_FINALIZER)
}

fn record_policies(seen: &Seen, brakes: BTreeMap<&str, PolicyBrakes>, decision: &mut Decision, now: Now) {
    // A policy that gets its finalizer in this pass is another version afterwards: its status comes with the next.
    for policy in seen.policies.iter().filter(|policy| is_guarded(policy)) {
        let Some(brake) = policy.metadata.name.as_deref().and_then(|name| brakes.get(name)) else { continue };
        let facts = status::Facts {
            protected: protected(seen, policy),
            max_nodes: brake.limit,
            acted_on: brake.acted_on,
            restraints: restraints(policy, brake, now),
            fences: &seen.fences,
            reports: &seen.reports,
            silent_fencers: &seen.silent_fencers,
            drivers: drivers(seen, policy),
            counts_due: seen.counts_due,
        };
        let wanted = status::compute(policy, &facts, now);
        if policy.status.as_ref() != Some(&wanted) {
            decision.effects.push(record(policy, wanted));
        }
    }
}

fn record(policy: &ResiliencyPolicy, status: ResiliencyPolicyStatus) -> Effect {
    let mut policy = policy.clone();
    policy.status = Some(status);
    Effect::Record(Box::new(policy))
}

fn restraints(policy: &ResiliencyPolicy, brake: &PolicyBrakes, now: Now) -> Vec<Restraint> {
    let mut restraints: Vec<_> = brake.outage.iter().cloned().collect();
    if brake.exhausted {
        let recorded = policy.status.iter().flat_map(|status| &status.restraints);
        let since = recorded.into_iter().find(|r| r.type_ == RestraintType::BudgetExhausted).map(|r| r.since);
        let since = since.unwrap_or(time::stamp(now.wall));
        restraints.push(Restraint { type_: RestraintType::BudgetExhausted, name: None, since, until: None });
    }
    restraints
}

fn protected<'a>(seen: &'a Seen, policy: &'a ResiliencyPolicy) -> usize {
    selected(seen, policy).count()
}

fn drivers(seen: &Seen, policy: &ResiliencyPolicy) -> BTreeMap<String, usize> {
    let mut drivers = BTreeMap::new();
    for pod in selected(seen, policy) {
        for driver in pod.drivers().collect::<BTreeSet<_>>() {
            *drivers.entry(driver.to_owned()).or_default() += 1;
        }
    }
    drivers
}

fn selected<'a>(seen: &'a Seen, policy: &'a ResiliencyPolicy) -> impl Iterator<Item = &'a PodView> {
    seen.pods.values().flatten().filter(|pod| may_be_released(pod) && !pod.pod.is_static()).filter(move |pod| {
        let none = BTreeMap::new();
        super::select::selects(policy, pod, seen.namespaces.get(pod.namespace()).unwrap_or(&none))
    })
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
