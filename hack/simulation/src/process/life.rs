//! How a process lives: election, watches, crashes; and the sidecar's report.

use bulkhead::api::driver_report::{Capability, DriverReport, DriverReportSpec, NetworkFenceCluster};
use bulkhead::csi_sidecar::report;
use bulkhead::runtime::election::{Record, Step};

use crate::api::{Kind, Op, Refusal, Written};
use crate::chance::{Chance, Choice};
use crate::faults::Fault;
use crate::shape::fence_class;
use crate::time::{Millis, SECOND, millis};
use crate::world::{Purpose, Task, World};

use super::controller::Controller;
use super::queue::Key;
use super::sidecar::Sidecar;
use super::{Pid, Role};

/// Every kind that a controller watches.
const WATCHED: [Kind; 12] = [
    Kind::Nodes,
    Kind::Leases,
    Kind::LeaderLeases,
    Kind::Pods,
    Kind::Attachments,
    Kind::CsiNodes,
    Kind::Policies,
    Kind::Requests,
    Kind::Reports,
    Kind::NodeReports,
    Kind::Healths,
    Kind::Fences,
];

impl World {
    /// A process starts: it lists what it watches, and goes for the Lease.
    pub(crate) fn start(&mut self, pid: Pid, chance: &mut dyn Chance) {
        if self.processes[pid].is_up {
            return;
        }
        if self.api.down {
            return self.schedule(self.now + 2 * SECOND, Task::Start(pid));
        }
        self.processes[pid].start(pid, self.now);
        match self.processes[pid].role {
            Role::Controller => {
                self.controllers[pid] = Controller::default();
                WATCHED.into_iter().for_each(|kind| self.deliver(pid, kind, None));
                self.want(pid, &Key::Cluster, 0);
            }
            Role::Sidecar(_) => {
                let first = self.controllers.len();
                self.sidecars[pid - first] = Sidecar::default();
                self.deliver(pid, Kind::Requests, None);
            }
        }
        let life = self.processes[pid].life;
        let at = self.now + chance.between(Choice::Restart, 1, 500) + 100 * pid as Millis;
        self.schedule(at, Task::Elect(pid, life));
    }

    /// A process ends, wherever it is. It starts again after so long.
    pub(crate) fn crash(&mut self, pid: Pid, again_after: Millis) {
        let process = &mut self.processes[pid];
        if !process.is_up {
            return;
        }
        process.is_up = false;
        process.stands_until = None;
        self.counts.crashes += 1;
        self.tell(|| format!("process {pid} ends"));
        self.schedule(self.now + again_after.max(1), Task::Start(pid));
    }

    /// Whether a process wants to know of a change.
    pub(crate) fn watches(&self, pid: Pid, kind: Kind, name: &str) -> bool {
        match &self.processes[pid].role {
            Role::Controller => true,
            Role::Sidecar(driver) => {
                let known = self.api.requests.get(name);
                kind == Kind::Requests && known.is_none_or(|request| request.spec.fencer_name == *driver)
            }
        }
    }

    /// A watch delivers up to that change; `None`: the first list.
    pub(crate) fn deliver(&mut self, pid: Pid, kind: Kind, upto: Option<u64>) {
        match self.processes[pid].role.clone() {
            Role::Controller => {
                let wanted = self.controllers[pid].views.deliver(&self.api, kind, upto, true);
                for (key, after) in wanted {
                    self.want(pid, &key, after);
                }
            }
            Role::Sidecar(driver) => {
                let first = self.controllers.len();
                let view = &mut self.sidecars[pid - first].requests;
                let changes = match upto {
                    Some(upto) if !view.is_gone(&self.api.requests) => view.catch_up(&self.api.requests, upto),
                    Some(_) => view.relist(&self.api.requests, false),
                    None => view.relist(&self.api.requests, true),
                };
                view.objects.retain(|_, request| request.spec.fencer_name == driver);
                for change in changes {
                    let mut both = change.old.iter().chain(&change.new);
                    if both.any(|request| request.spec.fencer_name == driver) {
                        self.want(pid, &Key::Request(change.name), 0);
                    }
                }
            }
        }
    }

    /// The watch of a kind breaks, and the process lists again.
    pub(crate) fn relist(&mut self, pid: Pid, kind: Kind) {
        if !self.processes[pid].is_up || self.api.down {
            return;
        }
        if self.processes[pid].role == Role::Controller {
            let wanted = self.controllers[pid].views.deliver(&self.api, kind, None, false);
            wanted.into_iter().for_each(|(key, after)| self.want(pid, &key, after));
        } else {
            self.deliver(pid, Kind::Requests, None);
        }
        self.counts.relists += 1;
    }

    /// The next step in the election: `leader::Election::campaign` of the product.
    pub(crate) fn elect(&mut self, pid: Pid, chance: &mut dyn Chance) {
        let process = &mut self.processes[pid];
        let now = process.now(self.now).mono;
        let until = process.candidate.leads_until();
        if process.has_led && until.is_none_or(|until| until <= now) {
            self.counts.terms_lost += 1;
            let pause = chance.between(Choice::Restart, SECOND, 20 * SECOND);
            return self.crash(pid, pause);
        }
        if process.is_claiming {
            return;
        }
        let term_left = until.map_or(Millis::MAX, |until| millis(until.saturating_duration_since(now)));
        let life = process.life;
        match process.candidate.step(now) {
            Step::Wait(wait) => {
                let wait = millis(wait).max(1).min(term_left.max(1));
                self.schedule(self.now + wait, Task::Elect(pid, life));
            }
            Step::Read => {
                if self.api.down {
                    process.candidate.failed(now);
                } else {
                    let found = self.api.leader_lease(&process.lease);
                    process.seen_version = found.as_ref().map(|(_, version)| version.clone());
                    let record = found.map(|(holder, version)| Record { holder, version });
                    process.candidate.saw(record, now);
                }
                self.schedule(self.now + chance.between(Choice::Others, 2, 20), Task::Elect(pid, life));
            }
            Step::Claim => {
                process.is_claiming = true;
                let lease = process.lease.clone();
                let version = self.processes[pid].seen_version.clone();
                let op = Op::Claim { lease, version, holder: self.processes[pid].identity(pid) };
                // Half of what is left of our term, so that a hanging one can be repeated.
                let limit = (5 * SECOND).min(term_left / 2).max(500.min(term_left));
                self.post(pid, &Key::Cluster, op, Purpose::Claim, self.now, limit, chance);
            }
        }
    }

    pub(crate) fn claimed(
        &mut self,
        pid: Pid,
        sent: Millis,
        outcome: Result<Written, Refusal>,
        chance: &mut dyn Chance,
    ) {
        let at = self.now;
        let process = &mut self.processes[pid];
        process.is_claiming = false;
        let (now, sent) = (process.now(at).mono, process.now(sent).mono);
        let led = process.leads_for(at).is_some();
        match outcome {
            Ok(Written::Lease(version)) => {
                let record = Record { holder: Some(process.identity(pid)), version: version.clone() };
                process.seen_version = Some(version);
                process.candidate.claimed(record, sent, now);
                process.has_led = true;
                if !led {
                    self.leads(pid, chance);
                }
            }
            _ => process.candidate.failed(now),
        }
        let life = self.processes[pid].life;
        self.schedule(self.now + 1, Task::Elect(pid, life));
    }

    /// Leadership has come: every key that was kept may run.
    fn leads(&mut self, pid: Pid, chance: &mut dyn Chance) {
        self.counts.terms += 1;
        self.tell(|| format!("process {pid} leads"));
        let life = self.processes[pid].life;
        for (key, due) in self.processes[pid].queue.waiting() {
            self.schedule(due.max(self.now + 1), Task::Pass(pid, life, key));
        }
        if matches!(self.processes[pid].role, Role::Sidecar(_)) {
            let soon = chance.between(Choice::Others, 1, 50);
            self.schedule(self.now + soon, Task::Report(pid, life));
        }
    }

    /// A sidecar looks at what its driver can do: `report::refresh` of the product.
    pub(crate) fn report(&mut self, pid: Pid, chance: &mut dyn Chance) {
        let life = self.processes[pid].life;
        if self.processes[pid].leads_for(self.now).is_none() {
            return;
        }
        let driver = self.driver_of(pid);
        let down = self.arrays.get(&driver).is_none_or(|array| array.mood.is_down);
        let shape = self.shape.drivers.iter().find(|it| it.name == driver);
        let mut able = std::collections::BTreeSet::from([Capability::Unpublish]);
        able.extend(shape.filter(|it| it.lists).map(|_| Capability::ListPublishedNodes));
        able.extend(shape.filter(|it| it.tells_io).map(|_| Capability::IoInProgress));
        let answer = if down { Err(crate::array::failure("Unavailable")) } else { Ok(able) };
        let classes: Vec<_> = self.shape.network.map(|_| fence_class(&driver)).into_iter().collect();
        let cluster_id = self.shape.cluster_of_class(&driver).map(str::to_owned);
        let cluster = |class_name: &String| NetworkFenceCluster {
            class_name: class_name.clone(),
            cluster_id: cluster_id.clone(),
        };
        let clusters: Vec<_> = classes.iter().map(cluster).collect();
        let now = self.processes[pid].now(self.now);
        if !self.api.down {
            self.lift_left_behind(pid);
            if self.api.reports.get(&driver).is_none() {
                let _ = self.api.create(DriverReport::new(&driver, DriverReportSpec {}), self.now);
            }
            self.api.update::<DriverReport>(&driver, |report| {
                let mut wanted = report::compute(report.status.clone().unwrap_or_default(), answer, now);
                wanted.network_fence_classes = classes;
                wanted.network_fence_clusters = clusters;
                report.status = Some(wanted);
            });
        }
        let wait = if down || self.api.down { 2 * SECOND } else { 30 * SECOND };
        self.schedule(self.now + wait + chance.between(Choice::Others, 0, 100), Task::Report(pid, life));
    }

    /// Whether a write of that process is one at which it is to be stopped; it is, if nothing is to be sent.
    pub(crate) fn crashes_before(&mut self, pid: Pid, chance: &mut dyn Chance) -> bool {
        let Some(point) = self.crash_point.as_mut().filter(|point| point.pid == pid) else { return false };
        if point.after > 0 || point.sent {
            return false;
        }
        self.crash_point = None;
        let pause = chance.between(Choice::Restart, SECOND, 5 * SECOND);
        self.crash(pid, pause);
        true
    }

    /// Whether the write that is being sent is the last that this process sends.
    pub(crate) fn is_crash_point(&self, pid: Pid) -> bool {
        self.crash_point.is_some_and(|point| point.pid == pid && point.after == 0 && point.sent)
    }

    /// One more write or call was sent.
    pub(crate) fn crashes_after(&mut self, pid: Pid, chance: &mut dyn Chance) {
        self.counts.writes += 1;
        let sent = self.counts.writes;
        let (now, later) = self.triggers.drain(..).partition(|(writes, _)| *writes <= sent);
        self.triggers = later;
        let now: Vec<(u64, Fault)> = now;
        now.into_iter().for_each(|(_, fault)| self.schedule(self.now, Task::Fault(Box::new(fault))));
        if self.is_crash_point(pid) {
            self.crash_point = None;
            let pause = chance.between(Choice::Restart, SECOND, 5 * SECOND);
            self.crash(pid, pause);
        } else if let Some(point) = self.crash_point.as_mut().filter(|point| point.pid == pid) {
            point.after = point.after.saturating_sub(1);
        }
    }
}
