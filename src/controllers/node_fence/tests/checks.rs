//! What must hold for every effect, whatever happened before: no second writer.

use std::time::Duration;

use crate::api::fence_request::{FenceOutcome, FenceResult};
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::names;
use crate::api::node_fence::{PlannedVolume, PodStatusState, UNKNOWN_BOOT, VolumeStatus, VolumeStatusState};
use crate::api::time::Now;

use super::super::decide::{Effect, Seen};
use super::world::World;

/// Panics at an effect that the first promise of the design forbids.
pub fn allowed(seen: &Seen, now: Now, effect: &Effect, log: &[String]) {
    match effect {
        Effect::DeletePod { pod, grace_seconds: Some(0), .. } | Effect::FailPod { pod, .. } => {
            assert!(is_boot_on_record(seen), "{} goes in a boot that is not on record: {log:#?}", pod.name());
            let planned = seen.fence.spec.plan.pods.iter().find(|row| row.uid == pod.uid()).expect("a planned pod");
            for name in &planned.volumes {
                let row = planned_volume(seen, name).expect("a planned volume");
                assert!(is_proved(seen, row), "{} goes but {name} is not proved: {log:#?}", pod.name());
                assert!(is_fresh(seen, row, now), "{} goes but the proof of {name} is too old: {log:#?}", pod.name());
            }
        }
        Effect::DeleteAttachment(attachment) => {
            let row = planned_volume(seen, attachment.volume()).expect("a planned volume");
            let fence_call = recorded(seen, row)
                .is_some_and(|status| status.method == Some(FenceMethodType::Detach) && status.committed_at.is_some());
            let is_fence_call = fence_call && minimum(seen, row) <= Proof::Acknowledged && attachment.status.attached;
            assert!(is_proved(seen, row) || is_fence_call, "{} is detached unproved: {log:#?}", attachment.volume());
        }
        Effect::AddTaint { taint, node } if taint.key == names::OUT_OF_SERVICE_TAINT => {
            let plan = &seen.fence.spec.plan;
            let is_ahead = plan.is_ahead_of_kubernetes() && !plan.began_on_a_well_node();
            let is_away = node.ready() != "True" || is_ahead;
            assert!(is_away && seen.lease_is_still, "out-of-service on a live node: {log:#?}");
            for attachment in &seen.attachments {
                let row = planned_volume(seen, attachment.volume());
                assert!(row.is_some_and(|row| is_proved(seen, row)), "{} unproved: {log:#?}", attachment.volume());
            }
        }
        _ => {}
    }
}

/// That a node is back in the boot in which a pod goes by force shows nothing, so it must be known for good before that. Where none
/// was frozen none ever does.
fn is_boot_on_record(seen: &Seen) -> bool {
    let fence = &seen.fence;
    match &seen.node {
        Some(node) => !fence.is_another_boot(node) || fence.has_failed_in(node),
        None => {
            let unseen = fence.was_back().then_some(UNKNOWN_BOOT);
            let boot_id = seen.last_boot.as_deref().or(unseen);
            fence.spec.node.boot_id.is_none() || boot_id.is_none_or(|boot_id| fence.is_failed_boot(boot_id))
        }
    }
}

/// The row of the last episode that planned the volume.
fn planned_volume<'a>(seen: &'a Seen, name: &str) -> Option<&'a PlannedVolume> {
    seen.fence.spec.plan.volumes.iter().filter(|row| row.name == name).max_by_key(|row| row.episode)
}

fn recorded<'a>(seen: &'a Seen, row: &PlannedVolume) -> Option<&'a VolumeStatus> {
    let rows = &seen.fence.status.as_ref()?.volumes;
    rows.iter().find(|it| it.episode == row.episode && it.name == row.name)
}

fn minimum(seen: &Seen, row: &PlannedVolume) -> Proof {
    let live = seen.policies.iter().map(|it| it.spec.fencing.minimum_proof_for(row.driver.as_deref().unwrap_or("")));
    live.max().unwrap_or(Proof::None).max(row.minimum_proof)
}

/// Recorded as cut off with enough proof.
fn is_proved(seen: &Seen, row: &PlannedVolume) -> bool {
    let minimum = minimum(seen, row);
    let cut_off = |status: &VolumeStatus| {
        let is_external = status.method == Some(FenceMethodType::External);
        let is_weak = row.is_unattached() && is_external && status.proof < Proof::PowerOff;
        let is_cut_off = matches!(status.state, VolumeStatusState::Fenced | VolumeStatusState::Detached);
        is_cut_off && status.proof >= minimum && !is_weak
    };
    minimum == Proof::None || recorded(seen, row).is_some_and(cut_off)
}

/// The answer that counts is there: of the round that was asked for, within 10 s, with no attach in flight.
fn is_fresh(seen: &Seen, row: &PlannedVolume, now: Now) -> bool {
    let minimum = minimum(seen, row);
    let mut attachments = seen.attachments.iter().filter(|it| it.volume() == row.name);
    if minimum == Proof::None {
        return true;
    }
    if recorded(seen, row).and_then(|status| status.method) == Some(FenceMethodType::Detach) {
        return attachments.next().is_none();
    }
    let settled = attachments.all(|attachment| attachment.status.attached);
    seen.requests.iter().any(|request| {
        let key = (request.spec.fencer_name.clone(), row.episode, row.name.clone());
        let Some(asked) = seen.asked.get(&key) else { return false };
        let results = request.status.iter().flat_map(|status| &status.volumes);
        let answer = results.into_iter().find(|result| {
            (result.episode, result.name.as_str(), result.round) == (row.episode, row.name.as_str(), asked.round)
                && result.result == FenceOutcome::Fenced
                && result.proof >= minimum
        });
        let in_time = now.mono.saturating_duration_since(asked.at) <= Duration::from_secs(10);
        let is_off = |answer: &FenceResult| {
            answer.proof == Proof::PowerOff && Some(&request.spec.fencer_name) != row.driver.as_ref()
        };
        answer.is_some_and(|answer| is_off(answer) || in_time && settled)
    })
}

/// What the record says of a volume and of a pod.
impl World {
    /// The recorded row of a volume.
    pub fn volume(&self, name: &str) -> VolumeStatus {
        let rows = &self.seen.fence.status.as_ref().expect("something is recorded").volumes;
        rows.iter().rev().find(|row| row.name == name).expect("the volume has a row").clone()
    }

    /// State and reason of a pod.
    pub fn pod(&self, name: &str) -> (PodStatusState, String) {
        let rows = &self.seen.fence.status.as_ref().expect("something is recorded").pods;
        let row = rows.iter().find(|row| row.uid == format!("uid-{name}")).expect("the pod has a row");
        (row.state, row.reason.clone().unwrap_or_default())
    }

    /// Status and reason of a condition.
    pub fn condition(&self, type_: &str) -> Option<(String, String)> {
        let conditions = &self.seen.fence.status.as_ref()?.conditions;
        let found = conditions.iter().find(|condition| condition.type_ == type_)?;
        Some((found.status.clone(), found.reason.clone()))
    }

    /// Whether something of that name happened.
    pub fn did(&self, what: &str) -> bool {
        self.log.iter().any(|entry| entry.starts_with(what))
    }

    /// Asserts that these things happened, in this order, others in between.
    pub fn assert_order(&self, wanted: &[&str]) {
        let mut rest = self.log.iter();
        for want in wanted {
            assert!(rest.any(|entry| entry == want), "{want:?} is missing or too early in {:#?}", self.log);
        }
    }
}
