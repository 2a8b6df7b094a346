//! Where every row of the plan stands, from what is recorded and what is seen now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;

use crate::api::conditions;
use crate::api::fencing::Proof;
use crate::api::names;
use crate::api::node_fence::{Channel, PlannedVolume, PodStatus, PodStatusState, VolumeStatus, VolumeStatusState};
use crate::api::resiliency_policy::{ResiliencyPolicy, RestraintType};
use crate::api::slim::VolumeAttachment;
use crate::api::time::{self, Now};

use super::clean::{self, CleanBy};
use super::decide::{NodeState, PROOF_LIFETIME, RowKey, Seen, is_closed, is_settled};
use super::held::{self, Held};
use super::{answers, boots, fencers, pods, requests, storage, unattached, volumes};

/// All rows as they stand now.
#[derive(Clone, Debug)]
pub struct Rows {
    /// A row per planned volume, in the plan's order.
    pub volumes: Vec<VolumeRow>,
    /// A row per planned pod, in the plan's order.
    pub pods: Vec<PodStatus>,
    /// The node as a whole.
    pub node: NodeState,
    /// Something looks changed that must be read from the API before it is believed.
    pub need_live: bool,
    /// A volume whose identity is in doubt: the whole incident is held.
    pub ambiguous: Option<String>,
    /// The outage brake of a policy that the plan names.
    pub outage: Option<RestraintType>,
    /// What stops the incident before its next destructive step, however far it got.
    pub held: Option<Held>,
}

/// A planned volume and where it stands.
#[derive(Clone, Debug)]
pub struct VolumeRow {
    /// The plan.
    pub plan: PlannedVolume,
    /// The record.
    pub status: VolumeStatus,
    /// Weakest proof that counts: the stricter of plan and live policy.
    pub minimum: Proof,
    /// A pod that may be released waits for it.
    pub needed: bool,
    /// Proved by an answer that still counts.
    pub fresh: bool,
    /// Until when it does; `None` for one that does not age.
    pub counts_until: Option<Now>,
    /// Why its node is not switched off for it yet, in CamelCase and in words: something else may still free the incident's pods.
    pub power_waits: Option<(&'static str, String)>,
}

impl VolumeRow {
    /// Its key.
    pub fn key(&self) -> RowKey {
        (self.plan.episode, self.plan.name.clone())
    }

    /// Whether a fence call may have been sent for it.
    pub fn is_committed(&self) -> bool {
        self.status.committed_at.is_some()
    }

    /// Whether it is recorded as cut off.
    pub fn is_cut_off(&self) -> bool {
        matches!(self.status.state, VolumeStatusState::Fenced | VolumeStatusState::Detached)
    }
}

impl Rows {
    /// The rows as they stand now.
    pub fn advance(seen: &Seen, now: Now) -> Self {
        let recorded = seen.fence.status.clone().unwrap_or_default();
        let node = node_state(seen);
        let mut rows = Self {
            volumes: seen.fence.spec.plan.volumes.iter().map(|plan| recorded_volume(seen, plan)).collect(),
            pods: seen.fence.spec.plan.pods.iter().map(|plan| pods::recorded(plan, &recorded)).collect(),
            node,
            // The boot that it tells is put on record then.
            need_live: seen.node.is_some() && seen.fence.is_last_boot_unknown(),
            ambiguous: None,
            outage: outage(seen),
            held: held::held(seen, node),
        };
        pods::observe_departures(seen, &mut rows, now);
        pods::find_blocked(seen, &mut rows);
        rows.mark_needed(seen);
        unattached::hold_power(seen, &mut rows.volumes, now);
        rows.ambiguous = rows.volumes.iter().find(|row| is_ambiguous(row)).map(|row| row.plan.name.clone());
        let held = rows.is_held() || rows.outage.is_some();
        let is_back = node == NodeState::Back || boots::has_just_begun(seen, node);
        for row in &mut rows.volumes {
            advance_volume(seen, row, held, is_back, now);
        }
        pods::advance(seen, &mut rows, now);
        rows.close(seen, now);
        rows
    }

    /// The volume row of that name in the current episode, else in an earlier one.
    pub fn volume(&self, name: &str) -> Option<&VolumeRow> {
        self.volumes.iter().filter(|row| row.plan.name == name).max_by_key(|row| row.plan.episode)
    }

    /// The rows that say how a volume stands now: none that a later episode has planned again.
    pub fn current(&self) -> impl Iterator<Item = &VolumeRow> {
        let replaced = |row: &VolumeRow| {
            self.volumes.iter().any(|it| it.plan.episode > row.plan.episode && it.plan.name == row.plan.name)
        };
        self.volumes.iter().filter(move |row| !replaced(row))
    }

    /// Whether the whole incident waits.
    pub fn is_held(&self) -> bool {
        self.held.is_some() || self.waits_to_begin()
    }

    /// Whether it may not begin. An outage holds what has not begun; what was cut off is brought to its end. Of a node
    /// that is back nothing is fenced, so nothing is in doubt: what an earlier episode left is cleaned.
    pub fn waits_to_begin(&self) -> bool {
        let waits = self.ambiguous.is_some() || self.outage.is_some() && !self.is_committed();
        waits && self.node != NodeState::Back
    }

    /// Whether any fence call may have been sent.
    pub fn is_committed(&self) -> bool {
        self.volumes.iter().any(VolumeRow::is_committed)
    }

    /// Whether every row is closed: only requests, taint and label remain to be taken back.
    pub fn is_over(&self) -> bool {
        self.node != NodeState::Away
            && self.pods.iter().all(|row| is_settled(row.state))
            && self.volumes.iter().all(|row| is_closed(row.status.state))
    }

    /// Whether a pod that is to go is still there.
    pub fn is_releasing(&self) -> bool {
        self.pods.iter().any(|row| row.state == PodStatusState::Releasing)
    }

    /// Attachments of volumes that are cut off and whose pods have ended: to be removed.
    pub fn attachments_to_remove(&self, seen: &Seen) -> Vec<Arc<VolumeAttachment>> {
        let proved = |row: &&VolumeRow| row.is_cut_off() && row.status.proof >= row.minimum;
        let rows = self.current().filter(|row| proved(row) || row.minimum == Proof::None);
        let free = rows.filter(|row| !pods::is_in_use(seen, &row.plan.name));
        free.flat_map(|row| seen.attachments_of(&row.plan.name).cloned()).collect()
    }

    /// Whether the last proofs that the out-of-service taint waits for can still be expected soon.
    pub fn proofs_are_near(&self, seen: &Seen, now: Now, patience: Duration) -> bool {
        let near = |row: &VolumeRow| {
            let asked = fencers::asked_last(seen, row).map(|asked| now.mono.saturating_duration_since(asked.at));
            row.needed && row.status.state != VolumeStatusState::Failed && asked.is_some_and(|passed| passed < patience)
        };
        self.volumes.iter().any(near)
    }

    fn mark_needed(&mut self, seen: &Seen) {
        let mut needed: BTreeMap<String, bool> = BTreeMap::new();
        for (row, plan) in self.pods.iter().zip(&seen.fence.spec.plan.pods) {
            let waits = !is_settled(row.state) && !pods::is_blocked(row);
            for volume in plan.volumes.iter().filter(|_| waits) {
                needed.insert(volume.clone(), true);
            }
        }
        let episode = seen.fence.spec.episode;
        for row in &mut self.volumes {
            reopen_if_attached_again(seen, row);
            // A fence that was begun is brought to its end, whoever removed the pods meanwhile.
            let begun = row.is_committed() && !is_closed(row.status.state) && !row.is_cut_off();
            let wanted = needed.contains_key(&row.plan.name) || begun && !pods::is_in_use(seen, &row.plan.name);
            row.needed = wanted && (row.plan.episode == episode || begun);
            reopen_if_needed_again(row);
        }
    }

    /// Closes volume rows: undone where nothing was sent, clean where nothing of it is left on the node.
    fn close(&mut self, seen: &Seen, now: Now) {
        let attached = |row: &VolumeRow| seen.attachments_of(&row.plan.name).next().is_some();
        let gone_but_attached = self.node == NodeState::Gone && self.volumes.iter().any(attached);
        let pods_done = self.pods.iter().all(|row| is_settled(row.state));
        if self.node == NodeState::Away || !pods_done || gone_but_attached {
            return;
        }
        let cleaned = clean::by(seen);
        let looked_for: BTreeSet<RowKey> =
            seen.fence.volumes_to_clean().map(|plan| (plan.episode, plan.name.clone())).collect();
        // A row that this pass finds committed was not looked for yet.
        let is_clean = |by: CleanBy, row: &VolumeRow| by != CleanBy::TwoCleanPasses || looked_for.contains(&row.key());
        // A pod that came to the node during the incident has its volume attached: by now to a machine that is clean.
        let is_left = |name: &str| seen.attachments_of(name).next().is_some() && !pods::is_wanted(seen, name);
        for row in self.volumes.iter_mut().filter(|row| !is_closed(row.status.state)) {
            if !row.is_committed() && !fencers::may_be_started(seen, row, now) {
                row.status.state = VolumeStatusState::Undone;
            } else if let Some(by) =
                cleaned.filter(|by| row.is_committed() && is_clean(*by, row)).filter(|_| !is_left(&row.plan.name))
            {
                row.status.state = VolumeStatusState::Clean;
                row.status.reason = Some(by.reason().into());
            }
        }
    }
}

/// The outage brake that a policy of the plan reports. It comes to hold after the plan was written, where nodes fall
/// silent one after the other. What taints of volumes, or an array, say holds no node that failed.
pub fn outage(seen: &Seen) -> Option<RestraintType> {
    let restraints = seen.policies.iter().flat_map(|policy| &policy.status).flat_map(|status| &status.restraints);
    let outages = restraints.filter(|restraint| match restraint.type_ {
        RestraintType::CorrelatedOutage | RestraintType::Cooldown => true,
        RestraintType::ArrayOutage => restraint.name.is_none() && volumes::is_by_volume(seen),
        // What people set is looked at itself.
        RestraintType::Paused | RestraintType::MaintenanceWindow | RestraintType::BudgetExhausted => false,
    });
    let unsure = storage::is_unsure(seen).then_some(RestraintType::ArrayOutage);
    outages.map(|restraint| restraint.type_).next().or(unsure)
}

fn recorded_volume(seen: &Seen, plan: &PlannedVolume) -> VolumeRow {
    let known = seen.fence.recorded_volume(plan.episode, &plan.name);
    let fresh = || VolumeStatus {
        episode: plan.episode,
        name: plan.name.clone(),
        state: VolumeStatusState::Pending,
        proof: Proof::None,
        method: None,
        external_proof: None,
        committed_at: None,
        proved_at: None,
        reason: None,
        message: None,
        refences: None,
    };
    let mut status = known.cloned().unwrap_or_else(fresh);
    // A record of before that field says it while the proof stands.
    if status.external_proof.is_none() && status.is_proved_externally() && status.proof > Proof::None {
        status.external_proof = Some(status.proof);
    }
    if status.state == VolumeStatusState::Clean && clean::is_back_uncleaned(seen) {
        let proved = status.proved_at.is_some();
        status.state = if proved { VolumeStatusState::Detached } else { VolumeStatusState::Fencing };
    }
    VolumeRow {
        plan: plan.clone(),
        status,
        minimum: minimum(seen, plan),
        needed: false,
        fresh: false,
        counts_until: None,
        power_waits: None,
    }
}

/// The stricter of the plan and the live policies of the pods that use the volume: a later edit may only make a
/// running incident stricter. The pods of a row that was carried over are not in the plan any more: then all count.
fn minimum(seen: &Seen, plan: &PlannedVolume) -> Proof {
    let Some(driver) = plan.driver.as_deref() else { return plan.minimum_proof };
    let users: Vec<_> = seen.fence.spec.plan.pods.iter().filter(|pod| pod.volumes.contains(&plan.name)).collect();
    let counts = |policy: &&Arc<ResiliencyPolicy>| {
        users.is_empty() || users.iter().any(|pod| pod.policy.is_some() && pod.policy == policy.metadata.name)
    };
    let live = seen.policies.iter().filter(counts).map(|policy| policy.spec.fencing.minimum_proof_for(driver));
    live.max().unwrap_or(plan.minimum_proof).max(plan.minimum_proof)
}

fn is_ambiguous(row: &VolumeRow) -> bool {
    let is_planned = row.plan.driver.is_some() || row.plan.is_unattached();
    row.needed && !row.is_committed() && is_planned && row.plan.node_id.is_none()
}

/// Whether the node is back. What declared it failed must be over: for channel Taint that is the taint, since the
/// kubelet of such a node was never away.
pub fn node_state(seen: &Seen) -> NodeState {
    let Some(node) = &seen.node else { return NodeState::Gone };
    if node.metadata.uid.as_deref() != Some(&seen.fence.spec.node.uid) && node.ready() == "True" {
        return NodeState::Back;
    }
    let by_taint = seen.fence.spec.plan.evidence.iter().any(|evidence| evidence.channel == Channel::Taint);
    // That its kubelet is silent is believed no sooner by its taint than by its condition.
    let may_renew = volumes::may_renew(seen);
    let mut taints = node.taints().iter().filter(|taint| taint.key != names::UNREACHABLE_TAINT || !may_renew);
    let counts = |taint: &Taint| seen.policies.iter().any(|policy| policy.spec.detection.counts_taint(taint));
    let tainted = by_taint && taints.any(counts);
    // Kubernetes takes a node for Ready long after it died: until then only its Lease tells that it is back, or another boot, which
    // its kubelet told since. A controller that has just begun to lead has seen no Lease move: it would fence the node once more. In
    // an incident that was one of storage first the node may have booted before it failed.
    let plan = &seen.fence.spec.plan;
    let has_booted = seen.fence.is_another_boot(node) && !plan.began_on_a_well_node();
    if plan.is_ahead_of_kubernetes() && seen.lease_is_still && !has_booted && !may_renew {
        return NodeState::Away;
    }
    // Of a node that was never away its incident says when it is over.
    let wanted = tainted
        || volumes::is_by_volume(seen) && !volumes::is_over(seen)
        || storage::is_by_path(seen) && !storage::is_over(seen);
    if volumes::kubelet_talks(seen, node) && !wanted { NodeState::Back } else { NodeState::Away }
}

fn advance_volume(seen: &Seen, row: &mut VolumeRow, held: bool, back: bool, now: Now) {
    if is_closed(row.status.state) {
        return;
    }
    if !held {
        fencers::commit_detach(seen, row, back, now);
    }
    if row.status.state == VolumeStatusState::Fenced && row.status.proof < row.minimum {
        // A policy was made stricter meanwhile.
        row.status.state = VolumeStatusState::Fencing;
    }
    if fencers::has_begun_detach(row) {
        requests::advance_detach(seen, row, now);
    } else {
        answers::take(seen, row, now);
    }
    let is_open = row.needed && !row.fresh && !row.is_cut_off();
    if is_open && fencers::tried(seen, row, now).is_empty() {
        let (reason, mut message) = row.power_waits.clone().unwrap_or_else(|| fencers::unavailable(seen, row));
        conditions::truncate(&mut message, 512);
        // Who only waits for others has not failed.
        if reason != unattached::POWER_WAITS {
            row.status.state = VolumeStatusState::Failed;
        }
        row.status.reason = Some(reason.into());
        row.status.message = Some(message);
    }
    if row.minimum == Proof::None && row.needed {
        row.fresh |= has_been_tried(seen, row, now);
    }
    let gone = seen.attachments_of(&row.plan.name).next().is_none();
    if row.status.state == VolumeStatusState::Fenced && gone && !row.needed {
        row.status.state = VolumeStatusState::Detached;
    }
}

/// With minimum proof None the fence is tried, and its end is waited for, but not its success.
fn has_been_tried(seen: &Seen, row: &VolumeRow, now: Now) -> bool {
    let asked = fencers::asked_last(seen, row).map(|asked| now.mono.saturating_duration_since(asked.at));
    let ended = matches!(row.status.state, VolumeStatusState::Failed | VolumeStatusState::Fenced);
    ended || asked.is_some_and(|passed| passed >= PROOF_LIFETIME)
}

/// What is attached again after its detach, or after its proof, is fenced again, and reported. That it was detached may not be on
/// record yet.
fn reopen_if_attached_again(seen: &Seen, row: &mut VolumeRow) {
    let since = match row.status.state {
        VolumeStatusState::Detached => None,
        // To a node without power it is attached in vain; whether it is without power still, its proof says.
        VolumeStatusState::Fenced if row.status.proof == Proof::PowerOff => return,
        VolumeStatusState::Fenced => row.status.proved_at,
        _ => return,
    };
    let is_new = |attachment: &&Arc<VolumeAttachment>| {
        let created = attachment.metadata.creation_timestamp.as_ref().map(time::from_k8s);
        attachment.metadata.uid != row.plan.attachment_uid
            && attachment.metadata.deletion_timestamp.is_none()
            && (since.is_none_or(|since| created.is_some_and(|created| created > since))
                || comes_after(seen, row, attachment))
    };
    let again = seen.attachments_of(&row.plan.name).any(|attachment| is_new(&attachment));
    if again {
        fence_again(row);
    }
}

/// A pod that came to the node when it was clean, before it could be told not to, goes from there too: what was given back since is
/// taken once more.
fn reopen_if_needed_again(row: &mut VolumeRow) {
    if row.needed && row.status.state == VolumeStatusState::Clean {
        fence_again(row);
    }
}

fn fence_again(row: &mut VolumeRow) {
    row.status.state = VolumeStatusState::Fencing;
    row.status.proof = Proof::None;
    row.status.reason = Some("Reattached".into());
    row.status.refences = Some(row.status.refences.unwrap_or(0) + 1);
}

/// Whether an attachment came after the proof, as this process saw it, whatever the clocks of the API server and of the fencer say: the
/// planned one was there and is gone, and this one was not there when its volume was asked for last.
fn comes_after(seen: &Seen, row: &VolumeRow, attachment: &VolumeAttachment) -> bool {
    let Some(planned) = &row.plan.attachment_uid else { return false };
    let is_there = |it: &Arc<VolumeAttachment>| it.metadata.uid.as_ref() == Some(planned);
    let has_gone = seen.attached_since.contains_key(planned) && !seen.attachments.iter().any(is_there);
    let since = attachment.metadata.uid.as_ref().and_then(|uid| seen.attached_since.get(uid));
    let asked = fencers::asked_last(seen, row).map(|asked| asked.at);
    has_gone && since.zip(asked).is_none_or(|(since, asked)| *since > asked)
}
