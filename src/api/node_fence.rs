//! `NodeFence`: the durable plan and the record of one failing node.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fencing::{FenceMethod, FenceMethodType, NodeIdentity, PolicyMode, Proof};
/// What happened. Written by the controller only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeFenceStatus {
    /// Generation of spec this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Ready, Reconciling, Stalled, Held, Fenced, Released, Detached, NodeClean.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
    /// How far the slowest row got, for people; derived from the rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Weakest proof among the volumes to release; what PROOF shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weakest_proof: Option<Proof>,
    /// Counts as text, for the columns; do not parse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Result per planned volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub volumes: Vec<VolumeStatus>,
    /// Result per planned pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub pods: Vec<PodStatus>,
    /// When each step of this episode was reached, with microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// The last episodes that are over, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub history: Vec<PastEpisode>,
}

/// One episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PastEpisode {
    /// Its number.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// Declared.
    pub decided_at: DateTime<Utc>,
    /// Recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovered_at: Option<DateTime<Utc>>,
    /// Why.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 11))]
    pub pods: Option<String>,
    /// Progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 11))]
    pub volumes: Option<String>,
    /// Weakest proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weakest_proof: Option<Proof>,
}

/// When each step of this episode was reached, with microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// Node declared failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<DateTime<Utc>>,
    /// Own taint in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tainted_at: Option<DateTime<Utc>>,
    /// Last needed proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fenced_at: Option<DateTime<Utc>>,
    /// First pod gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_released_at: Option<DateTime<Utc>>,
    /// Last pod gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<DateTime<Utc>>,
    /// Last attachment gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detached_at: Option<DateTime<Utc>>,
    /// Node seen again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returned_at: Option<DateTime<Utc>>,
    /// Clean, released, untainted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovered_at: Option<DateTime<Utc>>,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// Episode the row belongs to; a row carried over keeps its own.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// As in spec.plan.pods.
    #[schemars(length(min = 1, max = 36))]
    pub uid: String,
    /// Where it stands.
    pub state: PodStatusState,
    /// When the object was gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<DateTime<Utc>>,
    /// Why kept or held; ReleasedByOthers when somebody else deleted it without proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: Option<String>,
    /// Detail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PodStatusState {
    /// Pending.
    Pending,
    /// Releasing.
    Releasing,
    /// Released.
    Released,
    /// Kept.
    Kept,
    /// Waiting.
    Waiting,
    /// Undone.
    Undone,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(self.state in ['Fenced','Detached']) || has(self.provedAt) && has(self.method) && has(self.committedAt)").message("a fenced volume needs committedAt, provedAt and method"))]
pub struct VolumeStatus {
    /// Episode the row belongs to; a row carried over keeps its own.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// As in spec.plan.volumes.
    #[schemars(length(min = 1, max = 400))]
    pub name: String,
    /// Where it stands. Undone: the node came back before the point of no return.
    pub state: VolumeStatusState,
    /// Proof reached.
    pub proof: Proof,
    /// Method that gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<FenceMethodType>,
    /// First fence call may have been sent: the point of no return for its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed_at: Option<DateTime<Utc>>,
    /// When the read-back ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proved_at: Option<DateTime<Utc>>,
    /// Error or result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: Option<String>,
    /// Answer of the driver, trimmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
    /// How often it had to be fenced again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub refences: Option<i32>,
}

/// Where it stands. Undone: the node came back before the point of no return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum VolumeStatusState {
    /// Pending.
    Pending,
    /// Fencing.
    Fencing,
    /// Fenced.
    Fenced,
    /// Detached.
    Detached,
    /// Clean.
    Clean,
    /// Undone.
    Undone,
    /// Failed.
    Failed,
}

/// Counts as text, for the columns; do not parse.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Released of planned to release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 11))]
    pub pods: Option<String>,
    /// Proved of planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 11))]
    pub volumes: Option<String>,
}

/// How far the slowest row got, for people; derived from the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Planned.
    Planned,
    /// Fencing.
    Fencing,
    /// PodsReleased.
    PodsReleased,
    /// Detached.
    Detached,
    /// Cleaning.
    Cleaning,
    /// Recovered.
    Recovered,
}

/// Frozen identity, frozen plan and people's decisions. Written by the controller, except approval and hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "NodeFence",
    plural = "nodefences",
    shortname = "nf",
    category = "bulkhead",
    status = "NodeFenceStatus",
    doc = "NodeFence is the durable plan and the record of one failing node. Named after the node, written by Bulkhead, never kept in Git.",
    derive = "PartialEq",
    selectable = ".status.phase",
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "REASON", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "PODS", type_ = "string", json_path = ".status.progress.pods"),
    printcolumn(name = "VOLUMES", type_ = "string", json_path = ".status.progress.volumes"),
    printcolumn(name = "PROOF", type_ = "string", json_path = ".status.weakestProof"),
    printcolumn(name = "HELD", type_ = "string", json_path = r#".status.conditions[?(@.type=="Held")].status"#),
    printcolumn(name = "EPISODE", type_ = "integer", json_path = ".spec.episode"),
    printcolumn(name = "POLICIES", type_ = "string", json_path = ".spec.policies[*].name", priority = 1),
    printcolumn(name = "DIGEST", type_ = "string", json_path = ".spec.plan.digest", priority = 1),
    printcolumn(name = "DECIDED", type_ = "date", json_path = ".spec.plan.decidedAt"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.episode == oldSelf.episode || self.episode == oldSelf.episode + 1").message("episode only rises, by one").field_path(".episode"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || self.node == oldSelf.node").message("the frozen identity is immutable within an episode").field_path(".node"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || oldSelf.policies.all(o, self.policies.exists(p, p == o))").message("a recorded policy is immutable within an episode").field_path(".policies"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || self.plan.decidedAt == oldSelf.plan.decidedAt").message("decidedAt is immutable within an episode").field_path(".plan.decidedAt"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || self.plan.evidence == oldSelf.plan.evidence").message("the evidence of the decision is immutable within an episode").field_path(".plan.evidence"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || !has(oldSelf.plan.pods) || has(self.plan.pods) && size(self.plan.pods) >= size(oldSelf.plan.pods)").message("planned pods cannot be removed within an episode").field_path(".plan"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || !has(oldSelf.plan.volumes) || has(self.plan.volumes) && size(self.plan.volumes) >= size(oldSelf.plan.volumes)").message("planned volumes cannot be removed within an episode").field_path(".plan"))]
pub struct NodeFenceSpec {
    /// Counts the incidents of this node; failing again before Recovered is the next episode of the same object.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// Identity of the failed node, frozen for the episode.
    pub node: NodeIdentity,
    /// Policies that select pods of the node, as they were when the episode began.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub policies: Vec<PlannedPolicy>,
    /// The frozen decision. Entries are only added, never changed or removed, while the episode lasts.
    pub plan: Plan,
}

/// The frozen decision. Entries are only added, never changed or removed, while the episode lasts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// When the node was declared failed.
    pub decided_at: DateTime<Utc>,
    /// Digest of pods and volumes; what an approval refers to.
    #[schemars(length(min = 8, max = 71), regex(pattern = r"^sha256:[0-9a-f]{8,64}$"))]
    pub digest: String,
    /// Channels as they stood at the decision.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub evidence: Vec<Evidence>,
    /// Every pod of the node that was looked at, with the decision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["episode".into(), "uid".into()]))]
    pub pods: Vec<PlannedPod>,
    /// Every volume of those pods and every attachment of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["episode".into(), "name".into()]))]
    pub volumes: Vec<PlannedVolume>,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("a planned volume cannot be changed"))]
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
    /// Strictest proof any of its pods requires.
    pub minimum_proof: Proof,
    /// Methods in order of preference, copied from the policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub methods: Vec<FenceMethod>,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("a planned pod cannot be changed"))]
pub struct PlannedPod {
    /// Episode the row belongs to; a row carried over keeps its own.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// Pod uid.
    #[schemars(length(min = 1, max = 36))]
    pub uid: String,
    /// Namespace.
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
    /// Why, such as NodeFailure, DaemonSet, UnselectedSharer.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Pod priority; higher is released first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Names of entries in plan.volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 400)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub volumes: Vec<String>,
}

/// Release the pod or keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PodAction {
    /// Release.
    Release,
    /// Keep.
    Keep,
}

/// One channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// Channel.
    pub channel: Channel,
    /// What the channel says about the node.
    pub state: EvidenceState,
    /// Storage backend, for channel Storage.
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

/// What the channel says about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum EvidenceState {
    /// Failed.
    Failed,
    /// Healthy.
    Healthy,
    /// Unknown.
    Unknown,
}

/// Channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Channel {
    /// Kubelet.
    Kubelet,
    /// Taint.
    Taint,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedPolicy {
    /// ResiliencyPolicy name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its uid.
    #[schemars(length(min = 1, max = 36))]
    pub uid: String,
    /// Its generation.
    #[schemars(range(min = 1))]
    pub generation: i64,
    /// Its mode.
    pub mode: PolicyMode,
}
