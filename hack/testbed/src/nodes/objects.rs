//! The objects a kubelet registers: Node and CSINode.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use serde_json::{Value, json};

use super::NodeOptions;

/// A node as its kubelet knows it.
pub(super) struct Registration<'a> {
    pub name: &'a str,
    pub csi_node_id: &'a str,
    pub address: &'a str,
    pub boot_id: &'a str,
    pub drivers: Vec<&'a str>,
    pub options: &'a NodeOptions,
}

impl Registration<'_> {
    pub fn node(&self) -> serde_json::Result<Node> {
        let mut labels = self.options.labels.clone();
        labels.extend([
            ("kubernetes.io/hostname".to_owned(), self.name.to_owned()),
            ("kubernetes.io/os".to_owned(), "linux".to_owned()),
            ("kubernetes.io/arch".to_owned(), "amd64".to_owned()),
        ]);
        let ids: BTreeMap<&str, &str> = self.drivers.iter().map(|driver| (*driver, self.csi_node_id)).collect();
        let resources = json!({
            "cpu": "64",
            "memory": "256Gi",
            "ephemeral-storage": "1Ti",
            "pods": self.options.max_pods.to_string(),
        });
        serde_json::from_value(json!({
            "metadata": {
                "name": self.name,
                "labels": labels,
                "annotations": {
                    "csi.volume.kubernetes.io/nodeid": serde_json::to_string(&ids)?,
                    "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                },
            },
            "status": {
                "capacity": resources,
                "allocatable": resources,
                "addresses": [
                    { "type": "InternalIP", "address": self.address },
                    { "type": "Hostname", "address": self.name },
                ],
                "nodeInfo": self.info(),
            },
        }))
    }

    pub fn info(&self) -> Value {
        json!({
            "architecture": "amd64",
            "bootID": self.boot_id,
            "containerRuntimeVersion": "simulated://1",
            "kernelVersion": "6.18.0",
            "kubeProxyVersion": "",
            "kubeletVersion": "v1.36.3",
            "machineID": self.name,
            "operatingSystem": "linux",
            "osImage": "simulated",
            "systemUUID": self.name,
        })
    }

    pub fn csi_node(&self, node_uid: &str) -> serde_json::Result<CSINode> {
        let drivers = self
            .drivers
            .iter()
            .map(|driver| json!({ "name": driver, "nodeID": self.csi_node_id, "topologyKeys": null }));
        serde_json::from_value(json!({
            "metadata": {
                "name": self.name,
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": self.name,
                    "uid": node_uid,
                }],
            },
            "spec": { "drivers": drivers.collect::<Vec<_>>() },
        }))
    }
}
