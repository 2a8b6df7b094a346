//! The writes of the programs under test: on their way, taken by the server, answered; and what follows from the answer.

use std::time::Duration;

use bulkhead::mutants::{self, Mutant};

use crate::api::{Op, Refusal, Written};
use crate::chance::{Chance, Choice};
use crate::time::{Millis, SECOND, millis};
use crate::world::{Purpose, Task, World, Write};

use super::Pid;
use super::queue::Key;

/// Longest a write may take.
const WRITE: Millis = 5 * SECOND;

impl World {
    /// Sends a write, if we lead. It is taken by the server some time later, if it arrives, and answered some time
    /// after that, if the answer arrives.
    pub(crate) fn send(
        &mut self,
        pid: Pid,
        key: &Key,
        op: Op,
        purpose: Purpose,
        decided: Millis,
        chance: &mut dyn Chance,
    ) -> Result<(), Refusal> {
        let once = mutants::is_on(Mutant::LeaseCheckedOnce).then_some(Duration::MAX);
        let left = once.or(self.processes[pid].leads_for(self.now)).ok_or(Refusal::NotLeader)?;
        if self.crashes_before(pid, chance) {
            return Err(Refusal::Unknown);
        }
        let id = self.post(pid, key, op, purpose, decided, millis(left).min(WRITE), chance);
        if self.is_crash_point(pid) {
            self.land(id, chance);
        }
        self.crashes_after(pid, chance);
        Ok(())
    }

    /// Puts a write on its way.
    #[allow(clippy::too_many_arguments, reason = "what a write is")]
    pub(crate) fn post(
        &mut self,
        pid: Pid,
        key: &Key,
        op: Op,
        purpose: Purpose,
        decided: Millis,
        limit: Millis,
        chance: &mut dyn Chance,
    ) -> u64 {
        let id = self.number();
        let flight = self.flight(chance);
        let deadline = self.now + limit.max(1);
        let life = self.processes[pid].life;
        let write =
            Write { pid, life, key: key.clone(), op, purpose, decided, sent: self.now, deadline, outcome: None };
        self.writes.insert(id, write);
        match flight {
            Some(flight) => self.schedule(self.now + flight, Task::Land(id)),
            None => self.counts.lost_writes += 1,
        }
        self.schedule(deadline, Task::Answer(id));
        id
    }

    /// The server takes a write.
    pub(crate) fn land(&mut self, id: u64, chance: &mut dyn Chance) {
        let Some(write) = self.writes.get(&id) else { return };
        if write.outcome.is_some() {
            return;
        }
        let (op, pid, late) = (write.op.clone(), write.pid, self.now > write.deadline);
        let outcome = if self.api.down {
            Err(Refusal::Unknown)
        } else if chance.one_in(Choice::Answer, self.weather.throttles) {
            Err(Refusal::Throttled)
        } else {
            self.notice_write(id);
            let outcome = self.api.write(&op, self.now);
            self.notice_written(pid, &op, &outcome);
            self.counts.late_writes += u64::from(late && outcome.is_ok());
            outcome
        };
        let Some(write) = self.writes.get_mut(&id) else { return };
        if late {
            self.writes.remove(&id);
            return;
        }
        let answered = !chance.one_in(Choice::Answer, self.weather.loses_answers);
        write.outcome = Some(if answered { outcome } else { Err(Refusal::Unknown) });
        if answered {
            let back = chance.between(Choice::Answer, 1, 5);
            self.schedule(self.now + back, Task::Answer(id));
        } else {
            self.counts.lost_answers += 1;
        }
    }

    /// The answer to a write comes, or the time for it is over.
    pub(crate) fn answer(&mut self, id: u64, chance: &mut dyn Chance) {
        let Some(write) = self.writes.get(&id) else { return };
        let expired = self.now >= write.deadline;
        let outcome = match write.outcome.clone() {
            None if !expired => return,
            // It may still arrive: only its sender has given up.
            None => Err(Refusal::Unknown),
            Some(outcome) => outcome,
        };
        let write = if write.outcome.is_some() {
            let Some(write) = self.writes.remove(&id) else { return };
            write
        } else {
            let Some(kept) = self.writes.get_mut(&id) else { return };
            let write = kept.clone();
            kept.life = u32::MAX;
            write
        };
        let process = &self.processes[write.pid];
        if process.life != write.life || !process.is_up {
            return;
        }
        self.answered(write, outcome, chance);
    }

    fn answered(&mut self, write: Write, outcome: Result<Written, Refusal>, chance: &mut dyn Chance) {
        let Write { pid, key, purpose, decided, sent, .. } = write;
        let now = self.processes[pid].now(self.now);
        let purpose = match purpose {
            Purpose::Claim => return self.claimed(pid, sent, outcome, chance),
            Purpose::Report => return,
            Purpose::Answer(rows) => {
                let Key::Request(name) = &key else { return };
                return self.answer_written(pid, name, &rows, outcome, chance);
            }
            other => other,
        };
        let controller = &mut self.controllers[pid];
        if let (Ok(Written::Fence(fence)), Purpose::Plan) = (&outcome, &purpose) {
            controller.memory.wrote(fence);
        }
        if let Key::Node(name) = &key {
            let incident = controller.incidents.entry(name.clone()).or_default();
            match (&outcome, purpose) {
                (Ok(Written::Fence(fence)), Purpose::Record(before)) => {
                    incident.recorded(&fence.status.clone().unwrap_or_default(), before);
                    incident.wrote(&fence.metadata, now);
                }
                (Ok(Written::Fence(fence)), Purpose::Fence) => incident.wrote(&fence.metadata, now),
                (Ok(Written::Request(request)), Purpose::Ask(_)) => incident.requested(&request.metadata, now),
                (Err(Refusal::Conflict), Purpose::Ask(noted)) => incident.forget_asked(noted),
                (Ok(_), Purpose::Withdraw(request)) => {
                    // The second half of the same effect.
                    let sent = self.send(pid, &key, Op::DeleteRequest(request), Purpose::Plain, decided, chance);
                    match sent {
                        Ok(()) => return,
                        Err(refusal) => return self.conclude(pid, &key, Some(refusal), chance),
                    }
                }
                _ => {}
            }
        }
        self.conclude(pid, &key, outcome.err(), chance);
    }

    fn conclude(&mut self, pid: Pid, key: &Key, refusal: Option<Refusal>, chance: &mut dyn Chance) {
        let Some(acting) = self.controllers[pid].passes.get_mut(key) else { return };
        acting.in_flight = acting.in_flight.saturating_sub(1);
        if let Some(refusal) = refusal {
            // Somebody wrote in between, or deleted the policy: what was decided on is gone, so decide anew.
            if *key == Key::Cluster && matches!(refusal, Refusal::Conflict | Refusal::NotFound) {
                acting.changed = true;
            } else {
                acting.note(refusal);
            }
        }
        self.go_on(pid, key, chance);
    }
}
