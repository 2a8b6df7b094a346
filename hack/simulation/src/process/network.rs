//! The network fences of a sidecar: `network_fence` of the product, one step after the other, each on what is there then.

use std::sync::Arc;

use bulkhead::api::driver_report::{KnownBy, NetworkFenceClients};
use bulkhead::api::fence_request::{Desired, FenceRequest, RequestedVolume};
use bulkhead::api::network_fence::{FenceState, NetworkFenceClass, NetworkFenceClassSpec};
use bulkhead::api::node_volume_report::{NodeVolumeReport, NodeVolumeReportSpec, NodeVolumeReportStatus};
use bulkhead::api::slim::Node;
use bulkhead::api::slim::network::{NodeAddresses, NodeAddressesStatus, ReportedAddresses, ReportedAddressesStatus};
use bulkhead::api::usage::CLUSTER_ID;
use bulkhead::csi_sidecar::decide::Failure;
use bulkhead::csi_sidecar::network_fence::addresses::{Around, check_cluster};
use bulkhead::csi_sidecar::network_fence::decide::{self, Seen, Step};
use bulkhead::csi_sidecar::network_fence::{left, lift};
use bulkhead::csi_sidecar::status;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::api::{Op, Refusal};
use crate::array::failure;
use crate::chance::{Chance, Choice};
use crate::shape::fence_class;
use crate::time::{Millis, SECOND, millis};
use crate::world::{Task, World};

use super::Pid;
use super::queue::Key;
use super::sidecar::Found;

/// How long a pass waits for the end of a fence, as in the product.
const PATIENCE: Millis = 2 * SECOND;
/// Between two looks for what csi-addons does.
const PAUSE: Millis = 500;
/// Between the word that a fence is about to be made and the next look.
const FLIGHT: Millis = 15;
/// Longest a write may take.
const WRITE: Millis = 5 * SECOND;
/// Fences that are marked in one look at most, as in the product.
const MARKS: usize = 8;

/// A network fence under way, or the end of one.
#[derive(Clone, Debug)]
pub struct NetworkCall {
    /// Whose.
    pub pid: Pid,
    /// Its life.
    pub life: u32,
    request: Arc<FenceRequest>,
    work: Work,
    until: Millis,
    /// When it goes on.
    next_at: Millis,
    /// The write that it waits for, if it does.
    sent: Option<Sent>,
}

/// A write on its way.
#[derive(Clone, Debug)]
struct Sent {
    deadline: Millis,
    answer: Option<Result<(), Refusal>>,
}

#[derive(Clone, Debug)]
enum Work {
    /// Shut the node out by this class, for these rows; and how often in a row each has failed.
    Fence(String, Vec<(RequestedVolume, u32)>),
    /// Let it in again. The pass waits for it.
    GiveBack,
    /// Let it in again, as its request is gone. Nobody waits for it.
    Left,
}

/// What comes of a step.
enum Next {
    Again(Millis),
    /// A write is on its way, and is given up then.
    Sent(Millis),
    Over(Result<(), Failure>),
    /// The process ended.
    Dead,
}

impl World {
    /// Begins to shut the node of a request out.
    pub(super) fn shut_out(
        &mut self,
        pid: Pid,
        request: &Arc<FenceRequest>,
        class: String,
        volumes: Vec<RequestedVolume>,
    ) {
        let Some((_, memory)) = self.sidecar(pid).memories.get_mut(&request.name_any()) else { return };
        let rows = volumes.into_iter().map(|volume| {
            let attempts = memory.begins(&volume);
            (volume, attempts)
        });
        let work = Work::Fence(class, rows.collect());
        self.begin_network_call(pid, request, work, millis(request.spec.call_timeout.get()));
    }

    /// Begins to let it in again.
    pub(super) fn let_in(&mut self, pid: Pid, request: &Arc<FenceRequest>) {
        self.begin_network_call(pid, request, Work::GiveBack, PATIENCE);
    }

    /// Begins to lift what requests that are gone have left behind.
    pub(super) fn lift_left_behind(&mut self, pid: Pid) {
        let fences: Vec<_> = self.others.csi_addons.fences.values().cloned().collect();
        if fences.is_empty() {
            return;
        }
        let driver = self.driver_of(pid);
        let requests: Vec<_> = self.api.requests.values().map(|request| FenceRequest::clone(request)).collect();
        let nodes: Vec<_> = self.api.nodes.values().map(|node| Node::clone(node)).collect();
        let left = left::behind(&driver, &[fence_class(&driver)], &fences, &requests);
        for request in left.into_iter().filter(|request| left::is_over(request, &nodes)) {
            self.begin_network_call(pid, &Arc::new(request), Work::Left, PATIENCE);
        }
    }

    fn begin_network_call(&mut self, pid: Pid, request: &Arc<FenceRequest>, work: Work, timeout: Millis) {
        let life = self.processes[pid].life;
        let (until, next_at) = (self.now + timeout, self.now + 1);
        let call = NetworkCall { pid, life, request: request.clone(), work, until, next_at, sent: None };
        let id = self.number();
        self.network_calls.insert(id, call);
        self.schedule(next_at, Task::NetworkStep(id));
    }

    fn goes_on_at(&mut self, id: u64, at: Millis, sent: Option<Sent>) {
        let Some(call) = self.network_calls.get_mut(&id) else { return };
        (call.next_at, call.sent) = (at, sent);
        self.schedule(at, Task::NetworkStep(id));
    }

    /// The next step of one.
    pub(crate) fn network_step(&mut self, id: u64, chance: &mut dyn Chance) {
        let Some(call) = self.network_calls.get(&id).filter(|call| call.next_at <= self.now).cloned() else { return };
        let next = match &call.sent {
            None => self.next_of(id, &call, chance),
            Some(sent) => match &sent.answer {
                Some(Ok(())) => self.next_of(id, &call, chance),
                // It is another one by now, or gone.
                Some(Err(Refusal::Conflict | Refusal::NotFound)) if self.now + PAUSE < call.until => Next::Again(PAUSE),
                _ => Next::Over(Err(failure("Unavailable"))),
            },
        };
        match next {
            Next::Again(wait) => self.goes_on_at(id, self.now + wait, None),
            Next::Sent(deadline) => self.goes_on_at(id, deadline, Some(Sent { deadline, answer: None })),
            Next::Dead => drop(self.network_calls.remove(&id)),
            Next::Over(outcome) => {
                self.network_calls.remove(&id);
                self.network_call_ends(call, outcome, chance);
            }
        }
    }

    /// A write was answered. Who has given it up hears nothing.
    pub(crate) fn network_written(&mut self, id: u64, answer: Result<(), Refusal>, chance: &mut dyn Chance) {
        let back = self.now + chance.between(Choice::Network, 1, 5);
        let call = self.network_calls.get(&id).and_then(|call| call.sent.clone());
        if let Some(sent) = call.filter(|sent| answer != Err(Refusal::Unknown) && back < sent.deadline) {
            self.goes_on_at(id, back, Some(Sent { answer: Some(answer), ..sent }));
        }
    }

    fn next_of(&mut self, id: u64, call: &NetworkCall, chance: &mut dyn Chance) -> Next {
        if self.api.down {
            return Next::Over(Err(failure("Unavailable")));
        }
        if let Work::Fence(class, rows) = &call.work {
            let volumes: Vec<_> = rows.iter().map(|(row, _)| row.clone()).collect();
            let cluster_id = self.shape.cluster_of_class(&call.request.spec.fencer_name);
            if let Err(failure) = check_cluster(class, cluster_id, &volumes) {
                return Next::Over(Err(failure));
            }
        }
        let (class, round, next): (_, _, fn(&Seen) -> Step) = match &call.work {
            Work::Fence(class, rows) => {
                (class.as_str(), rows.iter().map(|(row, _)| row.round).max().unwrap_or(1), decide::fence)
            }
            Work::GiveBack | Work::Left => ("", 0, lift::give_back),
        };
        let mut seen = self.network_seen(call.pid, &call.request, class, round);
        if let Work::Fence(_, rows) = &call.work {
            seen.cluster = rows.iter().find_map(|(row, _)| row.demanded_cluster()).map(str::to_owned);
        }
        let mut step = next(&seen);
        if step == Step::LookAround {
            seen.around = Some(self.around(&seen.driver));
            step = next(&seen);
        }
        match step {
            Step::Done => Next::Over(Ok(())),
            Step::Stop(failure) => Next::Over(Err(failure)),
            Step::Wait(failure) if self.now + PAUSE >= call.until => Next::Over(Err(failure)),
            Step::Wait(_) => Next::Again(PAUSE),
            step => match self.processes[call.pid].leads_for(self.now) {
                None => Next::Over(Err(failure("Internal"))),
                Some(_) if self.crashes_before(call.pid, chance) => Next::Dead,
                Some(left) => {
                    let next = self.take_network_step(id, call, step, millis(left), chance);
                    self.crashes_after(call.pid, chance);
                    next
                }
            },
        }
    }

    fn take_network_step(
        &mut self,
        id: u64,
        call: &NetworkCall,
        step: Step,
        left: Millis,
        chance: &mut dyn Chance,
    ) -> Next {
        if step == Step::Record {
            if let Some(request) = self.api.get::<FenceRequest>(&call.request.name_any()) {
                let told = status::shutting_out(&request, self.processes[call.pid].now(self.now));
                // Who lost the race looks again.
                let _ = self.api.write(&Op::AnswerRequest(Box::new(told)), self.now);
            }
            return Next::Again(FLIGHT);
        }
        if let Step::Create(fence) = &step
            && fence.spec.fence_state == FenceState::Fenced
        {
            self.judge_shut_out(call.pid, &call.request, &fence.spec.cidrs);
        }
        let arrives = self.flight(chance).map(|flight| self.now + flight);
        self.post_network_fence(id, step, arrives);
        Next::Sent(self.now + left.clamp(1, WRITE))
    }

    fn network_call_ends(&mut self, call: NetworkCall, outcome: Result<(), Failure>, chance: &mut dyn Chance) {
        let name = call.request.name_any();
        let rows = match call.work {
            Work::Fence(_, rows) => rows,
            Work::GiveBack => {
                self.counts.let_in += u64::from(outcome.is_ok());
                return self.serve_step(call.pid, &name, Found { let_in: Some(outcome), ..Found::default() }, chance);
            }
            Work::Left => {
                self.counts.left_behind += u64::from(outcome.is_ok());
                return;
            }
        };
        let at = self.processes[call.pid].now(self.now).mono;
        if let Some((uid, memory)) = self.sidecar(call.pid).memories.get_mut(&name)
            && *uid == call.request.metadata.uid
        {
            rows.iter().for_each(|(row, attempts)| memory.ended(row, *attempts, outcome.clone(), at));
        }
        self.want(call.pid, &Key::Request(name), 0);
    }

    /// Whether a fence that was proved still holds; `None` where that cannot be told now.
    pub(super) fn look_at_fence(
        &mut self,
        pid: Pid,
        request: &Arc<FenceRequest>,
        chance: &mut dyn Chance,
    ) -> Option<Result<(), Failure>> {
        let name = request.name_any();
        for _ in 0..MARKS {
            if self.api.down {
                return None;
            }
            let seen = self.network_seen(pid, request, "", 0);
            let (_, memory) = self.sidecar(pid).memories.get_mut(&name)?;
            let holds = match decide::holds(&seen, &memory.others) {
                Step::Done => Ok(()),
                Step::Stop(failure) => Err(failure),
                step => {
                    self.processes[pid].leads_for(self.now)?;
                    // What was written in between is looked at again.
                    let _ = self.write_network_fence(&step, chance);
                    continue;
                }
            };
            memory.others = decide::others(&seen);
            return Some(holds);
        }
        None
    }

    fn network_seen(&self, pid: Pid, request: &Arc<FenceRequest>, class: &str, round: i32) -> Seen {
        let requests = match request.spec.desired {
            Desired::Fenced => self.api.requests.get(&request.name_any()).cloned().into_iter().collect(),
            Desired::Unfenced => self.api.requests.values().cloned().collect(),
        };
        let driver = self.driver_of(pid);
        Seen {
            request: request.clone(),
            // None changes here.
            classes: vec![self.class_of(&driver)],
            driver,
            class: class.to_owned(),
            class_uid: String::new(),
            class_made: None,
            cluster: None,
            round,
            fences: self.others.csi_addons.fences.values().cloned().collect(),
            requests,
            around: None,
            now: self.processes[pid].now(self.now).wall,
        }
    }

    /// The class of a driver.
    fn class_of(&self, driver: &str) -> NetworkFenceClass {
        let provisioner = driver.to_owned();
        let cluster = self.shape.cluster_of_class(driver);
        let parameters = cluster.map(|cluster| [(CLUSTER_ID.to_owned(), cluster.to_owned())].into());
        NetworkFenceClass::new(&fence_class(driver), NetworkFenceClassSpec { provisioner, parameters })
    }

    /// What addresses are whose now. csi-addons has forgotten what the plugins said; it is on record.
    fn around(&self, driver: &str) -> Around {
        let class = fence_class(driver);
        let is_behind_nat = self.shape.network.is_some_and(|network| network.is_behind_nat);
        let told = self.api.nodes.values().filter(|_| is_behind_nat);
        Around {
            class: Some(self.class_of(driver)),
            nodes: self.api.nodes.values().map(|node| addresses_of(node)).collect(),
            reports: self.api.nodes.values().map(|node| reported_of(node)).collect(),
            record: told
                .map(|node| NetworkFenceClients {
                    class_name: class.clone(),
                    node: node.name_any(),
                    node_uid: node.uid().unwrap_or_default(),
                    addresses: self.client_address(&node.name_any()).iter().map(ToString::to_string).collect(),
                    known_by: Some(KnownBy::OtherAddress),
                })
                .collect(),
            clients: Vec::new(),
            namespace: String::new(),
        }
    }

    /// What the agent of a node reported of its addresses while it was well: where one may be shut out or kept out they tell it from
    /// another machine of its name.
    pub(super) fn address_report(&self, node: &Node) -> Option<Arc<NodeVolumeReport>> {
        if self.shape.network.is_none() && !self.shape.leaves_power() {
            return None;
        }
        let mut report = NodeVolumeReport::new(&node.name_any(), NodeVolumeReportSpec {});
        let (node_uid, addresses) = (node.uid(), told(node));
        report.status = Some(NodeVolumeReportStatus { node_uid, addresses, ..Default::default() });
        Some(Arc::new(report))
    }
}

/// The addresses of a machine, as its kubelet told them last; its agent tells the same.
fn told(node: &Node) -> Vec<String> {
    node.status.addresses.iter().map(|it| it.address.clone()).collect()
}

fn addresses_of(node: &Node) -> NodeAddresses {
    let (addresses, node_info) = (node.status.addresses.clone(), node.status.node_info.clone());
    NodeAddresses { metadata: node.metadata.clone(), status: NodeAddressesStatus { addresses, node_info } }
}

fn reported_of(node: &Node) -> ReportedAddresses {
    ReportedAddresses {
        metadata: ObjectMeta { name: node.metadata.name.clone(), ..ObjectMeta::default() },
        status: ReportedAddressesStatus { node_uid: node.uid(), addresses: told(node) },
    }
}
