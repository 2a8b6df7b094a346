//! When the active server changes, how it is probed and who is told.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::time::Duration;

/// When the active server changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failover {
    /// Manual switches only when activeCandidate changes.
    #[serde(default)]
    pub mode: FailoverMode,
    /// Candidate that must be active; changing it is the planned switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub active_candidate: Option<String>,
    /// Withdraw empties the slices so that clients are refused quickly; Keep leaves Service, endpoints and published address
    /// as they are, except on a fenced node.
    #[serde(default)]
    pub on_backend_lost: OnBackendLost,
    /// Shortest time between two automatic switches.
    #[serde(default = "Failover::default_hold_down")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('0s') && duration(self) <= duration('1h')").message("must be between 0s and 1h"))]
    pub hold_down: Duration,
}

impl Failover {
    fn default_hold_down() -> Duration {
        Duration::seconds(10)
    }
}

impl Default for Failover {
    fn default() -> Self {
        Self {
            mode: FailoverMode::default(),
            active_candidate: None,
            on_backend_lost: OnBackendLost::default(),
            hold_down: Self::default_hold_down(),
        }
    }
}

/// Who switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailoverMode {
    /// The controller, when the active server is lost.
    #[default]
    Automatic,
    /// A person, by activeCandidate.
    Manual,
}

/// What happens to the endpoints when the server is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnBackendLost {
    /// They are emptied.
    #[default]
    Withdraw,
    /// They stay.
    Keep,
}

/// How the server is asked whether it serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.timeout) || !has(self.period) || duration(self.timeout) <= duration(self.period)").message("timeout must not exceed period").field_path(".timeout"))]
pub struct Probe {
    /// NFSNull is an RPC NULL call on mountPort.
    #[serde(default, rename = "type")]
    pub type_: ProbeType,
    /// UntilServing publishes only after the first answer; Never publishes at once.
    #[serde(default)]
    pub gate: ProbeGate,
    /// Time between two probes.
    #[serde(default = "Probe::default_period")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('5m')").message("must be between 1s and 5m"))]
    pub period: Duration,
    /// Deadline of one probe; at most period.
    #[serde(default = "Probe::default_timeout")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('100ms') && duration(self) <= duration('1m')").message("must be between 100ms and 1m"))]
    pub timeout: Duration,
    /// Consecutive failures before the server counts as lost.
    #[serde(default = "Probe::default_failure_threshold")]
    #[schemars(with = "i32", range(min = 1, max = 20))]
    pub failure_threshold: u32,
}

impl Probe {
    fn default_period() -> Duration {
        Duration::seconds(5)
    }

    fn default_timeout() -> Duration {
        Duration::seconds(2)
    }

    fn default_failure_threshold() -> u32 {
        3
    }
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            type_: ProbeType::default(),
            gate: ProbeGate::default(),
            period: Self::default_period(),
            timeout: Self::default_timeout(),
            failure_threshold: Self::default_failure_threshold(),
        }
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ProbeType {
    /// An RPC NULL call of NFS.
    #[default]
    NFSNull,
    /// Whether a TCP connection opens.
    TCP,
    /// Nothing: the server counts as serving.
    None,
}

/// What a probe gates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProbeGate {
    /// Nothing is published before the first answer.
    #[default]
    UntilServing,
    /// Everything is published at once.
    Never,
}

/// Who is told the mount endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Publish {
    /// Absent: [Provider] with backend.provider, else nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub targets: Option<Vec<PublishTarget>>,
    /// ClusterIP, or the DNS name of the Service.
    #[serde(default)]
    pub host: PublishHost,
}

/// Who is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PublishTarget {
    /// The provider, by its own call.
    Provider,
    /// Whoever reads the annotation `bulkhead.dev/mount-endpoint` of the claim.
    ClaimAnnotation,
}

/// What is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PublishHost {
    /// The Service's address.
    #[default]
    ClusterIP,
    /// The Service's DNS name.
    DNS,
}
