//! `SharedVolumeProvider`: a storage control plane that reports NFS servers and is told where they are mounted.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{self, empty_default};
use super::selector::LabelSelector;
use super::shared_volume::{
    EndpointObjects, IpFamilyPolicy, OnBackendLost, ProbeGate, ProbeType, ServiceType, short_texts,
};
use super::time::Duration;

/// How to reach the control plane and what to do with its volumes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "bulkhead.dev",
    version = "v1alpha1",
    kind = "SharedVolumeProvider",
    plural = "sharedvolumeproviders",
    shortname = "shvp",
    category = "bulkhead",
    status = "SharedVolumeProviderStatus",
    doc = "SharedVolumeProvider is a storage control plane that reports NFS servers and is told where they are mounted.",
    derive = "PartialEq",
    printcolumn(name = "TYPE", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "READY", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "REASON", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "ENDPOINT", type_ = "string", json_path = ".status.endpoint"),
    printcolumn(name = "VOLUMES", type_ = "integer", json_path = ".status.volumes"),
    printcolumn(name = "SHARED", type_ = "integer", json_path = ".status.sharedVolumes"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "DISCOVERY", type_ = "string", json_path = ".spec.discovery.mode", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.transport) || self.endpoints.all(e, self.transport == 'Plaintext' ? e.startsWith('http://') : e.startsWith('https://'))").message("transport TLS needs https URLs; http URLs need transport: Plaintext").field_path(".endpoints"))]
#[x_kube(validation = Rule::new("!has(self.caBundle) || !has(self.transport) || self.transport == 'TLS'").message("caBundle is used only with transport: TLS").field_path(".caBundle"))]
pub struct SharedVolumeProviderSpec {
    /// Protocol of the control plane.
    #[serde(default, rename = "type")]
    pub type_: ProviderType,
    /// Base URLs, tried in order; default port 5705.
    #[schemars(schema_with = "urls")]
    pub endpoints: Vec<String>,
    /// TLS needs https URLs, Plaintext needs http URLs and sends the password readable.
    #[serde(default)]
    pub transport: Transport,
    /// Base64 of PEM certificates; absent: the system's roots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 262_144), extend("format" = "byte"))]
    pub ca_bundle: Option<String>,
    /// Secret with keys username and password; a changed one is used after 5 s.
    pub credentials_ref: SecretReference,
    /// Time between two lists. Absent: flag -api-poll-interval (5s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('5m')").message("must be between 1s and 5m"))]
    pub poll_interval: Option<Duration>,
    /// Time from its last success after which a volume is verified again in full. Absent: flag -cache-expiry-interval (1m).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('24h')").message("must be between 1s and 24h"))]
    pub cache_expiry_interval: Option<Duration>,
    /// Time between two reads after a create. Absent: flag -k8s-create-poll-interval (1s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('100ms') && duration(self) <= duration('1m')").message("must be between 100ms and 1m"))]
    pub create_poll_interval: Option<Duration>,
    /// Time after which an object that does not appear is an error. Absent: flag -k8s-create-wait-duration (20s).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('10m')").message("must be between 1s and 10m"))]
    pub create_wait_duration: Option<Duration>,
    /// Deadline of one call.
    #[serde(default = "SharedVolumeProviderSpec::default_request_timeout")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('2m')").message("must be between 1s and 2m"))]
    pub request_timeout: Duration,
    /// Calls in flight.
    #[serde(default = "SharedVolumeProviderSpec::default_max_concurrent_requests")]
    #[schemars(with = "i32", range(min = 1, max = 64))]
    pub max_concurrent_requests: u32,
    /// Kubernetes namespaces served. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = MapMerge::Atomic)]
    pub namespace_selector: Option<LabelSelector>,
    /// Who writes SharedVolumes.
    #[serde(default)]
    #[schemars(transform = empty_default)]
    pub discovery: Discovery,
}

impl SharedVolumeProviderSpec {
    fn default_request_timeout() -> Duration {
        Duration::seconds(10)
    }

    fn default_max_concurrent_requests() -> u32 {
        4
    }
}

/// Protocol of a control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProviderType {
    /// The API of StorageOS, version 2.
    #[default]
    StorageOS,
}

/// How a control plane is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Transport {
    /// TLS with a verified certificate.
    #[default]
    TLS,
    /// TLS with whatever certificate.
    TLSWithoutVerification,
    /// Readable by everybody on the way.
    Plaintext,
}

/// Where a Secret is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Namespace of the Secret; must be one the operator may read.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: String,
    /// Name of the Secret.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
}

/// Who writes SharedVolumes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Discovery {
    /// Create writes one per volume, once; Adopt feeds those that exist; Disabled only publishes.
    #[serde(default)]
    pub mode: DiscoveryMode,
    /// Name of created objects and their Services.
    #[serde(default)]
    pub name_from: NameFrom,
    /// Initial values of created objects; later edits belong to the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Template>,
}

/// Who writes SharedVolumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DiscoveryMode {
    /// The controller, one per volume, once.
    #[default]
    Create,
    /// People; they are fed with what the provider reports.
    Adopt,
    /// People; the provider is only told.
    Disabled,
}

/// After what a created SharedVolume and its Service are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NameFrom {
    /// The claim.
    #[default]
    Claim,
    /// The PersistentVolume.
    PersistentVolume,
}

/// Initial values of created objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "short_texts")]
    pub labels: BTreeMap<String, String>,
    /// As SharedVolume.spec.service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceTemplate>,
    /// As SharedVolume.spec.failover.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failover: Option<FailoverTemplate>,
    /// As SharedVolume.spec.probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeTemplate>,
}

/// As SharedVolume.spec.service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTemplate {
    /// Service type.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<ServiceType>,
    /// As in Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// As in SharedVolume. Absent: EndpointSliceAndEndpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<EndpointObjects>,
}

/// As SharedVolume.spec.failover.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailoverTemplate {
    /// As in SharedVolume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_backend_lost: Option<OnBackendLost>,
    /// As in SharedVolume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("duration(self) >= duration('0s') && duration(self) <= duration('1h')").message("must be between 0s and 1h"))]
    pub hold_down: Option<Duration>,
}

/// As SharedVolume.spec.probe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProbeTemplate {
    /// As in SharedVolume.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<ProbeType>,
    /// As in SharedVolume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<ProbeGate>,
}

/// What the poller sees. Written on change only; times of polls and tokens are metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SharedVolumeProviderStatus {
    /// Generation of spec this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Ready, Reconciling, Stalled, Reachable, Authenticated, Discovering.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// URL in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub endpoint: Option<String>,
    /// Shared volumes at the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<u32>,
    /// SharedVolume objects fed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_volumes: Option<u32>,
    /// Volumes without a SharedVolume: no valid endpoint, label or claim, or not wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmanaged: Option<u32>,
    /// Provider namespaces that cannot be listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub failing_namespaces: Vec<FailingNamespace>,
}

/// A provider namespace that cannot be listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailingNamespace {
    /// Namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Reason.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[A-Z][A-Za-z0-9]{0,63}$"))]
    pub reason: String,
    /// Since when.
    pub since: DateTime<Utc>,
}

fn urls(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 8,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "string",
            "description": "URL.",
            "minLength": 8,
            "maxLength": 253,
            "x-kubernetes-validations": [
                {
                    "rule": "isURL(self) && url(self).getScheme() in ['http','https'] && url(self).getHostname() != ''",
                    "message": "must be an http or https URL with a host",
                },
                {
                    "rule": "!isURL(self) || url(self).getEscapedPath() in ['','/']",
                    "message": "must not have a path",
                },
            ],
        },
    })
}
