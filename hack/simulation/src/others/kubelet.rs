//! Machines: kubelet and writers. A writer writes to every volume that it has mounted, all the time; whether that is
//! accepted is the array's matter.

use std::collections::BTreeSet;

use bulkhead::api::slim::{Lease, Node, NodeAddress, Pod, StatusCondition};
use kube::ResourceExt;

use crate::chance::{Chance, Choice};
use crate::shape::{handle, volumes_of};
use crate::time::{Millis, SECOND, micro, stamp};
use crate::world::World;

use super::{Actor, Network};

/// How often a kubelet renews its Lease.
const RENEW: Millis = 10 * SECOND;
/// How often it tries again what does not work yet.
const RETRY: Millis = 2 * SECOND;

/// What a machine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Power {
    /// It runs.
    Running,
    /// It is off; nothing that ran there runs.
    Off,
    /// It stands still, and goes on where it stood.
    Frozen,
}

/// A machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// CSI node id.
    pub node_id: String,
    /// Its own address.
    pub address: String,
    /// It has another one when it boots.
    pub(crate) is_renumbered: bool,
    /// Counts its boots.
    pub boot: u32,
    /// What it does.
    pub power: Power,
    /// Whether its kubelet reaches the API.
    pub is_connected: bool,
    /// What runs there.
    pub running: Vec<Incarnation>,
    /// Volumes that do not answer there: what waits for them cannot be stopped.
    pub hangs: BTreeSet<String>,
    /// What its host network carries beside.
    pub network: Network,
    /// Its storages take nothing from it, as their fabric lets nothing through.
    pub is_off_fabric: bool,
    /// Since when another machine has its name.
    pub(crate) replaced_at: Option<Millis>,
    /// Since when its kubelet has been heard of without a pause, or, where it was called silent all the same, will be; for the oracle.
    pub well_since: Option<Millis>,
    /// When its Lease is due.
    pub(crate) renews_at: Millis,
    /// Before that it says nothing of itself to who calls it Unknown.
    pub(crate) tells_ready_at: Millis,
}

/// One pod as it runs on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// Pod name.
    pub pod: String,
    /// Pod uid.
    pub uid: String,
    /// Its volumes, mounted.
    pub volumes: Vec<String>,
    /// In the order of their starts, over all machines.
    pub number: u64,
    /// When it will have stopped, once it was told to.
    pub stops_at: Option<Millis>,
}

impl Machine {
    /// A machine that runs.
    pub fn new(node_id: String, address: String) -> Self {
        Self {
            node_id,
            address,
            is_renumbered: false,
            boot: 1,
            power: Power::Running,
            is_connected: true,
            running: Vec::new(),
            hangs: BTreeSet::new(),
            network: Network::default(),
            is_off_fabric: false,
            replaced_at: None,
            well_since: None,
            renews_at: 0,
            tells_ready_at: 0,
        }
    }

    /// Its boot id.
    pub fn boot_id(&self) -> String {
        self.boot_id_of(self.boot)
    }

    /// The boot id that it had before.
    pub fn boot_id_before(&self) -> String {
        self.boot_id_of(self.boot.saturating_sub(1))
    }

    pub(super) fn boot_id_of(&self, boot: u32) -> String {
        format!("boot-{}-{boot}", self.node_id)
    }
}

impl World {
    /// The kubelet of a node does what is due.
    pub(crate) fn kubelet(&mut self, name: &str, chance: &mut dyn Chance) {
        let Some(machine) = self.machines.get(name) else { return };
        if machine.power != Power::Running {
            return;
        }
        let now = self.now;
        if !machine.is_connected || self.api.down {
            return self.wake(Actor::Kubelet(name.to_owned()), now + RETRY);
        }
        self.renew(name);
        let changed = self.stop_what_must_go(name, chance) | self.start_what_can(name);
        self.tell_status(name);
        if changed {
            self.oracle.touch();
        }
        let machine = &self.machines[name];
        let stops = machine.running.iter().filter_map(|it| it.stops_at).min().unwrap_or(Millis::MAX);
        let waits = self.waits_for_volumes(name);
        let next = machine.renews_at.min(stops.max(now + 1)).min(if waits { now + RETRY } else { Millis::MAX });
        let next = next.min(if machine.tells_ready_at > now { machine.tells_ready_at } else { Millis::MAX });
        self.wake(Actor::Kubelet(name.to_owned()), next);
    }

    fn renew(&mut self, name: &str) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(name).filter(|machine| machine.renews_at <= now) else { return };
        machine.renews_at = now + RENEW;
        if self.api.get::<Lease>(name).is_none() {
            let mut lease = Lease::default();
            lease.metadata.name = Some(name.to_owned());
            let _ = self.api.create(lease, now);
        }
        self.api.update::<Lease>(name, |lease| lease.spec.renew_time = Some(micro(now)));
    }

    /// Pods that are gone, being deleted or ended are stopped; one that has stopped is taken off the API.
    fn stop_what_must_go(&mut self, name: &str, chance: &mut dyn Chance) -> bool {
        let now = self.now;
        let mut changed = false;
        for incarnation in self.machines[name].running.clone() {
            let pod = self.api.get::<Pod>(&incarnation.pod).filter(|pod| pod.uid().as_ref() == Some(&incarnation.uid));
            if pod.is_some_and(|pod| !pod.is_terminating() && !pod.is_finished()) {
                continue;
            }
            let takes = chance.between(Choice::Others, 50, 3000);
            let Some(machine) = self.machines.get_mut(name) else { return changed };
            if incarnation.volumes.iter().any(|volume| machine.hangs.contains(volume)) {
                continue;
            }
            let Some(running) = machine.running.iter_mut().find(|it| it.number == incarnation.number) else { continue };
            let stops_at = *running.stops_at.get_or_insert(now + takes);
            if stops_at <= now {
                machine.running.retain(|it| it.number != incarnation.number);
                changed = true;
            }
        }
        let ended = |world: &Self, pod: &Pod| {
            let uid = pod.uid().unwrap_or_default();
            pod.is_terminating() && !world.machines[name].running.iter().any(|it| it.uid == uid)
        };
        let bound = self.api.pods.values().filter(|pod| pod.spec.node_name.as_deref() == Some(name));
        let over: Vec<_> = bound.filter(|pod| ended(self, pod)).map(|pod| pod.name_any()).collect();
        for pod in over {
            // A kubelet reports the end of the containers first. What was stopped has not done its work: a Job begins anew.
            self.api.update::<Pod>(&pod, |pod| pod.status.phase = Some("Failed".into()));
            self.api.delete_pod(&pod, Some(0), now);
        }
        changed
    }

    /// Pods whose volumes are attached are started.
    fn start_what_can(&mut self, name: &str) -> bool {
        let now = self.now;
        let mut changed = false;
        let startable: Vec<_> = self.startable(name).filter(|pod| self.can_mount(name, pod)).cloned().collect();
        for pod in startable {
            self.others.incarnations += 1;
            let incarnation = Incarnation {
                pod: pod.name_any(),
                uid: pod.uid().unwrap_or_default(),
                volumes: volumes_of(&pod).map(str::to_owned).collect(),
                number: self.others.incarnations,
                stops_at: None,
            };
            self.tell(|| format!("{} starts on {name} ({})", incarnation.pod, incarnation.uid));
            if let Some(machine) = self.machines.get_mut(name) {
                machine.running.push(incarnation);
            }
            self.api.update::<Pod>(&pod.name_any(), |pod| {
                pod.status.phase = Some("Running".into());
                set_condition(&mut pod.status.conditions, "Initialized", "True", now);
                set_condition(&mut pod.status.conditions, "Ready", "True", now);
            });
            changed = true;
        }
        self.tell_programs(name);
        changed
    }

    /// Pods of the node that should run and do not.
    fn startable<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a std::sync::Arc<Pod>> {
        let bound = self.api.pods.values().filter(move |pod| pod.spec.node_name.as_deref() == Some(name));
        bound.filter(|pod| !pod.is_terminating() && !pod.is_finished()).filter(move |pod| {
            let uid = pod.metadata.uid.as_deref();
            !self.machines[name].running.iter().any(|it| Some(it.uid.as_str()) == uid)
        })
    }

    fn waits_for_volumes(&self, name: &str) -> bool {
        self.startable(name).next().is_some()
    }

    /// A mount needs the attachment, the word of attach/detach, and the array itself; of what is not attached the array alone.
    fn can_mount(&self, name: &str, pod: &Pod) -> bool {
        let Some(node) = self.api.nodes.get(name) else { return false };
        volumes_of(pod).all(|volume| {
            let attached = self.api.attachments.values().any(|it| {
                it.spec.node_name == name
                    && it.volume() == volume
                    && it.status.attached
                    && it.metadata.deletion_timestamp.is_none()
            });
            let unique = self.shape.unique_name(volume);
            let told = node.status.volumes_attached.iter().any(|it| it.name == unique);
            (attached && told || !self.shape.attaches(volume)) && self.accepts(name, volume)
        })
    }

    /// Whether the array accepts writes of a node to a volume.
    pub(crate) fn accepts(&self, node: &str, volume: &str) -> bool {
        let array = self.shape.driver_of(volume).and_then(|driver| self.arrays.get(driver));
        let machine = self.machines.get(node);
        machine.zip(array).is_some_and(|(machine, array)| {
            let has_access = !self.shape.attaches(volume) || array.accepts(&handle(volume), &machine.node_id);
            has_access && !machine.is_off_fabric && !(self.shape.is_of_class(volume) && self.is_shut_out(node, array))
        })
    }

    fn tell_status(&mut self, name: &str) {
        let machine = &self.machines[name];
        let mounted = machine.running.iter().flat_map(|it| &it.volumes).filter(|volume| self.shape.attaches(volume));
        let mut in_use: Vec<_> = mounted.map(|volume| self.shape.unique_name(volume)).collect();
        in_use.sort();
        in_use.dedup();
        let (boot_id, now) = (machine.boot_id(), self.now);
        let is_silent = machine.tells_ready_at > now;
        let addresses = vec![NodeAddress { type_: "InternalIP".into(), address: machine.address.clone() }];
        let told = |node: &std::sync::Arc<Node>| {
            let status = &node.status;
            let is_same = status.node_info.boot_id == boot_id && status.addresses == addresses;
            (node.ready() == "True" || is_silent) && is_same && status.volumes_in_use == in_use
        };
        if self.api.nodes.get(name).is_none_or(told) {
            return;
        }
        self.api.update::<Node>(name, |node| {
            if !is_silent {
                set_condition(&mut node.status.conditions, "Ready", "True", now);
            }
            node.status.node_info.boot_id = boot_id;
            node.status.addresses = addresses;
            node.status.volumes_in_use = in_use;
        });
    }
}

/// Sets a condition; its transition time moves only with its status.
pub(crate) fn set_condition(conditions: &mut Vec<StatusCondition>, type_: &str, status: &str, now: Millis) {
    let last_transition_time = Some(stamp(now));
    match conditions.iter_mut().find(|condition| condition.type_ == type_) {
        Some(condition) if condition.status == status => {}
        Some(condition) => {
            condition.status = status.into();
            condition.last_transition_time = last_transition_time;
        }
        None => conditions.push(StatusCondition { type_: type_.into(), status: status.into(), last_transition_time }),
    }
}
