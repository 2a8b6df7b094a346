//! What stands in the cluster: objects as a kubelet, a provisioner and an attacher leave them behind, with all that makes
//! them large.
#![expect(clippy::indexing_slicing, reason = "a JSON object takes what it does not have yet by its name")]

use std::collections::BTreeSet;

use bulkhead::heartbeat::keys::PublicKey;
use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use super::etcd::Entry;

/// The CSI driver of all volumes.
pub const DRIVER: &str = "csi.bench.bulkhead.dev";
/// Namespaces that the pods are spread over.
pub const NAMESPACES: usize = 20;
/// Where the node agents listen; nobody sends anything there.
const AGENT_PORT: u16 = 9;

/// Which pod is where: they are dealt out to the nodes like cards, and the first of them have volumes.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Nodes.
    pub nodes: usize,
    /// Pods.
    pub pods: usize,
    /// Pods with a volume.
    pub attachments: usize,
}

/// Made once for all objects.
pub struct Maker {
    layout: Layout,
    created: String,
}

impl Layout {
    /// The name of a node.
    pub fn node(number: usize) -> String {
        format!("ip-10-{}-{}-{}.bench.internal", number >> 16, number >> 8 & 0xff, number & 0xff)
    }

    /// The name of a namespace.
    pub fn namespace(number: usize) -> String {
        format!("team-{:02}", number % NAMESPACES)
    }

    /// Namespace and name of the pod that is made last.
    pub fn last_pod(self) -> (String, String) {
        let number = self.pods.saturating_sub(1);
        (Self::namespace(number), pod(number))
    }

    /// The name of the attachment that is made last.
    pub fn last_attachment(self) -> String {
        attachment(self.attachments.saturating_sub(1))
    }

    /// Namespaces and names of the protected pods of a node.
    pub fn protected_on(self, node: usize) -> BTreeSet<(String, String)> {
        (node..self.attachments).step_by(self.nodes).map(|number| (Self::namespace(number), pod(number))).collect()
    }
}

/// A uid that is the same at each asking.
fn uid(kind: u16, number: usize) -> String {
    format!("{kind:08x}-0000-4000-8000-{number:012x}")
}

fn volume(number: usize) -> String {
    format!("pvc-{}", uid(3, number))
}

fn claim(number: usize) -> String {
    format!("data-database-{number}")
}

/// Named by a hash, as the attach/detach controller does.
fn attachment(number: usize) -> String {
    format!("csi-{:064x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn pod(number: usize) -> String {
    if number.is_multiple_of(3) { format!("database-{number}") } else { format!("web-7d9f8b6c5d-{number:06x}") }
}

/// Who owns which field: about as long as the rest of an object.
fn managed_fields(manager: &str, at: &str, fields: &[&str]) -> Value {
    let owned = |spec: &Value| json!({ "f:metadata": { "f:labels": { ".": {} } }, "f:spec": spec, "f:status": spec });
    let all: serde_json::Map<_, _> = fields.iter().map(|field| (format!("f:{field}"), json!({}))).collect();
    json!([
        { "manager": manager, "operation": "Update", "apiVersion": "v1", "time": at, "fieldsType": "FieldsV1",
          "fieldsV1": owned(&Value::Object(all.clone())) },
        { "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": at, "fieldsType": "FieldsV1",
          "fieldsV1": owned(&Value::Object(all)), "subresource": "status" },
    ])
}

const POD_FIELDS: [&str; 16] = [
    "containers",
    "dnsPolicy",
    "enableServiceLinks",
    "hostname",
    "restartPolicy",
    "schedulerName",
    "securityContext",
    "subdomain",
    "terminationGracePeriodSeconds",
    "volumes",
    "conditions",
    "containerStatuses",
    "hostIP",
    "phase",
    "podIP",
    "startTime",
];

impl Maker {
    /// All objects are as old as this.
    pub fn new(layout: Layout, created: DateTime<Utc>) -> Self {
        Self { layout, created: created.to_rfc3339_opts(SecondsFormat::Secs, true) }
    }

    fn metadata(&self, kind: u16, number: usize, name: &str, namespace: Option<&str>) -> Value {
        let mut metadata = json!({
            "name": name, "uid": uid(kind, number), "creationTimestamp": self.created, "generation": 1,
            "managedFields": managed_fields("kube-controller-manager", &self.created, &POD_FIELDS[..6]),
        });
        if let Some((namespace, object)) = namespace.zip(metadata.as_object_mut()) {
            object.insert("namespace".to_owned(), namespace.into());
        }
        metadata
    }

    /// A Node.
    pub fn node(&self, number: usize) -> Entry {
        let name = Layout::node(number);
        let condition = |type_: &str, status: &str| {
            json!({ "type": type_, "status": status, "reason": "KubeletHas", "message": "kubelet has what it needs",
                    "lastHeartbeatTime": self.created, "lastTransitionTime": self.created })
        };
        let mut metadata = self.metadata(1, number, &name, None);
        metadata["labels"] = json!({
            "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": "m7i.4xlarge",
            "topology.kubernetes.io/zone": format!("zone-{}", number % 3), "topology.kubernetes.io/region": "region-1",
        });
        let attached: Vec<_> = (number..self.layout.attachments)
            .step_by(self.layout.nodes)
            .map(|volume| format!("kubernetes.io/csi/{DRIVER}^vol-{}", uid(4, volume)))
            .collect();
        let images: Vec<_> = (0..30)
            .map(|image| json!({ "names": [format!("registry.example/team/image-{image}@sha256:{image:064x}")], "sizeBytes": 123_456_789 }))
            .collect();
        let object = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": metadata,
            "spec": { "podCIDR": "10.0.0.0/24", "providerID": format!("bench:///{name}") },
            "status": {
                "capacity": { "cpu": "16", "memory": "65Gi", "pods": "110" },
                "allocatable": { "cpu": "16", "memory": "64Gi", "pods": "110" },
                "conditions": [
                    condition("MemoryPressure", "False"), condition("DiskPressure", "False"),
                    condition("PIDPressure", "False"), condition("Ready", "True"),
                ],
                "addresses": [{ "type": "InternalIP", "address": "10.1.2.3" }, { "type": "Hostname", "address": name }],
                "nodeInfo": {
                    "architecture": "amd64", "bootID": uid(9, number), "containerRuntimeVersion": "containerd://2.1",
                    "kernelVersion": "6.18.0", "kubeProxyVersion": "", "kubeletVersion": "v1.36.3", "machineID": name,
                    "operatingSystem": "linux", "osImage": "bench", "systemUUID": name,
                },
                "images": images,
                "volumesInUse": attached,
                "volumesAttached":
                    attached.iter().map(|name| json!({ "name": name, "devicePath": "" })).collect::<Vec<_>>(),
            },
        });
        (format!("/registry/minions/{name}"), object)
    }

    /// The Lease of a kubelet, renewed at that time.
    pub fn lease(&self, number: usize, renewed: DateTime<Utc>) -> Entry {
        let name = Layout::node(number);
        let mut metadata = self.metadata(2, number, &name, Some("kube-node-lease"));
        metadata["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid(1, number) }]);
        let object = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {
                "holderIdentity": name, "leaseDurationSeconds": 40,
                "renewTime": renewed.to_rfc3339_opts(SecondsFormat::Micros, true),
            },
        });
        (format!("/registry/leases/kube-node-lease/{name}"), object)
    }

    /// What the kubelet says of the CSI drivers of a node.
    pub fn csi_node(&self, number: usize) -> Entry {
        let name = Layout::node(number);
        let driver = json!({ "name": DRIVER, "nodeID": name, "topologyKeys": [], "allocatable": { "count": 64 } });
        let object = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": self.metadata(5, number, &name, None),
            "spec": { "drivers": [driver] },
        });
        (format!("/registry/csinodes/{name}"), object)
    }

    /// What the agent of a node says.
    pub fn report(&self, number: usize, key: PublicKey) -> Entry {
        let name = Layout::node(number);
        let object = json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeVolumeReport",
            "metadata": self.metadata(6, number, &name, None),
            "status": {
                "nodeUID": uid(1, number), "bootID": uid(9, number), "agentVersion": env!("CARGO_PKG_VERSION"),
                "addresses": ["10.1.2.3"], "checked": 0, "unhealthy": 0,
                "heartbeat": { "publicKey": key.to_string(), "address": "127.0.0.1", "port": AGENT_PORT },
                "conditions": [{ "type": "Ready", "status": "True", "reason": "Reporting", "message": "",
                                 "lastTransitionTime": self.created }],
            },
        });
        (format!("/registry/bulkhead.dev/nodevolumereports/{name}"), object)
    }

    /// A pod; one of the first has a volume.
    pub fn pod(&self, number: usize) -> Entry {
        let (name, namespace) = (pod(number), Layout::namespace(number));
        let condition = |type_: &str| json!({ "type": type_, "status": "True", "lastProbeTime": null, "lastTransitionTime": self.created });
        let conditions =
            ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition);
        let token = json!({ "name": "kube-api-access-x7k2p", "projected": { "defaultMode": 420, "sources": [
            { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
            { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            { "downwardAPI": { "items": [
                { "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" } },
            ] } },
        ] } });
        let mut volumes = vec![token];
        let mut labels = json!({
            "app.kubernetes.io/name": "database", "app.kubernetes.io/instance": format!("database-{}", number % 500),
            "controller-revision-hash": "database-5f6d8c9b7", "apps.kubernetes.io/pod-index": "0",
        });
        if number < self.layout.attachments {
            volumes.push(json!({ "name": "data", "persistentVolumeClaim": { "claimName": claim(number) } }));
            labels["bulkhead.dev/protect"] = "true".into();
        }
        let mut metadata = self.metadata(7, number, &name, Some(&namespace));
        metadata["labels"] = labels;
        metadata["annotations"] =
            json!({ "checksum/config": format!("{number:064x}"), "prometheus.io/scrape": "true" });
        metadata["managedFields"] = managed_fields("kube-controller-manager", &self.created, &POD_FIELDS);
        metadata["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "database", "uid": uid(8, number % 500),
            "controller": true, "blockOwnerDeletion": true,
        }]);
        let environment: Vec<_> = (0..12)
            .map(|it| json!({ "name": format!("SETTING_{it}"), "value": format!("the value of setting {it}") }))
            .collect();
        let container = json!({
            "name": "server", "image": "registry.example/team/database:17.2", "imagePullPolicy": "IfNotPresent",
            "env": environment, "ports": [{ "containerPort": 5432, "name": "sql", "protocol": "TCP" }],
            "resources": { "requests": { "cpu": "500m", "memory": "1Gi" }, "limits": { "memory": "1Gi" } },
            "livenessProbe": { "tcpSocket": { "port": 5432 }, "periodSeconds": 10, "timeoutSeconds": 1,
                               "successThreshold": 1, "failureThreshold": 3 },
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "volumeMounts": [{ "name": "kube-api-access-x7k2p", "readOnly": true,
                               "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" }],
        });
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {
                "nodeName": Layout::node(number % self.layout.nodes), "containers": [container], "volumes": volumes,
                "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
                "serviceAccountName": "default", "serviceAccount": "default", "securityContext": { "fsGroup": 999 },
                "schedulerName": "default-scheduler", "enableServiceLinks": true, "priority": 0,
                "preemptionPolicy": "PreemptLowerPriority",
                "tolerations": [
                    { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                    { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
                ],
            },
            "status": {
                "phase": "Running", "qosClass": "Burstable", "startTime": self.created, "hostIP": "10.1.2.3",
                "hostIPs": [{ "ip": "10.1.2.3" }], "podIP": "10.0.1.2", "podIPs": [{ "ip": "10.0.1.2" }],
                "conditions": conditions,
                "containerStatuses": [{
                    "name": "server", "ready": true, "started": true, "restartCount": 0,
                    "image": "registry.example/team/database:17.2",
                    "imageID": format!("registry.example/team/database@sha256:{:064x}", 17),
                    "containerID": format!("containerd://{number:064x}"),
                    "state": { "running": { "startedAt": self.created } }, "lastState": {},
                }],
            },
        });
        (format!("/registry/pods/{namespace}/{name}"), object)
    }

    /// A bound claim.
    pub fn claim(&self, number: usize) -> Entry {
        let (name, namespace) = (claim(number), Layout::namespace(number));
        let mut metadata = self.metadata(10, number, &name, Some(&namespace));
        metadata["labels"] = json!({ "app.kubernetes.io/name": "database", "app.kubernetes.io/instance": "database" });
        metadata["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
        metadata["annotations"] = json!({
            "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
            "volume.kubernetes.io/storage-provisioner": DRIVER, "volume.beta.kubernetes.io/storage-provisioner": DRIVER,
        });
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata,
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "100Gi" } },
                "storageClassName": "fast", "volumeMode": "Filesystem", "volumeName": volume(number),
            },
            "status": { "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "100Gi" } },
        });
        (format!("/registry/persistentvolumeclaims/{namespace}/{name}"), object)
    }

    /// Its volume.
    pub fn volume(&self, number: usize) -> Entry {
        let name = volume(number);
        let mut metadata = self.metadata(3, number, &name, None);
        metadata["finalizers"] = json!(["kubernetes.io/pv-protection", "external-attacher/csi-bench-bulkhead-dev"]);
        metadata["annotations"] = json!({
            "pv.kubernetes.io/provisioned-by": DRIVER, "volume.kubernetes.io/provisioner-deletion-secret-name": "",
            "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
        });
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata,
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "100Gi" }, "storageClassName": "fast",
                "volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim(number),
                    "namespace": Layout::namespace(number), "uid": uid(10, number), "resourceVersion": "1234567",
                },
                "csi": {
                    "driver": DRIVER, "fsType": "ext4", "volumeHandle": format!("vol-{}", uid(4, number)),
                    "volumeAttributes": { "storage.kubernetes.io/csiProvisionerIdentity": format!("1700000000000-1234-{DRIVER}") },
                },
            },
            "status": { "phase": "Bound", "lastPhaseTransitionTime": self.created },
        });
        (format!("/registry/persistentvolumes/{name}"), object)
    }

    /// Its attachment.
    pub fn attachment(&self, number: usize) -> Entry {
        let name = attachment(number);
        let node = Layout::node(number % self.layout.nodes);
        let mut metadata = self.metadata(11, number, &name, None);
        metadata["finalizers"] = json!(["external-attacher/csi-bench-bulkhead-dev"]);
        metadata["annotations"] = json!({ "csi.alpha.kubernetes.io/node-id": node });
        let object = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": metadata,
            "spec": { "attacher": DRIVER, "nodeName": node, "source": { "persistentVolumeName": volume(number) } },
            "status": { "attached": true },
        });
        (format!("/registry/volumeattachments/{name}"), object)
    }
}
