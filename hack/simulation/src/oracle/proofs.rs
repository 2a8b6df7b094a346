//! I2: nothing goes by force that is not proved to be cut off, by what is recorded and by what is so.

use std::sync::Arc;

use bulkhead::api::fencing::{FenceMethodType, Proof};
use bulkhead::api::node_fence::{NodeFence, PlannedVolume, PodAction, VolumeStatus, VolumeStatusState};
use bulkhead::api::slim::Pod;
use bulkhead::controllers::node_fence::decide::PROOF_LIFETIME;
use kube::ResourceExt;

use crate::shape::{handle, volumes_of};
use crate::time::{Millis, SECOND, millis};
use crate::world::World;

use super::knowledge::Knowledge;

/// Who sent a write has given it up by then; it may arrive all the same.
const LATE: Millis = 5 * SECOND;

impl World {
    /// I2: no pod goes by force unless each of its volumes is proved.
    pub(super) fn judge_release(&mut self, pod: &Arc<Pod>, sent: Millis) {
        // What the server refuses harms nobody: a kubelet that started it again has changed it.
        let version = |it: &Pod| (it.metadata.uid.clone(), it.metadata.resource_version.clone());
        let takes = self.api.pods.get(&pod.name_any()).is_some_and(|it| version(it) == version(pod));
        let Some(node) = pod.spec.node_name.clone().filter(|_| takes) else { return };
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
    pub(super) fn judge_detach(&mut self, volume: &str, node: &str, sent: Millis, known: Knowledge) {
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
        // One that its sender had given up may arrive when the machine was let in again and a pod of its own runs there: attach/detach
        // attaches that once more. What proves that a whole machine is stopped has to be so when it was sent.
        let of_machine =
            |row: &VolumeStatus| matches!(row.method, Some(FenceMethodType::External | FenceMethodType::NetworkFence));
        let let_in = row.as_ref().is_some_and(|row| row.state == VolumeStatusState::Clean && of_machine(row));
        // A machine that has booted by another address since it was decided starts its pods again, and nobody shuts it out: what it
        // has of that volume it keeps, as nothing but its kubelet takes it away.
        let is_another = row.as_ref().is_some_and(of_machine) && self.may_be_another_machine(&fence);
        let proved = match (is_another, let_in && sent + LATE <= self.now) {
            (true, _) => self.was_stopped(&fence, volume, known.as_of),
            (false, true) => self.was_stopped(&fence, volume, sent),
            (false, false) => self.is_proved(&fence, volume, None),
        };
        if let Err(why) = proved {
            let what = format!("{volume} is detached from {node} unproved: {why}");
            self.oracle.break_("I2", self.now, what);
        }
    }

    /// Whether the record and the array agree that the volume is cut off, and, for a deletion sent at that moment,
    /// recently enough.
    pub(super) fn is_proved(&self, fence: &NodeFence, volume: &str, sent: Option<Millis>) -> Result<(), String> {
        let Some(plan) = planned(fence, volume) else { return Err("it is not planned".into()) };
        // Time alone proves nothing of a volume that is not attached.
        let attaches = self.shape.attaches(volume);
        if plan.minimum_proof == Proof::None && attaches {
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
        // Who leaves a machine its power proves nothing of what is not attached.
        let is_enough = attaches || row.method != Some(FenceMethodType::External) || row.proof == Proof::PowerOff;
        let holds = (cut_off || too_weak_since || closed_since) && row.proof >= plan.minimum_proof && is_enough;
        if !holds && !is_late {
            return Err(format!("it is {:?} with proof {:?}", row.state, row.proof));
        }
        // What these prove is so of the whole machine: nothing there writes, nor on another one that has its name by now. Nothing else
        // proves a volume that is not attached.
        if !attaches || matches!(row.method, Some(FenceMethodType::External | FenceMethodType::NetworkFence)) {
            return match sent.filter(|_| is_late) {
                Some(sent) => self.was_stopped(fence, volume, sent),
                None => self.is_stopped(fence, volume),
            };
        }
        if row.method != Some(FenceMethodType::Unpublish) {
            return Ok(());
        }
        let node_id = plan.node_id.clone().unwrap_or_default();
        let key = (volume.to_owned(), node_id.clone());
        let Some(((answered, _), _)) = self.oracle.proved.get(&key) else {
            return Err("no fencer has proved it".into());
        };
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
