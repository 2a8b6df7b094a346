//! Carries out what a pass decided, as `act` of the product does: in order, deletions side by side.

use std::sync::Arc;
use std::time::Duration;

use bulkhead::api::node_fence::NodeFence;
use bulkhead::controllers::node_fence::decide::Effect as Fencing;
use bulkhead::controllers::node_fence::memory::is_too_late;
use bulkhead::controllers::node_fence::pods;
use bulkhead::controllers::resiliency_policy::decide::Effect as Protecting;

use crate::api::{Op, Refusal};
use crate::chance::{Chance, Choice};
use crate::time::{Millis, SECOND, millis};
use crate::world::{Purpose, Task, World};

use super::controller::{Acting, Effect, NodePass};
use super::hearing::ASK_EVERY;
use super::queue::Key;
use super::{Pid, Role};

/// Deletions under way at once.
const CONCURRENCY: usize = 32;
/// A pass that finds nothing to do may be late by this much: nobody promises how busy a queue is.
const IDLE_MAX: Millis = 10 * SECOND;

impl World {
    /// A key's time may have come.
    pub(crate) fn pass(&mut self, pid: Pid, key: &Key, chance: &mut dyn Chance) {
        let now = self.now;
        let process = &mut self.processes[pid];
        // Keys are kept while another replica leads.
        if process.leads_for(now).is_none() || !process.queue.start(key, now) {
            return;
        }
        self.counts.passes += 1;
        match key {
            Key::Request(name) => self.serve(pid, name, chance),
            Key::Cluster => match self.decide_cluster(pid) {
                Err(refusal) => self.finish(pid, key, Err(refusal), chance),
                Ok(None) => self.finish(pid, key, Ok(Some(Duration::from_millis(100))), chance),
                Ok(Some(acting)) => self.begin(pid, key, acting, chance),
            },
            Key::Node(name) => match self.decide_node(pid, name) {
                Err(NodePass::Over(wait)) => self.finish(pid, key, Ok(wait), chance),
                Err(NodePass::Failed(refusal)) => self.finish(pid, key, Err(refusal), chance),
                Ok(acting) => self.begin(pid, key, acting, chance),
            },
        }
    }

    fn begin(&mut self, pid: Pid, key: &Key, acting: Acting, chance: &mut dyn Chance) {
        let controller = &mut self.controllers[pid];
        let quiet = controller.quiet.entry(key.clone()).or_default();
        *quiet = if acting.effects.is_empty() { *quiet + 1 } else { 0 };
        controller.passes.insert(key.clone(), acting);
        self.go_on(pid, key, chance);
    }

    /// Sends what can be sent now; ends the pass when nothing is left.
    pub(super) fn go_on(&mut self, pid: Pid, key: &Key, chance: &mut dyn Chance) {
        loop {
            let life = self.processes[pid].life;
            let Some(acting) = self.controllers[pid].passes.get_mut(key) else { return };
            let is_deletion = acting.effects.front().is_some_and(is_deletion);
            if acting.in_flight >= if is_deletion { CONCURRENCY } else { 1 } {
                return;
            }
            // Others are sent only when all before them are answered.
            if !is_deletion && acting.in_flight > 0 {
                return;
            }
            let stops = matches!(key, Key::Node(_)) && acting.failed.is_some() && !is_deletion;
            if acting.in_flight == 0 && (acting.effects.is_empty() || stops) {
                return self.end(pid, key, chance);
            }
            let Some(effect) = acting.effects.pop_front() else { return };
            let decided = acting.decided;
            let sent = match effect {
                Effect::Fencing(effect) => self.send_fencing(pid, key, *effect, decided, chance),
                Effect::Protecting(effect) => self.send_protecting(pid, key, effect, decided, chance),
            };
            if self.processes[pid].life != life || !self.processes[pid].is_up {
                return;
            }
            let Some(acting) = self.controllers[pid].passes.get_mut(key) else { return };
            match sent {
                Ok(true) => acting.in_flight += 1,
                Ok(false) => {}
                Err(refusal) => acting.note(refusal),
            }
        }
    }

    fn end(&mut self, pid: Pid, key: &Key, chance: &mut dyn Chance) {
        let Some(acting) = self.controllers[pid].passes.remove(key) else { return };
        let result = match (acting.failed, key) {
            (Some(Refusal::Conflict), _) => Ok(Some(Duration::from_millis(100))),
            (Some(refusal), _) => Err(refusal),
            (None, _) if acting.changed => Ok(Some(Duration::from_millis(100))),
            (None, _) => {
                let quiet = self.controllers[pid].quiet.get(key).copied().unwrap_or(0);
                let most = if self.is_asking_peers() { ASK_EVERY } else { IDLE_MAX };
                let stretch = |wait: Duration| {
                    let wait = millis(wait);
                    Duration::from_millis((wait << quiet.min(4)).min(most.max(wait)))
                };
                Ok(acting.look_again.map(|wait| if quiet > 1 { stretch(wait) } else { wait }))
            }
        };
        self.finish(pid, key, result, chance);
    }

    /// A pass is over.
    pub(crate) fn finish(
        &mut self,
        pid: Pid,
        key: &Key,
        result: Result<Option<Duration>, Refusal>,
        chance: &mut dyn Chance,
    ) {
        let now = self.now;
        let queue = &mut self.processes[pid].queue;
        let due = match result {
            Ok(wait) => queue.succeeded(key, wait, now),
            Err(refusal) => queue.failed(key, retry_after(&refusal), now),
        };
        if let Some(due) = due {
            let late = chance.between(Choice::Pass, 0, 5);
            self.schedule_pass(pid, key, due + late);
        }
    }

    /// Something relevant to a key changes, and is noticed after so long.
    pub(crate) fn want(&mut self, pid: Pid, key: &Key, after: Millis) {
        if self.processes[pid].role == Role::Controller {
            self.controllers[pid].quiet.remove(key);
        }
        let now = self.now;
        let queue = &mut self.processes[pid].queue;
        let due = if after < 50 { queue.add(key, now) } else { queue.add_at(key, now + after) };
        if let Some(due) = due {
            self.schedule_pass(pid, key, due.max(now + after));
        }
    }

    fn schedule_pass(&mut self, pid: Pid, key: &Key, at: Millis) {
        let life = self.processes[pid].life;
        self.schedule(at.max(self.now + 1), Task::Pass(pid, life, key.clone()));
    }

    /// `Ok(false)`: nothing had to be sent.
    fn send_fencing(
        &mut self,
        pid: Pid,
        key: &Key,
        effect: Fencing,
        decided: Millis,
        chance: &mut dyn Chance,
    ) -> Result<bool, Refusal> {
        let Key::Node(name) = key else { return Ok(false) };
        let now = self.processes[pid].now(self.now);
        if is_too_late(&effect, now) {
            self.counts.too_late += 1;
            return Ok(false);
        }
        let Some(acting) = self.controllers[pid].passes.get(key) else { return Ok(false) };
        let Some(fence) = acting.fence.clone() else { return Ok(false) };
        let requests = acting.requests.clone();
        let incident = self.controllers[pid].incidents.entry(name.clone()).or_default();
        let (op, purpose) = match effect {
            Fencing::Record(status) => {
                let mut next = NodeFence::clone(&fence);
                next.status = Some(*status);
                (Op::RecordFence(Box::new(next)), Purpose::Record(now))
            }
            Fencing::SetActive(active) => (Op::LabelFence(fence, active), Purpose::Fence),
            Fencing::AddTaint { taint, node } => (Op::AddTaint(node, taint), Purpose::Plain),
            Fencing::RemoveTaint { taint, node } => {
                incident.untaints(&taint.key);
                (Op::RemoveTaint(node, taint), Purpose::Plain)
            }
            Fencing::Ask(request) => {
                let noted = incident.note_asked(&request, None, now);
                (Op::CreateRequest(request), Purpose::Ask(noted))
            }
            Fencing::AskAgain(request) => {
                let before = requests.iter().find(|it| it.spec.fencer_name == request.spec.fencer_name);
                let noted = incident.note_asked(&request, before.map(Arc::as_ref), now);
                (Op::ReplaceRequest(request), Purpose::Ask(noted))
            }
            Fencing::Withdraw(request) => (Op::OpenRequest(request.clone()), Purpose::Withdraw(request)),
            Fencing::FailPod { pod, .. } => (Op::FailPod(pod.pod), Purpose::Plain),
            Fencing::DeletePod { pod, grace_seconds, .. } => {
                let latest = pods::latest(pod.pod.clone(), self.controllers[pid].views.pods.get(pod.name()));
                self.counts.marked_meanwhile += u64::from(!Arc::ptr_eq(&latest, &pod.pod));
                (Op::DeletePod(latest, grace_seconds), Purpose::Plain)
            }
            Fencing::DeleteAttachment(attachment) => (Op::DeleteAttachment(attachment), Purpose::Plain),
            Fencing::RemoveFinalizer => (Op::UnguardFence(fence), Purpose::Fence),
            Fencing::Forget => (Op::ForgetFence(fence), Purpose::Plain),
        };
        self.send(pid, key, op, purpose, decided, chance).map(|()| true)
    }

    fn send_protecting(
        &mut self,
        pid: Pid,
        key: &Key,
        effect: Protecting,
        decided: Millis,
        chance: &mut dyn Chance,
    ) -> Result<bool, Refusal> {
        let op = match effect {
            Protecting::AddFinalizer(policy) => Op::GuardPolicy(policy),
            Protecting::RemoveFinalizer(policy) => Op::UnguardPolicy(policy),
            Protecting::Open(fence) => Op::CreateFence(fence),
            Protecting::Replan(fence) => Op::ReplaceFence(fence),
            Protecting::Record(policy) => Op::RecordPolicy(policy),
            Protecting::AddTaint { taint, node } => Op::AddTaint(node, taint),
            Protecting::RemoveTaint { taint, node } => Op::RemoveTaint(node, taint),
            Protecting::Reschedule { pod, .. } => Op::DeletePod(pod.pod, None),
        };
        self.send(pid, key, op, Purpose::Plan, decided, chance).map(|()| true)
    }
}

impl Acting {
    pub(super) fn note(&mut self, refusal: Refusal) {
        self.failed.get_or_insert(refusal);
    }
}

fn is_deletion(effect: &Effect) -> bool {
    let Effect::Fencing(effect) = effect else { return false };
    matches!(**effect, Fencing::DeletePod { .. } | Fencing::FailPod { .. } | Fencing::DeleteAttachment(_))
}

/// As `Error::retry_after` of the product.
fn retry_after(refusal: &Refusal) -> Duration {
    Duration::from_millis(match refusal {
        Refusal::Conflict => 200,
        Refusal::Unknown => 500,
        Refusal::NotFound | Refusal::Throttled | Refusal::NotLeader => 1000,
        Refusal::Forbidden | Refusal::Invalid(_) => 5000,
    })
}
