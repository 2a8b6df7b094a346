//! `FenceRequest`: asks one fencer to cut one node off its volumes, and carries the answer.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions;
use super::fencing::{FenceMethodType, NodeIdentity, PlannedMethod, Proof};
use super::resiliency_policy::CheckSwitch;
use super::schema;
use super::time::Duration;

/// Whom to cut off, from which volumes. Written by the controller only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "FenceRequest",
    plural = "fencerequests",
    shortname = "fr",
    category = "bulkhead",
    status = "FenceRequestStatus",
    doc = "FenceRequest asks one fencer to cut one node off its volumes, and carries the answer. One per node and fencer.",
    derive = "PartialEq",
    selectable = ".spec.nodeName",
    selectable = ".spec.fencerName",
    printcolumn(name = "NODE", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "FENCER", type_ = "string", json_path = ".spec.fencerName"),
    printcolumn(name = "DESIRED", type_ = "string", json_path = ".spec.desired"),
    printcolumn(name = "READY", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "REASON", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "VOLUMES", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "PROOF", type_ = "string", json_path = ".status.weakestProof"),
    printcolumn(name = "EPISODE", type_ = "integer", json_path = ".spec.episode", priority = 1),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.episode == oldSelf.episode || self.episode == oldSelf.episode + 1").message("episode only rises, by one").field_path(".episode"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || self.node == oldSelf.node").message("the frozen identity is immutable within an episode").field_path(".node"))]
#[x_kube(validation = Rule::new("self.episode > oldSelf.episode || size(self.volumes) >= size(oldSelf.volumes)").message("requested volumes cannot be removed within an episode").field_path(".volumes"))]
pub struct FenceRequestSpec {
    /// Who answers: the name of the CSI driver, for its sidecar, or the name of an external fencer.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
    )]
    #[x_kube(validation = Rule::new("self == oldSelf").message("fencerName is immutable"))]
    pub fencer_name: String,
    /// Name of the node and of its NodeFence.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    #[x_kube(validation = Rule::new("self == oldSelf").message("nodeName is immutable"))]
    pub node_name: String,
    /// Episode of the NodeFence.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// Identity of the node, frozen for the episode.
    pub node: NodeIdentity,
    /// Fenced: cut off and read back. Unfenced: give access back, or confirm that nothing was sent.
    pub desired: Desired,
    /// Deadline of one call, from the policy, as a duration from 1s to 5m.
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('5m')").message("must be between 1s and 5m"))]
    pub call_timeout: Duration,
    /// Enabled: no call is begun while the driver says that these volumes are doing I/O from the node; such rows are answered
    /// Failed, with reason IOInProgress and without startedAt. Asked right before the first call. Disabled: nobody is asked.
    #[serde(default = "FenceRequestSpec::default_io_in_progress_check")]
    pub io_in_progress_check: CheckSwitch,
    /// Volumes of this fencer.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub volumes: Vec<RequestedVolume>,
}

impl FenceRequestSpec {
    fn default_io_in_progress_check() -> CheckSwitch {
        CheckSwitch::Disabled
    }
}

/// Condition of a FenceRequest for which a NetworkFence was made, or is about to be. It is recorded before, and goes when the
/// addresses are let in again: whatever the rows say, whoever ends the request has to lift that first.
pub const SHUT_OUT: &str = "ShutOut";

impl FenceRequest {
    /// Whether the node may be shut out of a storage for this request, by its addresses.
    pub fn shuts_out(&self) -> bool {
        self.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, SHUT_OUT))
    }

    /// What the fencer has answered for a row, of whichever round.
    pub fn result_of(&self, episode: i64, name: &str) -> Option<&FenceResult> {
        let mut results = self.status.iter().flat_map(|status| &status.volumes);
        results.find(|row| row.episode == episode && row.name == name)
    }

    /// Whether an external fencer is asked, and nobody else.
    pub fn is_external(&self) -> bool {
        let mut methods = self.spec.volumes.iter().flat_map(|volume| &volume.methods);
        methods.all(|method| method.type_ == FencerMethodType::External)
    }
}

/// What the controller wants of a fencer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Desired {
    /// Cut off and read back.
    Fenced,
    /// Give access back, or confirm that nothing was sent.
    Unfenced,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestedVolume {
    /// Episode the row belongs to; a row carried over keeps its own.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// As in spec.plan.volumes of the NodeFence.
    #[schemars(length(min = 1, max = 400))]
    pub name: String,
    /// Raised to ask again. A proof counts only for the round that is asked for.
    #[schemars(range(min = 1))]
    pub round: i32,
    /// PersistentVolume uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 36))]
    pub uid: Option<String>,
    /// CSI volume handle; the name of the volume where there is no driver.
    #[schemars(length(min = 1, max = 1024))]
    pub volume_handle: String,
    /// CSI node id to cut off; the name of the node where nothing is published under one.
    #[schemars(length(min = 1, max = 256))]
    #[serde(rename = "nodeID")]
    pub node_id: String,
    /// VolumeAttachment uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 36))]
    #[serde(rename = "attachmentUID")]
    pub attachment_uid: Option<String>,
    /// False: it is mounted without being attached. Method NetworkFence: the class must name the same cluster, or none where the
    /// volume names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attach_required: Option<bool>,
    /// Cluster of the storage, of a volume that is mounted without being attached.
    #[serde(default, rename = "clusterID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub cluster_id: Option<String>,
    /// Proof that is needed.
    pub minimum_proof: Proof,
    /// Methods of this fencer in order of preference.
    #[schemars(length(min = 1, max = 3))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub methods: Vec<FencerMethod>,
}

impl RequestedVolume {
    /// The cluster of the storage that a network fence must have been made in, empty where the volume names none; `None` of one
    /// that is attached, where the policy's word is taken.
    pub fn demanded_cluster(&self) -> Option<&str> {
        let none = || (self.attach_required == Some(false)).then_some("");
        self.cluster_id.as_deref().or_else(none)
    }
}

/// One method of a fencer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FencerMethod {
    /// Unpublish: ControllerUnpublishVolume by the sidecar of the driver; NetworkFence: csi-addons, through the sidecar;
    /// External: what the external fencer does.
    #[serde(rename = "type")]
    pub type_: FencerMethodType,
    /// NetworkFenceClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub class_name: Option<String>,
}

impl TryFrom<&PlannedMethod> for FencerMethod {
    /// A method that no fencer carries out.
    type Error = FenceMethodType;

    fn try_from(method: &PlannedMethod) -> Result<Self, FenceMethodType> {
        let type_ = match method.type_ {
            FenceMethodType::Unpublish => FencerMethodType::Unpublish,
            FenceMethodType::NetworkFence => FencerMethodType::NetworkFence,
            FenceMethodType::External => FencerMethodType::External,
            other @ FenceMethodType::Detach => return Err(other),
        };
        Ok(Self { type_, class_name: method.class_name.clone() })
    }
}

/// Reason of a row whose node is shut out by a NetworkFence.
pub const NETWORK_FENCED: &str = "NetworkFenced";
/// Reasons of rows that are fenced as they were meant to be.
pub const GOOD_REASONS: [&str; 3] = ["NotPublished", "Acknowledged", NETWORK_FENCED];
/// Reason of a row that is not begun, since its volume, or another of its request, is doing I/O from the node.
pub const IO_IN_PROGRESS: &str = "IOInProgress";

/// What a fencer can be asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FencerMethodType {
    /// ControllerUnpublishVolume and read-back.
    Unpublish,
    /// A NetworkFence of csi-addons, made by the sidecar of the driver.
    NetworkFence,
    /// What the external fencer does: power, hypervisor, cloud.
    External,
}

impl From<FencerMethodType> for FenceMethodType {
    fn from(method: FencerMethodType) -> Self {
        match method {
            FencerMethodType::Unpublish => Self::Unpublish,
            FencerMethodType::NetworkFence => Self::NetworkFence,
            FencerMethodType::External => Self::External,
        }
    }
}

/// Result and proof. Written by the named fencer only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FenceRequestStatus {
    /// Generation of spec this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Ready; Stalled while it is; ShutOut while a NetworkFence may shut the node out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Result per requested volume. No entry: nothing was sent for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub volumes: Vec<FenceResult>,
    /// Weakest proof of the requested volumes; for the column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Proof")]
    pub weakest_proof: Option<Proof>,
    /// Answered as desired of requested, as text for the column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 11))]
    pub progress: Option<String>,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.result != 'Fenced' || self.proof != 'None' && has(self.method)").message("a fenced volume needs proof and method"))]
#[x_kube(validation = Rule::new("self.proof != 'Verified' || has(self.readBackAt)").message("proof Verified needs readBackAt"))]
#[x_kube(validation = Rule::new("self.proof != 'PowerOff' || has(self.method) && self.method == 'External'").message("proof PowerOff comes from an external fencer"))]
pub struct FenceResult {
    /// Episode the row belongs to; a row carried over keeps its own.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// As in spec.volumes.
    #[schemars(length(min = 1, max = 400))]
    pub name: String,
    /// Round this answer belongs to.
    #[schemars(range(min = 1))]
    pub round: i32,
    /// Started is written before the first call; from then on the call may have reached the backend.
    pub result: FenceOutcome,
    /// Proof reached.
    pub proof: Proof,
    /// Method that gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "FencerMethodType")]
    pub method: Option<FencerMethodType>,
    /// When the row was written, before the first call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<DateTime<Utc>>,
    /// Time of the read, before the first call of the episode, that showed the node among the published nodes of the
    /// volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_before_at: Option<DateTime<Utc>>,
    /// End of the read that started after the fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_back_at: Option<DateTime<Utc>>,
    /// Error or result, such as NotPublished, StillPublished, Unimplemented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: Option<String>,
    /// Answer of the driver or of the machine, trimmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
}

impl FenceResult {
    /// Whether it says that the machine has no power.
    pub fn says_power_off(&self) -> bool {
        self.result == FenceOutcome::Fenced && self.proof == Proof::PowerOff
    }

    /// Whether its fencer has begun: one that has given access back since is where it was before.
    pub fn is_begun(&self) -> bool {
        self.started_at.is_some() && self.result != FenceOutcome::Unfenced
    }

    /// A row for the round that is asked for, with a result and nothing else: nothing is proved.
    pub fn of(asked: &RequestedVolume, result: FenceOutcome) -> Self {
        Self {
            episode: asked.episode,
            name: asked.name.clone(),
            round: asked.round,
            result,
            proof: Proof::None,
            method: None,
            started_at: None,
            published_before_at: None,
            read_back_at: None,
            reason: None,
            message: None,
        }
    }
}

/// How far a volume got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FenceOutcome {
    /// A call may have reached the backend: the point of no return.
    Started,
    /// The node is cut off, with the proof in the row.
    Fenced,
    /// The node has its access back, or nothing was sent.
    Unfenced,
    /// The last call failed; reason says why.
    Failed,
}
