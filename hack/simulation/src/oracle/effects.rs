//! What the programs under test do, judged as they do it.

use std::sync::Arc;

use bulkhead::api::fence_request::{FenceOutcome, FenceRequest, RequestedVolume};
use bulkhead::api::fencing::{FenceMethodType, Proof};
use bulkhead::api::names;
use bulkhead::api::node_fence::{NodeFence, Phase, PlannedVolume, PodAction, VolumeStatus, VolumeStatusState};
use bulkhead::api::slim::{Node, Pod};
use bulkhead::controllers::node_fence::decide::{Effect, PROOF_LIFETIME};
use bulkhead::controllers::resiliency_policy::brakes::{self, Cluster};
use bulkhead::controllers::resiliency_policy::decide::{Decision, Effect as Protecting};
use kube::ResourceExt;

use crate::api::{Op, Refusal, Written};
use crate::process::Pid;
use crate::shape::{handle, volumes_of};
use crate::time::{MINUTE, Millis, SECOND, millis};
use crate::world::{Purpose, World};

/// A node that has been heard of for this long without a pause is well beyond doubt.
const WELL: Millis = MINUTE;
/// Who sent a write has given it up by then; it may arrive all the same.
const LATE: Millis = 5 * SECOND;

impl World {
    /// A pass over the cluster has decided.
    pub(crate) fn notice_cluster(&mut self, pid: Pid, decision: &Decision) {
        self.counts.restrained += decision.restrained.len() as u64;
        self.counts.unmoved += decision.unmoved.len() as u64;
        self.counts.array_outages += decision.array_outage.len() as u64;
        self.notice_overlap(pid);
        self.judge_outage(pid, decision);
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
                self.judge_plan(pid, fence, sent);
                self.judge_path(pid, fence, sent);
            }
            Op::DeletePod(pod, Some(0)) | Op::FailPod(pod) => self.judge_release(pod, sent),
            Op::DeletePod(pod, None) if is_plan => self.judge_reschedule(&op, pod),
            Op::AddTaint(node, taint) => self.judge_plugin_taint(node, taint, sent),
            Op::DeleteAttachment(attachment) => {
                let (volume, node) = (attachment.volume().to_owned(), attachment.spec.node_name.clone());
                let still =
                    self.api.attachments.get(&attachment.name_any()).is_some_and(|it| it.uid() == attachment.uid());
                if still {
                    self.judge_detach(&volume, &node);
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
    fn judge_health(&mut self, pid: Pid, node: &str, sent: Millis, what: &str) {
        let since = self.machines.get(node).and_then(|machine| machine.well_since);
        let ready = self.api.nodes.get(node).is_some_and(|node| node.ready() == "True");
        // A process that slept with its machine does not know what it missed; it has the preconditions of its writes.
        let woke = self.processes[pid].woke_at;
        if let Some(since) = since.filter(|since| ready && since + WELL <= sent && woke + WELL <= sent) {
            let text =
                format!("{what} by process {pid} on {node}, which has been well since {:.3} s", since as f64 / 1000.0);
            self.oracle.break_("I3", self.now, text);
        }
    }

    /// I4: never more nodes at once than a policy allows, whoever leads.
    fn judge_budget(&mut self, fence: &NodeFence) {
        let name = fence.name_any();
        let begins = self.api.fences.get(&name).is_none_or(|it| it.spec.episode < fence.spec.episode);
        let in_progress = self.api.fences.values().filter(|it| brakes::in_progress(it));
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

    /// I2: no pod goes by force unless each of its volumes is proved.
    fn judge_release(&mut self, pod: &Arc<Pod>, sent: Millis) {
        let same = self.api.pods.get(&pod.name_any()).is_some_and(|it| it.uid() == pod.uid());
        let Some(node) = pod.spec.node_name.clone().filter(|_| same) else { return };
        let Some(fence) = self.api.get::<NodeFence>(&node) else {
            return self.oracle.break_("I2", self.now, format!("{} goes without a NodeFence", pod.name_any()));
        };
        let planned = fence.spec.plan.pods.iter().find(|row| Some(&row.uid) == pod.metadata.uid.as_ref());
        if planned.is_none_or(|row| row.action != PodAction::Release) {
            return self.oracle.break_("I2", self.now, format!("{} goes and is not planned to", pod.name_any()));
        }
        for volume in volumes_of(pod).map(str::to_owned).collect::<Vec<_>>() {
            if let Err(why) = self.is_proved(&fence, &volume, Some(sent)) {
                let what = format!("pod {} goes, and volume {volume} is not proved: {why}", pod.name_any());
                self.oracle.break_("I2", self.now, what);
            }
        }
    }

    /// I2: no attachment goes unless its volume is proved, or its deletion is the fence call.
    fn judge_detach(&mut self, volume: &str, node: &str) {
        let Some(fence) = self.api.get::<NodeFence>(node) else {
            return self.oracle.break_("I2", self.now, format!("{volume} is detached from {node} without a NodeFence"));
        };
        let row = recorded(&fence, volume).map(|(_, status)| status.clone());
        let minimum = planned(&fence, volume).map_or(Proof::Verified, |row| row.minimum_proof);
        let is_call = row.as_ref().is_some_and(|row| {
            row.method == Some(FenceMethodType::Detach) && row.committed_at.is_some() && minimum <= Proof::Acknowledged
        });
        if is_call {
            self.counts.detached_as_fence += 1;
            let boot = fence.spec.node.boot_id.clone().unwrap_or_default();
            self.oracle.cut.entry(node.to_owned()).or_default().insert(boot);
            return;
        }
        if let Err(why) = self.is_proved(&fence, volume, None) {
            let what = format!("{volume} is detached from {node} unproved: {why}");
            self.oracle.break_("I2", self.now, what);
        }
    }

    /// Whether the record and the array agree that the volume is cut off, and, for a deletion sent at that moment,
    /// recently enough.
    pub(super) fn is_proved(&self, fence: &NodeFence, volume: &str, sent: Option<Millis>) -> Result<(), String> {
        let Some(plan) = planned(fence, volume) else { return Err("it is not planned".into()) };
        if plan.minimum_proof == Proof::None {
            return Ok(());
        }
        let Some((_, row)) = recorded(fence, volume) else { return Err("nothing is recorded".into()) };
        // A write that was on its way may arrive when the row is closed, or when a policy has become stricter than the plan.
        let too_weak_since =
            row.state == VolumeStatusState::Failed && row.proof >= plan.minimum_proof && sent.is_none();
        // One that its sender had given up is judged by what was proved when it was sent.
        let is_late = sent.is_some_and(|sent| sent + LATE <= self.now);
        let closed_since = row.state == VolumeStatusState::Clean && sent.is_none();
        let cut_off = matches!(row.state, VolumeStatusState::Fenced | VolumeStatusState::Detached);
        let holds = (cut_off || too_weak_since || closed_since) && row.proof >= plan.minimum_proof;
        if !holds && !is_late {
            return Err(format!("it is {:?} with proof {:?}", row.state, row.proof));
        }
        if row.method != Some(FenceMethodType::Unpublish) {
            return Ok(());
        }
        let node_id = plan.node_id.clone().unwrap_or_default();
        let key = (volume.to_owned(), node_id.clone());
        let Some((answered, _)) = self.oracle.proved.get(&key) else { return Err("no fencer has proved it".into()) };
        if sent.is_some_and(|sent| answered + millis(PROOF_LIFETIME) < sent) {
            return Err(format!("the proof is from {answered} and it was sent at {sent:?}"));
        }
        if plan.minimum_proof < Proof::Verified {
            return Ok(());
        }
        let array = plan.driver.as_ref().and_then(|driver| self.arrays.get(driver));
        let revoked = array.and_then(|array| array.revoked.get(&(handle(volume), node_id.clone())));
        let accepts = array.is_some_and(|array| array.accepts(&handle(volume), &node_id));
        let again = self.oracle.published.get(&key);
        match (revoked, accepts, again) {
            (None, true, _) => Err("the array never took it".into()),
            (Some(revoked), true, again) if again.is_none_or(|again| again < revoked) => {
                Err("the array has not taken it".into())
            }
            _ => Ok(()),
        }
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
            }
            Op::DeletePod(_, _) => counts.released_gracefully += 1,
            Op::FailPod(_) => counts.failed_pods += 1,
            Op::DeleteAttachment(_) => counts.detached += 1,
            Op::AddTaint(_, taint) => counts.out_of_service += u64::from(taint.key == names::OUT_OF_SERVICE_TAINT),
            _ => {}
        }
        if !matches!(op, Op::Claim { .. }) {
            self.tell(|| format!("    p{pid} wrote {}", name_of(op)));
        }
    }

    fn notice_record(&mut self, fence: &NodeFence) {
        let Some(status) = &fence.status else { return };
        self.counts.recovered += u64::from(status.phase == Some(Phase::Recovered));
        self.counts.refenced += u64::from(status.volumes.iter().any(|row| row.refences.unwrap_or(0) > 0));
        self.judge_cleaned(fence);
        let by_others = status.pods.iter().any(|row| row.reason.as_deref() == Some("ReleasedByOthers"));
        self.counts.released_by_others += u64::from(by_others);
        self.tell(|| {
            let volumes: Vec<_> = status
                .volumes
                .iter()
                .map(|row| {
                    format!(
                        "{}/{} {:?} {:?} {}",
                        row.episode,
                        row.name,
                        row.state,
                        row.proof,
                        row.reason.as_deref().unwrap_or("")
                    )
                })
                .collect();
            let pods: Vec<_> = status
                .pods
                .iter()
                .map(|row| format!("{} {:?} {}", row.uid, row.state, row.reason.as_deref().unwrap_or("")))
                .collect();
            format!("    record {} {:?}: {}; {}", fence.name_any(), status.phase, volumes.join(", "), pods.join(", "))
        });
    }

    fn notice_answer(&mut self, request: &FenceRequest) {
        for row in request.status.iter().flat_map(|status| &status.volumes) {
            let asked = request.spec.volumes.iter().find(|it| (it.episode, &it.name) == (row.episode, &row.name));
            let Some(asked) = asked.filter(|asked| asked.round == row.round) else { continue };
            // An answer that is only written once more, beside others, says nothing new.
            let known = (request.uid().unwrap_or_default(), row.episode, row.name.clone());
            if self.oracle.answers.insert(known, row.clone()).as_ref() == Some(row) {
                continue;
            }
            match (row.result, row.proof) {
                (FenceOutcome::Fenced, proof) if proof >= asked.minimum_proof => {
                    let read = self.listed.get(&request.spec.fencer_name).copied();
                    let at = if proof == Proof::Verified { read.unwrap_or(0) } else { self.now };
                    self.oracle.prove(&row.name, &asked.node_id, at, proof);
                    self.counts.verified += u64::from(proof == Proof::Verified);
                    self.counts.acknowledged += u64::from(proof == Proof::Acknowledged);
                }
                (FenceOutcome::Failed, _) => {
                    let reason = row.reason.as_deref();
                    self.counts.still_published += u64::from(reason == Some("StillPublished"));
                }
                _ => {}
            }
            self.counts.not_listed += u64::from(row.reason.as_deref() == Some("NotListed"));
        }
    }
}

impl super::Oracle {
    /// podGC removes a pod.
    pub(crate) fn collected(&mut self, pod: &Pod, node: Option<&Node>) {
        let ours = node.is_some_and(|node| {
            node.taints().iter().any(|it| {
                it.key == names::OUT_OF_SERVICE_TAINT
                    && it.value.as_deref().is_some_and(|it| it.starts_with("bulkhead-"))
            })
        });
        if !ours {
            self.by_others.insert(pod.uid().unwrap_or_default());
        }
    }
}

/// The plan's row of the last episode that planned a volume.
fn planned<'a>(fence: &'a NodeFence, volume: &str) -> Option<&'a PlannedVolume> {
    fence.spec.plan.volumes.iter().filter(|row| row.name == volume).max_by_key(|row| row.episode)
}

fn recorded<'a>(fence: &'a NodeFence, volume: &str) -> Option<(&'a PlannedVolume, &'a VolumeStatus)> {
    let plan = planned(fence, volume)?;
    let rows = &fence.status.as_ref()?.volumes;
    Some((plan, rows.iter().find(|row| row.episode == plan.episode && row.name == volume)?))
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
