//! `DriverReport`: what one CSI driver can answer, told by its sidecar.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions;
use super::fencing::Proof;
use super::schema;
use super::volume::VolumeState;

/// DriverReport has no spec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "DriverReport",
    plural = "driverreports",
    shortname = "dr",
    category = "bulkhead",
    status = "DriverReportStatus",
    doc = "DriverReport is what one CSI driver says about itself through its sidecar. Named after the driver; it has no spec.",
    derive = "PartialEq",
    no_spec,
    printcolumn(name = "READY", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "REASON", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "CHECKED", type_ = "integer", json_path = ".status.checkedVolumes"),
    printcolumn(name = "ABNORMAL", type_ = "integer", json_path = ".status.abnormalVolumes"),
    printcolumn(name = "COVERAGE", type_ = "string", json_path = ".status.coverage"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "CAPABILITIES", type_ = "string", json_path = ".status.capabilities", priority = 1),
    printcolumn(name = "SIDECAR", type_ = "string", json_path = ".status.sidecarVersion", priority = 1)
)]
pub struct DriverReportSpec {}

/// What the driver says through its sidecar. Written on change only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.abnormal) || self.abnormal.map(g, size(g.volumeHandles)).sum() <= 5000").message("at most 5000 abnormal volumes may be listed").field_path(".abnormal"))]
pub struct DriverReportStatus {
    /// Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Version of the sidecar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub sidecar_version: Option<String>,
    /// What the driver can answer. An absent one is not supported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub capabilities: Vec<Capability>,
    /// Volumes that are not Healthy, grouped by what is wrong with them. A selected volume that is checked and not here
    /// is Healthy for the driver, if coverage is Complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub abnormal: Vec<AbnormalVolumes>,
    /// Capped: more than 5,000 abnormal volumes, 64 groups or 1 MiB; what is missing is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<Coverage>,
    /// Volumes asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub checked_volumes: Option<u32>,
    /// Abnormal, listed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub abnormal_volumes: Option<u32>,
}

/// Volumes with which the same thing is wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AbnormalVolumes {
    /// What was found; never Healthy.
    #[x_kube(validation = Rule::new("self != 'Healthy'").message("an abnormal volume is not Healthy: leave it out"))]
    pub state: VolumeState,
    /// CamelCase cause.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Node it holds for; absent: everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// When it began.
    pub since: DateTime<Utc>,
    /// Detail, cleaned of control characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
    /// CSI enum value that we do not know; never treated as Healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_status: Option<i32>,
    /// CSI handles.
    #[schemars(length(min = 1, max = 5000), inner(length(min = 1, max = 1024)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub volume_handles: Vec<String>,
}

/// Whether a report lists everything that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Coverage {
    /// It does.
    Complete,
    /// More is wrong than it may list: what is missing is unknown.
    Capped,
}

/// What a driver can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Capability {
    /// Takes a volume away from a node: ControllerUnpublishVolume.
    Unpublish,
    /// Lists all volumes with the nodes they are published to: ListVolumes.
    ListPublishedNodes,
    /// Tells the nodes one volume is published to: ControllerGetVolume.
    GetPublishedNodes,
    /// Tells with a volume whether it is abnormal (CSI 1.3 to 1.12).
    VolumeCondition,
    /// Tells the health of volumes by calls of its own (CSI 1.13).
    VolumeHealth,
}

impl DriverReport {
    /// Whether the driver answers its sidecar.
    pub fn is_ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, "Ready"))
    }

    /// The strongest proof that method Unpublish can give with this driver now.
    pub fn unpublish_proof(&self) -> Proof {
        let Some(status) = &self.status else { return Proof::None };
        let has = |capability| status.capabilities.contains(&capability);
        if !self.is_ready() || !has(Capability::Unpublish) {
            return Proof::None;
        }
        let reads = has(Capability::ListPublishedNodes) || has(Capability::GetPublishedNodes);
        if reads { Proof::Verified } else { Proof::Acknowledged }
    }
}
