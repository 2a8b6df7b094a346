//! What goes wrong, and right again.

use bulkhead::api::driver_report::{Backend, BackendState, Capability, DriverReport, PathState, UnreachablePair};
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::api::slim::{CsiNode, Node, Pod};
use bulkhead::api::volume::{NOT_USABLE, Source};
use bulkhead::api::volume_health::{TaintValue, VolumeHealth, VolumeHealthSpec, VolumeHealthStatus, VolumeTaint};
use kube::ResourceExt;

use crate::api::Kind;
use crate::array::Mood;
use crate::begin::{csi_node, registered};
use crate::chance::Chance;
use crate::others::{Actor, FencerMood, Power};
use crate::people::Person;
use crate::process::Pid;
use crate::time::{Millis, wall};
use crate::world::{Weather, World};

/// One event from outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A machine loses its power.
    PowerOff(String),
    /// A machine stands still.
    Freeze(String),
    /// It goes on.
    Thaw(String),
    /// A kubelet no longer reaches the API; its pods run on.
    Disconnect(String),
    /// It does again.
    Reconnect(String),
    /// The beats of a node's agent reach no controller.
    Unhear(String),
    /// Nor does any peer reach it: its agent has ended, or its network.
    Mute(String),
    /// All of its network is as it was, but for its kubelet.
    Hear(String),
    /// The program that cuts nodes off as a whole behaves so from now on.
    Fencer(FencerMood),
    /// A machine boots.
    Reboot(String),
    /// Somebody deletes the Node.
    DeleteNode(String),
    /// The kubelet registers its Node again.
    RegisterNode(String),
    /// Somebody empties the CSINode, as a driver's node plugin that goes away.
    EmptyCsiNode(String),
    /// The node plugin registers again.
    FillCsiNode(String),
    /// The API server answers nobody.
    ApiDown,
    /// It does again.
    ApiUp,
    /// The network and the API server are so bad from now on.
    Weather(Weather),
    /// An array behaves so from now on.
    Mood(String, Mood),
    /// A process ends, and starts again after so long.
    Crash(Pid, Millis),
    /// A process stands still for so long (SIGSTOP): its clocks go on.
    Stop(Pid, Millis),
    /// A process sleeps with its whole machine for so long: its monotonic clock stands still.
    Sleep(Pid, Millis),
    /// A wall clock is set, by so many milliseconds.
    SetClock(Pid, i64),
    /// A watch breaks, and lists again.
    Relist(Pid, Kind),
    /// The re-sync of a driver's attacher comes.
    Resync(String),
    /// The controller-manager starts again.
    RestartManager,
    /// The watch of the node lifecycle controller lags behind: it hears nothing of the Lease of a node.
    LagBehind(String),
    /// It has caught up.
    CatchUp(String),
    /// A policy is replaced by one with this spec.
    EditPolicy(Box<ResiliencyPolicy>),
    /// A policy is deleted.
    DeletePolicy(String),
    /// A person deletes the pod of a workload by force.
    ForceDelete(String),
    /// A person deletes the pod of a workload gracefully.
    Delete(String),
    /// A volume is tainted on these nodes; on none of them by name: everywhere.
    TaintVolume(String, Vec<String>),
    /// A volume is well again.
    HealVolume(String),
    /// An array says that it is not reached from these nodes, and from the others it is; or it cannot tell of these.
    TellPaths(String, Vec<String>, PathState),
    /// The program of a workload fails wherever it runs.
    FailProgram(String),
    /// It does not fail any more.
    MendProgram(String),
    /// What waits for a volume on a node does not end any more.
    HangVolume(String, String),
    /// Somebody lets a node in that csi-addons shuts out, by an object of their own.
    LiftNetwork(String),
    /// And takes such objects away.
    ForgetLifts,
    /// csi-addons starts again: it works on every object once more.
    RestartCsiAddons,
    /// Something keeps back for so long what sidecars write of NetworkFences.
    KeepNetworkWrites(Millis),
    /// Somebody writes another address into the NetworkFences of a node.
    EditNetworkFences(String),
    /// Somebody deletes them.
    DeleteNetworkFences(String),
    /// A machine gets an address that nobody had: if it is well, now, else when it boots.
    Renumber(String),
    /// A machine that is well gets the address that another one had at the beginning.
    TakeAddress(String, String),
    /// Another machine takes the name of one that runs on, cut off from the API; its Node may be made anew.
    Replace(String, bool),
    /// A person writes.
    Person(Person),
}

impl World {
    /// It happens.
    pub(crate) fn befall(&mut self, fault: &Fault, chance: &mut dyn Chance) {
        self.counts.faults += 1;
        self.tell(|| format!("FAULT {fault:?}"));
        let now = self.now;
        match fault {
            Fault::PowerOff(node) => self.machine(node, |machine| {
                machine.power = Power::Off;
                machine.running.clear();
            }),
            Fault::Freeze(node) => self.machine(node, |machine| {
                if machine.power == Power::Running {
                    machine.power = Power::Frozen;
                }
            }),
            Fault::Thaw(node) => self.machine(node, |machine| {
                if machine.power == Power::Frozen {
                    machine.power = Power::Running;
                }
            }),
            Fault::Unhear(node) => self.machine(node, |machine| machine.network.is_unheard = true),
            Fault::Mute(node) => self.machine(node, |machine| machine.network.is_cut = true),
            Fault::Hear(node) => self.machine(node, |machine| machine.network.mend()),
            Fault::Fencer(mood) => {
                self.others.power.set(mood);
                self.wake(Actor::PowerFencer, now + 1);
            }
            Fault::Disconnect(node) => self.machine(node, |machine| machine.is_connected = false),
            Fault::Reconnect(node) => self.machine(node, |machine| {
                machine.is_connected = true;
                machine.network.mend();
            }),
            Fault::Reboot(node) => self.boot(node),
            Fault::DeleteNode(node) => self.delete_node(node),
            Fault::RegisterNode(node) => {
                if self
                    .machines
                    .get(node)
                    .is_some_and(|machine| machine.power == Power::Running && machine.is_connected)
                {
                    self.register(node);
                }
            }
            Fault::EmptyCsiNode(node) => {
                self.api.update::<CsiNode>(node, |it| it.spec.drivers.clear());
            }
            Fault::FillCsiNode(node) => {
                if let Some(machine) = self.machines.get(node) {
                    let full = csi_node(self, node, &machine.node_id);
                    self.api.update::<CsiNode>(node, |it| it.spec = full.spec);
                }
            }
            Fault::ApiDown => self.set_api(true),
            Fault::ApiUp => self.set_api(false),
            Fault::Weather(weather) => self.weather = weather.clone(),
            Fault::Mood(driver, mood) => {
                let array = self.arrays.get_mut(driver);
                let was_down = array.is_some_and(|array| std::mem::replace(&mut array.mood, mood.clone()).is_down);
                if was_down {
                    self.wake(Actor::Attacher(driver.clone()), now + 1);
                }
            }
            Fault::Crash(pid, pause) => self.crash(*pid, *pause),
            Fault::Stop(pid, length) => self.stop(*pid, *length, false),
            Fault::Sleep(pid, length) => self.stop(*pid, *length, true),
            Fault::SetClock(pid, by) => {
                self.oracle.are_clocks_set = true;
                self.processes[*pid].clocks.ahead += by;
            }
            Fault::FailProgram(workload) => {
                self.failing.insert(workload.clone());
                self.notice_programs();
            }
            Fault::MendProgram(workload) => {
                self.failing.remove(workload);
                self.notice_programs();
            }
            Fault::Relist(pid, kind) => self.relist(*pid, *kind),
            Fault::Resync(driver) => self.attacher_resync(driver, chance),
            Fault::RestartManager => self.others.lifecycle.restart(),
            Fault::LagBehind(node) => _ = self.others.lifecycle.unheard.insert(node.clone()),
            Fault::CatchUp(node) => _ = self.others.lifecycle.unheard.remove(node),
            Fault::EditPolicy(policy) => {
                self.oracle.policies_edited();
                self.api.update::<ResiliencyPolicy>(&policy.name_any(), |it| {
                    it.spec = policy.spec.clone();
                    it.metadata.generation = it.metadata.generation.map(|generation| generation + 1);
                });
            }
            Fault::DeletePolicy(name) => {
                self.oracle.policies_edited();
                if let Some(policy) = self.api.get::<ResiliencyPolicy>(name) {
                    self.api.delete::<ResiliencyPolicy>(name, &policy.uid().unwrap_or_default(), now);
                }
            }
            Fault::ForceDelete(workload) => self.person_deletes(workload, Some(0)),
            Fault::Delete(workload) => self.person_deletes(workload, None),
            Fault::TaintVolume(volume, nodes) => self.taint_volume(volume, Some(nodes)),
            Fault::HealVolume(volume) => {
                self.machines.values_mut().for_each(|machine| machine.hangs.retain(|it| it != volume));
                self.taint_volume(volume, None);
            }
            Fault::LiftNetwork(node) => self.lift_network(node, chance),
            Fault::ForgetLifts => self.forget_lifts(),
            Fault::RestartCsiAddons => self.restart_csi_addons(chance),
            Fault::KeepNetworkWrites(length) => self.others.csi_addons.kept_until = now + length,
            Fault::EditNetworkFences(node) => self.edit_network_fences(node, chance),
            Fault::DeleteNetworkFences(node) => self.delete_network_fences(node, chance),
            Fault::Renumber(node) => self.renumber(node),
            Fault::TakeAddress(node, of) => self.take_address(node, of),
            Fault::Replace(node, is_anew) => self.replace(node, *is_anew),
            Fault::Person(person) => self.person(person),
            Fault::TellPaths(driver, nodes, state) => self.tell_paths(driver, nodes, *state),
            Fault::HangVolume(volume, node) => {
                if let Some(machine) = self.machines.get_mut(node) {
                    machine.hangs.insert(volume.clone());
                }
            }
        }
        self.oracle.touch();
        let nodes: Vec<_> = self.machines.keys().cloned().collect();
        self.wake_kubelets(&nodes, chance);
    }

    /// What `volume_health` says of a volume, from what agents and sidecars report.
    fn taint_volume(&mut self, volume: &str, nodes: Option<&Vec<String>>) {
        if self.api.get::<VolumeHealth>(volume).is_none() {
            let _ = self.api.create(VolumeHealth::new(volume, VolumeHealthSpec::default()), self.now);
        }
        let taint = |nodes: &Vec<String>| VolumeTaint {
            key: NOT_USABLE.into(),
            value: TaintValue::True,
            effect: None,
            source: Source::NodeAgent,
            reason: "IOError".into(),
            message: None,
            time_added: wall(self.now),
            nodes: nodes.clone(),
        };
        let taints = nodes.map(taint).into_iter().collect();
        self.api.update::<VolumeHealth>(volume, |health| {
            health.status = Some(VolumeHealthStatus { taints, ..VolumeHealthStatus::default() });
        });
        self.notice_taints(volume);
    }

    /// What a sidecar settles from the answers of its driver, which has the extension.
    fn tell_paths(&mut self, driver: &str, nodes: &[String], state: PathState) {
        let since = wall(self.now);
        let all = u32::try_from(self.shape.nodes.len()).unwrap_or(u32::MAX);
        let pair = |node: &String| UnreachablePair {
            node: node.clone(),
            backend: driver.to_owned(),
            state,
            reason: None,
            since,
        };
        let pairs: Vec<_> = nodes.iter().map(pair).collect();
        self.api.update::<DriverReport>(driver, |report| {
            let Some(status) = &mut report.status else { return };
            if !status.capabilities.contains(&Capability::Connectivity) {
                status.capabilities.push(Capability::Connectivity);
            }
            let backend = Backend { name: driver.to_owned(), state: BackendState::Answering, nodes: Some(all), since };
            status.backends = vec![backend];
            status.unreachable_pairs = Some(u32::try_from(pairs.len()).unwrap_or(u32::MAX));
            status.unreachable = pairs;
        });
        self.notice_paths(driver);
    }

    /// A machine boots, with its network.
    pub(crate) fn boot(&mut self, node: &str) {
        self.address_at_boot(node);
        self.machine(node, |machine| {
            machine.power = Power::Running;
            machine.is_connected = true;
            machine.network.mend();
            machine.running.clear();
            machine.hangs.clear();
            machine.tells_ready_at = 0;
            machine.boot += 1;
        });
        self.register(node);
    }

    pub(crate) fn machine(&mut self, node: &str, change: impl FnOnce(&mut crate::others::Machine)) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(node) else { return };
        change(machine);
        let well = machine.power == Power::Running && machine.is_connected && !self.api.down;
        machine.well_since = if well { machine.well_since.or(Some(now)) } else { None };
        machine.renews_at = machine.renews_at.min(now);
        machine.network.notice(machine.power == Power::Running, now);
    }

    pub(crate) fn delete_node(&mut self, node: &str) {
        if let Some(object) = self.api.get::<Node>(node) {
            self.api.delete::<Node>(node, &object.uid().unwrap_or_default(), self.now);
        }
    }

    /// A kubelet that starts registers its Node and its drivers if they are not there.
    fn register(&mut self, node: &str) {
        let Some(machine) = self.machines.get(node) else { return };
        let (fresh, drivers) = (registered(node, machine, self.now), csi_node(self, node, &machine.node_id));
        let _ = self.api.create(fresh, self.now);
        self.api.update::<CsiNode>(node, |it| it.spec = drivers.spec);
    }

    fn set_api(&mut self, down: bool) {
        self.api.down = down;
        let nodes: Vec<_> = self.machines.keys().cloned().collect();
        nodes.iter().for_each(|node| self.machine(node, |_| {}));
        if !down {
            self.others.lifecycle.restart();
        }
    }

    fn stop(&mut self, pid: Pid, length: Millis, asleep: bool) {
        let process = &mut self.processes[pid];
        if process.is_up && process.stands_until.is_none_or(|until| until <= self.now) {
            process.stands_until = Some(self.now + length);
            process.woke_at = Some(self.now + length);
            // All that it does waits until it wakes; from then on its clock is behind.
            process.clocks.slept += if asleep { length } else { 0 };
        }
    }

    fn person_deletes(&mut self, workload: &str, grace: Option<u32>) {
        let of = |pod: &&std::sync::Arc<Pod>| pod.labels().get("app").is_some_and(|app| app == workload);
        let pods: Vec<_> = self.api.pods.values().filter(of).map(|pod| (pod.name_any(), pod.uid())).collect();
        for (pod, uid) in pods {
            if grace == Some(0) {
                self.oracle.released_by_a_person(&uid.unwrap_or_default());
            }
            self.api.delete_pod(&pod, grace, self.now);
        }
    }
}
