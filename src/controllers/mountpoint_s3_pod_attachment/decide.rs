//! The next step for one mount, from what the stores show. Pure.
//!
//! Intent first: the attachment that names a Mountpoint Pod is written before the pod is made, and a named pod that is
//! missing is made. So a crash between any two writes converges, and no memory of what was done is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Pod as FullPod;

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::{
    MountpointS3PodAttachment, MountpointS3PodAttachmentSpec, MountpointS3PodAttachmentStatus,
};
use crate::api::s3::{DRIVER_VERSION_LABEL, FINALIZER, Mount, VOLUME_UID_ANNOTATION};
use crate::api::slim::{PersistentVolume, Pod};
use crate::api::time::{self, Now};

use super::backoff;
use super::mountpoint_pod::{self, Purpose, Settings};
use super::orphans::{self, Verdict};
use super::plan::{self, Entries, Plan};
use super::status;

/// What one pass over a mount sees.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The mount.
    pub mount: Mount,
    /// Its volume.
    pub volume: Option<Arc<PersistentVolume>>,
    /// The node's label `kubernetes.io/hostname`.
    pub hostname: Option<String>,
    /// All attachments of the mount, also such as upstream's controller made.
    pub attachments: Vec<Arc<MountpointS3PodAttachment>>,
    /// Mountpoint Pods by name: those that an attachment names, and those that say they are of this mount.
    pub pods: BTreeMap<String, Arc<MountpointPod>>,
    /// Workloads by uid: those that an attachment names, if there is such a pod, and those that have the volume.
    pub workloads: BTreeMap<String, Workload>,
    /// Attached workloads that were seen to go.
    pub departed: BTreeSet<String>,
    /// Whether nothing was done for a while: then status is worth a write.
    pub is_quiet: bool,
}

impl Seen {
    /// Uid of the volume.
    pub fn volume_uid(&self) -> Option<&str> {
        self.volume.as_ref()?.metadata.uid.as_deref()
    }

    /// Whether a workload that is attached to this Mountpoint Pod may get another. Not if its claim leads elsewhere, or the
    /// volume was made anew under its name since: that may be another bucket, of other people. One that starts has mounted
    /// nothing yet. Without the pod only the time tells.
    pub fn may_move(&self, pod: &str, since: DateTime<Utc>, workload: &Workload) -> bool {
        let Some(volume) = &self.volume else { return true };
        let made_for = self.pods.get(pod).and_then(|pod| pod.annotation(VOLUME_UID_ANNOTATION));
        let is_same = match made_for {
            Some(uid) => self.volume_uid() == Some(uid),
            None => volume.metadata.creation_timestamp.as_ref().is_none_or(|made| time::from_k8s(made) <= since),
        };
        workload.wants && (is_same || workload.is_starting())
    }
}

/// When one of these became True for the first time, all volumes of the pod were mounted. They may turn and come back later.
const BEGUN: [&str; 3] = ["PodReadyToStartContainers", "ContainersReady", "Ready"];

/// A workload.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Whether its claim leads to this volume, and no other attachment serves it.
    pub wants: bool,
}

impl Workload {
    /// Whether it uses the mount, now or soon. Also a pod that terminates does, until its containers have ended.
    pub fn is_live(&self) -> bool {
        !self.pod.is_finished()
    }

    /// Whether it has mounted nothing yet, and will.
    pub fn is_starting(&self) -> bool {
        !self.pod.is_terminating() && matches!(self.pod.status.phase.as_deref(), None | Some("Pending"))
    }

    /// When it ran at the latest, with all its volumes. A Mountpoint Pod that was made after that has not mounted them.
    pub fn began(&self) -> Option<DateTime<Utc>> {
        let begun = BEGUN.iter().filter_map(|kind| self.pod.condition(kind)).filter(|it| it.status == "True");
        begun.filter_map(|it| it.last_transition_time.as_ref().map(time::from_k8s)).min()
    }
}

/// A write, as data.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Tell a Mountpoint Pod that no workload uses it.
    Retire(Arc<MountpointPod>),
    /// Make the attachment of the mount.
    Create(Box<MountpointS3PodAttachment>),
    /// Replace an attachment, at the version that was seen.
    Replace {
        /// As it was.
        before: Arc<MountpointS3PodAttachment>,
        /// As it is to be.
        after: Box<MountpointS3PodAttachment>,
    },
    /// Empty an attachment and take our finalizer from it, in one write; then delete it at that version.
    Remove(Arc<MountpointS3PodAttachment>),
    /// Make a Mountpoint Pod that an attachment names.
    CreatePod {
        /// The pod.
        pod: Box<FullPod>,
        /// For whom.
        workloads: Vec<Arc<Pod>>,
    },
    /// Delete a Mountpoint Pod that ended or never ran, if it is still as it was seen.
    DeletePod {
        /// The pod.
        pod: Arc<MountpointPod>,
        /// Why.
        why: Deleted,
    },
    /// Write the status.
    Record {
        /// As it was.
        before: Arc<MountpointS3PodAttachment>,
        /// What is to be said.
        status: Box<MountpointS3PodAttachmentStatus>,
    },
}

/// Why a Mountpoint Pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// It ended.
    Ended,
    /// Nobody needs it, and it never ran.
    NeverRan,
}

/// What is to be done now.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// In a word, for the log.
    pub reason: &'static str,
    /// Writes, in this order.
    pub effects: Vec<Effect>,
    /// What is wrong with the volume, for those who wait for it.
    pub complaint: Option<String>,
    /// Unreferenced Mountpoint Pods, among those that are retired or deleted.
    pub orphans: BTreeSet<String>,
    /// Attached workloads that are taken out for their age alone.
    pub stale: BTreeSet<String>,
    /// When to look again though nothing changes.
    pub look_again: Option<Duration>,
    /// Whether a status waits to be written.
    pub status_waits: bool,
}

/// Times of the stale sweep.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How old an attachment must be before a workload that was not seen to go, and is not there, counts as gone.
    pub stale_after: Duration,
    /// How old a Mountpoint Pod must be before it is held for forgotten.
    pub orphan_after: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { stale_after: Duration::from_secs(120), orphan_after: Duration::from_secs(60) }
    }
}

/// Decides.
pub fn decide(seen: &Seen, settings: &Settings, patience: Patience, now: Now) -> Decision {
    let plan = plan::plan(seen, settings, patience, now);
    let mut writes = Writes { seen, settings, plan: &plan, now, decision: Decision::default() };
    writes.decision.look_again = plan.look_again;
    writes.decision.complaint = plan.complaint.clone();
    writes.decision.stale = plan.stale.clone();
    writes.retire();
    writes.attachments();
    writes.missing_pods();
    writes.leftovers();
    writes.orphans(patience);
    writes.status();
    let mut decision = writes.decision;
    decision.reason = reason(&decision, &plan);
    decision
}

fn reason(decision: &Decision, plan: &Plan) -> &'static str {
    match decision.effects.first() {
        _ if plan.complaint.is_some() => "InvalidVolume",
        None if plan.entries.is_empty() => "Unused",
        None => "Settled",
        Some(Effect::Retire(_)) => "Retire",
        Some(Effect::Create(_)) => "Attach",
        Some(Effect::Replace { .. }) => "Change",
        Some(Effect::Remove(_)) => "Remove",
        Some(Effect::CreatePod { .. }) => "CreatePod",
        Some(Effect::DeletePod { .. }) => "DeletePod",
        Some(Effect::Record { .. }) => "Record",
    }
}

/// From plan to writes.
struct Writes<'a> {
    seen: &'a Seen,
    settings: &'a Settings,
    plan: &'a Plan,
    now: Now,
    decision: Decision,
}

impl Writes<'_> {
    fn push(&mut self, effect: Effect) {
        self.decision.effects.push(effect);
    }

    /// Named pods that no entry is left for.
    fn dismissed(&self) -> Vec<Arc<MountpointPod>> {
        let named = self.seen.attachments.iter().flat_map(|it| it.spec.mountpoint_s3_pod_attachments.keys());
        let names: BTreeSet<_> = named.filter(|name| !self.plan.entries.contains_key(*name)).collect();
        names.into_iter().filter_map(|name| self.seen.pods.get(name).cloned()).collect()
    }

    /// First of all: once nothing names it, only a sweep would find a pod that was not told.
    fn retire(&mut self) {
        for pod in self.dismissed().into_iter().filter(|pod| orphans::is_to_unmount(pod)) {
            self.push(Effect::Retire(pod));
        }
    }

    fn attachments(&mut self) {
        let keeper = self.plan.keeper.clone();
        let wanted = &self.plan.entries;
        let others: Vec<_> = self.seen.attachments.iter().filter(|it| Some(*it) != keeper.as_ref()).cloned().collect();
        // One that a person deletes holds the name that the new one is to have.
        let name = self.seen.mount.attachment_name();
        let (in_the_way, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|it| keeper.is_none() && it.metadata.name.as_ref() == Some(&name));
        in_the_way.into_iter().for_each(|it| self.push(Effect::Remove(it)));
        match keeper {
            Some(before) if wanted.is_empty() => self.push(Effect::Remove(before)),
            Some(before) => {
                let after = with_entries(&before, wanted);
                if after != *before {
                    self.push(Effect::Replace { before, after: Box::new(after) });
                }
            }
            None if wanted.is_empty() => {}
            None => self.push(Effect::Create(Box::new(new(&self.seen.mount, wanted, self.settings)))),
        }
        others.into_iter().for_each(|it| self.push(Effect::Remove(it)));
    }

    /// Pods that are named, and not there, and that a workload waits for.
    fn missing_pods(&mut self) {
        let Some(volume) = self.seen.volume.clone() else { return };
        let failures = backoff::failures(self.seen, self.now);
        for (name, entries) in self.plan.entries.iter().filter(|(name, _)| !self.seen.pods.contains_key(*name)) {
            let known = entries.iter().filter_map(|it| Some((it, self.seen.workloads.get(&it.workload_pod_uid)?)));
            let served = known.filter(|(it, workload)| self.seen.may_move(name, it.attachment_time, workload));
            let workloads: Vec<_> = served.map(|(_, workload)| workload.pod.clone()).collect();
            let first = workloads.iter().find(|pod| !pod.is_terminating()).and_then(|pod| pod.metadata.uid.clone());
            let Some(workload_uid) = first else { continue };
            let hostname = self.seen.hostname.as_deref();
            let workload_uid = workload_uid.as_str();
            let purpose = Purpose { mount: &self.seen.mount, volume: &volume, workload_uid, hostname, failures };
            match mountpoint_pod::build(name, purpose, self.settings) {
                Ok(pod) => self.push(Effect::CreatePod { pod: Box::new(pod), workloads }),
                Err(complaint) => self.decision.complaint = Some(complaint),
            }
        }
    }

    /// Pods that were named until now and hold nothing.
    fn leftovers(&mut self) {
        for pod in self.dismissed() {
            if let Some(why) = orphans::idle(&pod) {
                self.push(Effect::DeletePod { pod, why });
            }
        }
    }

    /// Pods of this mount that nothing names. Not at once: the attachment may come later than the pod.
    fn orphans(&mut self, patience: Patience) {
        let named: BTreeSet<_> =
            self.seen.attachments.iter().flat_map(|it| it.spec.mountpoint_s3_pod_attachments.keys()).cloned().collect();
        let is_orphan = |name: &str| !named.contains(name) && !self.plan.entries.contains_key(name);
        let orphans: Vec<_> =
            self.seen.pods.iter().filter(|(name, _)| is_orphan(name)).map(|(_, pod)| pod.clone()).collect();
        for pod in orphans {
            match orphans::judge(&pod, patience, self.now) {
                Verdict::Leave => {}
                Verdict::LookAgain(after) => self.look_again(after),
                Verdict::Ended(effect) => self.push(effect),
                Verdict::Forgotten(effect) => {
                    self.decision.orphans.insert(pod.name().to_owned());
                    self.push(effect);
                }
            }
        }
    }

    /// Only when nothing else is to be done.
    fn status(&mut self) {
        let Some(before) = self.plan.keeper.clone().filter(|_| self.decision.effects.is_empty()) else { return };
        if self.plan.entries.is_empty() {
            return;
        }
        let status = status::status(self.seen, &before, self.now);
        if before.status.as_ref() == Some(&status) {
            return;
        }
        if self.seen.is_quiet {
            self.push(Effect::Record { before, status: Box::new(status) });
        } else {
            self.decision.status_waits = true;
        }
    }

    fn look_again(&mut self, after: Duration) {
        let sooner = self.decision.look_again.map_or(after, |before| before.min(after));
        self.decision.look_again = Some(sooner);
    }
}

fn new(mount: &Mount, entries: &Entries, settings: &Settings) -> MountpointS3PodAttachment {
    let mut attachment = MountpointS3PodAttachment::new(
        &mount.attachment_name(),
        MountpointS3PodAttachmentSpec {
            node_name: mount.node_name.clone(),
            persistent_volume_name: mount.persistent_volume_name.clone(),
            volume_id: mount.volume_id.clone(),
            mount_options: mount.mount_options.clone(),
            workload_fs_group: mount.workload_fs_group.clone(),
            mountpoint_s3_pod_attachments: entries.clone(),
        },
    );
    attachment.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let version = (DRIVER_VERSION_LABEL.to_owned(), settings.driver_version.clone());
    attachment.metadata.labels = Some(BTreeMap::from([version]));
    attachment
}

/// The attachment with other entries, guarded by our finalizer.
fn with_entries(before: &MountpointS3PodAttachment, entries: &Entries) -> MountpointS3PodAttachment {
    let mut after = before.clone();
    after.spec.mountpoint_s3_pod_attachments = entries.clone();
    let finalizers = after.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|it| it == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    after
}
