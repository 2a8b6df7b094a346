//! The controller: what its watches have brought, and its passes. Each pass gathers what `observe` of the product
//! gathers and calls the product's `decide`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bulkhead::api::driver_report::DriverReport;
use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::node_volume_report::NodeVolumeReport;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::api::slim::{CsiNode, Lease, Node, Pod, VolumeAttachment};
use bulkhead::api::usage::PodView;
use bulkhead::api::volume_health::VolumeHealth;
use bulkhead::controllers::node_fence::decide as fencing;
use bulkhead::controllers::node_fence::memory::{Found as NodeFound, Incident, Live};
use bulkhead::controllers::resiliency_policy::decide as protecting;
use bulkhead::controllers::resiliency_policy::memory::{Found as ClusterFound, Memory};
use bulkhead::controllers::resiliency_policy::plan::{self, LiveNode};
use bulkhead::controllers::resiliency_policy::silence::is_still;
use bulkhead::mutants::{self, Mutant};
use kube::ResourceExt;

use crate::api::{Api, Change, Kind, LeaderLease, Refusal, View};
use crate::shape::Shape;
use crate::world::World;

use super::Pid;
use super::queue::Key;

/// A controller process.
#[derive(Clone, Debug, Default)]
pub struct Controller {
    /// What its watches have brought.
    pub views: Views,
    /// What `resiliency_policy` remembers.
    pub memory: Memory,
    /// What `node_fence` remembers.
    pub incidents: BTreeMap<String, Incident>,
    /// Passes under way.
    pub passes: BTreeMap<Key, Acting>,
    /// Passes in a row that found nothing to do.
    pub(crate) quiet: BTreeMap<Key, u32>,
}

/// What the watches of a controller have brought.
#[derive(Clone, Debug, Default)]
pub struct Views {
    /// Nodes.
    pub nodes: View<Node>,
    /// Leases of kubelets.
    pub leases: View<Lease>,
    /// Leases of leaders.
    pub leader_leases: View<LeaderLease>,
    /// Pods.
    pub pods: View<Pod>,
    /// Attachments.
    pub attachments: View<VolumeAttachment>,
    /// CSINodes.
    pub csi_nodes: View<CsiNode>,
    /// Policies.
    pub policies: View<ResiliencyPolicy>,
    /// NodeFences.
    pub fences: View<NodeFence>,
    /// FenceRequests.
    pub requests: View<FenceRequest>,
    /// DriverReports.
    pub reports: View<DriverReport>,
    /// NodeVolumeReports.
    pub node_reports: View<NodeVolumeReport>,
    /// VolumeHealths.
    pub healths: View<VolumeHealth>,
}

/// A pass that has decided and carries its effects out.
#[derive(Clone, Debug)]
pub struct Acting {
    /// What is left to do.
    pub(crate) effects: VecDeque<Effect>,
    /// Writes under way.
    pub(crate) in_flight: usize,
    /// The first failure.
    pub(crate) failed: Option<Refusal>,
    /// A pass over the cluster that met a conflict looks again soon.
    pub(crate) changed: bool,
    /// What the decision said.
    pub(crate) look_again: Option<Duration>,
    /// The NodeFence that was decided on.
    pub(crate) fence: Option<Arc<NodeFence>>,
    /// The FenceRequests that were seen.
    pub(crate) requests: Vec<Arc<FenceRequest>>,
    /// When it was decided.
    pub(crate) decided: u64,
}

/// An effect of either controller.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Of `node_fence`.
    Fencing(Box<fencing::Effect>),
    /// Of `resiliency_policy`.
    Protecting(protecting::Effect),
}

/// The settings of the product's flags.
pub const SETTINGS: fencing::Settings = fencing::Settings {
    resync: Duration::from_secs(60),
    out_of_service_max: Duration::from_secs(60),
    // A small world has waves too, and more attachments than are left to attach/detach.
    first_wave: 1,
    detach_by_taint_only: 1,
};

impl Acting {
    pub(crate) fn new(effects: VecDeque<Effect>, look_again: Option<Duration>, decided: u64) -> Self {
        Self {
            effects,
            in_flight: 0,
            failed: None,
            changed: false,
            look_again,
            fence: None,
            requests: Vec::new(),
            decided,
        }
    }
}

impl Views {
    /// Delivers changes of a kind up to a number, or lists again. Returns the keys that must look, and how soon, in
    /// milliseconds: the `feed` functions of the product.
    pub fn deliver(&mut self, api: &Api, kind: Kind, upto: Option<u64>, first: bool) -> Vec<(Key, u64)> {
        fn go<K>(view: &mut View<K>, table: &crate::api::Table<K>, upto: Option<u64>, first: bool) -> Vec<Change<K>> {
            match upto {
                Some(upto) if !view.is_gone(table) => view.catch_up(table, upto),
                Some(_) => view.relist(table, false),
                None => view.relist(table, first),
            }
        }
        let mut wanted = Vec::new();
        let node = |name: &str, pace| (Key::Node(name.to_owned()), pace);
        match kind {
            Kind::Nodes => {
                for change in go(&mut self.nodes, &api.nodes, upto, first) {
                    wanted.push(node(&change.name, 0));
                    if seen_of(change.old.as_deref()) != seen_of(change.new.as_deref()) {
                        wanted.push((Key::Cluster, 0));
                    }
                }
            }
            Kind::Leases => drop(go(&mut self.leases, &api.leases, upto, first)),
            Kind::LeaderLeases => drop(go(&mut self.leader_leases, &api.leader_leases, upto, first)),
            Kind::CsiNodes => drop(go(&mut self.csi_nodes, &api.csi_nodes, upto, first)),
            Kind::Pods => {
                for change in go(&mut self.pods, &api.pods, upto, first) {
                    let both = change.old.iter().chain(&change.new);
                    wanted.extend(both.filter_map(|pod| Some(node(pod.spec.node_name.as_deref()?, 50))));
                    wanted.push((Key::Cluster, 500));
                }
            }
            Kind::Attachments => {
                for change in go(&mut self.attachments, &api.attachments, upto, first) {
                    let both = change.old.iter().chain(&change.new);
                    wanted.extend(both.map(|attachment| node(&attachment.spec.node_name, 50)));
                }
            }
            Kind::Policies => {
                let changes = go(&mut self.policies, &api.policies, upto, first);
                wanted.extend(changes.iter().map(|_| (Key::Cluster, 0)));
            }
            Kind::Fences => {
                for change in go(&mut self.fences, &api.fences, upto, first) {
                    wanted.push(node(&change.name, 0));
                    wanted.push((Key::Cluster, 0));
                }
            }
            Kind::Requests => {
                for change in go(&mut self.requests, &api.requests, upto, first) {
                    let both = change.old.iter().chain(&change.new);
                    wanted.extend(both.map(|request| node(&request.spec.node_name, 0)));
                }
            }
            Kind::Reports => {
                for change in go(&mut self.reports, &api.reports, upto, first) {
                    let statuses = change.old.iter().chain(&change.new).filter_map(|report| report.status.as_ref());
                    wanted.extend(statuses.flat_map(|it| &it.unreachable).map(|pair| node(&pair.node, 0)));
                    wanted.push((Key::Cluster, 0));
                }
            }
            Kind::NodeReports => {
                let changes = go(&mut self.node_reports, &api.node_reports, upto, first);
                wanted.extend(changes.iter().map(|change| node(&change.name, 0)));
            }
            Kind::Healths => {
                let changes = go(&mut self.healths, &api.healths, upto, first);
                wanted.extend(changes.iter().map(|_| (Key::Cluster, 500)));
            }
        }
        // Only nodes with a NodeFence are queued.
        wanted.retain(|(key, _)| match key {
            Key::Node(name) => self.fences.objects.contains_key(name),
            _ => true,
        });
        wanted
    }

    /// What `resiliency_policy` sees.
    pub fn cluster(&self, shape: &Shape) -> ClusterFound {
        ClusterFound {
            policies: self.policies.list(),
            nodes: self.nodes.list(),
            leases: self.leases.list(),
            heartbeats: BTreeMap::new(),
            fencer_leases: self.leader_leases.objects.values().map(|it| Arc::new(it.lease.clone())).collect(),
            pods: self.with_volumes().map(|pod| PodView::new(pod.clone(), shape)).collect(),
            namespaces: shape.namespaces(),
            fences: self.fences.list(),
            reports: self.reports.list(),
            healths: self.healths.list(),
            ..ClusterFound::default()
        }
    }

    /// What `node_fence` sees of a node; `None` without a NodeFence.
    pub fn node(&self, shape: &Shape, name: &str) -> Option<NodeFound> {
        let fence = self.fences.get(name)?;
        let bound = self.with_volumes().filter(|pod| pod.spec.node_name.as_deref() == Some(name));
        let drivers = fence.spec.plan.volumes.iter().filter_map(|volume| volume.driver.clone());
        let volumes = fence.spec.plan.volumes.iter().map(|volume| &volume.name);
        Some(NodeFound {
            node: self.nodes.get(name),
            lease: self.leases.get(name),
            pods: bound.map(|pod| PodView::new(pod.clone(), shape)).collect(),
            attachments: self.attachments.objects.values().filter(|it| it.spec.node_name == name).cloned().collect(),
            requests: self.requests.objects.values().filter(|it| it.spec.node_name == name).cloned().collect(),
            reports: drivers.filter_map(|driver| Some((driver.clone(), self.reports.get(&driver)?))).collect(),
            node_report: self.node_reports.get(name),
            healths: Some(volumes.filter_map(|it| Some((it.clone(), self.healths.get(it)?))).collect()),
            policies: fence.spec.policies.iter().filter_map(|policy| self.policies.get(&policy.name)).collect(),
            fence,
        })
    }

    /// The store keeps only pods that use volumes.
    fn with_volumes(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.objects.values().filter(|pod| !pod.spec.volumes.is_empty())
    }
}

/// What of a Node is worth a pass over the cluster.
fn seen_of(node: Option<&Node>) -> Option<SeenOfNode<'_>> {
    let node = node?;
    let paused = names::paused(&node.metadata);
    Some((node.metadata.uid.as_deref(), node.ready(), node.taints(), &node.status.node_info.boot_id, paused))
}

/// Uid, Ready, taints, boot id and pause.
type SeenOfNode<'a> = (Option<&'a str>, &'a str, &'a [k8s_openapi::api::core::v1::Taint], &'a str, Option<&'a str>);

/// Pods bound to a node, as the API lists them.
fn pods_of(world: &World, name: &str) -> Vec<PodView> {
    let bound = world.api.pods.values().filter(|pod| pod.spec.node_name.as_deref() == Some(name));
    bound.map(|pod| PodView::new(pod.clone(), world.shape.as_ref())).collect()
}

impl World {
    /// A pass of `resiliency_policy` up to its decision.
    pub(crate) fn decide_cluster(&mut self, pid: Pid) -> Result<Option<Acting>, Refusal> {
        if !self.sees_every_fence(pid)? {
            return Ok(None);
        }
        let now = self.processes[pid].now(self.now);
        let term = u64::from(self.processes[pid].life);
        let shape = self.shape.clone();
        let controller = &mut self.controllers[pid];
        let epoch = (controller.views.leases.relists + controller.views.nodes.relists, term);
        let mut found = controller.views.cluster(&shape);
        found.scope = controller.memory.scope(&found, epoch, now);
        found.narrow();
        let mut seen = controller.memory.look(found, epoch, now);
        let mut decision = protecting::decide(&seen, now);
        let mut failed = None;
        if !decision.look_at.is_empty() {
            for name in &decision.look_at {
                match self.look_at(pid, name, &seen) {
                    Ok(live) => seen.live.extend(live.map(|live| (name.clone(), live))),
                    Err(refusal) => failed = Some(refusal),
                }
            }
            decision = protecting::decide(&seen, now);
        }
        self.notice_cluster(pid, &decision);
        self.controllers[pid].memory.note(&decision, now);
        let effects = decision.effects.into_iter().map(Effect::Protecting).collect();
        Ok(Some(Acting { failed, ..Acting::new(effects, decision.look_again, self.now) }))
    }

    fn sees_every_fence(&mut self, pid: Pid) -> Result<bool, Refusal> {
        let term = u64::from(self.processes[pid].life);
        let controller = &mut self.controllers[pid];
        if controller.memory.is_new_term(term) {
            if self.api.down {
                return Err(Refusal::Unknown);
            }
            let listed: Vec<NodeFence> = self.api.fences.values().map(|fence| NodeFence::clone(fence)).collect();
            controller.memory.begin_term(term, &listed);
        }
        let views = &controller.views.fences;
        for name in controller.memory.unseen(|name| views.get(name)) {
            if self.api.down {
                return Err(Refusal::Unknown);
            }
            if self.api.fences.get(&name).is_none() {
                controller.memory.is_gone(&name);
            }
        }
        Ok(controller.memory.sees_every_fence())
    }

    /// A node as the API has it now: `observe::live` of the product.
    fn look_at(&self, pid: Pid, name: &str, seen: &protecting::Seen) -> Result<Option<LiveNode>, Refusal> {
        if self.api.down {
            return Err(Refusal::Unknown);
        }
        let believed = mutants::is_on(Mutant::NoLiveReread).then(|| self.controllers[pid].views.nodes.get(name));
        let Some(node) = believed.unwrap_or_else(|| self.api.get::<Node>(name)) else { return Ok(None) };
        let silence = seen.nodes.iter().find(|(node, _)| node.metadata.name.as_deref() == Some(name));
        let silence = silence.map(|(_, silence)| *silence).unwrap_or_default();
        let views = &self.controllers[pid].views;
        let attachments: Vec<_> =
            views.attachments.objects.values().filter(|it| it.spec.node_name == name).cloned().collect();
        Ok(Some(LiveNode {
            silence: silence.read_live(&node),
            node,
            lease_is_still: is_still(self.api.get::<Lease>(name).as_deref(), views.leases.get(name).as_deref()),
            pods: pods_of(self, name),
            attached_volumes: plan::attached_volumes(&attachments, self.shape.as_ref()),
            attachments,
            csi_node: views.csi_nodes.get(name),
            migration_targets: BTreeSet::new(),
            node_report: None,
            reports: self.api.reports.values().map(|report| (report.name_any(), report.clone())).collect(),
        }))
    }

    /// A pass of `node_fence` up to its decision; `Err(None)`: it is over already, look again then.
    pub(crate) fn decide_node(&mut self, pid: Pid, name: &str) -> Result<Acting, NodePass> {
        let now = self.processes[pid].now(self.now);
        let shape = self.shape.clone();
        let controller = &mut self.controllers[pid];
        let Some(found) = controller.views.node(&shape, name) else {
            controller.incidents.remove(name);
            return Err(NodePass::Over(None));
        };
        let incident = controller.incidents.entry(name.to_owned()).or_default();
        let mut seen = incident.look(found, SETTINGS, now);
        if incident.is_ahead_of(&seen, now) {
            return Err(NodePass::Over(Some(Duration::from_millis(20))));
        }
        if !incident.is_confirmed() {
            if self.api.down {
                return Err(NodePass::Failed(Refusal::Unknown));
            }
            incident.confirm(&seen.fence, self.api.fences.get(name).map(Arc::as_ref));
            if !incident.is_confirmed() {
                return Err(NodePass::Over(Some(Duration::from_millis(20))));
            }
        }
        let mut decision = fencing::decide(&seen, now);
        if decision.look_live {
            if self.api.down {
                return Err(NodePass::Failed(Refusal::Unknown));
            }
            let live = Live {
                fence: self.api.get(name),
                node: self.api.get(name),
                lease: self.api.get::<Lease>(name).map(|lease| Lease::clone(&lease)),
                pods: pods_of(self, name),
                node_report: self.api.get(name),
                attachments: self.api.attachments.values().filter(|it| it.spec.node_name == name).cloned().collect(),
            };
            let incident = self.controllers[pid].incidents.entry(name.to_owned()).or_default();
            seen = incident.look_live(seen, live, now);
            decision = fencing::decide(&seen, now);
        }
        self.notice_decision(pid, name, decision.reason, &decision.effects);
        let effects = decision.effects.into_iter().map(|effect| Effect::Fencing(Box::new(effect))).collect();
        let acting = Acting::new(effects, decision.look_again, self.now);
        Ok(Acting { fence: Some(seen.fence), requests: seen.requests, ..acting })
    }
}

/// How a pass of `node_fence` ends without anything to carry out.
pub(crate) enum NodePass {
    /// Well.
    Over(Option<Duration>),
    /// Not.
    Failed(Refusal),
}

/// Name of the Lease that sidecars of that driver lead by.
pub fn fencer_lease(driver: &str) -> String {
    names::fencer_lease(driver)
}
