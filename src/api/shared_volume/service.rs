//! The Service of a SharedVolume.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The Service that carries the stable address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(oldSelf.name) || (has(self.name) && self.name == oldSelf.name)").message("service.name is immutable once set").field_path(".name"))]
#[x_kube(validation = Rule::new("!has(self.ipFamilyPolicy) || self.ipFamilyPolicy != 'SingleStack' || !has(self.ipFamilies) || self.ipFamilies.size() == 1").message("SingleStack takes one family").field_path(".ipFamilies"))]
#[x_kube(validation = Rule::new("!has(oldSelf.ipFamilies) || (has(self.ipFamilies) && self.ipFamilies[0] == oldSelf.ipFamilies[0])").message("the primary family is immutable").field_path(".ipFamilies"))]
pub struct ServiceSpec {
    /// Service name. Absent: the claim's name; when that is no DNS-1035 label, its readable part and a hash
    /// (status.service.name).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: Option<String>,
    /// Service type.
    #[serde(default, rename = "type")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("service.type is immutable"))]
    pub type_: ServiceType,
    /// As in Service.
    #[serde(default)]
    pub ip_family_policy: IpFamilyPolicy,
    /// As in Service; the first is immutable. Absent: the cluster's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[x_kube(validation = Rule::new("self.size() < 2 || self[0] != self[1]").message("families must differ"))]
    pub ip_families: Option<Vec<IpFamily>>,
    /// Pinned re-creates a deleted Service with the recorded addresses; Any accepts new ones.
    #[serde(default, rename = "clusterIPPolicy")]
    pub cluster_ip_policy: ClusterIpPolicy,
    /// EndpointSlice, or also a v1 Endpoints object of the Service's name. Discovered volumes are created with both.
    #[serde(default)]
    pub endpoints: EndpointObjects,
    /// Added to the Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "short_texts")]
    pub labels: BTreeMap<String, String>,
    /// Added to the Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "long_texts")]
    pub annotations: BTreeMap<String, String>,
    /// Service ports.
    #[serde(default = "ServiceSpec::default_ports")]
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[x_kube(validation = Rule::new("self.all(p, self.exists_one(q, q.name == p.name))").message("port names must be unique"))]
    #[x_kube(validation = Rule::new("self.all(p, self.exists_one(q, q.port == p.port && (has(q.protocol) ? q.protocol : 'TCP') == (has(p.protocol) ? p.protocol : 'TCP')))").message("port and protocol must be unique"))]
    pub ports: Vec<ServicePort>,
}

impl ServiceSpec {
    fn default_ports() -> Vec<ServicePort> {
        vec![ServicePort { name: "nfs".to_owned(), port: NFS_PORT, protocol: None }]
    }
}

impl Default for ServiceSpec {
    fn default() -> Self {
        Self {
            name: None,
            type_: ServiceType::default(),
            ip_family_policy: IpFamilyPolicy::default(),
            ip_families: None,
            cluster_ip_policy: ClusterIpPolicy::default(),
            endpoints: EndpointObjects::default(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            ports: Self::default_ports(),
        }
    }
}

/// The port of NFS.
pub const NFS_PORT: u16 = 2049;

/// One port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Port name.
    #[schemars(length(min = 1, max = 15), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Service port.
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub port: u16,
    /// Absent: TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
}

/// Transport of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// Type of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// An address inside the cluster.
    #[default]
    ClusterIP,
    /// Also one outside, by the cluster's load balancer.
    LoadBalancer,
}

impl ServiceType {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// How many IP families a Service has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IpFamilyPolicy {
    /// One.
    SingleStack,
    /// Two where the cluster has two.
    #[default]
    PreferDualStack,
    /// Two.
    RequireDualStack,
}

impl IpFamilyPolicy {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SingleStack => "SingleStack",
            Self::PreferDualStack => "PreferDualStack",
            Self::RequireDualStack => "RequireDualStack",
        }
    }
}

/// IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum IpFamily {
    /// IPv4.
    IPv4,
    /// IPv6.
    IPv6,
}

impl IpFamily {
    /// The family of an address.
    pub fn of(address: std::net::IpAddr) -> Self {
        if address.is_ipv4() { Self::IPv4 } else { Self::IPv6 }
    }

    /// As the API spells it, also as addressType of an EndpointSlice.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IPv4 => "IPv4",
            Self::IPv6 => "IPv6",
        }
    }
}

/// What happens to the address when the Service is deleted by somebody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClusterIpPolicy {
    /// The Service is re-created with the recorded addresses.
    #[default]
    Pinned,
    /// New addresses are accepted.
    Any,
}

/// In which objects the server's address is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EndpointObjects {
    /// EndpointSlices.
    #[default]
    EndpointSlice,
    /// Also a v1 Endpoints object of the Service's name.
    EndpointSliceAndEndpoints,
}

/// Values as long as those of labels.
pub(crate) fn short_texts(_: &mut SchemaGenerator) -> Schema {
    texts(63)
}

fn long_texts(_: &mut SchemaGenerator) -> Schema {
    texts(4096)
}

fn texts(length: u32) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 32,
        "additionalProperties": { "type": "string", "maxLength": length },
    })
}
