//! The pass over the cluster, in a cluster that lives in one value. Expectations come from the design and the API.

mod act;
mod begun;
mod brakes;
mod conflict;
mod crash_loops;
mod episodes;
mod evidence;
mod fencers;
mod heartbeat;
mod identity;
mod kubevirt;
mod lately;
mod machines;
mod modes;
mod observe;
mod open_incidents;
mod people;
mod plan;
mod plugins;
mod power;
mod power_tracker;
mod read;
mod release;
mod scope;
mod select;
mod sharers;
mod silence;
mod storage;
mod triggers;
mod unattached;
mod unmovable;
mod volumes;
mod windows;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures::executor::block_on;
use serde_json::json;

use crate::api::conditions::{self, State};
use crate::api::node_fence::{NodeFence, NodeFenceStatus, Phase, Timeline};
use crate::api::resiliency_policy::{ResiliencyPolicy, RestraintType};
use crate::api::slim::Node;
use crate::api::time::Now;
use crate::api::usage::{PodView, VolumeKind};
use crate::controllers::testing::*;

use super::decide::{Decision, Effect, Seen, decide};
use super::evidence::Silence;
use super::plan::LiveNode;
use super::read::decided;

/// Of a Lease that is good for 40 s.
const NEXT_RENEWAL: Duration = Duration::from_secs(15);

/// What is known of a node's kubelet: nothing, or, where Kubernetes has just given it up, what has led to that.
fn silence(node: &Node) -> Silence {
    if !node.is_unreachable() {
        return Silence::default();
    }
    // Kubernetes' `--node-monitor-grace-period`.
    let still = Some(Duration::from_secs(50));
    Silence {
        lease_age: still,
        still_for: still,
        has_moved: true,
        next_renewal: NEXT_RENEWAL,
        unreachable_for: Some(Duration::ZERO),
        ..Silence::default()
    }
}

/// The cluster and what was remembered of it.
struct World {
    seen: Seen,
    now: Now,
    /// What the API says of nodes where it differs from the stores.
    live: BTreeMap<String, LiveNode>,
    /// Nodes that are gone by the API, whatever the stores show.
    gone: BTreeSet<String>,
    /// Nodes about which the API answers with an error.
    unreadable: BTreeSet<String>,
    /// The nodes that were read for the last decision, in order.
    reads: Vec<String>,
    /// The node whose error that decision told.
    failed: Option<String>,
}

impl World {
    fn new(nodes: Vec<Node>, pods: Vec<PodView>, policies: Vec<ResiliencyPolicy>) -> Self {
        let mut by_node: BTreeMap<String, Vec<PodView>> = BTreeMap::new();
        for pod in pods {
            by_node.entry(pod.pod.spec.node_name.clone().unwrap()).or_default().push(pod);
        }
        let seen = Seen {
            policies: policies.into_iter().map(Arc::new).collect(),
            nodes: nodes.into_iter().map(|node| (Arc::new(node.clone()), silence(&node))).collect(),
            pods: by_node,
            namespaces: [("shop".to_owned(), BTreeMap::new())].into(),
            reports: reports([able(DRIVER)]),
            counts_due: true,
            ..Seen::default()
        };
        let (gone, unreadable) = (BTreeSet::new(), BTreeSet::new());
        Self { seen, now: now(), live: BTreeMap::new(), gone, unreadable, reads: Vec::new(), failed: None }
    }

    /// `count` nodes of which the first `failed` are unreachable, each with one protected pod.
    fn with_failed(count: usize, failed: usize, spec: &serde_json::Value) -> Self {
        let nodes = (0..count).map(|i| if i < failed { unreachable(&format!("n{i}")) } else { node(&format!("n{i}")) });
        let pods = (0..count).map(|i| pod(&format!("p{i}"), &format!("n{i}"), &[csi(&format!("v{i}"))]));
        Self::new(nodes.collect(), pods.collect(), vec![policy("db", spec)])
    }

    fn look_at(&self, name: &str) -> Option<LiveNode> {
        if let Some(live) = self.live.get(name) {
            return Some(live.clone());
        }
        let (node, silence) = self.seen.nodes.iter().find(|(node, _)| node.metadata.name.as_deref() == Some(name))?;
        let live = live_node(node.as_ref().clone(), *silence, self.seen.pods.get(name).cloned().unwrap_or_default());
        Some(LiveNode { reports: self.seen.reports.clone(), ..live })
    }

    /// Decides as the controller does.
    fn decide(&mut self) -> Decision {
        self.seen.live.clear();
        self.seen.gone.clear();
        let names: Vec<_> = self.seen.nodes.iter().filter_map(|(node, _)| node.metadata.name.clone()).collect();
        let there = names.into_iter().filter(|name| !self.gone.contains(name));
        let there: BTreeMap<_, _> = there.filter_map(|name| Some((name.clone(), self.look_at(&name)?))).collect();
        let (reads, unreadable) = (RefCell::new(Vec::new()), &self.unreadable);
        let look = |name: String, _: Silence| {
            reads.borrow_mut().push(name.clone());
            let live = there.get(&name).cloned();
            ready(if unreadable.contains(&name) { Err(name) } else { Ok(live) })
        };
        let (decision, failed) = block_on(decided(&mut self.seen, self.now, look));
        self.reads = reads.into_inner();
        self.failed = failed;
        decision
    }

    /// One pass; what it did.
    fn pass(&mut self) -> Vec<Effect> {
        let decision = self.decide();
        for policy in &decision.outage {
            self.seen.outage_seen.insert(policy.clone(), Duration::ZERO);
        }
        for backend in &decision.backend_outage {
            self.seen.backend_outage_seen.insert(backend.clone(), Duration::ZERO);
        }
        for policy in &decision.array_outage {
            self.seen.array_outage_seen.insert(policy.clone(), Duration::ZERO);
        }
        self.seen.lately.clone_from(&decision.lately);
        self.seen.unread.clone_from(&decision.unread);
        for effect in decision.effects.clone() {
            self.apply(effect);
        }
        decision.effects
    }

    /// Passes until nothing is written any more. A pass over unchanged state writes nothing.
    fn rest(&mut self) {
        for _ in 0..10 {
            if self.pass().is_empty() {
                return;
            }
        }
        panic!("writes at rest: {:?}", self.decide().effects);
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::AddFinalizer(policy) => self.policy(&policy, |policy| {
                policy.metadata.finalizers.get_or_insert_default().push("bulkhead.dev/policy".into());
            }),
            Effect::RemoveFinalizer(policy) => self.policy(&policy, |policy| policy.metadata.finalizers = None),
            Effect::Record(wanted) => self.policy(&wanted, |policy| policy.status = wanted.status.clone()),
            Effect::AddTaint { taint, node } => {
                let mut node = Node::clone(&node);
                node.spec.taints.get_or_insert_default().push(taint);
                self.node_becomes(node);
            }
            Effect::RemoveTaint { taint, node } => {
                let mut node = Node::clone(&node);
                node.spec.taints.get_or_insert_default().retain(|it| it.key != taint.key);
                self.node_becomes(node);
            }
            // The kubelet is there: it ends the pod in its own time.
            Effect::Reschedule { pod, .. } => {
                let node = self.seen.pods.values_mut().find(|pods| pods.iter().any(|it| it.uid() == pod.uid()));
                node.expect("it is there").retain(|it| it.uid() != pod.uid());
            }
            Effect::Open(fence) => {
                assert!(self.fence(fence.metadata.name.as_deref().unwrap()).is_none(), "opened twice");
                self.seen.fences.push(Arc::from(fence));
            }
            Effect::Replan(fence) => {
                let name = fence.metadata.name.clone();
                let known = self.seen.fences.iter_mut().find(|it| it.metadata.name == name).expect("it exists");
                let (old, new) = (&known.spec, &fence.spec);
                assert!(new.episode == old.episode || new.episode == old.episode + 1, "episode only rises, by one");
                if new.episode == old.episode {
                    assert!(old.plan.pods.iter().all(|row| new.plan.pods.contains(row)), "rows never change");
                    assert!(old.plan.volumes.iter().all(|row| new.plan.volumes.contains(row)), "rows never change");
                    assert!(old.plan.evidence.iter().all(|row| new.plan.evidence.contains(row)), "evidence is kept");
                }
                Arc::make_mut(known).spec = fence.spec;
            }
        }
    }

    fn policy(&mut self, which: &ResiliencyPolicy, change: impl FnOnce(&mut ResiliencyPolicy)) {
        let name = which.metadata.name.clone();
        let known = self.seen.policies.iter_mut().find(|it| it.metadata.name == name).expect("it exists");
        change(Arc::make_mut(known));
    }

    fn fence(&self, name: &str) -> Option<&NodeFence> {
        self.seen.fences.iter().map(Arc::as_ref).find(|fence| fence.metadata.name.as_deref() == Some(name))
    }

    /// node_fence writes the status of the planned episode.
    fn reach(&mut self, name: &str, phase: Phase) {
        let fence = self.seen.fences.iter_mut().find(|it| it.metadata.name.as_deref() == Some(name)).unwrap();
        let fence = Arc::make_mut(fence);
        let timeline = Timeline { decided_at: Some(fence.spec.plan.decided_at), ..Timeline::default() };
        let status = fence.status.take().unwrap_or_default();
        let observed_generation = fence.metadata.generation;
        fence.status =
            Some(NodeFenceStatus { phase: Some(phase), timeline: Some(timeline), observed_generation, ..status });
    }

    /// node_fence writes what is known of what is left on the node.
    fn node_clean(&mut self, name: &str, reason: &str) {
        let fence = self.seen.fences.iter_mut().find(|it| it.metadata.name.as_deref() == Some(name)).unwrap();
        let conditions = &mut Arc::make_mut(fence).status.get_or_insert_default().conditions;
        conditions::set(conditions, "NodeClean", State::Unknown, reason, "", 1, self.now.wall);
    }

    /// The node becomes another.
    fn node_becomes(&mut self, changed: Node) {
        let name = changed.metadata.name.clone();
        let place = self.seen.nodes.iter_mut().find(|(node, _)| node.metadata.name == name).unwrap();
        *place = (Arc::new(changed.clone()), silence(&changed));
    }

    fn wait(&mut self, seconds: f64) {
        self.now = later(self.now, seconds);
        let of_arrays = self.seen.array_outage_seen.values_mut().chain(self.seen.backend_outage_seen.values_mut());
        for passed in self.seen.outage_seen.values_mut().chain(of_arrays) {
            *passed += Duration::from_secs_f64(seconds);
        }
        for lately in self.seen.lately.values_mut() {
            lately.age += Duration::from_secs_f64(seconds);
        }
    }

    fn opened(&self) -> usize {
        self.seen.fences.len()
    }

    /// State, reason and message of the first policy's FenceReady.
    fn fence_ready(&self) -> (String, String, String) {
        let conditions = self.seen.policies[0].status.clone().unwrap().conditions;
        let ready = conditions.into_iter().find(|condition| condition.type_ == "FenceReady").unwrap();
        (ready.status, ready.reason, ready.message)
    }

    fn restraints(&self) -> Vec<RestraintType> {
        let status = self.seen.policies[0].status.iter();
        status.flat_map(|status| &status.restraints).map(|restraint| restraint.type_).collect()
    }
}

/// A node read from the API, with the attachments of its pods.
fn live_node(node: Node, silence: Silence, pods: Vec<PodView>) -> LiveNode {
    let name = node.metadata.name.clone().unwrap();
    let volumes = pods.iter().flat_map(|pod| &pod.volumes).filter_map(|volume| match &volume.kind {
        VolumeKind::Csi(csi) => Some((volume.name.clone(), csi.clone())),
        _ => None,
    });
    let attached_volumes: BTreeMap<_, _> = volumes.collect();
    let attachments = attached_volumes.keys().map(|volume| Arc::new(attachment(volume, &name))).collect();
    let csi_node = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "drivers": [{ "name": DRIVER, "nodeID": format!("id-{name}") }] },
    }));
    LiveNode {
        node: Arc::new(node),
        silence,
        lease_is_still: true,
        pods,
        attachments,
        attached_volumes,
        csi_node: Some(Arc::new(csi_node.unwrap())),
        migration_targets: BTreeSet::new(),
        node_report: None,
        reports: BTreeMap::new(),
        requests: Vec::new(),
    }
}
