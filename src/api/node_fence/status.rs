//! What happened in an episode, a row per volume and per pod.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::schema;

use super::PlannedVolume;

/// Reason of Ready and Stalled: the node is there, and only the proof is lacking that it reaches its storage again.
pub const AWAITING_STORAGE: &str = "AwaitingStorage";
/// Reason of Stalled and NodeClean: a network fence shuts out a machine that may write on, or an external fencer may keep it out, until
/// somebody says that it is off. And what holds another machine of its name until then.
pub const MACHINE_MAY_RUN: &str = "MachineMayRun";
/// Reason of a row that a network fence or an external fencer proves nothing of: what is there by the name of the Node may be another
/// machine than the one that is cut off.
pub const ANOTHER_MACHINE: &str = "AnotherMachine";
/// Reason of a row that is taken for clean since the Node was deleted. Of its machine that says nothing.
pub const NODE_DELETED: &str = "NodeDeleted";
/// Stands in `failedBootIDs` for the boot in which a Node was deleted, where the node had been back and the controller has not
/// seen it there. The next one that a Node of that name tells may be that boot, and is put before it.
pub const UNKNOWN_BOOT: &str = "unknown";

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
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// How far the slowest row got, for people; derived from the rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Phase")]
    pub phase: Option<Phase>,
    /// Weakest proof among the volumes to release; what PROOF shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Proof")]
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
    /// Boot ids in which the node was there and failed again in this episode, or its Node was deleted, before all its pods had gone;
    /// newest first. That it is back in one of them proves no reboot, as with spec.node.bootID. `unknown` where nobody saw in which
    /// boot its Node was deleted: then the next one that it tells may be that.
    #[serde(default, rename = "failedBootIDs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 64)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub failed_boot_ids: Vec<String>,
    /// When each step of this episode was reached, with microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// The last episodes that are over, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub history: Vec<PastEpisode>,
}

impl NodeFenceStatus {
    /// Whether the node was back, in whatever boot, since the episode began.
    pub fn was_back(&self) -> bool {
        self.timeline.as_ref().is_some_and(|timeline| timeline.returned_at.is_some())
    }
}

/// How far the slowest row got, for people; derived from the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Declared failed; the plan is stored.
    Planned,
    /// Volumes are being cut off; pods whose volumes are all proved are released meanwhile.
    Fencing,
    /// Attachments are being removed.
    PodsReleased,
    /// Everything moved; the node is away, or does not reach its storage.
    Detached,
    /// The node is back; what is left on it is removed.
    Cleaning,
    /// Access given back, taints removed; only the record remains.
    Recovered,
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
    /// Method that gave it; that of a NetworkFence stays while pods may have gone on its proof, whoever proves it after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "FenceMethodType")]
    pub method: Option<FenceMethodType>,
    /// Proof that an external fencer gave last, on which pods may have gone. It stays when that is taken back, or another method
    /// proves the volume. Below PowerOff its machine may run on: what was taken from it is given back only when it is clean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Proof")]
    pub external_proof: Option<Proof>,
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

impl VolumeStatus {
    /// Whether it is clean by nothing but the deletion of the Node.
    pub fn is_clean_by_deletion(&self) -> bool {
        self.state == VolumeStatusState::Clean && self.reason.as_deref() == Some(NODE_DELETED)
    }

    /// Whether nothing is left of it: no process has it, but where it is only taken for clean since the Node was deleted.
    pub fn is_clean(&self) -> bool {
        self.state == VolumeStatusState::Clean && !self.is_clean_by_deletion()
    }

    /// Whether nothing of it was cut off, or nothing is left.
    pub fn has_ended(&self) -> bool {
        self.is_clean() || self.state == VolumeStatusState::Undone
    }

    /// Whether an external fencer has proved it: now, or before its proof was taken back, or before another method proved it.
    pub fn is_proved_externally(&self) -> bool {
        let by_fencer = self.method == Some(FenceMethodType::External) || self.external_proof.is_some();
        by_fencer && self.proved_at.is_some()
    }

    /// Whether its proof stands, and is not an external fencer's: what that one gives back gives no access to it.
    pub fn is_proved_by_another(&self) -> bool {
        self.is_proved() && self.method != Some(FenceMethodType::External)
    }

    /// Whether the proof stands that the machine has no power.
    pub fn is_off(&self) -> bool {
        self.is_proved() && self.proof == Proof::PowerOff
    }

    fn is_proved(&self) -> bool {
        use VolumeStatusState::{Clean, Detached, Fenced};
        matches!(self.state, Fenced | Detached | Clean) && self.proved_at.is_some() && self.proof > Proof::None
    }

    /// Whether an external fencer has proved that the machine lost its power; a record of before `externalProof` tells it while the proof
    /// stands.
    pub fn is_proved_to_be_off(&self) -> bool {
        self.is_proved_externally() && self.external_proof.unwrap_or(self.proof) == Proof::PowerOff
    }

    /// Whether it is not proved by the end of the machine's power, after which none of its processes lives. A proof that was taken back
    /// since proves nothing of what runs there by now; what its plan demands does.
    pub fn is_short_of_power(&self, plan: &PlannedVolume) -> bool {
        let by_fencer = if self.proof > Proof::None { self.external_proof } else { None };
        by_fencer.unwrap_or(self.proof) < Proof::PowerOff && !plan.demands_power()
    }

    /// Whether an external fencer has proved it and left the machine its power, which it keeps out then, whatever has become of that proof.
    /// A record of before `externalProof` tells that only while its proof stands. Taken back it keeps nobody out: most often the machine
    /// was off, and has power again in another boot.
    pub fn leaves_power(&self, plan: &PlannedVolume) -> bool {
        let stands = Some(self.proof).filter(|proof| *proof > Proof::None);
        self.external_proof.or(stands).is_some_and(|proof| proof < Proof::PowerOff) && !plan.demands_power()
    }
}

/// Where a volume stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum VolumeStatusState {
    /// Nothing was sent for it.
    Pending,
    /// A fence call may have been sent.
    Fencing,
    /// The node is cut off, with the proof in the row.
    Fenced,
    /// Its attachment is gone as well.
    Detached,
    /// The node holds nothing of it any more and has its access back.
    Clean,
    /// The node came back before the point of no return.
    Undone,
    /// The fence failed; it is tried again.
    Failed,
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
    /// Sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
}

/// Where a pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PodStatusState {
    /// Its volumes are not all proved.
    Pending,
    /// Deleted; the object is still there, as with a finalizer.
    Releasing,
    /// The object is gone.
    Released,
    /// Left alone, as planned.
    Kept,
    /// Held back; reason says why.
    Waiting,
    /// The node came back before the point of no return.
    Undone,
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

/// One episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PastEpisode {
    /// Its number.
    #[schemars(range(min = 1))]
    pub episode: i64,
    /// When the node was declared failed.
    pub decided_at: DateTime<Utc>,
    /// When it was Recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovered_at: Option<DateTime<Utc>>,
    /// Why it was declared failed.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Pods released of planned to release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 11))]
    pub pods: Option<String>,
    /// Volumes proved of planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 11))]
    pub volumes: Option<String>,
    /// Weakest proof among the volumes to release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Proof")]
    pub weakest_proof: Option<Proof>,
}
