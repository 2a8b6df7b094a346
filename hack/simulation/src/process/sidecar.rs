//! The sidecar of a driver: its watch, its memory of calls, and its passes over FenceRequests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bulkhead::api::fence_request::{FenceRequest, RequestedVolume};
use bulkhead::csi_sidecar::decide::{self, Effect, Reading, Seen};
use bulkhead::csi_sidecar::io::{Busy, Questions};
use bulkhead::csi_sidecar::memory::Memory;
use bulkhead::csi_sidecar::status;

use crate::api::{Op, Refusal, View, Written};
use crate::array::{List, Listing};
use crate::chance::{Chance, Choice};
use crate::shape::handle;
use crate::time::{Millis, millis};
use crate::world::{Purpose, Task, World};

use super::queue::Key;
use super::{Pid, Role};

/// Passes that may follow each other before the store is asked again.
const STEPS: u32 = 8;

/// A sidecar process.
#[derive(Clone, Debug, Default)]
pub struct Sidecar {
    /// FenceRequests of its driver.
    pub requests: View<FenceRequest>,
    /// Calls by request name, with the uid of the request.
    pub memories: BTreeMap<String, (Option<String>, Memory)>,
    /// Passes under way.
    pub passes: BTreeMap<String, Serving>,
}

/// A pass under way.
#[derive(Clone, Debug)]
pub struct Serving {
    request: Arc<FenceRequest>,
    steps: u32,
    effects: VecDeque<Effect>,
    look_again: Option<Duration>,
}

/// A list of the driver under way.
#[derive(Clone, Debug)]
pub struct ListCall {
    /// Whose.
    pub pid: Pid,
    /// Its life.
    pub life: u32,
    /// The request it is for.
    pub request: String,
    began: std::time::Instant,
    made: Millis,
    of: Millis,
    answer: List,
}

/// ControllerUnpublishVolume under way.
#[derive(Clone, Debug)]
pub struct UnpublishCall {
    /// Whose.
    pub pid: Pid,
    /// Its life.
    pub life: u32,
    /// The request it is for, by name and uid.
    pub request: (String, Option<String>),
    /// What is cut off.
    pub volume: RequestedVolume,
    attempts: u32,
    /// The driver's answer; `None`: it did not answer in time.
    pub answer: Option<Result<(), decide::Failure>>,
}

/// What was found out for a step of a pass.
#[derive(Default)]
pub(super) struct Found {
    /// What the driver lists.
    pub reading: Option<Reading>,
    /// Whether the node is let in again.
    pub let_in: Option<Result<(), decide::Failure>>,
}

impl World {
    pub(super) fn sidecar(&mut self, pid: Pid) -> &mut Sidecar {
        let first = self.controllers.len();
        &mut self.sidecars[pid - first]
    }

    /// The driver of a sidecar.
    pub(crate) fn driver_of(&self, pid: Pid) -> String {
        match &self.processes[pid].role {
            Role::Sidecar(driver) => driver.clone(),
            Role::Controller => String::new(),
        }
    }

    /// A pass over a request begins.
    pub(crate) fn serve(&mut self, pid: Pid, name: &str, chance: &mut dyn Chance) {
        let sidecar = self.sidecar(pid);
        let Some(request) = sidecar.requests.get(name) else {
            sidecar.memories.remove(name);
            return self.finish(pid, &Key::Request(name.to_owned()), Ok(None), chance);
        };
        let (uid, memory) = sidecar.memories.entry(name.to_owned()).or_default();
        if *uid != request.metadata.uid {
            (*uid, *memory) = (request.metadata.uid.clone(), Memory::default());
        }
        let serving = Serving { request, steps: 0, effects: VecDeque::new(), look_again: None };
        sidecar.passes.insert(name.to_owned(), serving);
        self.serve_step(pid, name, Found::default(), chance);
    }

    /// The next step of a pass: decide, with what was found out if anything was.
    pub(super) fn serve_step(&mut self, pid: Pid, name: &str, found: Found, chance: &mut dyn Chance) {
        let now = self.processes[pid].now(self.now);
        let sidecar = self.sidecar(pid);
        let Some(serving) = sidecar.passes.get_mut(name) else { return };
        let memory = sidecar.memories.get(name).map(|(_, memory)| memory.clone()).unwrap_or_default();
        let Found { reading, let_in } = found;
        let (had_read, was_let_in) = (reading.is_some(), let_in.is_some());
        let request = serving.request.clone();
        let (calls, looked) = (memory.calls, memory.looked);
        let mut seen = Seen { request, calls, reading, busy: None, let_in, holds: None, looked };
        let mut decision = decide::decide(&seen, now);
        if !decision.read.is_empty() && !had_read {
            return self.read_driver(pid, name, &decision.read, chance);
        }
        if !decision.ask.is_empty() {
            seen.busy = Some(self.ask_about_io(pid, &decision.ask));
            decision = decide::decide(&seen, now);
        }
        if decision.look {
            seen.holds = self.look_at_fence(pid, &seen.request.clone(), chance);
            seen.looked = Some(now.mono);
            if let Some((_, memory)) = self.sidecar(pid).memories.get_mut(name) {
                memory.looked = seen.looked;
            }
            decision = decide::decide(&seen, now);
        }
        if decision.let_in && !was_let_in {
            return self.let_in(pid, &seen.request);
        }
        let Some(serving) = self.sidecar(pid).passes.get_mut(name) else { return };
        serving.effects = decision.effects.into();
        serving.look_again = decision.look_again;
        if serving.effects.is_empty() {
            return self.rest(pid, name, chance);
        }
        self.serve_effects(pid, name, chance);
    }

    /// Which of these nodes are doing I/O, as `observe::ask` of the product finds it out. An array that is down says nothing.
    fn ask_about_io(&mut self, pid: Pid, questions: &Questions) -> Busy {
        let driver = self.driver_of(pid);
        if self.arrays.get(&driver).is_none_or(|array| array.mood.is_down) {
            self.oracle.unsaid.insert(driver, self.now);
            return Busy::new();
        }
        let says = |handles: &BTreeSet<String>| self.is_there_io(|volume| handles.contains(&handle(volume)));
        // Counted per volume: whoever else is asked about, the answer is the same.
        let busy = questions.iter().filter(|(_, question)| says(&question.own));
        let busy: Busy = busy.map(|(node_id, _)| node_id.clone()).collect();
        self.counts.vetoed += busy.len() as u64;
        self.counts.asked_about_io += questions.len() as u64;
        busy
    }

    fn serve_effects(&mut self, pid: Pid, name: &str, chance: &mut dyn Chance) {
        let now = self.processes[pid].now(self.now);
        let Some(serving) = self.sidecar(pid).passes.get_mut(name) else { return };
        let request = serving.request.clone();
        match serving.effects.pop_front() {
            None => self.rest(pid, name, chance),
            Some(Effect::Unpublish(volumes)) => {
                for volume in volumes {
                    self.unpublish(pid, &request, volume, chance);
                }
                self.serve_effects(pid, name, chance);
            }
            Some(Effect::NetworkFence { class, volumes }) => {
                self.shut_out(pid, &request, class, volumes);
                self.serve_effects(pid, name, chance);
            }
            Some(Effect::Answer(rows)) => {
                let mut next = FenceRequest::clone(&request);
                next.status = Some(status::compute(&request, rows.clone(), now));
                let key = Key::Request(name.to_owned());
                let sent =
                    self.send(pid, &key, Op::AnswerRequest(Box::new(next)), Purpose::Answer(rows), self.now, chance);
                if let Err(refusal) = sent {
                    self.served(pid, name, Err(refusal), chance);
                }
            }
        }
    }

    /// The answer to a write of rows has come.
    pub(crate) fn answer_written(
        &mut self,
        pid: Pid,
        name: &str,
        rows: &[bulkhead::api::fence_request::FenceResult],
        outcome: Result<Written, Refusal>,
        chance: &mut dyn Chance,
    ) {
        let written = match outcome {
            Ok(Written::Request(written)) => written,
            Ok(_) => return,
            Err(refusal) => return self.served(pid, name, Err(refusal), chance),
        };
        let sidecar = self.sidecar(pid);
        if let Some((_, memory)) = sidecar.memories.get_mut(name) {
            memory.answered(rows);
        }
        let Some(serving) = sidecar.passes.get_mut(name) else { return };
        serving.request = written;
        serving.steps += 1;
        if serving.steps >= STEPS {
            return self.served(pid, name, Ok(Some(Duration::from_millis(10))), chance);
        }
        self.serve_step(pid, name, Found::default(), chance);
    }

    /// Nothing is left to do but to look again.
    fn rest(&mut self, pid: Pid, name: &str, chance: &mut dyn Chance) {
        let wait = self.sidecar(pid).passes.get(name).and_then(|serving| serving.look_again);
        self.served(pid, name, Ok(wait), chance);
    }

    fn served(&mut self, pid: Pid, name: &str, result: Result<Option<Duration>, Refusal>, chance: &mut dyn Chance) {
        self.sidecar(pid).passes.remove(name);
        let result = match result {
            Err(Refusal::Conflict) => Ok(Some(Duration::from_millis(20))),
            other => other,
        };
        self.finish(pid, &Key::Request(name.to_owned()), result, chance);
    }

    fn read_driver(&mut self, pid: Pid, name: &str, _handles: &BTreeSet<String>, chance: &mut dyn Chance) {
        let Some(serving) = self.sidecar(pid).passes.get(name) else { return };
        let deadline = millis(serving.request.spec.call_timeout.get());
        let driver = self.driver_of(pid);
        let none = Listing { list: List::Failed("Unavailable"), takes: 1, is_old: false };
        let mut listing = self.arrays.get_mut(&driver).map_or(none, |array| array.list(chance));
        if listing.takes >= deadline {
            (listing.list, listing.takes) = (List::Failed("DeadlineExceeded"), deadline);
        }
        let process = &self.processes[pid];
        let began = process.now(self.now).mono;
        // What is proved by an old list is so as of then: who was let in since is let in again, not still.
        let before = self.made.insert(driver, self.now).unwrap_or(self.now);
        let (of, takes) = (if listing.is_old { before } else { self.now }, listing.takes.max(1));
        let call = ListCall {
            pid,
            life: process.life,
            request: name.to_owned(),
            began,
            made: self.now,
            of,
            answer: listing.list,
        };
        let id = self.number();
        self.lists.insert(id, call);
        self.schedule(self.now + takes, Task::ListEnds(id));
    }

    pub(crate) fn list_ends(&mut self, id: u64, chance: &mut dyn Chance) {
        let Some(call) = self.lists.remove(&id) else { return };
        if self.processes[call.pid].life != call.life {
            return;
        }
        let driver = self.driver_of(call.pid);
        self.listed.insert(driver, (call.made, call.of));
        let ended = self.processes[call.pid].now(self.now).wall;
        let reading = Reading { began: call.began, ended, published: call.answer.published() };
        self.serve_step(call.pid, &call.request, Found { reading: Some(reading), ..Found::default() }, chance);
    }

    /// Sends ControllerUnpublishVolume: leadership is asked for at that moment.
    fn unpublish(&mut self, pid: Pid, request: &FenceRequest, volume: RequestedVolume, chance: &mut dyn Chance) {
        let name = request.metadata.name.clone().unwrap_or_default();
        let Some((_, memory)) = self.sidecar(pid).memories.get_mut(&name) else { return };
        let attempts = memory.begins(&volume);
        let life = self.processes[pid].life;
        let request_id = (name, request.metadata.uid.clone());
        let mut call = UnpublishCall { pid, life, request: request_id, volume, attempts, answer: None };
        let id = self.number();
        let Some(left) = self.processes[pid].leads_for(self.now) else {
            call.answer = Some(Err(crate::array::failure("Internal")));
            self.calls.insert(id, call);
            return self.schedule(self.now + 1, Task::CallEnds(id));
        };
        if self.crashes_before(pid, chance) {
            return;
        }
        let timeout: Millis = millis(request.spec.call_timeout.get().min(left)).max(1);
        self.notice_unpublish(pid, request, &call.volume);
        let driver = self.driver_of(pid);
        let Some(array) = self.arrays.get_mut(&driver) else { return };
        let course = array.unpublish_course(&call.volume.volume_handle, &call.volume.node_id, chance);
        if let Some(after) = course.effect_after {
            let lands = Task::CallLands(driver, call.volume.volume_handle.clone(), call.volume.node_id.clone());
            self.schedule(self.now + after.max(1), lands);
        }
        let ends = course.answer_after.min(timeout);
        if course.answer_after <= timeout {
            call.answer = Some(course.answer);
        }
        self.calls.insert(id, call);
        self.schedule(self.now + ends.max(1), Task::CallEnds(id));
        self.crashes_after(pid, chance);
    }

    pub(crate) fn call_ends(&mut self, id: u64, chance: &mut dyn Chance) {
        let Some(call) = self.calls.remove(&id) else { return };
        let process = &self.processes[call.pid];
        if process.life != call.life {
            return;
        }
        let at = process.now(self.now).mono;
        let outcome = call.answer.unwrap_or_else(|| Err(crate::array::failure("DeadlineExceeded")));
        let (name, uid) = call.request;
        if let Some((known, memory)) = self.sidecar(call.pid).memories.get_mut(&name)
            && *known == uid
        {
            memory.ended(&call.volume, call.attempts, outcome, at);
        }
        let late = chance.between(Choice::Pass, 0, 3);
        self.want(call.pid, &Key::Request(name), late);
    }
}
