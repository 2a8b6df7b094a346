//! What we read and write of csi-addons (`csiaddons.openshift.io`): who is to be shut out of a storage, by which class, and
//! by what the storage knows a node.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::usage::CLUSTER_ID;

/// For so long csi-addons may go by the text of a class that was deleted and made anew: it reads classes from a cache of its own.
pub const CACHE_LAG: TimeDelta = TimeDelta::seconds(60);

/// What csi-addons writes of a fence that holds.
const FENCED_MESSAGE: &str = "fencing operation successful";
/// And of one that was lifted. `result` alone does not tell which of the two it is of: it carries no generation.
const UNFENCED_MESSAGE: &str = "unfencing operation successful";

/// Whom to shut out, or to let in again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "csiaddons.openshift.io",
    version = "v1alpha1",
    kind = "NetworkFence",
    plural = "networkfences",
    status = "NetworkFenceStatus",
    derive = "PartialEq",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkFenceSpec {
    /// The class, which says by whom and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_fence_class_name: Option<String>,
    /// What is wanted.
    pub fence_state: FenceState,
    /// Of these addresses.
    #[serde(default)]
    pub cidrs: Vec<String>,
    /// What others have written and we do not use.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// What is wanted of csi-addons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FenceState {
    /// The addresses are shut out.
    Fenced,
    /// They are let in.
    Unfenced,
}

/// What has become of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkFenceStatus {
    /// `Succeeded` or `Failed`, of the last operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Which operation that was, or why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl NetworkFence {
    /// Whether it asks that its addresses be shut out, and goes on asking.
    pub fn is_wanted(&self) -> bool {
        self.spec.fence_state == FenceState::Fenced && self.metadata.deletion_timestamp.is_none()
    }

    /// Whether csi-addons says that its addresses are shut out.
    pub fn is_fenced(&self) -> bool {
        self.succeeded() && self.message() != UNFENCED_MESSAGE && self.spec.fence_state == FenceState::Fenced
    }

    /// Whether csi-addons says that they are let in again. Of a fence that was turned round the old result stays until then.
    pub fn is_unfenced(&self) -> bool {
        self.succeeded() && self.message() == UNFENCED_MESSAGE && self.spec.fence_state == FenceState::Unfenced
    }

    /// Why the last operation failed.
    pub fn failure(&self) -> Option<&str> {
        self.status.as_ref().filter(|status| status.result.as_deref() == Some("Failed")).map(|_| self.message())
    }

    fn succeeded(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.result.as_deref() == Some("Succeeded"))
    }

    fn message(&self) -> &str {
        self.status.as_ref().and_then(|status| status.message.as_deref()).unwrap_or(FENCED_MESSAGE)
    }
}

/// By whom and how addresses are shut out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "csiaddons.openshift.io",
    version = "v1alpha1",
    kind = "NetworkFenceClass",
    plural = "networkfenceclasses",
    derive = "PartialEq",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkFenceClassSpec {
    /// The CSI driver.
    pub provisioner: String,
    /// What the driver wants to know.
    #[serde(default)]
    pub parameters: Option<BTreeMap<String, String>>,
}

impl NetworkFenceClass {
    /// The cluster of the storage that it shuts addresses out of, where it says so. An empty name is none.
    pub fn cluster_id(&self) -> Option<&str> {
        self.spec.parameters.as_ref()?.get(CLUSTER_ID).map(String::as_str).filter(|id| !id.is_empty())
    }
}

/// A driver's node plugin, as csi-addons knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "csiaddons.openshift.io",
    version = "v1alpha1",
    kind = "CSIAddonsNode",
    plural = "csiaddonsnodes",
    namespaced,
    status = "CsiAddonsNodeStatus",
    root = "CsiAddonsNode",
    derive = "PartialEq",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub struct CsiAddonsNodeSpec {
    /// Which plugin.
    pub driver: CsiAddonsDriver,
}

/// A driver on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CsiAddonsDriver {
    /// The driver.
    pub name: String,
    /// The node: its name, in most installations.
    #[serde(rename = "nodeID")]
    pub node_id: String,
}

/// What the plugin says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CsiAddonsNodeStatus {
    /// By what the storage knows the node, per class.
    #[serde(default)]
    pub network_fence_client_status: Vec<FenceClients>,
}

/// By what a storage knows a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FenceClients {
    /// The class.
    pub network_fence_class_name: String,
    /// The node's clients.
    #[serde(default, rename = "ClientDetails")]
    pub client_details: Vec<FenceClient>,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FenceClient {
    /// Its addresses.
    #[serde(default)]
    pub cidrs: Vec<String>,
}

impl CsiAddonsNode {
    /// The addresses that the storage behind this class sees, if the driver tells them.
    pub fn clients(&self, class: &str) -> Vec<&str> {
        let told = self.status.iter().flat_map(|status| &status.network_fence_client_status);
        let of_class = told.filter(|told| told.network_fence_class_name == class);
        of_class.flat_map(|told| &told.client_details).flat_map(|it| &it.cidrs).map(String::as_str).collect()
    }
}
