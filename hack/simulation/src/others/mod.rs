//! Kubernetes' own parts and the machines, each with its real rules and periods. They act when something they watch
//! changed, or when their time has come.

mod addresses;
mod agent;
mod attach_detach;
mod attacher;
mod csi_addons;
mod kubelet;
mod lifecycle;
mod network;
mod operations;
mod power;
mod power_report;
mod programs;
mod replaced;
mod workloads;

pub use agent::Agent;
pub use attach_detach::{AttachDetach, attachment_name};
pub use attacher::Attacher;
pub use csi_addons::CsiAddons;
pub(crate) use csi_addons::is_ours;
pub use kubelet::{Incarnation, Machine, Power};
pub use lifecycle::Lifecycle;
pub use network::Network;
pub(crate) use operations::CALL;
pub use power::{FencerMood, Lie, POWER, PowerFencer};
pub(crate) use replaced::{first_of, machines_of, node_of};

use std::collections::BTreeMap;

use crate::api::Kind;
use crate::chance::{Chance, Choice};
use crate::time::Millis;
use crate::world::World;

/// One of Kubernetes' own parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Actor {
    /// The kubelet of a node.
    Kubelet(String),
    /// Our agent on a node.
    Agent(String),
    /// The node lifecycle controller, with the taint eviction.
    Lifecycle,
    /// Attach/detach.
    AttachDetach,
    /// The external-attacher of a driver.
    Attacher(String),
    /// Its re-sync.
    Resync(String),
    /// Pod garbage collection.
    Garbage,
    /// StatefulSet, ReplicaSet and Job controllers.
    Workloads,
    /// The scheduler.
    Scheduler,
    /// The program that cuts nodes off as a whole.
    PowerFencer,
    /// csi-addons.
    CsiAddons,
    /// The API server, for what is written of NetworkFences.
    NetworkWrites,
}

/// What they remember.
#[derive(Clone, Debug, Default)]
pub struct Others {
    /// The node lifecycle controller.
    pub lifecycle: Lifecycle,
    /// Attach/detach.
    pub attach_detach: AttachDetach,
    /// Agents by node.
    pub agents: BTreeMap<String, Agent>,
    /// Attachers by driver.
    pub attachers: BTreeMap<String, Attacher>,
    /// The program that cuts nodes off as a whole.
    pub power: PowerFencer,
    /// csi-addons.
    pub csi_addons: CsiAddons,
    /// Pods made so far.
    pub pods_made: u64,
    /// Incarnations started so far.
    pub incarnations: u64,
    /// Addresses given to machines since the beginning.
    pub addresses_given: u64,
}

impl World {
    /// Wakes whoever cares about a change.
    pub(crate) fn others_notice(&mut self, kind: Kind, name: &str, chance: &mut dyn Chance) {
        let soon = |chance: &mut dyn Chance, most| chance.between(Choice::Others, 1, most);
        let now = self.now;
        match kind {
            Kind::Pods => {
                self.wake(Actor::AttachDetach, next_tick(now));
                let late = soon(chance, 300);
                self.wake(Actor::Workloads, now + late);
                let late = soon(chance, 300);
                self.wake(Actor::Scheduler, now + late);
                let node = self.api.pods.get(name).and_then(|pod| pod.spec.node_name.clone());
                let nodes = node.map_or_else(|| self.machines.keys().cloned().collect(), |node| vec![node]);
                self.wake_kubelets(&nodes, chance);
            }
            Kind::Attachments => {
                self.wake(Actor::AttachDetach, next_tick(now));
                let driver = self.api.attachments.get(name).map(|attachment| attachment.spec.attacher.clone());
                if let Some(driver) = driver {
                    let late = soon(chance, 50);
                    self.wake(Actor::Attacher(driver), now + late);
                }
            }
            Kind::Nodes => {
                self.wake(Actor::AttachDetach, next_tick(now));
                let late = soon(chance, 300);
                self.wake(Actor::Scheduler, now + late);
                self.wake_kubelets(&[name.to_owned()], chance);
            }
            Kind::Requests if self.shape.power.is_some() => {
                let late = soon(chance, 200);
                self.wake(Actor::PowerFencer, now + late);
            }
            Kind::Fences => {
                self.wake(Actor::AttachDetach, next_tick(now));
                let late = soon(chance, 300);
                self.wake(Actor::Agent(name.to_owned()), now + late);
            }
            _ => {}
        }
    }

    pub(crate) fn wake_kubelets(&mut self, nodes: &[String], chance: &mut dyn Chance) {
        for node in nodes.iter().filter(|node| self.machines.contains_key(*node)).cloned().collect::<Vec<_>>() {
            let late = chance.between(Choice::Others, 20, 400);
            self.wake(Actor::Kubelet(node.clone()), self.now + late);
            if self.api.is_fenced(&node) {
                self.wake(Actor::Agent(node), self.now + late);
            }
        }
    }

    /// One of them acts.
    pub(crate) fn act(&mut self, actor: &Actor, chance: &mut dyn Chance) {
        match actor {
            Actor::Kubelet(node) => self.kubelet(node, chance),
            Actor::Agent(node) => self.agent(node, chance),
            Actor::Lifecycle => self.lifecycle(chance),
            Actor::AttachDetach => self.attach_detach(chance),
            Actor::Attacher(driver) => self.attacher(driver, chance),
            Actor::Resync(driver) => self.attacher_resync(driver, chance),
            Actor::Garbage => self.collect_garbage(),
            Actor::Workloads => self.make_pods(chance),
            Actor::Scheduler => self.bind_pods(chance),
            Actor::PowerFencer => self.power_fencer(chance),
            Actor::CsiAddons => self.csi_addons(chance),
            Actor::NetworkWrites => self.take_network_writes(chance),
        }
    }
}

/// The next turn of attach/detach, which looks every 100 ms.
fn next_tick(now: Millis) -> Millis {
    (now / 100 + 1) * 100
}
