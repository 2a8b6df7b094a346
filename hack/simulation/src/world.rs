//! The world as one value: everything that is, and an agenda of what comes next. Cloneable, and without any choice of
//! its own: a random schedule and a model checker can both drive it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead::api::fence_request::{FenceRequest, FenceResult};
use bulkhead::api::time::Now;
use bulkhead::controllers::node_fence::memory::Noted;

use crate::api::{Api, Kind, Op, Refusal, Written};
use crate::array::Array;
use crate::chance::{Chance, Choice};
use crate::counts::Counts;
use crate::faults::Fault;
use crate::oracle::Oracle;
use crate::others::{Actor, Machine, Others};
use crate::process::controller::Controller;
use crate::process::network::NetworkCall;
use crate::process::queue::Key;
use crate::process::sidecar::{ListCall, Sidecar, UnpublishCall};
use crate::process::{Pid, Process};
use crate::shape::Shape;
use crate::time::Millis;

/// Everything that is.
#[derive(Clone, Debug)]
pub struct World {
    /// Virtual time.
    pub now: Millis,
    /// What it began with.
    pub shape: Arc<Shape>,
    /// The API server.
    pub api: Api,
    /// Machines by node name; one whose name another one has by now beside that (`others::first_of`).
    pub machines: BTreeMap<String, Machine>,
    /// Workloads whose program fails wherever it runs.
    pub failing: BTreeSet<String>,
    /// Arrays by driver name.
    pub arrays: BTreeMap<String, Array>,
    /// The programs under test: controllers first, then sidecars.
    pub processes: Vec<Process>,
    /// The controllers.
    pub controllers: Vec<Controller>,
    /// The sidecars.
    pub sidecars: Vec<Sidecar>,
    /// Kubernetes' own parts.
    pub others: Others,
    /// How bad the network and the API server are.
    pub weather: Weather,
    /// What must hold.
    pub oracle: Oracle,
    /// What happened, in numbers.
    pub counts: Counts,
    /// What happened, in words, if anybody wants to read it.
    pub trace: Option<Vec<String>>,
    /// Stop a process at a write or call of this number.
    pub crash_point: Option<CrashPoint>,
    /// What goes wrong right after the programs under test have sent so many writes and calls.
    pub triggers: Vec<(u64, Fault)>,
    pub(crate) writes: BTreeMap<u64, Write>,
    pub(crate) calls: BTreeMap<u64, UnpublishCall>,
    pub(crate) lists: BTreeMap<u64, ListCall>,
    pub(crate) network_calls: BTreeMap<u64, NetworkCall>,
    /// When the last list that a sidecar got was made, and the moment that it shows, by driver.
    pub(crate) listed: BTreeMap<String, (Millis, Millis)>,
    /// When the last list was made, by driver.
    pub(crate) made: BTreeMap<String, Millis>,
    agenda: BTreeMap<(Millis, u64), Task>,
    wakes: BTreeMap<Actor, Millis>,
    numbers: u64,
}

/// How bad the network and the API server are: one in so many, 0 for never.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// Writes that take seconds.
    pub slows: u64,
    /// Writes that arrive after their sender gave up.
    pub delays: u64,
    /// Writes that never arrive.
    pub loses_writes: u64,
    /// Answers that never arrive.
    pub loses_answers: u64,
    /// Writes that are refused with 429.
    pub throttles: u64,
    /// Watches that deliver seconds late.
    pub slow_watches: u64,
    /// Only watches of these kinds do; all, if there are none.
    pub slow_kinds: Vec<Kind>,
}

/// A write on its way.
#[derive(Clone, Debug)]
pub struct Write {
    /// Whose.
    pub pid: Pid,
    /// Its life; `u32::MAX` once the sender has given up.
    pub life: u32,
    /// The key whose pass sent it.
    pub key: Key,
    /// What is written.
    pub op: Op,
    /// What follows from the answer.
    pub purpose: Purpose,
    /// When it was decided.
    pub decided: Millis,
    /// When it was sent.
    pub sent: Millis,
    /// When its sender gives up.
    pub deadline: Millis,
    /// What the server made of it.
    pub outcome: Option<Result<Written, Refusal>>,
}

/// What follows from the answer to a write.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// Nothing.
    Plain,
    /// The status of a NodeFence, sent at that moment.
    Record(Now),
    /// Labels or finalizers of a NodeFence.
    Fence,
    /// Rounds were asked for.
    Ask(Noted),
    /// The request goes once its finalizer is off.
    Withdraw(Arc<FenceRequest>),
    /// A NodeFence was planned, or a policy written.
    Plan,
    /// Rows were answered.
    Answer(Vec<FenceResult>),
    /// A Lease was claimed.
    Claim,
    /// A DriverReport.
    Report,
}

/// Where a process is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// Which process.
    pub pid: Pid,
    /// The number of its writes and calls that are let through before.
    pub after: u64,
    /// Whether the write or call that follows is still sent.
    pub sent: bool,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// A process takes its next step in the election.
    Elect(Pid, u32),
    /// A watch delivers changes of a kind up to that number.
    Deliver(Pid, u32, Kind, u64),
    /// A pass of a process may begin.
    Pass(Pid, u32, Key),
    /// The server takes a write.
    Land(u64),
    /// A write is answered, or given up.
    Answer(u64),
    /// A list of a driver ends.
    ListEnds(u64),
    /// An unpublish takes effect: driver, handle, node id.
    CallLands(String, String, String),
    /// An unpublish is answered, or given up.
    CallEnds(u64),
    /// A network fence, or its end, takes its next step.
    NetworkStep(u64),
    /// A sidecar looks at what its driver can do.
    Report(Pid, u32),
    /// One of Kubernetes' own parts acts.
    Wake(Actor),
    /// The node lifecycle controller marks a pod of a silent node, by name and uid.
    PodNotReady(String, Option<String>),
    /// An attacher's call ends.
    Attached(u64),
    /// Something goes wrong, or right again.
    Fault(Box<Fault>),
    /// A process starts.
    Start(Pid),
}

impl World {
    /// The world of a shape: everything runs, every pod has its volumes, and the programs under test start.
    pub fn new(shape: Arc<Shape>) -> Self {
        let mut world = Self {
            now: 0,
            api: Api::new(shape.admission_missing),
            machines: BTreeMap::new(),
            arrays: BTreeMap::new(),
            processes: Vec::new(),
            controllers: Vec::new(),
            sidecars: Vec::new(),
            others: Others::default(),
            weather: Weather::default(),
            failing: BTreeSet::new(),
            oracle: Oracle::default(),
            counts: Counts::default(),
            trace: None,
            crash_point: None,
            triggers: Vec::new(),
            writes: BTreeMap::new(),
            calls: BTreeMap::new(),
            lists: BTreeMap::new(),
            network_calls: BTreeMap::new(),
            listed: BTreeMap::new(),
            made: BTreeMap::new(),
            agenda: BTreeMap::new(),
            wakes: BTreeMap::new(),
            numbers: 0,
            shape,
        };
        crate::begin::begin(&mut world);
        world
    }

    /// The next thing happens. `false` when nothing is left, or an invariant is broken.
    pub fn step(&mut self, chance: &mut dyn Chance) -> bool {
        let Some(((at, _), task)) = self.agenda.pop_first() else { return false };
        self.now = self.now.max(at);
        self.counts.steps += 1;
        self.perform(task, chance);
        self.oracle.is_clean()
    }

    /// Runs until that time, or until an invariant is broken.
    pub fn run_until(&mut self, end: Millis, chance: &mut dyn Chance) -> bool {
        while self.agenda.first_key_value().is_some_and(|((at, _), _)| *at <= end) {
            if !self.step(chance) {
                return false;
            }
        }
        self.now = self.now.max(end);
        self.oracle.is_clean()
    }

    /// What is on the agenda, in order.
    pub fn agenda(&self) -> impl Iterator<Item = (Millis, u64, &Task)> {
        self.agenda.iter().map(|((at, number), task)| (*at, *number, task))
    }

    /// Whether a thing on the agenda has been overtaken, and will do nothing.
    pub(crate) fn is_overtaken(&self, at: Millis, task: &Task) -> bool {
        match task {
            Task::Land(id) | Task::Answer(id) => !self.writes.contains_key(id),
            Task::CallEnds(id) => !self.calls.contains_key(id),
            Task::ListEnds(id) => !self.lists.contains_key(id),
            Task::NetworkStep(id) => !self.network_calls.contains_key(id),
            Task::Wake(actor) => self.wakes.get(actor) != Some(&at),
            _ => false,
        }
    }

    /// Performs a task now, with all that follows at once.
    pub fn perform(&mut self, task: Task, chance: &mut dyn Chance) {
        match task {
            Task::Elect(pid, life) => {
                self.of_process(pid, life, Task::Elect(pid, life), |world| world.elect(pid, chance))
            }
            Task::Deliver(pid, life, kind, upto) => {
                let task = Task::Deliver(pid, life, kind, upto);
                self.of_process(pid, life, task, |world| world.deliver(pid, kind, Some(upto)));
            }
            Task::Pass(pid, life, key) => {
                let task = Task::Pass(pid, life, key.clone());
                self.of_process(pid, life, task, |world| world.pass(pid, &key, chance));
            }
            Task::Report(pid, life) => {
                self.of_process(pid, life, Task::Report(pid, life), |world| world.report(pid, chance));
            }
            Task::Land(id) => self.land(id, chance),
            Task::Answer(id) => match self.writes.get(&id).map(|write| (write.pid, write.life)) {
                Some((pid, life)) if life != u32::MAX => {
                    self.of_process(pid, life, Task::Answer(id), |world| world.answer(id, chance));
                }
                _ => {}
            },
            Task::ListEnds(id) => {
                if let Some((pid, life)) = self.lists.get(&id).map(|call| (call.pid, call.life)) {
                    self.of_process(pid, life, Task::ListEnds(id), |world| world.list_ends(id, chance));
                }
            }
            Task::NetworkStep(id) => {
                if let Some((pid, life)) = self.network_calls.get(&id).map(|call| (call.pid, call.life)) {
                    self.of_process(pid, life, Task::NetworkStep(id), |world| world.network_step(id, chance));
                }
            }
            Task::CallLands(driver, handle, node) => {
                let now = self.now;
                if let Some(array) = self.arrays.get_mut(&driver) {
                    array.unpublish(&handle, &node, now);
                    self.oracle.touch();
                }
                self.tell(|| format!("the array takes {handle} from {node}"));
            }
            Task::CallEnds(id) => {
                if let Some((pid, life)) = self.calls.get(&id).map(|call| (call.pid, call.life)) {
                    self.of_process(pid, life, Task::CallEnds(id), |world| world.call_ends(id, chance));
                }
            }
            Task::Wake(actor) => {
                if self.wakes.get(&actor).is_some_and(|at| *at <= self.now) {
                    self.wakes.remove(&actor);
                    self.act(&actor, chance);
                }
            }
            Task::PodNotReady(name, uid) => self.pod_not_ready(&name, uid.as_deref()),
            Task::Attached(id) => self.attacher_call_ends(id, chance),
            Task::Fault(fault) => self.befall(&fault, chance),
            Task::Start(pid) => self.start(pid, chance),
        }
        self.spread(chance);
        self.judge();
    }

    /// What belongs to a process that stands still waits; what belongs to one that is gone is dropped.
    fn of_process(&mut self, pid: Pid, life: u32, task: Task, run: impl FnOnce(&mut Self)) {
        let process = &self.processes[pid];
        if !process.is_up || process.life != life {
            return;
        }
        match process.stands_until.filter(|until| *until > self.now) {
            Some(until) => self.schedule(until, task),
            None => run(self),
        }
    }

    /// Puts something on the agenda.
    pub fn schedule(&mut self, at: Millis, task: Task) {
        let number = self.number();
        self.agenda.insert((at, number), task);
    }

    /// Wakes one of Kubernetes' own parts at that time at the latest.
    pub(crate) fn wake(&mut self, actor: Actor, at: Millis) {
        if self.wakes.get(&actor).is_some_and(|known| *known <= at) {
            return;
        }
        self.wakes.insert(actor.clone(), at);
        self.schedule(at, Task::Wake(actor));
    }

    /// A number that was not used before.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Tells the trace.
    pub(crate) fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9.3} {}", self.now as f64 / 1000.0, what()));
        }
    }

    /// Everybody who watches learns of what changed, later.
    fn spread(&mut self, chance: &mut dyn Chance) {
        for (kind, name) in self.api.take_changes() {
            let upto = self.api.changes(kind);
            for pid in 0..self.processes.len() {
                if !self.processes[pid].is_up || !self.watches(pid, kind, &name) {
                    continue;
                }
                let slow_kinds = &self.weather.slow_kinds;
                let slow = (slow_kinds.is_empty() || slow_kinds.contains(&kind))
                    && chance.one_in(Choice::Watch, self.weather.slow_watches);
                let late = if slow {
                    chance.between(Choice::Watch, 500, 15_000)
                } else {
                    chance.between(Choice::Watch, 1, 30)
                };
                let life = self.processes[pid].life;
                self.schedule(self.now + late, Task::Deliver(pid, life, kind, upto));
            }
            self.others_notice(kind, &name, chance);
        }
    }

    /// How long a write is on its way; `None`: it never arrives.
    pub(crate) fn flight(&mut self, chance: &mut dyn Chance) -> Option<Millis> {
        let c = Choice::Flight;
        let quick = chance.between(c, 1, 15);
        if chance.one_in(c, self.weather.loses_writes) {
            return None;
        }
        if chance.one_in(c, self.weather.delays) {
            return Some(chance.between(c, 5_000, 60_000));
        }
        Some(if chance.one_in(c, self.weather.slows) { quick + chance.between(c, 100, 6_000) } else { quick })
    }
}
