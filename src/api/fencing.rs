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
    /// An external fencer acknowledged that the node has no power, and holds it off.
    PowerOff,
}

/// How the old writer is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FenceMethodType {
    /// ControllerUnpublishVolume and read-back, by the sidecar of the driver.
    Unpublish,
    /// Deletion of the VolumeAttachment, carried out by the attacher of the driver.
    Detach,
    /// csi-addons shuts the addresses of the node out of the storage, through the sidecar of the driver.
    NetworkFence,
    /// Another program, through a FenceRequest of its own.
    External,
}

impl FenceMethodType {
    /// The strongest proof this method can give; it is never tried where more is required.
    pub fn best_proof(self) -> Proof {
        match self {
            Self::Unpublish => Proof::Verified,
            Self::Detach | Self::NetworkFence => Proof::Acknowledged,
            Self::External => Proof::PowerOff,
        }
    }

    /// Whether it takes back what an attach gave: of a volume that nothing is attached for it proves nothing.
    pub fn needs_attachment(self) -> bool {
        matches!(self, Self::Unpublish | Self::Detach)
    }

    /// Whether it cuts the node off as a whole, and not from single volumes: it is never used on a node that is well.
    pub fn is_of_node(self) -> bool {
        matches!(self, Self::NetworkFence | Self::External)
    }
}

/// One fence method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(self.type == 'NetworkFence') == has(self.networkFence)").message("networkFence must be set exactly when type is NetworkFence"))]
#[x_kube(validation = Rule::new("(self.type == 'External') == has(self.external)").message("external must be set exactly when type is External"))]
pub struct FenceMethod {
    /// Unpublish: ControllerUnpublishVolume by the sidecar of the driver; Detach: deletion of the VolumeAttachment,
    /// carried out by the attacher; NetworkFence: csi-addons, through the sidecar; External: another program, through a
    /// FenceRequest.
    #[serde(rename = "type")]
    pub type_: FenceMethodType,
    /// Settings of type NetworkFence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NetworkFenceSettings")]
    pub network_fence: Option<NetworkFenceSettings>,
    /// Settings of type External.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ExternalFencer")]
    pub external: Option<ExternalFencer>,
}

impl From<FenceMethodType> for FenceMethod {
    /// A method without settings.
    fn from(type_: FenceMethodType) -> Self {
        Self { type_, network_fence: None, external: None }
    }
}

/// How csi-addons fences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkFenceSettings {
    /// NetworkFenceClass to use. Its provisioner must be the driver.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub class_name: String,
}

/// A program that answers FenceRequests and is none of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalFencer {
    /// Domain-qualified name that the external fencer answers to.
    #[schemars(
        length(min = 3, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[a-z0-9]([-a-z0-9]*[a-z0-9])?)?$")
    )]
    pub fencer_name: String,
}

/// One fence method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlannedMethod {
    /// Unpublish, Detach, NetworkFence or External, as in the policy.
    #[serde(rename = "type")]
    pub type_: FenceMethodType,
    /// NetworkFenceClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub class_name: Option<String>,
    /// External fencer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub fencer_name: Option<String>,
}

impl PlannedMethod {
    /// The NetworkFenceClass that it names; empty where it is another method.
    pub fn class(&self) -> &str {
        self.class_name.as_deref().unwrap_or_default()
    }

    /// Who carries it out for a volume of that driver, by the name in a FenceRequest; `None` where that is no fencer.
    pub fn fencer<'a>(&'a self, driver: &'a str) -> Option<&'a str> {
        match self.type_ {
            FenceMethodType::Unpublish | FenceMethodType::NetworkFence => Some(driver),
            FenceMethodType::External => self.fencer_name.as_deref(),
            FenceMethodType::Detach => None,
        }
    }
}

impl From<FenceMethod> for PlannedMethod {
    fn from(method: FenceMethod) -> Self {
        Self {
            type_: method.type_,
            class_name: method.network_fence.map(|settings| settings.class_name),
            fencer_name: method.external.map(|external| external.fencer_name),
        }
    }
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
    /// Cloud or BMC id, for external fencers.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub provider_id: Option<String>,
    /// Addresses for network fences, from the NodeVolumeReport, as they were when the node was declared failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 2, max = 45)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub addresses: Vec<String>,
}
