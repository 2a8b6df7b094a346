//! `DriverReport`: what one CSI driver can answer, told by its sidecar.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::conditions;
use super::fencing::Proof;
use super::schema;

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
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "CAPABILITIES", type_ = "string", json_path = ".status.capabilities", priority = 1),
    printcolumn(name = "SIDECAR", type_ = "string", json_path = ".status.sidecarVersion", priority = 1)
)]
pub struct DriverReportSpec {}

/// What the driver says through its sidecar. Written on change only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
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
