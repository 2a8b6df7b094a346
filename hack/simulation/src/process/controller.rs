//! The controller and its passes. Each pass gathers what `observe` of the product gathers and calls the product's `decide`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::slim::{Lease, Node};
use bulkhead::api::usage::PodView;
use bulkhead::controllers::node_fence::decide as fencing;
use bulkhead::controllers::node_fence::memory::{Incident, Live};
use bulkhead::controllers::resiliency_policy::decide as protecting;
use bulkhead::controllers::resiliency_policy::evidence::Silence;
use bulkhead::controllers::resiliency_policy::memory::Memory;
use bulkhead::controllers::resiliency_policy::plan::{self, LiveNode};
use bulkhead::controllers::resiliency_policy::read;
use bulkhead::controllers::resiliency_policy::silence::is_still;
use bulkhead::mutants::{self, Mutant};
use kube::ResourceExt;

use crate::api::Refusal;
use crate::world::World;

use super::Pid;
use super::queue::Key;
use super::views::Views;

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

/// Pods bound to a node, as the API lists them.
fn pods_of(world: &World, name: &str) -> Vec<PodView> {
    let bound = world.api.pods.values().filter(|pod| pod.spec.node_name.as_deref() == Some(name));
    bound.map(|pod| PodView::new(pod.clone(), world.shape.as_ref())).collect()
}

/// What comes of looks that are answered when they are made: nothing of it waits.
fn at_once<T>(looks: impl Future<Output = T>) -> T {
    let mut looks = pin!(looks);
    loop {
        if let Poll::Ready(found) = looks.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return found;
        }
    }
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
        let heartbeats = self.heartbeats(pid);
        let controller = &mut self.controllers[pid];
        let epoch = (controller.views.leases.relists + controller.views.nodes.relists, term);
        let mut found = controller.views.cluster(&shape);
        found.heartbeats = heartbeats;
        found.scope = controller.memory.scope(&found, epoch, now);
        found.narrow();
        let mut seen = controller.memory.look(found, epoch, now);
        let look = |name: String, silence: Silence| ready(self.look_at(pid, &name, silence));
        let (decision, failed) = at_once(read::decided(&mut seen, now, look));
        let failed = failed.filter(|_| read::is_blind(&seen, &decision));
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
    fn look_at(&self, pid: Pid, name: &str, silence: Silence) -> Result<Option<LiveNode>, Refusal> {
        if self.api.down {
            return Err(Refusal::Unknown);
        }
        let believed = mutants::is_on(Mutant::NoLiveReread).then(|| self.controllers[pid].views.nodes.get(name));
        let Some(node) = believed.unwrap_or_else(|| self.api.get::<Node>(name)) else { return Ok(None) };
        let node_report = self.address_report(&node);
        let views = &self.controllers[pid].views;
        let attachments: Vec<_> =
            views.attachments.objects.values().filter(|it| it.spec.node_name == name).cloned().collect();
        Ok(Some(LiveNode {
            silence: silence.read_live(&node),
            node,
            lease_is_still: is_still(self.api.get::<Lease>(name).as_deref(), silence),
            pods: pods_of(self, name),
            attached_volumes: plan::attached_volumes(&attachments, self.shape.as_ref()),
            attachments,
            csi_node: views.csi_nodes.get(name),
            migration_targets: BTreeSet::new(),
            node_report,
            reports: self.api.reports.values().map(|report| (report.name_any(), report.clone())).collect(),
            requests: self.api.requests.values().filter(|it| it.spec.node_name == name).cloned().collect(),
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
