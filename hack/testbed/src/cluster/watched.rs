//! What tests and the demo of volume health make, on real and on simulated nodes alike: a class of volumes with the policy
//! that rules them, claims, and plain pods that write to one.

use std::time::Duration;

use bulkhead::api::volume_health::VolumeHealth;
use bulkhead::api::volume_health_policy::VolumeHealthPolicy;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{ClusterError, merge, wait};

/// The namespace of all claims and pods here.
const NAMESPACE: &str = "default";

/// A StorageClass, and the VolumeHealthPolicy of the same name that enforces the taints of its volumes and looks at them as
/// often as it may.
#[derive(Clone, Debug)]
pub struct WatchedClass<'a> {
    /// Its name, and the policy's.
    pub name: &'a str,
    /// Who makes its volumes; `None`: people do.
    pub provisioner: Option<&'a str>,
    /// Merged into the policy's spec.
    pub spec: Value,
}

/// A claim.
#[derive(Clone, Debug)]
pub struct WatchedClaim<'a> {
    /// Its name.
    pub name: &'a str,
    /// The StorageClass.
    pub class: &'a str,
    /// Such as `16Mi`.
    pub size: &'a str,
    /// The volume that it wants, if any is not enough.
    pub volume: Option<&'a str>,
    /// The access mode.
    pub access: &'a str,
}

impl WatchedClass<'_> {
    /// Creates both.
    ///
    /// # Errors
    /// When the API server refuses one of them.
    pub async fn create(&self, client: &Client) -> Result<(), ClusterError> {
        // A local volume is chosen with its pod: only then is the node known.
        let binding = if self.provisioner.is_some() { "Immediate" } else { "WaitForFirstConsumer" };
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": {"name": self.name},
            "provisioner": self.provisioner.unwrap_or("kubernetes.io/no-provisioner"),
            "volumeBindingMode": binding,
        }))?;
        let mut spec = json!({
            "priority": 10,
            "selector": {"storageClasses": [self.name]},
            "enforcement": "Enforce",
            "interval": "5s",
            "thresholds": {"failure": 2, "success": 1, "unreachableAfter": "10s"},
        });
        merge(&mut spec, &self.spec);
        let policy = VolumeHealthPolicy::new(self.name, serde_json::from_value(spec)?);
        Api::all(client.clone()).create(&PostParams::default(), &class).await?;
        Api::all(client.clone()).create(&PostParams::default(), &policy).await?;
        Ok(())
    }
}

impl WatchedClaim<'_> {
    /// Creates it.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn create(&self, client: &Client) -> Result<(), ClusterError> {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": self.name},
            "spec": {
                "storageClassName": self.class,
                "volumeName": self.volume,
                "accessModes": [self.access],
                "resources": {"requests": {"storage": self.size}},
            },
        }))?;
        Api::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &claim).await?;
        Ok(())
    }
}

/// Creates a pod that writes to a claim for ever, on this node if one is named. Several may write to one volume: each has a
/// journal of its own.
///
/// # Errors
/// When the API server refuses it.
pub async fn create_writer(client: &Client, name: &str, claim: &str, node: Option<&str>) -> Result<(), ClusterError> {
    let selector = node.map(|node| json!({"kubernetes.io/hostname": node}));
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": selector,
            "containers": [{
                "name": "writer",
                "image": "testbed-writer:latest",
                "imagePullPolicy": "Never",
                "args": [format!("--journal=/data/{name}"), "--every=100ms"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }))?;
    Api::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &pod).await?;
    Ok(())
}

/// Waits until the VolumeHealth of a volume is as `holds` wants it.
///
/// # Errors
/// When it is not in time; the error has the VolumeHealth.
pub async fn health(
    client: &Client,
    volume: &str,
    what: &str,
    limit: Duration,
    holds: impl Fn(&VolumeHealth) -> bool,
) -> Result<VolumeHealth, ClusterError> {
    object(&Api::all(client.clone()), volume, what, limit, holds).await
}

/// Waits until a pod is as `holds` wants it.
///
/// # Errors
/// When it is not in time; the error has the pod.
pub async fn pod(
    client: &Client,
    name: &str,
    what: &str,
    limit: Duration,
    holds: impl Fn(&Pod) -> bool,
) -> Result<Pod, ClusterError> {
    object(&Api::namespaced(client.clone(), NAMESPACE), name, what, limit, holds).await
}

async fn object<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    limit: Duration,
    holds: impl Fn(&K) -> bool,
) -> Result<K, ClusterError>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    wait::until(&format!("{name}: {what}"), limit, async || {
        let object = api.get_opt(name).await?;
        Ok(match object {
            Some(object) if holds(&object) => Ok(object),
            other => Err(wait::described(other)?),
        })
    })
    .await
}
