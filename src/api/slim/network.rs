//! Views of Kubernetes' networking kinds with only the fields that are read. See [`slim`](super).

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Resource;
use serde::{Deserialize, Serialize};

use crate::api::node_volume_report::NodeVolumeReport;

use super::{NodeAddress, NodeInfo, StatusCondition, metadata, nullable, part, slim};

/// Label of an EndpointSlice: the Service that it belongs to.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Label of an EndpointSlice: who writes it.
pub const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
/// Who writes the slices of Services with a selector. What it wrote stays when the selector is taken away.
pub const SELECTOR_SLICES: &str = "endpointslice-controller.k8s.io";
/// Who copies Endpoints into slices, unless [`SKIP_MIRROR_LABEL`] is there.
pub const MIRRORED_SLICES: &str = "endpointslicemirroring-controller.k8s.io";
/// Label of Endpoints that are not copied into a slice, with the value `true`.
pub const SKIP_MIRROR_LABEL: &str = "endpointslice.kubernetes.io/skip-mirror";

slim! {
    /// A Node, by its addresses.
    NodeAddresses: core::Node {
        /// Status.
        status: NodeAddressesStatus,
    }
}

part! {
    /// Status of a Node, by its addresses.
    NodeAddressesStatus {
        /// Addresses and names.
        addresses: Vec<NodeAddress>,
        /// What the kubelet tells about the machine.
        node_info: NodeInfo,
    }
}

slim! {
    /// A NodeVolumeReport, by the addresses of its node.
    ReportedAddresses: NodeVolumeReport {
        /// Status.
        status: ReportedAddressesStatus,
    }
}

part! {
    /// Status of a NodeVolumeReport, by the addresses of its node.
    ReportedAddressesStatus {
        /// Uid of the Node.
        #[serde(rename = "nodeUID")]
        node_uid: Option<String>,
        /// By which the node reaches its storage.
        addresses: Vec<String>,
    }
}

slim! {
    /// A Service.
    Service: core::Service {
        /// Spec.
        spec: ServiceSpec,
    }
}

part! {
    /// Spec of a Service.
    ServiceSpec {
        /// ClusterIP, LoadBalancer, NodePort or ExternalName.
        #[serde(rename = "type")]
        type_: Option<String>,
        /// Its addresses, that of the first family first; `None` for a headless one.
        #[serde(rename = "clusterIPs")]
        cluster_ips: Vec<String>,
        /// Its families, in order.
        ip_families: Vec<String>,
        /// How many families it is to have.
        ip_family_policy: Option<String>,
        /// Its ports.
        ports: Vec<ServicePort>,
        /// Pods whose addresses others write for it.
        selector: BTreeMap<String, String>,
    }
}

part! {
    /// A port of a Service.
    ServicePort {
        /// Its name; a single one may have none.
        name: Option<String>,
        /// Its number.
        port: i32,
        /// Absent: TCP.
        protocol: Option<String>,
        /// Where traffic goes; has no effect without a selector.
        target_port: Option<IntOrString>,
    }
}

slim! {
    /// An EndpointSlice.
    EndpointSlice: discovery::EndpointSlice {
        /// IPv4, IPv6 or FQDN.
        address_type: String,
        /// Its endpoints.
        endpoints: Vec<SliceEndpoint>,
        /// Ports of each of them.
        ports: Vec<SlicePort>,
    }
}

part! {
    /// An endpoint of a slice.
    SliceEndpoint {
        /// Its addresses; only the first counts.
        addresses: Vec<String>,
        /// Its conditions.
        conditions: EndpointConditions,
        /// Node.
        node_name: Option<String>,
    }
}

part! {
    /// Conditions of an endpoint.
    EndpointConditions {
        /// Whether traffic goes there; absent means yes.
        ready: Option<bool>,
        /// Whether it answers; absent means as ready.
        serving: Option<bool>,
        /// Whether it is about to go; absent means no.
        terminating: Option<bool>,
    }
}

part! {
    /// A port of a slice.
    SlicePort {
        /// Name of the Service port.
        name: Option<String>,
        /// Its number; absent means all.
        port: Option<i32>,
        /// Absent: TCP.
        protocol: Option<String>,
    }
}

slim! {
    /// Endpoints.
    Endpoints: core::Endpoints {
        /// Addresses and their ports.
        subsets: Vec<EndpointSubset>,
    }
}

part! {
    /// Addresses that have the same ports.
    EndpointSubset {
        /// Those that traffic goes to.
        addresses: Vec<EndpointAddress>,
        /// Those that it does not go to.
        not_ready_addresses: Vec<EndpointAddress>,
        /// Their ports.
        ports: Vec<SlicePort>,
    }
}

part! {
    /// An address.
    EndpointAddress {
        /// The address.
        ip: String,
        /// Node.
        node_name: Option<String>,
    }
}

slim! {
    /// A pod that runs a server.
    ServerPod: core::Pod {
        /// Spec.
        spec: ServerPodSpec,
        /// Status.
        status: ServerPodStatus,
    }
}

part! {
    /// Spec of a server pod.
    ServerPodSpec {
        /// Node it is bound to.
        node_name: Option<String>,
        /// Whether it has the addresses of its node.
        host_network: bool,
        /// Its containers.
        containers: Vec<ServerContainer>,
        /// Containers before them, of which some may go on running.
        init_containers: Vec<ServerContainer>,
    }
}

part! {
    /// A container of a server pod.
    ServerContainer {
        /// Its ports.
        ports: Vec<ContainerPort>,
    }
}

part! {
    /// A port of a container.
    ContainerPort {
        /// Its name.
        name: Option<String>,
        /// Its number.
        container_port: i32,
        /// Absent: TCP.
        protocol: Option<String>,
    }
}

part! {
    /// Status of a server pod.
    ServerPodStatus {
        /// Pending, Running, Succeeded, Failed or Unknown.
        phase: Option<String>,
        /// Its conditions.
        conditions: Vec<StatusCondition>,
        /// Its addresses, at most one of each family.
        #[serde(rename = "podIPs")]
        pod_ips: Vec<PodIp>,
    }
}

part! {
    /// An address of a pod.
    PodIp {
        /// The address.
        ip: String,
    }
}

impl EndpointSlice {
    /// The Service that it belongs to.
    pub fn service(&self) -> Option<&str> {
        self.label(SERVICE_NAME_LABEL)
    }

    /// Who writes it.
    pub fn manager(&self) -> Option<&str> {
        self.label(MANAGED_BY_LABEL)
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(name).map(String::as_str)
    }
}

impl SliceEndpoint {
    /// Whether traffic goes there.
    pub fn is_ready(&self) -> bool {
        self.conditions.ready != Some(false)
    }
}

impl ServerPod {
    /// Whether the condition of that type is True.
    pub fn is(&self, type_: &str) -> bool {
        self.status.conditions.iter().any(|condition| condition.type_ == type_ && condition.status == "True")
    }

    /// Whether it is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Its addresses, in the order of its families.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.status.pod_ips.iter().filter_map(|ip| ip.ip.parse().ok()).collect()
    }

    /// The number of the port with that name in its containers.
    pub fn port_named(&self, name: &str) -> Option<u16> {
        let containers = self.spec.containers.iter().chain(&self.spec.init_containers);
        let mut ports = containers.flat_map(|container| &container.ports);
        let port = ports.find(|port| port.name.as_deref() == Some(name))?;
        u16::try_from(port.container_port).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_api_leaves_out_or_writes_as_null_is_read() {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": "media-ipv4", "labels": { SERVICE_NAME_LABEL: "media" } },
            "addressType": "IPv4", "endpoints": null, "ports": null,
        }))
        .unwrap();
        assert_eq!((slice.service(), slice.manager(), slice.endpoints.len()), (Some("media"), None, 0));
        let absent: SliceEndpoint = serde_json::from_value(json!({ "addresses": ["10.0.0.1"] })).unwrap();
        assert!(absent.is_ready());
        let service: Service = serde_json::from_value(json!({
            "metadata": { "name": "media" },
            "spec": { "type": "ClusterIP", "clusterIPs": ["10.0.0.7"], "ports": [{ "port": 2049, "targetPort": 20490 }] },
        }))
        .unwrap();
        assert_eq!(service.spec.cluster_ips, ["10.0.0.7"]);
        assert_eq!(service.spec.ports[0].target_port, Some(IntOrString::Int(20490)));
    }

    #[test]
    fn a_port_of_a_pod_is_found_by_name() {
        let pod: ServerPod = serde_json::from_value(json!({
            "metadata": { "name": "nfs-0" },
            "spec": { "containers": [{ "ports": [{ "containerPort": 111 }, { "name": "nfs", "containerPort": 2049 }] }] },
            "status": { "podIPs": [{ "ip": "10.1.0.9" }, { "ip": "fd00::9" }], "conditions": [{ "type": "Ready", "status": "True" }] },
        }))
        .unwrap();
        assert_eq!((pod.port_named("nfs"), pod.port_named("rpc")), (Some(2049), None));
        assert_eq!(pod.addresses().len(), 2);
        assert!(pod.is("Ready") && !pod.is_terminating());
    }
}
