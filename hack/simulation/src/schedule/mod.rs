//! A schedule: what a seed makes happen, and when. Whatever came to be drawn later is drawn after all else, or from a stream of its
//! own, and only where its subject is there: a seed that is known to show something goes as it did. With fencers that report the
//! power of nodes those seeds have changed whose fencer does, one in eight; with method NetworkFence those whose storages give
//! access by their network only, one in eight; with drivers that attach nothing those that have one, one in four; with fencers that
//! leave nodes their power those whose fencer does, one in nine; with a node lifecycle controller that lags behind one in eight; with
//! another machine under the name of one that runs on one in eight, but for those behind a NAT; and no others. That somebody lifts such a
//! fence is not drawn: whoever lets a machine in that writes on makes a second writer. Nor is that a NetworkFenceClass is made anew for
//! another cluster (docs/adr/0029).

mod network;
mod replacement;
mod storage;

use std::sync::Arc;

use bulkhead::api::driver_report::PathState;
use bulkhead::api::fencing::PolicyMode;

use crate::api::Kind;
use crate::chance::{Chance, Choice, Seeded};
use crate::faults::Fault;
use crate::people::Person;
use crate::shape::{Shape, one_of, policy};
use crate::shapes;
use crate::time::{MINUTE, Millis, SECOND};
use crate::world::CrashPoint;

/// When something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At that time.
    At(Millis),
    /// Right after the programs under test have sent so many writes and calls.
    AfterWrites(u64),
}

/// What a seed makes happen.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The seed, which also decides every choice on the way.
    pub seed: u64,
    /// The shape of the world.
    pub shape: Arc<Shape>,
    /// What goes wrong, and right again.
    pub events: Vec<(When, Fault)>,
    /// Where a process is stopped.
    pub crash_point: Option<CrashPoint>,
    /// When everything goes right again but the machines.
    pub calm: Millis,
}

impl Schedule {
    /// The schedule of a seed.
    pub fn new(seed: u64) -> Self {
        let mut chance = Seeded::new(seed);
        let shape = Arc::new(Shape::random(&mut chance));
        let mut draft = Draft { shape: &shape, chance: &mut chance, events: Vec::new() };
        let failed = draft.incident();
        for _ in 0..draft.pick(5) {
            draft.disturbance(failed);
        }
        if draft.pick(2) == 1 {
            draft.bad_volume(failed);
        }
        let crash_point = draft.crash_point();
        if draft.pick(3) == 1 {
            draft.people(failed);
        }
        if draft.pick(3) == 1 {
            draft.bad_path(failed);
        }
        if draft.pick(3) == 1 {
            draft.bad_program(failed);
        }
        if shape.beats && draft.pick(2) == 1 {
            draft.bad_network(failed);
        }
        if shape.power.is_some() && draft.pick(2) == 1 {
            draft.bad_fencer(failed);
        }
        if shape.power.is_some_and(|power| power.reports) && draft.pick(3) > 0 {
            draft.bad_report(failed);
        }
        if shape.network.is_some() {
            draft.restarts_of_csi_addons(failed);
            draft.storages_in_the_middle_of_a_fence(failed);
            draft.writers_of_network_fences(failed);
            draft.other_addresses(failed);
        }
        draft.late_lifecycle(failed);
        draft.another_machine(failed);
        let events = draft.events;
        let last = events.iter().filter_map(|(when, _)| if let When::At(at) = when { Some(*at) } else { None }).max();
        let calm = last.unwrap_or(0).max(failed + 90 * SECOND) + 10 * SECOND;
        Self { seed, shape, events, crash_point, calm }
    }
}

struct Draft<'a> {
    shape: &'a Shape,
    chance: &'a mut dyn Chance,
    events: Vec<(When, Fault)>,
}

impl Draft<'_> {
    fn pick(&mut self, options: u64) -> u64 {
        self.chance.pick(Choice::Fault, options)
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        self.chance.between(Choice::Fault, low, high)
    }

    fn at(&mut self, at: Millis, fault: Fault) {
        self.events.push((When::At(at), fault));
    }

    /// Some time around an incident: while it is noticed, or at one of its steps.
    fn some_time(&mut self, failed: Millis) -> When {
        match self.pick(3) {
            0 => When::AfterWrites(self.between(2, 40)),
            1 => When::At(failed + 40 * SECOND + self.between(0, 12_000)),
            _ => When::At(failed + self.between(0, 150_000)),
        }
    }

    fn after(&mut self, when: When, low: Millis, high: Millis) -> When {
        let later = self.between(low, high);
        match when {
            When::At(at) => When::At(at + later),
            // A write of an incident takes some milliseconds; what ends must end in any case.
            When::AfterWrites(_) => When::At(100 * SECOND + later),
        }
    }

    /// A node dies, in one of the ways there are; and it may come back. Returns when.
    fn incident(&mut self) -> Millis {
        let node = self.shape.nodes[0].clone();
        let at = 30 * SECOND + self.between(0, 20_000);
        let how = self.pick(6);
        let (gone, back) = match how {
            0 => (Fault::PowerOff(node.clone()), Fault::Reboot(node.clone())),
            1 => (Fault::Freeze(node.clone()), Fault::Thaw(node.clone())),
            2 | 3 => (Fault::Disconnect(node.clone()), Fault::Reconnect(node.clone())),
            4 => (Fault::PowerOff(node.clone()), Fault::Reboot(node.clone())),
            _ => (Fault::Disconnect(node.clone()), Fault::Reboot(node.clone())),
        };
        self.at(at, gone.clone());
        // What cuts the kubelet off may cut the rest of the host's network too; who reconnects it mends both.
        if self.shape.beats && matches!(gone, Fault::Disconnect(_)) && self.pick(3) > 0 {
            self.at(at, Fault::Mute(node.clone()));
            if self.pick(4) == 1 {
                let driver = one_of(self.chance, &self.shape.drivers).name;
                let lost = Fault::TellPaths(driver, vec![node.clone()], PathState::Disconnected);
                self.at(at + 2 * SECOND, lost);
            }
        }
        if self.pick(2) == 1 {
            let when = match self.pick(3) {
                0 => When::AfterWrites(self.between(1, 20)),
                1 => When::At(at + 40 * SECOND + self.between(0, 12_000)),
                _ => When::At(at + self.between(SECOND, 200_000)),
            };
            self.events.push((when, back.clone()));
            if self.pick(3) == 1 {
                let again = self.after(when, SECOND, 100_000);
                self.events.push((again, gone));
                if self.pick(2) == 1 {
                    let when = self.after(again, SECOND, 100_000);
                    self.events.push((when, back));
                }
            }
        }
        at
    }

    fn crash_point(&mut self) -> Option<CrashPoint> {
        let processes = 2 + 2 * self.shape.drivers.iter().filter(|driver| driver.has_sidecar).count() as u64;
        (self.pick(4) == 1).then(|| CrashPoint {
            pid: self.pick(processes) as usize,
            after: self.pick(25),
            sent: self.pick(2) == 1,
        })
    }

    fn pid(&mut self) -> usize {
        let processes = 2 + 2 * self.shape.drivers.iter().filter(|driver| driver.has_sidecar).count() as u64;
        self.pick(processes) as usize
    }

    fn disturbance(&mut self, failed: Millis) {
        let when = self.some_time(failed);
        let node = one_of(self.chance, &self.shape.nodes);
        let workload = one_of(self.chance, &self.shape.workloads).name;
        match self.pick(20) {
            0 | 1 => {
                let (pid, pause) = (self.pid(), self.between(SECOND, 30_000));
                self.events.push((when, Fault::Crash(pid, pause)));
            }
            2 => {
                let (pid, length) = (self.pid(), self.between(SECOND, 90_000));
                self.events.push((when, Fault::Stop(pid, length)));
            }
            3 => {
                let (pid, length) = (self.pid(), self.between(SECOND, 90_000));
                self.events.push((when, Fault::Sleep(pid, length)));
            }
            4 => {
                let pid = self.pid();
                let by = one_of(self.chance, &[-3_600_000, -30_000, 5_000, 120_000, 86_400_000]);
                self.events.push((when, Fault::SetClock(pid, by)));
            }
            5 => {
                let pid = self.pid();
                let kind = one_of(self.chance, &[Kind::Leases, Kind::Nodes, Kind::Pods, Kind::Fences, Kind::Requests]);
                self.events.push((when, Fault::Relist(pid, kind)));
            }
            6..=8 => self.bad_array(when),
            9 | 10 => self.bad_weather(when),
            11 => {
                let end = self.after(when, 5 * SECOND, 120 * SECOND);
                self.events.push((when, Fault::ApiDown));
                let end = if self.pick(4) == 1 { self.after(end, MINUTE, 10 * MINUTE) } else { end };
                self.events.push((end, Fault::ApiUp));
            }
            12 => self.another_node(when, node),
            13 => {
                let first = self.shape.nodes[0].clone();
                self.events.push((when, Fault::DeleteNode(first.clone())));
                if self.pick(2) == 1 {
                    let end = self.after(when, 100, 60 * SECOND);
                    self.events.push((end, Fault::RegisterNode(first)));
                }
            }
            14 => {
                self.events.push((when, Fault::EmptyCsiNode(node.clone())));
                let end = self.after(when, SECOND, 60 * SECOND);
                self.events.push((end, Fault::FillCsiNode(node)));
            }
            15 => self.events.push((when, Fault::RestartManager)),
            16 => self.edit_policy(when),
            17 => self.events.push((when, Fault::DeletePolicy("all".into()))),
            18 => self.events.push((when, Fault::ForceDelete(workload))),
            _ => self.events.push((when, Fault::Delete(workload))),
        }
    }

    /// The node lifecycle controller hears nothing of the Lease of a node for a while, and gives that up, whether it is well or not.
    fn late_lifecycle(&mut self, failed: Millis) {
        let c = Choice::Lifecycle;
        if !self.chance.one_in(c, 8) {
            return;
        }
        let index = self.chance.pick(c, self.shape.nodes.len() as u64);
        let Some(node) = usize::try_from(index).ok().and_then(|index| self.shape.nodes.get(index)).cloned() else {
            return;
        };
        let from = self.chance.between(c, 2 * SECOND, failed + 60 * SECOND);
        let until = from + self.chance.between(c, 45 * SECOND, 150 * SECOND);
        self.at(from, Fault::LagBehind(node.clone()));
        self.at(until, Fault::CatchUp(node));
    }

    /// People hold, approve and pause, and may begin with another mode.
    fn people(&mut self, failed: Millis) {
        let modes = [PolicyMode::Enforce, PolicyMode::Enforce, PolicyMode::RequireApproval, PolicyMode::DryRun];
        let mode = one_of(self.chance, &modes);
        if mode != PolicyMode::Enforce {
            self.at(SECOND, Fault::Person(Person::SetMode(mode)));
            if self.pick(2) == 1 {
                let end = self.some_time(failed);
                self.events.push((end, Fault::Person(Person::SetMode(PolicyMode::Enforce))));
            }
        }
        for _ in 0..self.between(1, 5) {
            let when = self.some_time(failed);
            let node = one_of(self.chance, &[self.shape.nodes[0].clone(), self.shape.nodes[1].clone()]);
            let (begins, ends) = match self.pick(6) {
                0 | 1 => (Person::Hold(node.clone()), Some(Person::LetGo(node))),
                2 => (Person::PauseNode(node.clone()), Some(Person::ResumeNode(node))),
                3 => (Person::PausePolicies, Some(Person::ResumePolicies)),
                _ => (Person::Approve(node), None),
            };
            self.events.push((when, Fault::Person(begins)));
            if let Some(ends) = ends {
                let end = self.after(when, SECOND, 90 * SECOND);
                self.events.push((end, Fault::Person(ends)));
            }
        }
    }

    /// The program of a workload fails, wherever it runs; a node plugin's too. And it may be mended.
    fn bad_program(&mut self, failed: Millis) {
        let workload = one_of(self.chance, &self.shape.workloads).name;
        let when = match self.pick(2) {
            0 => self.some_time(failed),
            _ => When::At(self.between(2 * SECOND, failed)),
        };
        self.events.push((when, Fault::FailProgram(workload.clone())));
        if self.pick(3) > 0 {
            let end = self.after(when, 2 * SECOND, 200 * SECOND);
            self.events.push((end, Fault::MendProgram(workload)));
        }
    }

    fn another_node(&mut self, when: When, node: String) {
        if self.pick(4) == 1 {
            // All at once: the observer must be wrong.
            for node in self.shape.nodes.clone() {
                self.events.push((when, Fault::Disconnect(node)));
            }
            for node in self.shape.nodes.clone() {
                let end = self.after(when, 10 * SECOND, 150 * SECOND);
                self.events.push((end, Fault::Reconnect(node)));
            }
            return;
        }
        let (gone, back) = if self.pick(2) == 1 {
            (Fault::PowerOff(node.clone()), Fault::Reboot(node))
        } else {
            (Fault::Disconnect(node.clone()), Fault::Reconnect(node))
        };
        self.events.push((when, gone));
        let end = self.after(when, 10 * SECOND, 150 * SECOND);
        self.events.push((end, back));
    }

    fn edit_policy(&mut self, when: When) {
        let apps: Vec<&str> =
            self.shape.workloads.iter().filter(|it| it.is_protected).map(|it| it.name.as_str()).collect();
        if !apps.is_empty() {
            let shape = self.shape;
            let spec = shapes::spec(self.chance, (&shape.drivers, shape.power, shape.network));
            self.events.push((when, Fault::EditPolicy(Box::new(policy("all", &apps, &spec)))));
        }
    }
}
