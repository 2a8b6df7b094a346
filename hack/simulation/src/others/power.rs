//! A fencer for method External: a program that cuts nodes off as a whole, as docs/fencers.md tells whoever writes one. It switches them
//! off, or takes them off the fabric of all storages and leaves them their power. It records Started before it begins, reads back, looks
//! after what it holds off, and gives back what it took when it is told to. It acts on the machine that the request has frozen, and on
//! no other one that has its name.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead::api::fence_request::{
    Desired, FenceOutcome, FenceRequest, FenceRequestStatus, FenceResult, FencerMethodType, RequestedVolume,
};
use bulkhead::api::fencing::Proof;
use bulkhead::api::names;
use bulkhead::api::time;
use bulkhead::csi_sidecar::status;

use crate::api::{Op, Refusal};
use crate::chance::{Chance, Choice};
use crate::time::{Clocks, Millis, SECOND, millis};
use crate::world::World;

use super::power_report::Watching;
use super::{Actor, Power, node_of};

/// Its name.
pub const POWER: &str = "power.example.com";
/// How often it renews its Lease and looks at what it holds off.
const PACE: Millis = 10 * SECOND;

/// How it misbehaves now. 0 is good behaviour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FencerMood {
    /// It does not run.
    pub is_dead: bool,
    /// One call in so many fails; some of them after all.
    pub fails: u64,
    /// One call in so many takes up to a minute and a half.
    pub slow: u64,
    /// What it reports of this node is not what it has.
    pub lies: Option<(String, Lie)>,
}

/// What a fencer reports of a node, whatever power that has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The boot that it is in has ended: its BMC is that of another machine.
    ThisBoot,
    /// The one before has: so it is, and it says nothing of the one that it is in.
    BootBefore,
}

/// The fencer.
#[derive(Clone, Debug, Default)]
pub struct PowerFencer {
    /// How it misbehaves.
    pub(crate) mood: FencerMood,
    /// What it is at, and when that takes effect, by node.
    jobs: BTreeMap<String, (Millis, Job)>,
    /// What it reports before anybody asks.
    pub(super) watching: Watching,
    lease: Option<String>,
}

/// What it does next. What it has read may be old when it writes.
#[derive(Clone, Debug)]
enum Job {
    /// Write that it begins.
    Begin(Arc<FenceRequest>),
    /// Cut the machine off.
    CutOff,
    /// Look whether it is cut off, and say so.
    ReadBack,
    /// Say that it did not work.
    GiveUp,
    /// The machine has power though it should not: say so.
    TakeBack(Arc<FenceRequest>),
    /// Give back what it took, and say so.
    GiveBack(Arc<FenceRequest>),
}

impl PowerFencer {
    /// It behaves so from now on, and looks at once. One that ends forgets what it was at.
    pub(crate) fn set(&mut self, mood: &FencerMood) {
        self.mood.clone_from(mood);
        self.watching = Watching::default();
        if mood.is_dead {
            self.jobs.clear();
        }
    }
}

impl World {
    /// It does what is due.
    pub(crate) fn power_fencer(&mut self, chance: &mut dyn Chance) {
        let now = self.now;
        if self.others.power.mood.is_dead {
            return;
        }
        if self.api.down {
            return self.wake(Actor::PowerFencer, now + SECOND);
        }
        let jobs = &mut self.others.power.jobs;
        let due: Vec<_> = jobs.extract_if(.., |_, (due, _)| *due <= now).collect();
        for (node, (_, job)) in due {
            if let Some(next) = self.perform_job(&node, job, chance) {
                self.others.power.jobs.insert(node, next);
            }
        }
        let requests = self.api.requests.values().filter(|request| request.spec.fencer_name == POWER);
        for request in requests.cloned().collect::<Vec<_>>() {
            let node = &request.spec.node_name;
            if self.others.power.jobs.contains_key(node) {
                continue;
            }
            if let Some(job) = self.next_job(&request) {
                let at = now + self.takes(5, 200, chance);
                self.others.power.jobs.insert(node.clone(), (at, job));
            }
        }
        let looks = self.watch_power(chance);
        let next = self.others.power.jobs.values().map(|(due, _)| *due).min().unwrap_or(Millis::MAX).min(looks);
        self.wake(Actor::PowerFencer, next.max(now + 1).min(now + PACE));
        self.renew_fencer_lease();
    }

    fn renew_fencer_lease(&mut self) {
        let lease = names::fencer_lease(POWER);
        let version = self.others.power.lease.clone();
        let renewed = self.api.leader_leases.get(&lease).and_then(|it| it.lease.spec.renew_time.clone());
        let due = renewed.is_none_or(|at| at.0 <= crate::time::micro(self.now.saturating_sub(PACE)).0);
        let op = Op::Claim { lease, version, holder: POWER.into() };
        if due && let Ok(crate::api::Written::Lease(version)) = self.api.write(&op, self.now) {
            self.others.power.lease = Some(version);
        }
    }

    fn takes(&self, low: Millis, high: Millis, chance: &mut dyn Chance) -> Millis {
        let c = Choice::Others;
        let slow = chance.one_in(c, self.others.power.mood.slow);
        chance.between(c, low, high) + if slow { chance.between(c, 2 * SECOND, 90 * SECOND) } else { 0 }
    }

    pub(super) fn has_power(&self, machine: &str) -> bool {
        self.machines.get(machine).is_some_and(|machine| machine.power != Power::Off)
    }

    /// Whether a machine is as it leaves one that it cuts off.
    fn is_cut_off(&self, machine: &str) -> bool {
        if self.shape.leaves_power() {
            self.machines.get(machine).is_some_and(|machine| machine.is_off_fabric)
        } else {
            !self.has_power(machine)
        }
    }

    fn next_job(&self, request: &Arc<FenceRequest>) -> Option<Job> {
        let mut asked = request.spec.volumes.iter();
        match request.spec.desired {
            Desired::Unfenced => {
                asked.any(|it| !is_unfenced(it, known(request, it))).then(|| Job::GiveBack(request.clone()))
            }
            Desired::Fenced if asked.any(|it| !is_answered(it, known(request, it))) => {
                Some(Job::Begin(request.clone()))
            }
            Desired::Fenced => {
                let rows = request.status.iter().flat_map(|status| &status.volumes);
                let holds = rows.into_iter().any(|row| row.result == FenceOutcome::Fenced);
                (holds && !self.is_cut_off(&self.meant_by(request))).then(|| Job::TakeBack(request.clone()))
            }
        }
    }

    fn perform_job(&mut self, node: &str, job: Job, chance: &mut dyn Chance) -> Option<(Millis, Job)> {
        let c = Choice::Others;
        let fails = chance.one_in(c, self.others.power.mood.fails);
        match job {
            Job::Begin(seen) if fails && chance.one_in(c, 2) => {
                self.say(&seen, |asked, row| (!is_answered(asked, row)).then(|| failed(asked, row, "BmcUnavailable")));
                None
            }
            Job::Begin(seen) => {
                let is_written = self.begin_to_cut_off(&seen);
                is_written.then(|| (self.now + self.takes(5, 200, chance), Job::CutOff))
            }
            Job::CutOff => {
                if !fails || chance.one_in(c, 2) {
                    let machine = self.request(node).map_or_else(|| node.to_owned(), |request| self.meant_by(&request));
                    self.cut_off(&machine, chance);
                }
                let timeout = self.request(node).map_or(SECOND, |request| millis(request.spec.call_timeout.get()));
                Some(match fails {
                    true => (self.now + timeout, Job::GiveUp),
                    false => (self.now + self.takes(5, 200, chance), Job::ReadBack),
                })
            }
            Job::ReadBack | Job::GiveUp => {
                let seen = self.request(node).filter(|it| it.spec.desired == Desired::Fenced)?;
                self.read_back(&seen, matches!(job, Job::ReadBack) && self.is_cut_off(&self.meant_by(&seen)));
                None
            }
            Job::TakeBack(seen) => {
                let is_held = |row: Option<&FenceResult>| row.is_some_and(|row| row.result == FenceOutcome::Fenced);
                let is_written =
                    self.say(&seen, |asked, row| is_held(row).then(|| failed(asked, row, "PowerRestored")));
                self.counts.power_restored += u64::from(is_written);
                None
            }
            Job::GiveBack(seen) => {
                let is_begun = |row: &FenceResult| row.started_at.is_some() && row.result != FenceOutcome::Unfenced;
                let begun = seen.status.iter().flat_map(|status| &status.volumes).any(is_begun);
                if begun {
                    self.give_back(&self.meant_by(&seen));
                }
                let open = |asked: &RequestedVolume, row: Option<&FenceResult>| {
                    let given = |row| FenceResult { result: FenceOutcome::Unfenced, proof: Proof::None, ..row };
                    (!is_unfenced(asked, row)).then(|| row.cloned().map(given))
                };
                self.say(&seen, |asked, row| {
                    open(asked, row).map(|it| it.unwrap_or_else(|| FenceResult::of(asked, FenceOutcome::Unfenced)))
                });
                None
            }
        }
    }

    fn begin_to_cut_off(&mut self, seen: &FenceRequest) -> bool {
        let at = time::stamp(crate::time::wall(self.now));
        let is_written = self.say(seen, |asked, row| {
            let begun = row.filter(|row| row.result != FenceOutcome::Unfenced).and_then(|row| row.started_at);
            let started_at = begun.or(Some(at));
            (!is_answered(asked, row))
                .then(|| FenceResult { started_at, ..FenceResult::of(asked, FenceOutcome::Started) })
        });
        if is_written {
            self.judge_power_off(seen);
        }
        is_written
    }

    /// One that was added since has not begun.
    fn read_back(&mut self, seen: &FenceRequest, is_cut_off: bool) {
        let at = time::stamp(crate::time::wall(self.now));
        let (proof, reason) =
            if self.shape.leaves_power() { (Proof::Verified, "OffFabric") } else { (Proof::PowerOff, "PoweredOff") };
        self.say(seen, |asked, row| {
            let begun = row.filter(|row| row.started_at.is_some() && !is_answered(asked, Some(row)))?;
            Some(match is_cut_off {
                true => FenceResult {
                    result: FenceOutcome::Fenced,
                    proof,
                    method: Some(FencerMethodType::External),
                    read_back_at: Some(at),
                    reason: Some(reason.into()),
                    ..begun.clone()
                },
                false => failed(asked, Some(begun), "DeadlineExceeded"),
            })
        });
    }

    fn cut_off(&mut self, machine: &str, chance: &mut dyn Chance) {
        let leaves_power = self.shape.leaves_power();
        self.tell(|| format!("the fencer {} {machine} off", if leaves_power { "cuts" } else { "switches" }));
        self.machine(machine, |machine| {
            if leaves_power {
                machine.is_off_fabric = true;
            } else {
                machine.power = Power::Off;
                machine.running.clear();
            }
        });
        self.oracle.touch();
        self.wake_kubelets(&[machine.to_owned()], chance);
    }

    /// The power it gives back only where that is wanted, and to no machine whose name another one has. What runs on a machine that kept it
    /// writes again at once.
    fn give_back(&mut self, machine: &str) {
        if !self.is_cut_off(machine) {
            return;
        }
        if self.shape.leaves_power() {
            self.tell(|| format!("the fencer lets {machine} in"));
            self.machine(machine, |machine| machine.is_off_fabric = false);
            self.counts.given_back += 1;
            self.oracle.touch();
            self.judge_given_back(machine);
        } else if self.shape.power.is_some_and(|power| power.gives_back) && node_of(machine) == machine {
            self.boot(machine);
        }
    }

    /// Its request for a node, as the API has it.
    fn request(&self, node: &str) -> Option<Arc<FenceRequest>> {
        self.api.get::<FenceRequest>(&names::fence_request(node, POWER))
    }

    /// Answers rows, each for the round that is asked for, at the version that was read. `false`: nothing was written.
    fn say(
        &mut self,
        seen: &FenceRequest,
        answer: impl Fn(&RequestedVolume, Option<&FenceResult>) -> Option<FenceResult>,
    ) -> bool {
        let rows = seen.spec.volumes.iter().filter_map(|asked| {
            let (episode, name) = (asked.episode, asked.name.clone());
            Some(FenceResult { episode, name, round: asked.round, ..answer(asked, known(seen, asked))? })
        });
        let rows: Vec<_> = rows.collect();
        if rows.is_empty() {
            return false;
        }
        let mut next = seen.clone();
        next.status = Some(status::compute(seen, rows, Clocks::default().now(self.now)));
        match self.api.write(&Op::AnswerRequest(Box::new(next.clone())), self.now) {
            Ok(_) => {
                self.tell(|| format!("    the fencer says {:?}", next.status.iter().map(told).collect::<Vec<_>>()));
                self.notice_answer(&next);
                true
            }
            Err(Refusal::Invalid(rule)) => {
                self.oracle.break_("schema", self.now, format!("the fencer is refused by the schema: {rule}"));
                false
            }
            Err(_) => false,
        }
    }
}

fn told(status: &FenceRequestStatus) -> Vec<String> {
    status.volumes.iter().map(|row| format!("{} {} {:?} {:?}", row.name, row.round, row.result, row.reason)).collect()
}

fn known<'a>(request: &'a FenceRequest, asked: &RequestedVolume) -> Option<&'a FenceResult> {
    request.result_of(asked.episode, &asked.name)
}

fn is_answered(asked: &RequestedVolume, row: Option<&FenceResult>) -> bool {
    let is_said = |row: &FenceResult| matches!(row.result, FenceOutcome::Fenced | FenceOutcome::Failed);
    row.is_some_and(|row| row.round == asked.round && is_said(row))
}

fn is_unfenced(asked: &RequestedVolume, row: Option<&FenceResult>) -> bool {
    row.is_some_and(|row| row.round == asked.round && row.result == FenceOutcome::Unfenced)
}

fn failed(asked: &RequestedVolume, row: Option<&FenceResult>, reason: &str) -> FenceResult {
    let row = row.cloned().unwrap_or_else(|| FenceResult::of(asked, FenceOutcome::Failed));
    FenceResult { result: FenceOutcome::Failed, proof: Proof::None, reason: Some(reason.into()), ..row }
}
