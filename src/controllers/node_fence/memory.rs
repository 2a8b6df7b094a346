//! What this process remembers of an incident between passes. Pure, so that the simulator runs the same code: no client,
//! no clock. All of it may be lost at any moment: then rounds are asked again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

use crate::api::driver_report::DriverReport;
use crate::api::fence_request::FenceRequest;
use crate::api::fencing::Proof;
use crate::api::names;
use crate::api::node_fence::{NodeFence, NodeFenceStatus, VolumeStatus};
use crate::api::node_volume_report::NodeVolumeReport;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::{Lease, Node, VolumeAttachment};
use crate::api::time::{self, Now};
use crate::api::usage::PodView;
use crate::api::volume_health::VolumeHealth;

use super::decide::{AskKey, Asked, Effect, RowKey, Seen, Settings};

/// What this process remembers of an incident.
#[derive(Clone, Debug, Default)]
pub struct Incident {
    episode: Option<(Option<String>, i64)>,
    asked: BTreeMap<AskKey, Asked>,
    attached_since: BTreeMap<String, Instant>,
    renewed: Option<Option<MicroTime>>,
    /// The newest renewal of the Lease that was seen.
    newest: Option<DateTime<Utc>>,
    /// When it was seen first; nothing of what came before the node was declared failed.
    newest_at: Option<Instant>,
    /// How much evidence the plan had then.
    evidence: usize,
    /// The node as it was seen last.
    sight: Option<Sight>,
    /// The boot that it told last.
    last_boot: Option<String>,
    /// When it was seen to be another.
    node_changed_at: Option<Instant>,
    out_of_service_spent: bool,
    /// When this process began with the episode.
    begun_at: Option<Instant>,
    /// When this process last wrote the status, or began with the episode.
    recorded_at: Option<Instant>,
    /// Boots in which the node failed again, as this process wrote them last.
    failed_boot_ids: Vec<String>,
    /// What external fencers have proved, as this process wrote it last.
    external_proofs: BTreeMap<RowKey, Proof>,
    /// The store was seen to hold what the API has, once.
    confirmed: bool,
    /// The NodeFence that this process wrote last, and when: an older one is not decided on.
    written: Option<(String, Instant)>,
    /// The same for FenceRequests, by uid. Their fencer writes them too, so it is the generation that counts.
    requested: BTreeMap<String, (i64, Instant)>,
}

/// A node as it was seen: uid, boot id, and whether its return is recorded.
type Sight = (Option<String>, String, bool);

/// What the stores show of an incident.
pub struct Found {
    /// The NodeFence.
    pub fence: Arc<NodeFence>,
    /// The node of that name.
    pub node: Option<Arc<Node>>,
    /// Its kubelet's Lease.
    pub lease: Option<Arc<Lease>>,
    /// Pods bound to it that use volumes.
    pub pods: Vec<PodView>,
    /// Its VolumeAttachments.
    pub attachments: Vec<Arc<VolumeAttachment>>,
    /// Its FenceRequests.
    pub requests: Vec<Arc<FenceRequest>>,
    /// Reports of the drivers of the plan.
    pub reports: BTreeMap<String, Arc<DriverReport>>,
    /// Report of the node's agent.
    pub node_report: Option<Arc<NodeVolumeReport>>,
    /// Health of the volumes of the plan; `None` while it is not known.
    pub healths: Option<BTreeMap<String, Arc<VolumeHealth>>>,
    /// Policies of the plan.
    pub policies: Vec<Arc<ResiliencyPolicy>>,
}

/// What the API has of a node, read in this pass.
pub struct Live {
    /// The NodeFence: a person's hold counts from the moment that it was accepted.
    pub fence: Option<Arc<NodeFence>>,
    /// The node.
    pub node: Option<Arc<Node>>,
    /// Its kubelet's Lease.
    pub lease: Option<Lease>,
    /// All pods bound to it.
    pub pods: Vec<PodView>,
    /// Its VolumeAttachments.
    pub attachments: Vec<Arc<VolumeAttachment>>,
    /// Report of its agent.
    pub node_report: Option<Arc<NodeVolumeReport>>,
}

/// Rounds that a request asks for, with what was asked before it.
pub type Noted = Vec<(AskKey, Option<Asked>)>;

impl Incident {
    /// Takes in what the stores show.
    pub fn look(&mut self, found: Found, settings: Settings, now: Now) -> Seen {
        self.begin(&found.fence, now);
        self.see(found.node.as_deref(), &found.fence, now);
        let lease = found.lease;
        let renewed = lease.as_ref().and_then(|lease| lease.spec.renew_time.clone());
        Seen {
            node: found.node,
            renewed_at: renewed.as_ref().map(time::from_micro),
            last_boot: self.last_boot.clone(),
            lease_is_still: self.lease_is_still(renewed),
            renewed_lately: self.renewed_lately(lease.as_deref(), now),
            pods: found.pods,
            attached_since: self.attached_since(&found.attachments, now),
            attachments: found.attachments,
            requests: found.requests,
            reports: found.reports,
            node_report: found.node_report,
            healths: found.healths,
            policies: found.policies,
            asked: self.asked.clone(),
            node_changed_at: self.node_changed_at,
            live: false,
            out_of_service_spent: self.out_of_service_spent,
            recorded_for: self.recorded_at.map_or(Duration::ZERO, |at| now.mono.saturating_duration_since(at)),
            watched_for: self.begun_at.map_or(Duration::ZERO, |at| now.mono.saturating_duration_since(at)),
            settings,
            fence: self.with_what_was_written(found.fence),
        }
    }

    /// The same with what the API has now.
    pub fn look_live(&mut self, seen: Seen, live: Live, now: Now) -> Seen {
        let renewed = live.lease.as_ref().and_then(|lease| lease.spec.renew_time.clone());
        let identity = |fence: &NodeFence| (fence.metadata.uid.clone(), fence.spec.episode);
        let fence = live.fence.filter(|fence| identity(fence) == identity(&seen.fence));
        let fence = fence.unwrap_or_else(|| seen.fence.clone());
        self.see(live.node.as_deref(), &fence, now);
        self.begin_anew_with_evidence(&fence);
        Seen {
            fence: self.with_what_was_written(fence),
            node: live.node,
            last_boot: self.last_boot.clone(),
            node_changed_at: self.node_changed_at,
            renewed_at: renewed.as_ref().map(time::from_micro),
            lease_is_still: self.lease_is_still(renewed),
            renewed_lately: self.renewed_lately(live.lease.as_ref(), now),
            pods: live.pods,
            attached_since: self.attached_since(&live.attachments, now),
            attachments: live.attachments,
            node_report: live.node_report,
            live: true,
            ..seen
        }
    }

    /// Whether the stores do not yet hold what this process wrote: deciding on them would only end in a conflict.
    pub fn is_ahead_of(&mut self, seen: &Seen, now: Now) -> bool {
        // Somebody may have written after us, and then our version is never seen; the write itself is a
        // compare-and-swap, so nothing but a conflict is at stake.
        let recent = |at: &Instant| now.mono.saturating_duration_since(*at) <= Duration::from_millis(500);
        self.written
            .take_if(|(version, at)| seen.fence.metadata.resource_version.as_ref() == Some(version) || !recent(at));
        let arrived = |uid: &String, generation: i64| {
            let request = seen.requests.iter().find(|request| request.metadata.uid.as_ref() == Some(uid));
            request.is_some_and(|request| request.metadata.generation.unwrap_or_default() >= generation)
        };
        self.requested.retain(|uid, (generation, at)| recent(at) && !arrived(uid, *generation));
        self.written.is_some() || !self.requested.is_empty()
    }

    /// Whether the store was seen to hold what the API has.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Compares what the store and the API have.
    pub fn confirm(&mut self, stored: &NodeFence, live: Option<&NodeFence>) {
        self.confirmed = live.is_some_and(|live| live.metadata.resource_version == stored.metadata.resource_version);
    }

    /// The NodeFence was written and is this version now.
    pub fn wrote(&mut self, fence: &ObjectMeta, now: Now) {
        self.written = fence.resource_version.clone().map(|version| (version, now.mono));
    }

    /// The spec of a FenceRequest was written and is this generation now.
    pub fn requested(&mut self, request: &ObjectMeta, now: Now) {
        if let (Some(uid), Some(generation)) = (request.uid.clone(), request.generation) {
            self.requested.insert(uid, (generation, now.mono));
        }
    }

    /// This status was written; `sent` is the moment before.
    pub fn recorded(&mut self, status: &NodeFenceStatus, sent: Now) {
        self.recorded_at = Some(sent.mono);
        self.failed_boot_ids.clone_from(&status.failed_boot_ids);
        let proofs =
            status.volumes.iter().filter_map(|row| Some(((row.episode, row.name.clone()), row.external_proof?)));
        self.external_proofs = proofs.collect();
    }

    /// A taint is about to be removed, or was refused: the one that starts the detach is not set again in this episode.
    pub fn untaints(&mut self, key: &str) {
        self.out_of_service_spent |= key == names::OUT_OF_SERVICE_TAINT;
    }

    /// Notes the rounds of a request that is about to be written. The clock of a proof starts before its round can be
    /// seen by the fencer, so before the write is sent. A round that is asked for again, since the store does not show it
    /// yet, may have been seen since the first time: its answer is as old as that.
    pub fn note_asked(&mut self, request: &FenceRequest, before: Option<&FenceRequest>, now: Now) -> Noted {
        let known = before.map(|before| before.spec.volumes.as_slice()).unwrap_or_default();
        let mut previous = Vec::new();
        for volume in request.spec.volumes.iter().filter(|volume| !known.contains(volume)) {
            let key = (request.spec.fencer_name.clone(), volume.episode, volume.name.clone());
            let first = self.asked.get(&key).copied().filter(|asked| asked.round == volume.round);
            let asked = first.unwrap_or(Asked { round: volume.round, at: now.mono, wall: now.wall });
            previous.push((key.clone(), self.asked.insert(key, asked)));
        }
        previous
    }

    /// A write that was refused for sure (a conflict) asked for nothing. One whose outcome is unknown may have.
    pub fn forget_asked(&mut self, asked: Noted) {
        for (key, before) in asked {
            match before {
                Some(before) => self.asked.insert(key, before),
                None => self.asked.remove(&key),
            };
        }
    }

    /// A new episode forgets what was asked and seen in the last one.
    fn begin(&mut self, fence: &NodeFence, now: Now) {
        let episode = (fence.metadata.uid.clone(), fence.spec.episode);
        if self.episode.as_ref() != Some(&episode) {
            let (begun_at, recorded_at) = (Some(now.mono), Some(now.mono));
            let confirmed = self.confirmed;
            *self = Self { episode: Some(episode), confirmed, begun_at, recorded_at, ..Self::default() };
        }
        self.begin_anew_with_evidence(fence);
    }

    /// The kubelet of a node that was well when the episode began has renewed its Lease since: whether it does so after the node
    /// has failed too is another question.
    fn begin_anew_with_evidence(&mut self, fence: &NodeFence) {
        let evidence = fence.spec.plan.evidence.len();
        if self.evidence < evidence {
            self.evidence = evidence;
            self.renewed = None;
            self.newest_at = None;
        }
    }

    /// Whether the Lease is as it was when this process first looked.
    fn lease_is_still(&mut self, renewed: Option<MicroTime>) -> bool {
        match &self.renewed {
            None => {
                self.renewed = Some(renewed);
                true
            }
            Some(first) => *first == renewed,
        }
    }

    /// Whether the Lease was seen to be renewed, or was first seen, so lately that the next renewal is not overdue, by our own clock. A
    /// store that is behind what the API said before shows nothing new.
    fn renewed_lately(&mut self, lease: Option<&Lease>, now: Now) -> bool {
        let Some(lease) = lease else { return false };
        let renewed = lease.renewed_at();
        if renewed > self.newest {
            self.newest = renewed;
            self.newest_at = Some(now.mono);
        }
        let next = lease.next_renewal();
        self.newest_at.is_some_and(|at| now.mono.saturating_duration_since(at) < next)
    }

    /// Notes whether the node is another than it was, and its boot. Of one that is gone nothing is seen: what it told last stays.
    fn see(&mut self, node: Option<&Node>, fence: &NodeFence, now: Now) {
        let Some(node) = node else { return };
        if let Some(boot_id) = node.boot_id() {
            self.last_boot = Some(boot_id.to_owned());
        }
        let sight = (node.metadata.uid.clone(), node.status.node_info.boot_id.clone(), fence.was_back());
        if self.sight.replace(sight.clone()).is_some_and(|before| before != sight) {
            self.node_changed_at = Some(now.mono);
        }
    }

    /// The NodeFence with the boots and the proofs of external fencers that were recorded. A server whose definition of the kind is older
    /// than this program drops them without a word: they are not written for ever, nothing waits for them, and what failed in this episode,
    /// or is kept out, is not taken for well.
    fn with_what_was_written(&self, mut fence: Arc<NodeFence>) -> Arc<NodeFence> {
        let status = fence.status.as_ref();
        let is_kept = |id: &String| status.is_some_and(|status| status.failed_boot_ids.contains(id));
        if !self.failed_boot_ids.iter().all(is_kept) {
            let status = Arc::make_mut(&mut fence).status.get_or_insert_default();
            status.failed_boot_ids.clone_from(&self.failed_boot_ids);
        }
        let written = |row: &VolumeStatus| self.external_proofs.get(&(row.episode, row.name.clone())).copied();
        let is_dropped = |row: &VolumeStatus| row.external_proof.is_none() && written(row).is_some();
        let rows = fence.status.as_ref().map(|status| status.volumes.as_slice()).unwrap_or_default();
        if !self.external_proofs.is_empty() && rows.iter().any(is_dropped) {
            let rows = Arc::make_mut(&mut fence).status.iter_mut().flat_map(|status| &mut status.volumes);
            rows.filter(|row| row.external_proof.is_none()).for_each(|row| row.external_proof = written(row));
        }
        fence
    }

    fn attached_since(&mut self, attachments: &[Arc<VolumeAttachment>], now: Now) -> BTreeMap<String, Instant> {
        for attachment in attachments.iter().filter(|attachment| attachment.status.attached) {
            if let Some(uid) = &attachment.metadata.uid {
                self.attached_since.entry(uid.clone()).or_insert(now.mono);
            }
        }
        self.attached_since.clone()
    }
}

/// Whether a deletion was decided on a proof that has grown too old while others were deleted, or while the machine slept, which only its
/// wall clock knows: a new round is asked for.
pub fn is_too_late(effect: &Effect, now: Now) -> bool {
    match effect {
        Effect::DeletePod { not_after: Some(limit), .. } | Effect::FailPod { not_after: Some(limit), .. } => {
            now.has_reached(*limit)
        }
        _ => false,
    }
}
