//! Where the NFS server of a SharedVolume is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Where the NFS server is. Exactly one of the three.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.static), has(self.provider), has(self.pods)].filter(x, x).size() == 1").message("set exactly one of static, provider and pods"))]
#[x_kube(validation = Rule::new("has(self.provider) == has(oldSelf.provider) && has(self.pods) == has(oldSelf.pods)").message("the kind of backend is immutable"))]
pub struct Backend {
    /// A fixed list of servers.
    #[serde(default, rename = "static", skip_serializing_if = "Option::is_none")]
    pub static_: Option<StaticBackend>,
    /// A control plane reports the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("backend.provider is immutable"))]
    pub provider: Option<ProviderBackend>,
    /// A server pod in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodsBackend>,
}

/// A fixed list of servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StaticBackend {
    /// Servers in order of preference.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub candidates: Vec<Candidate>,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// Name used by failover.activeCandidate.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Node it runs on; lets a NodeFence withdraw it at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// At most one address per family.
    #[schemars(schema_with = "addresses")]
    pub addresses: Vec<IpAddr>,
    /// Ports of the server; one for each Service port.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub ports: Vec<CandidatePort>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CandidatePort {
    /// Service port name.
    #[schemars(length(min = 1, max = 15), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Port on the server.
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub port: u16,
}

/// A control plane reports the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderBackend {
    /// SharedVolumeProvider.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
    /// Volume id at the provider.
    #[serde(rename = "volumeID")]
    #[schemars(length(min = 1, max = 253))]
    pub volume_id: String,
    /// Namespace id at the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub volume_namespace: Option<String>,
}

/// A server pod in this namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodsBackend {
    /// Labels of the server pods; one Ready and answering pod is active.
    #[schemars(schema_with = "match_labels")]
    pub match_labels: BTreeMap<String, String>,
    /// Container ports for Service ports. Absent: the same number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub ports: Vec<PodPort>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodPort {
    /// Service port name.
    #[schemars(length(min = 1, max = 15), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Port number or name on the pod.
    pub target_port: TargetPort,
}

/// A port of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TargetPort {
    /// By number.
    Number(u16),
    /// By the name it has in the pod's containers.
    Name(String),
}

impl JsonSchema for TargetPort {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "TargetPort".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 15,
            "x-kubernetes-validations": [{
                "rule": "type(self) == int ? self >= 1 && self <= 65535 : self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
                "message": "must be a port number or a port name",
            }],
        })
    }
}

fn addresses(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 2,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "string",
            "description": "IP address.",
            "minLength": 2,
            "maxLength": 45,
            "x-kubernetes-validations": [
                { "rule": "isIP(self)", "message": "must be an IP address" },
                { "rule": "!isIP(self) || ip.isCanonical(self)", "message": "must be in canonical form" },
                {
                    "rule": "!isIP(self) || !(ip(self).isLoopback() || ip(self).isUnspecified() || ip(self).isLinkLocalUnicast() || ip(self).isLinkLocalMulticast())",
                    "message": "must not be loopback, unspecified or link-local",
                },
            ],
        },
        "x-kubernetes-validations": [{
            "rule": "self.size() < 2 || !isIP(self[0]) || !isIP(self[1]) || ip(self[0]).family() != ip(self[1]).family()",
            "message": "at most one address per IP family",
        }],
    })
}

fn match_labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "minProperties": 1,
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "maxLength": 63 },
    })
}
