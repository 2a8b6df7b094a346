//! What the programs under test do, judged as they do it.

use bulkhead::api::fence_request::{FenceRequest, RequestedVolume};
use bulkhead::api::names;
use bulkhead::api::node_fence::{NodeFence, Phase};
use bulkhead::api::slim::Pod;
use bulkhead::controllers::node_fence::decide::Effect;
use bulkhead::controllers::resiliency_policy::brakes::{self, Cluster};
use bulkhead::controllers::resiliency_policy::decide::{Decision, Effect as Protecting};
use kube::ResourceExt;

use crate::api::{Op, Refusal, Written};
use crate::others::machines_of;
use crate::process::Pid;
use crate::shape::volumes_of;
use crate::time::{MINUTE, Millis};
use crate::world::{Purpose, World};

/// A node that has been heard of for this long without a pause is well beyond doubt.
const WELL: Millis = MINUTE;

impl World {
    /// A pass over the cluster has decided.
    pub(crate) fn notice_cluster(&mut self, pid: Pid, decision: &Decision) {
        self.counts.restrained += decision.restrained.len() as u64;
        self.counts.unmoved += decision.unmoved.len() as u64;
        self.counts.array_outages += decision.array_outage.len() as u64;
        self.counts.contradicted += decision.contradicted.len() as u64;
        self.notice_overlap(pid);
        self.note_shown(pid);
        self.judge_words(pid, decision);
        self.judge_outage(pid, decision);
        self.judge_moves(pid, decision);
        for effect in &decision.effects {
            if let Protecting::Open(fence) | Protecting::Replan(fence) = effect {
                self.judge_given_up(fence);
            }
        }
    }

    /// I6: nothing is begun while so many nodes are silent that the observer must be wrong. What the process cannot have
    /// seen yet does not count.
    fn judge_outage(&mut self, pid: Pid, decision: &Decision) {
        let begins = decision.effects.iter().any(|effect| matches!(effect, Protecting::Open(_)));
        let views = &self.controllers[pid].views;
        if !begins || views.nodes.next() != self.api.nodes.next() || views.policies.next() != self.api.policies.next() {
            return;
        }
        let nodes = self.api.nodes.values().count();
        let suspected = self.api.nodes.values().filter(|node| node.ready() != "True").count();
        for effect in &decision.effects {
            let Protecting::Open(fence) = effect else { continue };
            self.judge_array_outage(pid, fence);
            self.judge_backend_outage(pid, fence);
            self.judge_heartbeats(fence);
            let named = |name: &str| fence.spec.policies.iter().any(|it| it.name == name);
            let policies = self.api.policies.values().filter(|policy| named(&policy.name_any()));
            let outage =
                policies.into_iter().any(|policy| brakes::is_outage(&policy.spec.limits, Cluster { nodes, suspected }));
            if outage {
                let what = format!("{} is acted on while {suspected} of {nodes} nodes are silent", fence.name_any());
                self.oracle.break_("I6", self.now, what);
                return;
            }
        }
    }

    fn notice_overlap(&mut self, pid: Pid) {
        let lease = &self.processes[pid].lease;
        let leads =
            |process: &&crate::process::Process| process.lease == *lease && process.leads_for(self.now).is_some();
        self.counts.leader_overlaps += u64::from(self.processes.iter().filter(leads).count() > 1);
    }

    /// A pass over a node has decided.
    pub(crate) fn notice_decision(&mut self, pid: Pid, node: &str, reason: &'static str, effects: &[Effect]) {
        if !effects.is_empty() {
            self.tell(|| {
                format!("p{pid} {node}: {reason} {}", effects.iter().map(named).collect::<Vec<_>>().join(", "))
            });
        }
        self.counts.undone += u64::from(reason == "Undoing" && !effects.is_empty());
        self.counts.held_for_outage += u64::from(reason == "Holding" && !effects.is_empty());
        self.notice_overlap(pid);
    }

    /// A sidecar sends ControllerUnpublishVolume.
    pub(crate) fn notice_unpublish(&mut self, pid: Pid, request: &FenceRequest, volume: &RequestedVolume) {
        self.counts.unpublishes += 1;
        let node = &request.spec.node_name;
        // One that came back is cut off until it is clean: until then nothing new is attached there.
        if self.api.nodes.get(node).is_some() && !self.api.is_fenced(node) {
            self.judge_health(pid, node, self.now, "an unpublish");
        }
        self.tell(|| format!("p{pid} unpublishes {} of {node} ({})", volume.name, volume.node_id));
        // What was booted since has nothing of before to lose.
        let boot = request.spec.node.boot_id.clone().unwrap_or_default();
        self.oracle.cut.entry(node.clone()).or_default().insert(boot);
        self.judge_name(request, volume);
        self.judge_io(request, volume);
    }

    /// The server is about to take a write.
    pub(crate) fn notice_write(&mut self, id: u64) {
        let Some(write) = self.writes.get(&id) else { return };
        let known = self.knowledge(write);
        let (op, sent, pid) = (write.op.clone(), write.sent, write.pid);
        let is_plan = matches!(write.purpose, Purpose::Plan);
        if let Some(node) = self.destroys(&op).filter(|_| !self.is_for_volumes(&op, sent) && !self.is_for_paths(&op)) {
            self.judge_health(pid, &node, sent, &name_of(&op));
        }
        if let Some(node) = self.destroys(&op).filter(|_| !matches!(op, Op::CreateFence(_))) {
            self.judge_held(pid, &node, sent, &name_of(&op));
        }
        match &op {
            Op::RemoveTaint(node, taint) if taint.key == names::FENCED_TAINT => self.judge_untaint(node, taint),
            Op::CreateFence(fence) | Op::ReplaceFence(fence) => {
                self.judge_budget(fence);
                self.judge_plan(fence, known);
                self.judge_path(fence, known);
            }
            Op::DeletePod(pod, Some(0)) | Op::FailPod(pod) => self.judge_release(pod, sent),
            Op::DeletePod(pod, None) if is_plan => self.judge_reschedule(&op, &pod.name_any()),
            Op::AddTaint(node, taint) => self.judge_plugin_taint(node, taint, known),
            Op::DeleteAttachment(attachment) => {
                let (volume, node) = (attachment.volume().to_owned(), attachment.spec.node_name.clone());
                let still =
                    self.api.attachments.get(&attachment.name_any()).is_some_and(|it| it.uid() == attachment.uid());
                if still {
                    self.judge_detach(&volume, &node, sent, known);
                }
            }
            _ => {}
        }
    }

    /// The node that a write acts on by force, if it does.
    fn destroys(&self, op: &Op) -> Option<String> {
        match op {
            Op::DeletePod(pod, Some(0)) | Op::FailPod(pod) => pod.spec.node_name.clone(),
            Op::DeleteAttachment(attachment) => Some(attachment.spec.node_name.clone()),
            Op::CreateFence(fence) => fence.metadata.name.clone(),
            Op::AddTaint(node, taint) if taint.key == names::OUT_OF_SERVICE_TAINT => node.metadata.name.clone(),
            _ => None,
        }
        .filter(|node| {
            // What the server refuses, or what is done already, harms nobody.
            self.api.clone().write(op, self.now).is_ok() && self.api.nodes.get(node).is_some()
        })
    }

    /// I3: nothing is done by force to a node that has been well for long, as its API and its Lease tell.
    pub(super) fn judge_health(&mut self, pid: Pid, node: &str, sent: Millis, what: &str) {
        let since = self.machines.get(node).and_then(|machine| machine.well_since);
        let ready = self.api.nodes.get(node).is_some_and(|node| node.ready() == "True");
        // A process that slept with its machine does not know what it missed; it has the preconditions of its writes.
        let is_awake = self.processes[pid].woke_at.is_none_or(|woke| woke + WELL <= sent);
        if let Some(since) = since.filter(|since| ready && is_awake && since + WELL <= sent) {
            let text =
                format!("{what} by process {pid} on {node}, which has been well since {:.3} s", since as f64 / 1000.0);
            self.oracle.break_("I3", self.now, text);
        }
    }

    /// I4: never more nodes at once than a policy allows, whoever leads.
    fn judge_budget(&mut self, fence: &NodeFence) {
        let name = fence.name_any();
        let begins = self.api.fences.get(&name).is_none_or(|it| it.spec.episode < fence.spec.episode);
        let in_progress =
            self.api.fences.values().filter(|it| brakes::in_progress(it) && !self.waits_for_word_of_its_machine(it));
        let open: Vec<_> = in_progress.filter(|it| it.name_any() != name).cloned().collect();
        let mut broken = Vec::new();
        for policy in self.api.policies.values().filter(|_| begins) {
            let of = |fence: &NodeFence| {
                fence.spec.policies.iter().any(|it| Some(&it.name) == policy.metadata.name.as_ref())
            };
            let limit = brakes::limit(&policy.spec.limits, self.api.nodes.values().count());
            let known = self.api.fences.get(&name).is_some_and(|it| brakes::in_progress(it) && of(it));
            let acted = open.iter().filter(|it| of(it)).count();
            if of(fence) && !known && acted >= limit {
                broken.push(format!(
                    "{name} is acted on as node {} of {limit} of policy {}",
                    acted + 1,
                    policy.name_any()
                ));
            }
        }
        broken.into_iter().for_each(|what| self.oracle.break_("I4", self.now, what));
    }

    /// Its Node was deleted, or is another machine by now, its pods are gone, and all that is left is what a person alone knows: whether
    /// the machine is off. That would hold up other nodes for ever.
    fn waits_for_word_of_its_machine(&self, fence: &NodeFence) -> bool {
        let has_pods = matches!(brakes::phase(fence), Phase::Planned | Phase::Fencing);
        let name = fence.name_any();
        let is_off_fabric = |machine: &String| self.machines.get(machine).is_some_and(|machine| machine.is_off_fabric);
        let is_off_fabric = machines_of(&name).iter().any(is_off_fabric);
        let is_shut_out = self.api.requests.values().any(|it| it.spec.node_name == name && it.shuts_out());
        let node = self.api.nodes.get(&name);
        let is_gone = node.is_none_or(|node| node.uid().as_ref() != Some(&fence.spec.node.uid));
        let is_for_a_person = is_gone || self.may_be_another_machine(fence);
        !has_pods && (is_shut_out || is_off_fabric) && is_for_a_person
    }

    /// The server has taken a write, or refused it.
    pub(crate) fn notice_written(&mut self, pid: Pid, op: &Op, outcome: &Result<Written, Refusal>) {
        match outcome {
            Err(Refusal::Conflict) => self.counts.conflicts += u64::from(!matches!(op, Op::Claim { .. })),
            Err(Refusal::Invalid(rule)) => {
                let what = format!("process {pid} is refused by the schema: {rule}");
                self.oracle.break_("schema", self.now, what);
            }
            Err(_) => {}
            Ok(_) => self.notice_done(pid, op),
        }
    }

    fn notice_done(&mut self, pid: Pid, op: &Op) {
        if matches!(op, Op::CreateFence(_) | Op::ReplaceFence(_)) {
            self.note_holds();
        }
        let is_unattached = |pod: &Pod| volumes_of(pod).any(|volume| !self.shape.attaches(volume));
        let counts = &mut self.counts;
        match op {
            Op::CreateFence(fence) => {
                counts.opened += 1;
                counts.opened_for_volumes += u64::from(fence.spec.plan.is_by_volume());
                counts.opened_for_paths += u64::from(fence.spec.plan.is_by_path());
            }
            Op::ReplaceFence(fence) => {
                let begun =
                    fence.status.is_none() && fence.spec.plan.pods.iter().all(|row| row.episode == fence.spec.episode);
                counts.reopened += u64::from(begun && fence.spec.episode > 1);
                counts.grown += u64::from(fence.spec.episode == 1);
            }
            Op::RecordFence(fence) => self.notice_record(fence),
            Op::RecordPolicy(policy) => self.tell(|| format!("    policy {:?}", policy.status)),
            Op::AnswerRequest(request) => self.notice_answer(request),
            Op::DeletePod(pod, Some(0)) => {
                counts.released += 1;
                counts.ended += u64::from(pod.is_terminating());
                counts.released_unattached += u64::from(is_unattached(pod));
                self.note_forced(pod);
            }
            Op::DeletePod(_, _) => counts.released_gracefully += 1,
            Op::FailPod(pod) => {
                counts.failed_pods += 1;
                counts.released_unattached += u64::from(is_unattached(pod));
                self.note_forced(pod);
            }
            Op::DeleteAttachment(_) => counts.detached += 1,
            Op::AddTaint(node, taint) if taint.key == names::OUT_OF_SERVICE_TAINT => {
                counts.out_of_service += 1;
                counts.out_of_service_early += u64::from(node.ready() == "True");
            }
            _ => {}
        }
        if !matches!(op, Op::Claim { .. }) {
            self.tell(|| format!("    p{pid} wrote {}", name_of(op)));
        }
    }
}

fn named(effect: &Effect) -> String {
    let text = format!("{effect:?}");
    let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    match effect {
        Effect::DeletePod { pod, grace_seconds, .. } => format!("DeletePod {} {grace_seconds:?}", pod.name()),
        Effect::DeleteAttachment(attachment) => format!("DeleteAttachment {}", attachment.volume()),
        Effect::AddTaint { taint, .. } => format!("AddTaint {}", taint.key),
        Effect::RemoveTaint { taint, .. } => format!("RemoveTaint {}", taint.key),
        _ => text[..end].to_owned(),
    }
}

fn name_of(op: &Op) -> String {
    let text = format!("{op:?}");
    let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    text[..end].to_owned()
}
