//! Runs a schedule to its end, and judges the end: I7 (nothing that can go is held), I8 (whatever crashed, the same end)
//! and I11 (nothing is written at rest).

use std::collections::BTreeSet;
use std::sync::Arc;

use bulkhead::api::driver_report::PathState;
use bulkhead::api::fence_request::IO_IN_PROGRESS;
use bulkhead::api::fencing::{FenceMethodType, PlannedMethod, PolicyMode, Proof};
use bulkhead::api::names;
use bulkhead::api::node_fence::{DRY_RUN, NodeFence, Phase, PodAction};
use bulkhead::api::slim::Node;
use bulkhead::api::units;
use bulkhead::controllers::resiliency_policy::brakes;
use kube::ResourceExt;

use crate::array::Mood;
use crate::chance::{Chance, Seeded};
use crate::counts::Counts;
use crate::faults::Fault;
use crate::oracle::Violation;
use crate::others::{FencerMood, Power, first_of, node_of};
use crate::people::Person;
use crate::schedule::{Schedule, When};
use crate::time::{MINUTE, Millis, SECOND};
use crate::world::{Task, Weather, World};

/// By when everything that can be released is, after all is calm: a cool-down, a retry and a resync go by.
const RELEASE_BOUND: Millis = 8 * MINUTE;
/// And how much later where csi-addons may have given up what a storage carries out before all else.
const FENCE_BOUND: Millis = 4 * MINUTE;
/// By when everything is given back, after all machines have booted.
const RECOVERY_BOUND: Millis = 10 * MINUTE;
/// How long nothing must be written at rest.
const REST: Millis = 3 * MINUTE;

/// How a schedule ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What is broken; nothing, if all is well.
    pub violations: Vec<Violation>,
    /// What happened, in numbers.
    pub counts: Counts,
    /// What happened, in words, if that was asked for.
    pub trace: Vec<String>,
}

impl Outcome {
    /// Whether every invariant held.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Runs the schedule of a seed.
pub fn run(seed: u64) -> Outcome {
    play(&Schedule::new(seed), false)
}

/// Runs a schedule; with its trace, if anybody wants to read it.
pub fn play(schedule: &Schedule, trace: bool) -> Outcome {
    let mut world = World::new(schedule.shape.clone());
    world.trace = trace.then(Vec::new);
    world.crash_point = schedule.crash_point;
    for (when, fault) in &schedule.events {
        match when {
            When::At(at) => world.schedule(*at, Task::Fault(Box::new(fault.clone()))),
            When::AfterWrites(writes) => world.triggers.push((*writes, fault.clone())),
        }
    }
    let mut chance = Seeded::new(schedule.seed);
    if world.run_until(schedule.calm, &mut chance) {
        settle(&mut world, &mut chance);
    }
    let World { oracle, counts, trace, .. } = world;
    Outcome { seed: schedule.seed, violations: oracle.violations, counts, trace: trace.unwrap_or_default() }
}

/// Judges the end: everything but the machines is well, then these boot too, then nothing is written any more.
pub(crate) fn settle(world: &mut World, chance: &mut dyn Chance) -> bool {
    calm(world, chance);
    let bound = RELEASE_BOUND + world.shape.network.map_or(0, |_| FENCE_BOUND);
    if !until(world, chance, bound, |world| world.held_back().is_empty()) {
        return false;
    }
    let held = world.held_back();
    if let Some(first) = held.first() {
        let at = world.now;
        world.oracle.break_("I7", at, format!("{first}, and {} more", held.len() - 1));
        return false;
    }
    boot_all(world, chance);
    if !until(world, chance, RECOVERY_BOUND, |world| world.unrecovered().is_empty()) {
        return false;
    }
    // A fencer that has begun before anybody could see the boot goes on, for up to a minute and a half where it was slow: whoever
    // booted the machine sees that it is off again. With what it has not begun by then it does not begin any more.
    if world.members().any(|(_, machine)| machine.power != Power::Running) {
        boot_all(world, chance);
        if !until(world, chance, RECOVERY_BOUND, |world| world.unrecovered().is_empty()) {
            return false;
        }
    }
    let left = world.unrecovered();
    if !left.is_empty() {
        let at = world.now;
        world.oracle.break_("I8", at, format!("the end is not the same as without faults: {}", left.join("; ")));
        return false;
    }
    rest(world, chance)
}

/// Counts of pods follow within a minute or two; from then on nothing may be written.
pub(crate) fn rest(world: &mut World, chance: &mut dyn Chance) -> bool {
    if !world.run_until(world.now + 3 * MINUTE, chance) {
        return false;
    }
    let before = world.counts.writes;
    let clean = world.run_until(world.now + REST, chance);
    let written = world.counts.writes - before;
    if clean && written > 0 {
        let at = world.now;
        world.oracle.break_("I11", at, format!("{written} writes at rest"));
    }
    clean && written == 0
}

/// Runs until that holds, or until the bound. `false`: an invariant is broken.
fn until(world: &mut World, chance: &mut dyn Chance, bound: Millis, holds: impl Fn(&World) -> bool) -> bool {
    let end = world.now + bound;
    while world.now < end && !holds(world) {
        if !world.run_until((world.now + 10 * SECOND).min(end), chance) {
            return false;
        }
    }
    true
}

/// Everything but the machines is well again.
fn calm(world: &mut World, chance: &mut dyn Chance) {
    world.triggers.clear();
    world.crash_point = None;
    let mut all = vec![Fault::Weather(Weather::default()), Fault::ApiUp, Fault::KeepNetworkWrites(0)];
    all.extend(world.arrays.keys().map(|driver| Fault::Mood(driver.clone(), Mood::default())));
    all.extend(world.shape.nodes.iter().map(|node| Fault::FillCsiNode(node.clone())));
    all.extend(world.shape.volumes.keys().map(|volume| Fault::HealVolume(volume.clone())));
    let let_go = |node: &String| [Person::LetGo(node.clone()), Person::ResumeNode(node.clone())];
    let people = world.shape.nodes.iter().flat_map(let_go);
    let people = people.chain([Person::ResumePolicies, Person::SetMode(PolicyMode::Enforce)]);
    all.extend(people.map(Fault::Person));
    all.extend(world.shape.nodes.iter().map(|node| Fault::Person(Person::Approve(node.clone()))));
    all.extend(firsts_found(world));
    all.extend(who_is_off(world));
    all.extend(world.shape.workloads.iter().map(|it| Fault::MendProgram(it.name.clone())));
    all.push(Fault::Fencer(FencerMood::default()));
    all.extend(world.others.lifecycle.unheard.iter().cloned().map(Fault::CatchUp));
    let told = world.arrays.keys().cloned().collect::<Vec<_>>();
    all.extend(told.into_iter().map(|driver| Fault::TellPaths(driver, Vec::new(), PathState::Unknown)));
    all.iter().for_each(|fault| world.perform(Task::Fault(Box::new(fault.clone())), chance));
    world.tell(|| "CALM".into());
}

/// Every machine boots.
fn boot_all(world: &mut World, chance: &mut dyn Chance) {
    world.tell(|| "EVERY MACHINE BOOTS".into());
    for node in world.shape.nodes.clone() {
        world.perform(Task::Fault(Box::new(Fault::Reboot(node))), chance);
    }
    who_is_off(world).into_iter().for_each(|fault| world.perform(Task::Fault(Box::new(fault)), chance));
}

/// Somebody finds the machines whose names others have, and switches them off for good.
fn firsts_found(world: &World) -> impl Iterator<Item = Fault> {
    let firsts = world.machines.keys().filter(|machine| node_of(machine) != machine.as_str());
    firsts.cloned().map(Fault::PowerOff)
}

/// What only a person can know: that the boot is over which an incident is of. Machines that boot by another address may be others, and
/// some are. So may a Node that was made anew where nobody tells addresses, if a fencer may have cut the one before off.
fn who_is_off(world: &World) -> Vec<Fault> {
    let is_anew = |node: &str| {
        let frozen = world.api.get::<NodeFence>(node).map(|fence| fence.spec.node.uid.clone());
        frozen.is_some() && frozen != world.api.get::<Node>(node).and_then(|node| node.uid())
    };
    let without_addresses = world.shape.power.is_some() && !world.shape.leaves_power();
    let may_be_another = |node: &&String| {
        let is_second = world.machines.contains_key(&first_of(node));
        world.shape.network.is_some() || is_second || without_addresses && is_anew(node)
    };
    let nodes = world.shape.nodes.iter().filter(may_be_another);
    nodes.map(|node| Fault::Person(Person::SayOff(node.clone()))).collect()
}

impl World {
    /// Pods that a failed node still holds, though all that is needed to release them is there.
    pub(crate) fn held_back(&self) -> Vec<String> {
        let failed = |node: &str| {
            let machine = self.machines.get(node);
            machine.is_some_and(|machine| machine.power != Power::Running || !machine.is_connected)
        };
        let mut held = Vec::new();
        for pod in self.api.pods.values().filter(|pod| !pod.is_finished()) {
            let Some(node) = pod.spec.node_name.clone().filter(|node| failed(node)) else { continue };
            let Some(workload) = self.shape.workload_of(pod) else { continue };
            if workload.owner.is_daemon() || workload.volumes.is_empty() {
                continue;
            }
            let excuse = self.excuse(&node, pod);
            if excuse.is_none() {
                held.push(format!("{} is still on {node}", pod.name_any()));
            }
        }
        held
    }

    /// Why a pod may rightly be held on a failed node.
    fn excuse(&self, node: &str, pod: &bulkhead::api::slim::Pod) -> Option<&'static str> {
        let app = pod.labels().get("app");
        let live = self.api.policies.values().filter(|policy| policy.metadata.deletion_timestamp.is_none());
        let selecting: Vec<_> = live.filter(|policy| crate::shape::selects(policy, app)).collect();
        if selecting.is_empty() && self.planned_release(node, pod).is_none() {
            return Some("no policy selects it");
        }
        if self.api.policies.values().any(|policy| policy.status.iter().any(|status| !status.restraints.is_empty())) {
            return Some("a brake holds");
        }
        if !pod.is("Initialized") && !pod.was_bound_past_the_fence() {
            return Some("it never started there: its owner put it on a failed node");
        }
        if self.api.nodes.get(node).is_none() {
            return Some("its Node is gone: podGC is about to remove it");
        }
        let fence = self.api.fences.get(node)?;
        let mut conditions = fence.status.iter().flat_map(|status| &status.conditions);
        let held = conditions.find(|condition| condition.type_ == "Held" && condition.status == "True");
        // A veto must end with the I/O.
        if held.is_some_and(|held| held.reason != IO_IN_PROGRESS || self.is_there_io(|_| true)) {
            return Some("the incident is held");
        }
        if brakes::in_progress(fence) && self.may_be_another_machine(fence) {
            return Some("its incident is of another machine: people release by hand then");
        }
        let planned = fence.spec.plan.pods.iter().find(|row| Some(&row.uid) == pod.metadata.uid.as_ref());
        if planned.is_some_and(|row| row.reason == DRY_RUN && brakes::in_progress(fence)) {
            return Some("it was kept by a rehearsal, and rows do not change while an incident in earnest lasts");
        }
        let row = self.planned_release(node, pod)?;
        let status = fence.status.as_ref()?;
        let state = status.pods.iter().find(|it| it.uid == row.uid)?;
        if matches!(state.reason.as_deref(), Some("SharerHeld" | "UnknownVolumeKind" | "LocalVolume")) {
            return Some("it shares a volume with one that stays");
        }
        let unit = volumes_of_unit(fence, &row.uid);
        let says = |volume: &str, reason: &str| {
            let rows = status.volumes.iter().filter(|it| it.name == volume);
            rows.max_by_key(|it| it.episode).is_some_and(|it| it.reason.as_deref() == Some(reason))
        };
        // Nor is the node switched off for what is not attached while another volume of its incident waits for the I/O to end.
        let is_vetoed = |volume: &str| says(volume, IO_IN_PROGRESS);
        let waits = |volume: &str| says(volume, "PowerWaits") && status.volumes.iter().any(|row| is_vetoed(&row.name));
        if unit.iter().any(|volume| is_vetoed(volume) || waits(volume)) && self.is_there_io(|_| true) {
            return Some("the node is doing I/O");
        }
        let unprovable = unit.iter().any(|volume| self.is_unprovable(fence, volume));
        unprovable.then_some("no proof can be had")
    }

    fn planned_release(
        &self,
        node: &str,
        pod: &bulkhead::api::slim::Pod,
    ) -> Option<bulkhead::api::node_fence::PlannedPod> {
        let fence = self.api.fences.get(node).filter(|fence| brakes::in_progress(fence))?;
        let rows = &fence.spec.plan.pods;
        let planned = rows.iter().find(|row| Some(&row.uid) == pod.metadata.uid.as_ref());
        // One that was given up when the node returned is released by a further episode only, which needs a policy.
        let rows = fence.status.iter().flat_map(|status| &status.pods);
        let is_given_up = |uid: &str| {
            rows.clone().any(|row| row.uid == uid && row.state == bulkhead::api::node_fence::PodStatusState::Undone)
        };
        planned.filter(|row| row.action == PodAction::Release && !is_given_up(&row.uid)).cloned()
    }

    /// Whether no method can prove a volume of an incident: no sidecar, no list where that is the proof, never published, none
    /// that is strong enough, or a NetworkFenceClass of another cluster.
    fn is_unprovable(&self, fence: &Arc<NodeFence>, volume: &str) -> bool {
        let rows = fence.spec.plan.volumes.iter().filter(|row| row.name == volume);
        let Some(row) = rows.max_by_key(|row| row.episode) else { return true };
        let status = fence.status.iter().flat_map(|status| &status.volumes);
        let status = status.into_iter().find(|it| it.episode == row.episode && it.name == volume);
        let reason = status.and_then(|status| status.reason.clone()).unwrap_or_default();
        let has = |type_: FenceMethodType| row.methods.iter().any(|method| method.type_ == type_);
        // Who leaves a node its power proves nothing of what is not attached.
        let is_too_weak = |method: &PlannedMethod| {
            method.type_ == FenceMethodType::External && self.shape.leaves_power() && row.is_unattached()
        };
        let is_cut_off = row.methods.iter().any(|it| it.type_ == FenceMethodType::External && !is_too_weak(it));
        if is_cut_off && !fence.spec.plan.is_by_volume() && !fence.spec.plan.is_by_path() {
            return false;
        }
        let driver = self.shape.drivers.iter().find(|driver| Some(&driver.name) == row.driver.as_ref());
        let needs_list = !has(FenceMethodType::NetworkFence);
        let without = driver.is_none_or(|driver| !driver.has_sidecar || needs_list && !driver.lists);
        // A policy that was made stricter after the first call: what was published before it, nobody has read.
        let began_weaker = status.is_some_and(|it| it.proof == Proof::Acknowledged) && reason == "Acknowledged";
        without
            || began_weaker
            || row.methods.iter().all(is_too_weak)
            || matches!(reason.as_str(), "NeverPublished" | "ProofTooWeak" | "Unimplemented")
            || !self.shape.is_of_class(volume)
            || self.shape.network.is_some() && is_address_in_doubt(&reason) && self.is_another_by_now(fence)
            || self.have_addresses_moved(fence, &reason)
    }

    /// Whether nobody is shut out since another node has one of the addresses that are frozen, or the node has none of them any more.
    fn have_addresses_moved(&self, fence: &NodeFence, reason: &str) -> bool {
        let (name, frozen) = (fence.name_any(), &fence.spec.node.addresses);
        let has_one = |node: &Node| node.status.addresses.iter().any(|it| frozen.contains(&it.address));
        match reason {
            "AddressClaimed" => self.api.nodes.values().any(|node| node.name_any() != name && has_one(node)),
            "AddressesChanged" | "AddressesUnknown" => self.api.nodes.get(&name).is_some_and(|node| !has_one(node)),
            _ => false,
        }
    }

    /// Whether the Node of an incident is another one or another boot by now, or gone.
    fn is_another_by_now(&self, fence: &NodeFence) -> bool {
        let frozen = &fence.spec.node;
        self.api.nodes.get(&fence.name_any()).is_none_or(|node| {
            let boot_id = Some(node.status.node_info.boot_id.as_str());
            node.uid().as_deref() != Some(frozen.uid.as_str()) || boot_id != frozen.boot_id.as_deref()
        })
    }

    /// What is not as it was before anything happened.
    pub(crate) fn unrecovered(&self) -> Vec<String> {
        let mut left = Vec::new();
        for fence in self.api.fences.values() {
            let phase = fence.status.as_ref().and_then(|status| status.phase);
            if phase != Some(Phase::Recovered) {
                left.push(format!("NodeFence {} is {phase:?}", fence.name_any()));
            }
            if fence.labels().contains_key(names::ACTIVE_LABEL) {
                left.push(format!("NodeFence {} is active", fence.name_any()));
            }
        }
        left.extend(self.api.requests.iter().map(|(name, _)| format!("FenceRequest {name} is there")));
        for node in self.api.nodes.values() {
            let ours = |key: &str, value: Option<&str>| {
                key == names::FENCED_TAINT
                    || key == names::OUT_OF_SERVICE_TAINT && value.is_some_and(|value| value.starts_with("bulkhead-"))
            };
            if node.taints().iter().any(|taint| ours(&taint.key, taint.value.as_deref())) {
                left.push(format!("node {} is tainted", node.name_any()));
            }
        }
        left.extend(self.plugin_taints_left());
        left.extend(self.network_fences_left());
        let off_fabric = self.members().filter(|(_, machine)| machine.is_off_fabric);
        left.extend(off_fabric.map(|(name, _)| format!("{name} is still off the fabric of its storages")));
        for policy in self.api.policies.values() {
            if policy.metadata.deletion_timestamp.is_some() {
                left.push(format!("policy {} is being deleted", policy.name_any()));
            }
        }
        for workload in self.shape.workloads.iter().filter(|workload| !workload.owner.is_daemon()) {
            let runs = self.machines.values().flat_map(|machine| &machine.running).any(|it| {
                it.pod.starts_with(&format!("{}-", workload.name))
                    && self.api.pods.get(&it.pod).is_some_and(|pod| pod.uid().as_ref() == Some(&it.uid))
            });
            if !runs {
                left.push(format!("workload {} does not run", workload.name));
            }
        }
        left
    }
}

/// Whether nobody is shut out, since what is there by the name of the Node may be another one: people fence by hand then.
fn is_address_in_doubt(reason: &str) -> bool {
    matches!(reason, "AddressClaimed" | "AnotherMachine" | "ClientsUnknown" | "IdentityAmbiguous")
}

/// The volumes that must be proved before a pod goes: of all pods that hang together with it by volumes they share.
fn volumes_of_unit(fence: &NodeFence, uid: &str) -> BTreeSet<String> {
    let rows: Vec<_> = fence.spec.plan.pods.iter().filter(|row| row.action == PodAction::Release).collect();
    let used = rows.iter().enumerate().flat_map(|(place, row)| row.volumes.iter().map(move |name| (place, name)));
    let units = units::units(rows.len(), units::by_name(used));
    let unit = rows.iter().position(|row| row.uid == uid).and_then(|place| units.get(place));
    let members = rows.iter().zip(&units).filter(|(_, other)| Some(*other) == unit);
    members.flat_map(|(row, _)| row.volumes.iter().cloned()).collect()
}
