//! What the controller sees and does.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::schema;

use super::CrashLoopDelete;

/// What the controller sees and does. Written only by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResiliencyPolicyStatus {
    /// Generation of spec this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Ready, FenceReady, Restrained; VolumesHeld and Conflict while they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Selected pods; written at most once a minute and only when changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub protected_pods: Option<i32>,
    /// limits.maxNodes resolved against the number of nodes and ceiling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_nodes: Option<i32>,
    /// Nodes counted against maxNodes now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub nodes_acted_on: Option<i32>,
    /// NodeFences of this policy that are not Recovered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub active_fences: Vec<String>,
    /// Drivers of the selected pods and the proof each can give today.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub drivers: Vec<DriverProof>,
    /// Brakes that hold the policy now, most severe first; absent when none does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub restraints: Vec<Restraint>,
    /// Pods that were deleted because of their crash loop, oldest first: what triggers.crashLoop.maxDeletes counts. Rows older
    /// than the window go when the next one comes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub crash_loop_deletes: Vec<CrashLoopDelete>,
}

/// `maxItems` of `status.crashLoopDeletes`.
pub const CRASH_LOOP_DELETES_MAX: usize = 256;

/// One driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DriverProof {
    /// CSI driver name.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$"))]
    pub name: String,
    /// Strongest proof reachable now with the policy's methods.
    pub best_proof: Proof,
    /// Method that gives it; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "FenceMethodType")]
    pub method: Option<FenceMethodType>,
    /// Why it is not stronger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: Option<String>,
    /// Whether the array can say which nodes reach it, through this driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "StorageEvidence")]
    pub storage_evidence: Option<StorageEvidence>,
}

/// Whether the array can say which nodes reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StorageEvidence {
    /// The driver has the connectivity extension.
    Supported,
    /// It has none.
    Unsupported,
    /// Its sidecar is absent or silent, or the driver does not answer it.
    Unknown,
}

/// One brake.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restraint {
    /// Which brake.
    #[serde(rename = "type")]
    pub type_: RestraintType,
    /// Window, topology domain, or a person's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub name: Option<String>,
    /// Since when.
    pub since: DateTime<Utc>,
    /// Until when, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<DateTime<Utc>>,
}

/// Which brake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RestraintType {
    /// A person has paused the policy: annotation `bulkhead.dev/paused`.
    Paused,
    /// A window of `maintenanceWindows` is open, or cannot be understood.
    MaintenanceWindow,
    /// `limits.maxNodes`, `limits.ceiling` or `limits.topology` is used up.
    BudgetExhausted,
    /// More nodes are suspected than `limits.maxUnhealthy` allows.
    CorrelatedOutage,
    /// `limits.cooldown` since the last correlated outage is not over.
    Cooldown,
    /// With a name: that storage backend is silent, or lost more than half of its nodes and at least two, or it is not long
    /// since then; no decision rests on what it says. Without: volumes of more nodes are tainted, or paths lost, than
    /// `limits.maxUnhealthy` allows, or `limits.cooldown` since then is not over; no pod is moved for the sake of its storage.
    ArrayOutage,
}
