//! The Mountpoint Pod of a volume: upstream's shape, with what its users missed. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::api::affinity::HOSTNAME_LABEL;
use crate::api::s3::{
    COMMUNICATION_FOLDER, COMMUNICATION_VOLUME, CONTAINER, DAEMONSET_POD, DRIVER_VERSION_LABEL, FAILURES_ANNOTATION,
    MOUNT_ANNOTATION, MOUNTPOINT_POD_LABEL, MOUNTPOINT_VERSION_LABEL, Mount, POD_UID_LABEL, VOLUME_ID, VOLUME_NAME,
    VOLUME_UID_ANNOTATION,
};
use crate::api::slim::PersistentVolume;

use super::attributes::{self, Attributes};

/// User and group of the mounter.
const USER: i64 = 1000;
/// A mounter ignores SIGTERM while workloads use it, and ends by itself when it is unmounted.
const GRACE_SECONDS: i64 = 600;
/// Longest value of a label.
const LABEL_MAX: usize = 63;

/// What people decide about Mountpoint Pods.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace in which they live.
    pub namespace: String,
    /// Image of the mounter.
    pub image: String,
    /// When it is pulled.
    pub image_pull_policy: String,
    /// The mounter in it.
    pub command: String,
    /// Version of mount-s3 in it, for people.
    pub mountpoint_version: String,
    /// Ours. Workloads are never assigned to a pod of another version.
    pub driver_version: String,
    /// Their PriorityClass.
    pub priority_class: String,
    /// Further labels.
    pub labels: BTreeMap<String, String>,
    /// Resources where a volume says nothing, as in a container's `resources`.
    pub resources: Value,
    /// Certificates of the S3 server.
    pub certificates: Option<Certificates>,
    /// How they are bound to their node.
    pub node_binding: NodeBinding,
    /// Whether the platform chooses users and groups itself, as OpenShift does.
    pub platform_chooses_user: bool,
    /// A merge patch of people, under what makes it a Mountpoint Pod.
    pub template: Value,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespace: crate::api::s3::MOUNTPOINT_NAMESPACE.to_owned(),
            image: String::new(),
            image_pull_policy: "IfNotPresent".to_owned(),
            command: "/bin/scality-s3-csi-mounter".to_owned(),
            mountpoint_version: String::new(),
            driver_version: env!("CARGO_PKG_VERSION").to_owned(),
            priority_class: "mount-s3-critical".to_owned(),
            labels: BTreeMap::new(),
            resources: Value::Null,
            certificates: None,
            node_binding: NodeBinding::default(),
            platform_chooses_user: false,
            template: Value::Null,
        }
    }
}

/// How a Mountpoint Pod is bound to its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeBinding {
    /// Required affinity to the node's name, as upstream.
    #[default]
    Affinity,
    /// Affinity to the host name label, which every scheduler and autoscaler understands.
    Hostname,
    /// The name itself, past the scheduler: for nodes that are full.
    Direct,
}

/// Certificates of the S3 server, joined with those of the image by a first container.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    /// ConfigMap with `ca-bundle.crt`.
    pub config_map: String,
    /// Image of the first container.
    pub image: String,
    /// When it is pulled.
    pub image_pull_policy: String,
    /// CPU and memory that it asks for, and its limit of memory.
    pub resources: [String; 3],
}

/// What one Mountpoint Pod is made for.
#[derive(Clone, Copy, Debug)]
pub struct Purpose<'a> {
    /// What it mounts.
    pub mount: &'a Mount,
    /// The volume.
    pub volume: &'a PersistentVolume,
    /// The workload that caused it.
    pub workload_uid: &'a str,
    /// The node's label `kubernetes.io/hostname`.
    pub hostname: Option<&'a str>,
    /// How many Mountpoint Pods failed in a row before this one.
    pub failures: u32,
}

/// Builds the pod. The error says what is wrong with the volume or the settings.
pub fn build(name: &str, purpose: Purpose<'_>, settings: &Settings) -> Result<Pod, String> {
    let attributes = Attributes::of(purpose.volume)?;
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec(&attributes, settings) });
    // No template is not an empty pod, as RFC 7386 would have it.
    if settings.template.is_object() {
        json_patch::merge(&mut pod, &settings.template);
    }
    json_patch::merge(&mut pod, &fixed(name, purpose, &attributes, settings)?);
    let pod = serde_json::from_value(pod);
    pod.map_err(|error| format!("the template of Mountpoint Pods does not give a pod: {error}; correct it"))
}

/// What the template may change.
fn spec(attributes: &Attributes, settings: &Settings) -> Value {
    let resources = resources(&attributes.resources, &settings.resources);
    let mut spec = json!({
        "containers": [{
            "name": CONTAINER,
            "image": settings.image,
            "imagePullPolicy": settings.image_pull_policy,
            "command": [settings.command],
            "securityContext": restricted(settings),
            "volumeMounts": mounts(attributes, settings),
            "resources": resources,
        }],
        "volumes": volumes(attributes, settings),
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "priorityClassName": settings.priority_class,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "tolerations": [{ "operator": "Exists" }],
        "securityContext": pod_security(settings),
    });
    if let Some(certificates) = &settings.certificates {
        put(&mut spec, "initContainers", json!([install(certificates, settings)]));
    }
    spec
}

/// What a volume says of CPU or memory replaces all that is said of it by default: a limit below a request is refused.
fn resources(said: &Value, default: &Value) -> Value {
    let mut resources = Value::Null;
    for resource in ["cpu", "memory"] {
        let is_said =
            ["requests", "limits"].iter().any(|kind| said.get(kind).and_then(|it| it.get(resource)).is_some());
        let from = if is_said { said } else { default };
        for kind in ["requests", "limits"] {
            if let Some(amount) = from.get(kind).and_then(|it| it.get(resource)) {
                json_patch::merge(&mut resources, &json!({ kind: { resource: amount } }));
            }
        }
    }
    resources
}

/// What makes it a Mountpoint Pod: no template changes it.
fn fixed(name: &str, purpose: Purpose<'_>, attributes: &Attributes, settings: &Settings) -> Result<Value, String> {
    let Purpose { mount, volume, workload_uid, hostname, failures } = purpose;
    let mut labels = settings.labels.clone();
    labels.extend([
        (MOUNTPOINT_POD_LABEL.to_owned(), "true".to_owned()),
        (MOUNTPOINT_VERSION_LABEL.to_owned(), settings.mountpoint_version.clone()),
        (DRIVER_VERSION_LABEL.to_owned(), settings.driver_version.clone()),
        (POD_UID_LABEL.to_owned(), workload_uid.to_owned()),
    ]);
    if mount.persistent_volume_name.len() <= LABEL_MAX {
        labels.insert(VOLUME_NAME.to_owned(), mount.persistent_volume_name.clone());
    }
    let recorded = serde_json::to_string(mount).map_err(|error| error.to_string())?;
    let mut spec = json!({ "restartPolicy": "OnFailure" });
    if let Some(account) = &attributes.service_account {
        put(&mut spec, "serviceAccountName", json!(account));
    } else {
        put(&mut spec, "automountServiceAccountToken", json!(false));
    }
    bind(&mut spec, &mount.node_name, hostname, settings.node_binding)?;
    let mut annotations = json!({
        DAEMONSET_POD: "true",
        VOLUME_NAME: mount.persistent_volume_name,
        VOLUME_ID: mount.volume_id,
        VOLUME_UID_ANNOTATION: volume.metadata.uid,
        MOUNT_ANNOTATION: recorded,
    });
    if failures > 0 {
        put(&mut annotations, FAILURES_ANNOTATION, json!(failures.to_string()));
    }
    Ok(json!({
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": spec,
    }))
}

fn bind(spec: &mut Value, node: &str, hostname: Option<&str>, binding: NodeBinding) -> Result<(), String> {
    let term = match binding {
        NodeBinding::Direct => {
            put(spec, "nodeName", json!(node));
            return Ok(());
        }
        NodeBinding::Affinity => {
            json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node] }] })
        }
        NodeBinding::Hostname => {
            let hostname = hostname.ok_or_else(|| {
                format!(
                    "Node {node} has no label {HOSTNAME_LABEL}: label it, or choose another --mountpoint-node-binding"
                )
            })?;
            json!({ "matchExpressions": [{ "key": HOSTNAME_LABEL, "operator": "In", "values": [hostname] }] })
        }
    };
    let required = json!({ "nodeSelectorTerms": [term] });
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } });
    put(spec, "affinity", affinity);
    Ok(())
}

/// Sets a field of an object.
fn put(object: &mut Value, field: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
}

fn pod_security(settings: &Settings) -> Value {
    let mut context = json!({ "seccompProfile": { "type": "RuntimeDefault" } });
    if !settings.platform_chooses_user {
        put(&mut context, "fsGroup", json!(USER));
    }
    context
}

/// What Pod Security `restricted` asks for, and a root file system that nobody writes.
fn restricted(settings: &Settings) -> Value {
    let mut context = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    if !settings.platform_chooses_user {
        put(&mut context, "runAsUser", json!(USER));
    }
    context
}

const CERTIFICATES: &str = "etc-ssl-certs";
const CUSTOM_CERTIFICATES: &str = "custom-ca-cert";

fn mounts(attributes: &Attributes, settings: &Settings) -> Vec<Value> {
    let mut mounts = vec![json!({ "name": COMMUNICATION_VOLUME, "mountPath": COMMUNICATION_FOLDER })];
    mounts.push(json!({ "name": "tmp", "mountPath": "/tmp" }));
    mounts.extend(attributes.cache.as_ref().map(attributes::mounted));
    if settings.certificates.is_some() {
        mounts.push(json!({ "name": CERTIFICATES, "mountPath": "/etc/ssl/certs", "readOnly": true }));
    }
    mounts
}

fn volumes(attributes: &Attributes, settings: &Settings) -> Vec<Value> {
    let communication = json!({ "medium": "Memory", "sizeLimit": "10Mi" });
    let mut volumes = vec![json!({ "name": COMMUNICATION_VOLUME, "emptyDir": communication })];
    volumes.push(json!({ "name": "tmp", "emptyDir": {} }));
    volumes.extend(attributes.cache.clone());
    if let Some(certificates) = &settings.certificates {
        volumes.push(json!({ "name": CERTIFICATES, "emptyDir": { "sizeLimit": "2Mi" } }));
        volumes.push(json!({ "name": CUSTOM_CERTIFICATES, "configMap": { "name": certificates.config_map } }));
    }
    volumes
}

/// The container that joins the certificates.
fn install(certificates: &Certificates, settings: &Settings) -> Value {
    let [cpu, memory, limit] = &certificates.resources;
    let script = "cat /etc/ssl/certs/ca-certificates.crt /custom/ca-bundle.crt > /joined/ca-certificates.crt";
    json!({
        "name": "install-ca-cert",
        "image": certificates.image,
        "imagePullPolicy": certificates.image_pull_policy,
        "command": ["/bin/sh", "-c", script],
        "securityContext": restricted(settings),
        "resources": { "requests": { "cpu": cpu, "memory": memory }, "limits": { "memory": limit } },
        "volumeMounts": [
            { "name": CERTIFICATES, "mountPath": "/joined" },
            { "name": CUSTOM_CERTIFICATES, "mountPath": "/custom", "readOnly": true },
        ],
    })
}
