//! What `ResiliencyPolicy`, `NodeFence` and `FenceRequest` share: proof classes, methods, and the identity of a node.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How surely the old writer is cut off. Ordered: a later one is stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Proof {
    /// Time only, or no fence.
    None,
    /// The driver said OK; or, for method Detach, an attachment that the attacher had completed is gone.
    Acknowledged,
    /// A read before the fence showed the node among the published nodes, a read started after it does not.
    Verified,
}

/// How the old writer is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FenceMethodType {
    /// ControllerUnpublishVolume and read-back, by the sidecar of the driver.
    Unpublish,
    /// Deletion of the VolumeAttachment, carried out by the attacher of the driver.
    Detach,
}

impl FenceMethodType {
    /// The strongest proof this method can give; it is never tried where more is required.
    pub fn best_proof(self) -> Proof {
        match self {
            Self::Unpublish => Proof::Verified,
            Self::Detach => Proof::Acknowledged,
        }
    }
}

/// One fence method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FenceMethod {
    /// Unpublish: ControllerUnpublishVolume by the sidecar of the driver; Detach: deletion of the VolumeAttachment,
    /// carried out by the attacher.
    #[serde(rename = "type")]
    pub type_: FenceMethodType,
}

/// What a policy may do. Ordered: an earlier one is stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PolicyMode {
    /// Record the plan that would be carried out, and do nothing.
    DryRun,
    /// Wait for `spec.approval` of the NodeFence.
    RequireApproval,
    /// Act.
    Enforce,
}

/// Identity of a failed node, frozen for the episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeIdentity {
    /// Node uid.
    #[schemars(length(min = 1, max = 36))]
    pub uid: String,
    /// Boot id as last reported; another one proves a reboot.
    #[serde(default, rename = "bootID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
}
