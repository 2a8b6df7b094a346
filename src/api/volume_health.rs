//! `VolumeHealth`: the health of one PersistentVolume, and the taints that follow from it.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;
use super::volume::{Check, Source, TaintEffect, VolumeState};
use super::volume_health_policy::Enforcement;

/// What people want for this volume. Every field is optional; everything else comes from the VolumeHealthPolicy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "VolumeHealth",
    plural = "volumehealths",
    shortname = "vh",
    category = "bulkhead",
    status = "VolumeHealthStatus",
    doc = "VolumeHealth is the health of one PersistentVolume. It has the same name and is created by the controller for every volume that a VolumeHealthPolicy selects.",
    derive = "PartialEq",
    derive = "Default",
    selectable = ".status.phase",
    selectable = ".status.volume.claim",
    printcolumn(name = "HEALTH", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "TAINTS", type_ = "string", json_path = ".status.taintSummary"),
    printcolumn(name = "REASON", type_ = "string", json_path = r#".status.conditions[?(@.type=="Usable")].reason"#),
    printcolumn(name = "CLAIM", type_ = "string", json_path = ".status.volume.claim"),
    printcolumn(name = "NODES", type_ = "string", json_path = ".status.affectedNodes"),
    printcolumn(name = "ENFORCEMENT", type_ = "string", json_path = ".status.enforcement"),
    printcolumn(name = "SINCE", type_ = "date", json_path = ".status.since"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "DRIVER", type_ = "string", json_path = ".status.volume.driver", priority = 1),
    printcolumn(name = "POLICY", type_ = "string", json_path = ".status.policy", priority = 1),
    printcolumn(
        name = "ENFORCED",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Enforced")].status"#,
        priority = 1
    ),
    printcolumn(
        name = "OBSERVED",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Observed")].status"#,
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeHealthSpec {
    /// Taints set by a person; they stay until removed here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".to_string()]))]
    pub manual_taints: Vec<ManualTaint>,
    /// Break-glass: automatic taints ignored for a limited time, at most 168h after first seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".to_string()]))]
    pub suppress_taints: Vec<Suppression>,
    /// Copy of status.dataLossToken: a person has seen the loss and accepts the volume as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub acknowledge_data_loss: Option<String>,
}

/// One taint set by a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManualTaint {
    /// One of the three built-in keys or a domain-qualified key.
    #[schemars(
        length(min = 1, max = 253),
        regex(
            pattern = r"^(VolumeNotAttached|VolumeNotMounted|VolumeNotUsable|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$"
        )
    )]
    pub key: String,
    /// NoEffect informs; NoAttachOrMount keeps new users off. Absent: NoEffect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// Why; shown in status and Events.
    #[schemars(length(min = 1, max = 512))]
    pub reason: String,
}

/// One suppression.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Suppression {
    /// Taint key.
    #[schemars(
        length(min = 1, max = 253),
        regex(
            pattern = r"^(VolumeNotAttached|VolumeNotMounted|VolumeNotUsable|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$"
        )
    )]
    pub key: String,
    /// End of the suppression.
    pub until: DateTime<Utc>,
    /// Why.
    #[schemars(length(min = 1, max = 512))]
    pub reason: String,
}

/// What is known. Written only by the controller, only on change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.phase) || self.phase != 'Healthy' || !has(self.taints) || self.taints.all(t, t.source == 'Manual')").message("phase Healthy allows no taint other than Manual"))]
#[x_kube(validation = Rule::new("!has(self.phase) || self.phase != 'Unhealthy' || (has(self.taints) && size(self.taints) > 0)").message("phase Unhealthy needs a taint"))]
pub struct VolumeHealthStatus {
    /// Generation of spec this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Ready, Usable, Attached, Mounted, Observed, Enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// VolumeHealthPolicy in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub policy: Option<String>,
    /// Level in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
    /// Health of the volume, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// When phase last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// The truth; the PersistentVolume carries a projection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".to_string()]))]
    pub taints: Vec<VolumeTaint>,
    /// Taint keys joined with commas, for the column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub taint_summary: Option<String>,
    /// Identity; another uid resets everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "WatchedVolume")]
    pub volume: Option<WatchedVolume>,
    /// Non-healthy or recently recovered observations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["source".to_string(), "node".to_string(), "check".to_string()]))]
    pub observations: Vec<Observation>,
    /// Affected of observing nodes, for the column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 11))]
    pub affected_nodes: Option<String>,
    /// Pods that use the volume while it is tainted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub users: Vec<String>,
    /// Suppressions in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["key".to_string()]))]
    pub suppressions: Vec<SuppressionInForce>,
    /// Set while the backend reports data loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub data_loss_token: Option<String>,
}

/// Health of a volume, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Nothing is wrong.
    Healthy,
    /// It works, but something is wrong.
    Degraded,
    /// It is tainted.
    Unhealthy,
    /// Nobody has looked yet, or nobody can.
    Unknown,
}

/// One taint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.timeAdded == oldSelf.timeAdded").message("timeAdded of a taint that stays is immutable").field_path(".timeAdded"))]
pub struct VolumeTaint {
    /// Taint key.
    #[schemars(
        length(min = 1, max = 253),
        regex(
            pattern = r"^(VolumeNotAttached|VolumeNotMounted|VolumeNotUsable|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$"
        )
    )]
    pub key: String,
    /// Always true.
    pub value: TaintValue,
    /// Absent: NoEffect. Enforcement follows the effect, not the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// Who set it; only the same source clears it.
    pub source: Source,
    /// CamelCase cause.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Detail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// When it was set.
    pub time_added: DateTime<Utc>,
    /// Nodes it holds for; empty: everywhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub nodes: Vec<String>,
}

/// The value of every taint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TaintValue {
    /// `true`, as the PV Health Monitor proposal has it.
    #[default]
    #[serde(rename = "true")]
    True,
}

/// Which volume is meant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchedVolume {
    /// PersistentVolume uid.
    #[schemars(length(min = 1, max = 36))]
    pub uid: String,
    /// Kind of volume.
    pub source: VolumeKind,
    /// CSI driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub driver: Option<String>,
    /// CSI handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub volume_handle: Option<String>,
    /// PersistentVolume phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pv_phase: Option<VolumePhase>,
    /// namespace/name of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub claim: Option<String>,
    /// Nodes it is attached to or local on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub nodes: Vec<String>,
}

/// Kind of volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum VolumeKind {
    /// A directory or device of one node.
    Local,
    /// Of a CSI driver.
    CSI,
    /// An NFS export.
    NFS,
    /// Anything else.
    Other,
}

/// Phase of a PersistentVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum VolumePhase {
    /// Not yet usable.
    Pending,
    /// Waits for a claim.
    Available,
    /// Has a claim.
    Bound,
    /// Its claim is gone.
    Released,
    /// Could not be reclaimed.
    Failed,
}

/// One observation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// Who saw it; never Manual.
    #[x_kube(validation = Rule::new("self != 'Manual'").message("Manual is a source of taints, not of observations"))]
    pub source: Source,
    /// Node; empty for controller-side sources.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Check.
    pub check: Check,
    /// Result. Unknown never counts in either direction.
    pub state: VolumeState,
    /// CamelCase cause.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Detail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// CSI enum value that we do not know; never treated as Healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_status: Option<i32>,
    /// When it began.
    pub first_seen: DateTime<Utc>,
}

/// A suppression that is in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SuppressionInForce {
    /// Taint key.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// End, capped at 168h.
    pub effective_until: DateTime<Utc>,
}

/// Reason of a taint that no other node is free of, whoever saw it.
const DATA_LOSS: &str = "DataLoss";

/// Where a taint holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// On the nodes that it names.
    Nodes,
    /// On every node: to move helps nobody.
    Everywhere,
}

impl VolumeTaint {
    /// Whether it holds on a node.
    pub fn holds_on(&self, node: &str) -> bool {
        self.nodes.is_empty() || self.nodes.iter().any(|named| named == node)
    }

    /// What it does.
    pub fn effect(&self) -> TaintEffect {
        self.effect.unwrap_or(TaintEffect::NoEffect)
    }
}

impl VolumeHealth {
    /// The taint of one of these keys that speaks of volume and node as they are, and where it holds. What the controller
    /// itself concludes from a dead node is the kubelet's channel once more.
    pub fn trouble(&self, keys: &[String], uid: &str, node: &str) -> Option<(&VolumeTaint, Extent)> {
        let status = self.status.as_ref()?;
        let is_other = status.volume.as_ref().is_some_and(|volume| !uid.is_empty() && volume.uid != uid);
        let counts = |taint: &&VolumeTaint| {
            keys.contains(&taint.key) && taint.source != Source::NodeLifecycle && taint.holds_on(node) && !is_other
        };
        let everywhere = |taint: &VolumeTaint| {
            taint.nodes.is_empty() || taint.reason == DATA_LOSS || status.data_loss_token.is_some()
        };
        // Of several the one that leaves no way out.
        let found = status.taints.iter().filter(counts).max_by_key(|taint| everywhere(taint))?;
        Some((found, if everywhere(found) { Extent::Everywhere } else { Extent::Nodes }))
    }

    /// The taints in force.
    pub fn taints(&self) -> &[VolumeTaint] {
        self.status.as_ref().map(|status| status.taints.as_slice()).unwrap_or_default()
    }
}
