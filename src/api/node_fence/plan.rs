//! The frozen decision of an episode.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::fencing::{PlannedMethod, Proof};

/// The frozen decision. Entries are only added, never changed or removed, while the episode lasts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// When the node was declared failed.
    pub decided_at: DateTime<Utc>,
    /// Digest of pods and volumes, and of whether the node failed as a whole; what an approval refers to.
    #[schemars(length(min = 8, max = 71), regex(pattern = r"^sha256:[0-9a-f]{8,64}$"))]
    pub digest: String,
    /// Channels as they stood at the decision. Those of a node that fails while pods are moved off it for the sake of their
    /// volumes, or of a lost path, are added.
    #[schemars(length(min = 1, max = EVIDENCE_MAX))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub evidence: Vec<Evidence>,
    /// Every pod of the node that was looked at, with the decision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = PODS_MAX))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub pods: Vec<PlannedPod>,
    /// Every volume of those pods and every attachment of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = VOLUMES_MAX))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub volumes: Vec<PlannedVolume>,
}

/// The most entries of `spec.plan.pods`.
pub const PODS_MAX: usize = 512;
/// The most entries of `spec.plan.volumes`.
pub const VOLUMES_MAX: usize = 1024;
/// Policies that a plan can name: a cluster that has one for each tenant has many on one node.
pub const POLICIES_MAX: usize = 256;
/// The most entries of `spec.plan.evidence`.
pub const EVIDENCE_MAX: usize = 8;
/// The most that volumes and paths may fill: the rest is kept for the node, which may fail meanwhile.
pub const EVIDENCE_OF_STORAGE_MAX: usize = EVIDENCE_MAX - 2;

/// Reason of a pod that is released because its node has failed.
pub const NODE_FAILURE: &str = "NodeFailure";
/// Reason of a pod that is released because its volume is tainted, on a node that is well.
pub const VOLUME_TAINT: &str = "VolumeTaint";
/// Reason of a pod that is kept since its policies only rehearse, beside pods that are released in earnest.
pub const DRY_RUN: &str = "DryRun";
/// Reason of a pod that the plan keeps since it has finished.
pub const COMPLETED: &str = "Completed";
/// Reason of a pod that is released because its node has lost the path to the backend of its volumes.
pub const STORAGE_PATH_LOSS: &str = "StoragePathLoss";

/// Why the kubelet's channel spoke before Kubernetes gave the node up.
pub const LEASE_NOT_RENEWED: &str = "LeaseNotRenewed";

impl Plan {
    /// Whether it takes in no further pod.
    pub fn is_full(&self) -> bool {
        self.pods.len() >= PODS_MAX
    }

    /// Whether it was decided on before Kubernetes gave the node up: then a Node that is Ready is none that is back.
    pub fn is_ahead_of_kubernetes(&self) -> bool {
        let is_sooner = self.evidence.iter().any(|it| matches!(it.channel, Channel::Agent | Channel::Power));
        let mut kubelet = self.evidence.iter().filter(|it| it.channel == Channel::Kubelet);
        is_sooner && kubelet.all(|it| it.reason == LEASE_NOT_RENEWED)
    }

    /// Whether it moves pods for the sake of their volumes, off a node that is well. A plan that has grown by the pods of
    /// the node, which failed meanwhile, is about the node.
    pub fn is_by_volume(&self) -> bool {
        self.is_only(Channel::Volume, VOLUME_TAINT)
    }

    /// Whether it moves pods because their node lost the path to their storage, and for nothing else.
    pub fn is_by_path(&self) -> bool {
        self.is_only(Channel::Storage, STORAGE_PATH_LOSS)
    }

    /// Whether it is about a node that has failed as a whole.
    pub fn is_of_node(&self) -> bool {
        !self.is_by_volume() && !self.is_by_path()
    }

    /// Whether pods were moved for their storage first, while the node was well; it may have failed since.
    pub fn began_on_a_well_node(&self) -> bool {
        let for_storage = |pod: &PlannedPod| matches!(pod.reason.as_str(), VOLUME_TAINT | STORAGE_PATH_LOSS);
        self.evidence.iter().any(|it| it.channel == Channel::Volume) || self.pods.iter().any(for_storage)
    }

    fn is_only(&self, channel: Channel, reason: &str) -> bool {
        let for_something_else = |pod: &PlannedPod| pod.action == PodAction::Release && pod.reason != reason;
        self.evidence.iter().all(|evidence| evidence.channel == channel) && !self.pods.iter().any(for_something_else)
    }

    /// The drivers whose word counts in the incident: of its volumes, and of the backends whose lost path is part of the evidence.
    /// Those may be of volumes that no method covers, whose rows name no driver; and a driver has one backend, of its own name.
    pub fn drivers(&self) -> BTreeSet<&str> {
        let of_volumes = self.volumes.iter().filter_map(|volume| volume.driver.as_deref());
        of_volumes.chain(self.lost_backends()).collect()
    }

    /// The storage backends whose lost path is part of the evidence.
    pub fn lost_backends(&self) -> impl Iterator<Item = &str> {
        let lost = self.evidence.iter().filter(|evidence| evidence.channel == Channel::Storage);
        lost.filter_map(|evidence| evidence.backend.as_deref())
    }
}

/// One channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// Evidence channel.
    pub channel: Channel,
    /// What the channel says about the node.
    pub state: EvidenceState,
    /// Storage backend the evidence is about; absent when it is about the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub backend: Option<String>,
    /// When the channel began to say so.
    pub since: DateTime<Utc>,
    /// Signal behind it, such as LeaseExpired.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Values seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
}

/// A source of evidence that can fail independently of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Channel {
    /// What the kubelet reports to the API: Ready condition, unreachable taint and Lease.
    Kubelet,
    /// A taint that somebody else set.
    Taint,
    /// What the array says about the node: whether it reaches a storage backend.
    Storage,
    /// Heartbeats of the node's agent, confirmed by its peers.
    Agent,
    /// What an external fencer sees of the node's power. Evidence only, never a proof.
    Power,
    /// VolumeHealth taints. They move pods off a node that is well, and declare no node failed.
    Volume,
}

/// What the channel says about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum EvidenceState {
    /// It says that the node has failed.
    Failed,
    /// It says that the node is well.
    Healthy,
    /// It cannot tell; this never acts.
    Unknown,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedPod {
    /// Episode the row belongs to; a row carried over keeps its own.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// Pod uid.
    #[schemars(length(min = 1, max = 36))]
    pub uid: String,
    /// Namespace of the pod.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Pod name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// ResiliencyPolicy that decides; absent when none selects the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub policy: Option<String>,
    /// Release the pod or keep it.
    pub action: PodAction,
    /// Why, such as NodeFailure, StoragePathLoss, VolumeTaint, DaemonSet, NoPolicy.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Pod priority; higher is released first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Counts the pods that were put back on the node like this one since the plan was decided, itself included; each waits twice as
    /// long as the one before. Absent: it was there then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 512))]
    pub returns: Option<i32>,
    /// Names of entries in plan.volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 400)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub volumes: Vec<String>,
}

/// Release the pod or keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PodAction {
    /// Delete it once its volumes are fenced.
    Release,
    /// Leave it.
    Keep,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedVolume {
    /// Episode the row belongs to; a row carried over keeps its own.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// PersistentVolume name, or pod-uid/volume-name when there is no PersistentVolume.
    #[schemars(length(min = 1, max = 400))]
    pub name: String,
    /// PersistentVolume uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 36))]
    pub uid: Option<String>,
    /// CSI driver; absent for a kind that cannot be fenced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub driver: Option<String>,
    /// CSI volume handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub volume_handle: Option<String>,
    /// CSI node id that was really published, from the attachment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    #[serde(rename = "nodeID")]
    pub node_id: Option<String>,
    /// VolumeAttachment uid; the precondition of its removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 36))]
    #[serde(rename = "attachmentUID")]
    pub attachment_uid: Option<String>,
    /// False: it is mounted without being attached, and only what cuts off the node as a whole covers it. Absent: it is attached,
    /// or no method covers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attach_required: Option<bool>,
    /// Cluster of the storage that an unattached volume is of. A NetworkFenceClass must name the same.
    #[serde(default, rename = "clusterID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub cluster_id: Option<String>,
    /// Strictest proof any of its pods requires.
    pub minimum_proof: Proof,
    /// Methods in order of preference, copied from the policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub methods: Vec<PlannedMethod>,
}

impl PlannedVolume {
    /// Whether it is mounted without being attached.
    pub fn is_unattached(&self) -> bool {
        self.attach_required == Some(false)
    }

    /// Whether only the end of the machine's power proves it.
    pub fn demands_power(&self) -> bool {
        self.minimum_proof == Proof::PowerOff || self.is_unattached()
    }

    /// The cluster of the storage that a NetworkFenceClass must be of, empty for one that names none; `None` where it is attached,
    /// and the policy's word is taken.
    pub fn demanded_cluster(&self) -> Option<&str> {
        let none = || self.is_unattached().then_some("");
        self.cluster_id.as_deref().or_else(none)
    }

    /// Whether it is, and a method covers it.
    pub fn is_unattached_and_covered(&self) -> bool {
        self.is_unattached() && !self.methods.is_empty()
    }
}
