//! What a SharedVolume serves.

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

use crate::api::schema;

/// What is served. Written only by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SharedVolumeStatus {
    /// Generation of spec this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Ready, Reconciling, Stalled, ClaimBound, ServiceReady, BackendAvailable, Serving, Published.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<SharedVolumePhase>,
    /// What clients mount: ip:port, [ip6]:port or name:port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 320))]
    pub mount_endpoint: Option<String>,
    /// The same for every family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 320)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub mount_endpoints: Vec<String>,
    /// Last value the provider acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 320))]
    pub published_endpoint: Option<String>,
    /// The claim that was seen first; another uid is another claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimIdentity>,
    /// The Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceIdentity>,
    /// The server in the EndpointSlices; absent when withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<ActiveServer>,
    /// What the provider reports; written on change only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<ObservedVolume>,
    /// Switches since creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub failovers: Option<i64>,
    /// The last switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failover: Option<LastFailover>,
}

/// In a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SharedVolumePhase {
    /// Something it needs is missing.
    Pending,
    /// The address is there and not yet served or published.
    Publishing,
    /// It serves.
    Ready,
    /// The server was lost and there is no other yet.
    FailingOver,
    /// It serves, and something is wrong.
    Degraded,
    /// Nothing is done.
    Suspended,
    /// It is being deleted.
    Terminating,
}

impl SharedVolumePhase {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Publishing,
        Self::Ready,
        Self::FailingOver,
        Self::Degraded,
        Self::Suspended,
        Self::Terminating,
    ];

    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Publishing => "Publishing",
            Self::Ready => "Ready",
            Self::FailingOver => "FailingOver",
            Self::Degraded => "Degraded",
            Self::Suspended => "Suspended",
            Self::Terminating => "Terminating",
        }
    }
}

/// The claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimIdentity {
    /// Uid.
    #[schemars(length(min = 1, max = 36))]
    pub uid: String,
    /// PersistentVolume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub volume_name: Option<String>,
}

/// The Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceIdentity {
    /// Name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Uid.
    #[schemars(length(min = 1, max = 36))]
    pub uid: String,
    /// Addresses to pin.
    #[serde(default, rename = "clusterIPs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), inner(length(min = 2, max = 45)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub cluster_ips: Vec<String>,
}

/// The server in the EndpointSlices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActiveServer {
    /// Candidate, pod or provider.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Addresses.
    #[schemars(with = "Vec<String>", length(min = 1, max = 2), inner(length(min = 2, max = 45)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub addresses: Vec<IpAddr>,
    /// Server port of mountPort.
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub port: u16,
    /// Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,
    /// Since when.
    pub since: DateTime<Utc>,
}

/// What the provider reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObservedVolume {
    /// ip:port as reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub endpoint: Option<String>,
    /// Version of the volume at the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub volume_version: Option<String>,
    /// Health as reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub health: Option<String>,
}

/// The last switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastFailover {
    /// Old server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub from: Option<String>,
    /// New server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub to: Option<String>,
    /// Cause.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Loss or request seen.
    pub detected_at: DateTime<Utc>,
    /// Slice written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switched_at: Option<DateTime<Utc>>,
    /// First answer through the new server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving_at: Option<DateTime<Utc>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_spelled_as_the_api_does() {
        for it in SharedVolumePhase::ALL {
            assert_eq!(serde_json::json!(it), it.as_str());
        }
    }
}
