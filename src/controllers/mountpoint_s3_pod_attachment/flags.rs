//! Flags of the S3 part of the controller, under upstream's names where upstream has them.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde_json::Value;

use crate::api::s3::DRIVER;
use crate::api::time::Duration;

use super::Config;
use super::decide::Patience;
use super::mountpoint_pod::{Certificates, NodeBinding, Settings};

/// Flags; each is an environment variable too. Without an image for Mountpoint Pods there are no S3 mounts, and nothing of
/// them is watched.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "S3 mounts")]
pub struct S3Flags {
    /// Image of Mountpoint Pods. Without it S3 volumes are not served.
    #[arg(long, env = "MOUNTPOINT_IMAGE", default_value = "")]
    mountpoint_image: String,
    /// Namespace of Mountpoint Pods.
    #[arg(long, env = "MOUNTPOINT_NAMESPACE", default_value = crate::api::s3::MOUNTPOINT_NAMESPACE)]
    pub mountpoint_namespace: String,
    /// When the image is pulled.
    #[arg(long, env = "MOUNTPOINT_IMAGE_PULL_POLICY", default_value = "IfNotPresent")]
    mountpoint_image_pull_policy: String,
    /// Version of mount-s3 in the image, as a label.
    #[arg(long, env = "MOUNTPOINT_VERSION", default_value = "")]
    mountpoint_version: String,
    /// PriorityClass of Mountpoint Pods.
    #[arg(long, env = "MOUNTPOINT_PRIORITY_CLASS_NAME", default_value = "mount-s3-critical")]
    mountpoint_priority_class_name: String,
    /// The mounter in the image.
    #[arg(long, env = "MOUNTPOINT_CONTAINER_COMMAND", default_value = "/bin/scality-s3-csi-mounter")]
    mountpoint_container_command: String,
    /// Labels of Mountpoint Pods, as a JSON object.
    #[arg(long, env = "MOUNTPOINT_POD_LABELS", default_value = "")]
    mountpoint_pod_labels: String,
    /// Resources of Mountpoint Pods whose volume says nothing, as JSON; {} for none. A ResourceQuota asks for them.
    #[arg(
        long,
        env = "MOUNTPOINT_RESOURCES",
        default_value = r#"{"requests":{"cpu":"10m","memory":"64Mi"},"limits":{"memory":"2Gi"}}"#
    )]
    mountpoint_resources: String,
    /// What else is to be in Mountpoint Pods: a JSON merge patch of metadata and spec, without containers and volumes.
    #[arg(long, env = "MOUNTPOINT_POD_TEMPLATE", default_value = "")]
    mountpoint_pod_template: String,
    /// How Mountpoint Pods are bound to their node.
    #[arg(long, env = "MOUNTPOINT_NODE_BINDING", value_enum, default_value_t)]
    mountpoint_node_binding: NodeBinding,
    /// The platform chooses user and group of Mountpoint Pods, as OpenShift does.
    #[arg(long, env = "MOUNTPOINT_PLATFORM_CHOOSES_USER")]
    mountpoint_platform_chooses_user: bool,
    /// Version under which Mountpoint Pods are made: workloads are never assigned to those of another.
    #[arg(long, env = "MOUNTED_BY_CSI_DRIVER_VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    mounted_by_csi_driver_version: String,
    /// ConfigMap with the key ca-bundle.crt, in the namespace of Mountpoint Pods: certificates of the S3 server.
    #[arg(long, env = "TLS_CA_CERT_CONFIGMAP", default_value = "")]
    tls_ca_cert_configmap: String,
    /// Image of the container that joins them with those of the system.
    #[arg(long, env = "TLS_INIT_IMAGE", default_value = "alpine:3.21")]
    tls_init_image: String,
    /// When it is pulled.
    #[arg(long, env = "TLS_INIT_IMAGE_PULL_POLICY", default_value = "IfNotPresent")]
    tls_init_image_pull_policy: String,
    /// CPU that it asks for.
    #[arg(long, env = "TLS_INIT_RESOURCES_REQUESTS_CPU", default_value = "10m")]
    tls_init_resources_req_cpu: String,
    /// Memory that it asks for.
    #[arg(long, env = "TLS_INIT_RESOURCES_REQUESTS_MEMORY", default_value = "16Mi")]
    tls_init_resources_req_memory: String,
    /// Memory that it may have.
    #[arg(long, env = "TLS_INIT_RESOURCES_LIMITS_MEMORY", default_value = "64Mi")]
    tls_init_resources_lim_memory: String,
    /// How often all S3 mounts are looked at though nothing changed.
    #[arg(long, env = "BULKHEAD_S3_SWEEP_INTERVAL", default_value = "2m")]
    s3_sweep_interval: Duration,
    /// How old an attachment must be to be removed when its workload is not there and was not seen to go.
    #[arg(long, env = "BULKHEAD_S3_STALE_AFTER", default_value = "2m")]
    s3_stale_after: Duration,
    /// How old a Mountpoint Pod must be to be unmounted when no attachment names it.
    #[arg(long, env = "BULKHEAD_S3_ORPHAN_AFTER", default_value = "1m")]
    s3_orphan_after: Duration,
}

impl S3Flags {
    /// How the controller works; `None` if it is not to. The error says which flag to correct.
    pub fn config(&self) -> Result<Option<Config>, String> {
        if self.mountpoint_image.is_empty() {
            return Ok(None);
        }
        let patience = Patience { stale_after: self.s3_stale_after.get(), orphan_after: self.s3_orphan_after.get() };
        let sweep = self.s3_sweep_interval.get().max(std::time::Duration::from_secs(1));
        Ok(Some(Config { pods: self.settings()?, patience, sweep }))
    }

    fn settings(&self) -> Result<Settings, String> {
        Ok(Settings {
            namespace: self.mountpoint_namespace.clone(),
            image: self.mountpoint_image.clone(),
            image_pull_policy: self.mountpoint_image_pull_policy.clone(),
            command: self.mountpoint_container_command.clone(),
            mountpoint_version: label_value(&self.mountpoint_version),
            driver_version: label_value(&self.mounted_by_csi_driver_version),
            priority_class: self.mountpoint_priority_class_name.clone(),
            labels: labels(&self.mountpoint_pod_labels)?,
            resources: object("mountpoint-resources", &self.mountpoint_resources)?,
            certificates: self.certificates(),
            node_binding: self.mountpoint_node_binding,
            platform_chooses_user: self.mountpoint_platform_chooses_user,
            template: template(&self.mountpoint_pod_template)?,
        })
    }

    fn certificates(&self) -> Option<Certificates> {
        let resources = [
            &self.tls_init_resources_req_cpu,
            &self.tls_init_resources_req_memory,
            &self.tls_init_resources_lim_memory,
        ];
        (!self.tls_ca_cert_configmap.is_empty()).then(|| Certificates {
            config_map: self.tls_ca_cert_configmap.clone(),
            image: self.tls_init_image.clone(),
            image_pull_policy: self.tls_init_image_pull_policy.clone(),
            resources: resources.map(Clone::clone),
        })
    }
}

impl ValueEnum for NodeBinding {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Affinity, Self::Hostname, Self::Direct]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        let (name, help) = match self {
            Self::Affinity => ("affinity", "required affinity to its name, as upstream"),
            Self::Hostname => ("hostname", "required affinity to its label kubernetes.io/hostname"),
            Self::Direct => ("direct", "spec.nodeName, past the scheduler"),
        };
        Some(clap::builder::PossibleValue::new(name).help(help))
    }
}

/// A build version may have characters that a label may not, such as +.
fn label_value(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let text: String = text.chars().map(|c| if allowed(c) { c } else { '_' }).take(63).collect();
    text.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// A JSON object; nothing for an empty text.
fn object(flag: &str, text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) if fields.is_empty() => Ok(Value::Null),
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(format!("--{flag} is no JSON object")),
        Err(error) => Err(format!("--{flag} is no JSON: {error}")),
    }
}

/// Labels of the driver are not people's to set.
fn labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    let labels = object("mountpoint-pod-labels", text)?;
    let Value::Object(labels) = labels else { return Ok(BTreeMap::new()) };
    let mut read = BTreeMap::new();
    for (key, value) in labels {
        let Value::String(value) = value else { return Err(format!("--mountpoint-pod-labels: {key} is no text")) };
        if key.starts_with(DRIVER) || key.starts_with("bulkhead.dev/") {
            return Err(format!("--mountpoint-pod-labels: {key} is set by the controller itself; remove it"));
        }
        read.insert(key, value);
    }
    Ok(read)
}

/// A merge patch replaces whole lists: a container that is not the mounter would serve nobody.
fn template(text: &str) -> Result<Value, String> {
    const FIXED: [&str; 5] = ["containers", "initContainers", "ephemeralContainers", "volumes", "restartPolicy"];
    let template = object("mountpoint-pod-template", text)?;
    let fields = template.as_object().into_iter().flatten();
    if let Some((field, _)) = fields.into_iter().find(|(field, _)| !matches!(field.as_str(), "metadata" | "spec")) {
        return Err(format!("--mountpoint-pod-template: {field}: only metadata and spec can be given"));
    }
    if let Some(field) = FIXED.iter().find(|field| template.pointer(&format!("/spec/{field}")).is_some()) {
        return Err(format!("--mountpoint-pod-template: spec.{field} is set by the controller itself; remove it"));
    }
    Ok(template)
}
