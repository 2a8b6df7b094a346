//! The Kubernetes objects of the array's volumes, without an external-provisioner: CSIDriver, and per volume a
//! PersistentVolume and a claim that are made for each other.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::Array;
use crate::ledger::Access;

/// Where a PersistentVolume finds its controller-publish secret.
#[derive(Clone, Debug)]
pub struct SecretRef {
    /// The secret's namespace.
    pub namespace: String,
    /// The secret's name.
    pub name: String,
}

/// A volume as a workload wants it.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub name: String,
    /// ReadWriteOnce, ReadWriteMany or ReadOnlyMany.
    pub access: Access,
    /// `ReadWriteOncePod` in place of `ReadWriteOnce`.
    pub one_pod: bool,
    /// A raw block volume.
    pub block: bool,
    /// The controller-publish secret.
    pub secret: Option<SecretRef>,
}

impl Claim {
    /// A single-writer file system without a secret.
    pub fn new(namespace: &str, name: &str) -> Self {
        Claim {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            access: Access::SingleWriter,
            one_pod: false,
            block: false,
            secret: None,
        }
    }

    /// The name of its PersistentVolume.
    pub fn volume_name(&self) -> String {
        format!("pv-{}-{}", self.namespace, self.name)
    }

    fn access_mode(&self) -> &'static str {
        match self.access {
            Access::SingleWriter if self.one_pod => "ReadWriteOncePod",
            Access::SingleWriter => "ReadWriteOnce",
            Access::MultiWriter => "ReadWriteMany",
            Access::ReadOnly => "ReadOnlyMany",
        }
    }
}

/// Why a claim could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The array refused the volume.
    #[error("the array refused the volume: {0}")]
    Array(#[from] tonic::Status),
    /// The API server refused an object.
    #[error("the API server refused an object of the volume: {0}")]
    Api(#[from] kube::Error),
    /// An object could not be put together.
    #[error("an object of the volume is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
}

const BYTES: i64 = 1 << 30;

impl Array {
    /// Creates the CSIDriver object, with `attachRequired` as the array's options have it.
    ///
    /// # Errors
    ///
    /// [`ClaimError::Api`] also if it exists already.
    pub async fn install(&self, client: &Client) -> Result<(), ClaimError> {
        let driver: CSIDriver = serde_json::from_value(json!({
            "metadata": { "name": self.driver_name() },
            "spec": { "attachRequired": self.driver.options.attaches, "podInfoOnMount": false },
        }))?;
        Api::all(client.clone()).create(&PostParams::default(), &driver).await?;
        Ok(())
    }

    /// Creates the volume on the array, its PersistentVolume and its claim, and returns the volume handle. The
    /// controller-manager then binds them.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`].
    pub async fn claim(&self, client: &Client, claim: &Claim) -> Result<String, ClaimError> {
        let handle = self.create_volume(&claim.volume_name(), claim.access, BYTES)?;
        let volume: PersistentVolume = serde_json::from_value(self.volume_object(claim, &handle))?;
        Api::all(client.clone()).create(&PostParams::default(), &volume).await?;
        let object: PersistentVolumeClaim = serde_json::from_value(claim_object(claim))?;
        Api::namespaced(client.clone(), &claim.namespace).create(&PostParams::default(), &object).await?;
        Ok(handle)
    }

    fn volume_object(&self, claim: &Claim, handle: &str) -> Value {
        let secret = claim.secret.as_ref().map(|secret| json!({ "namespace": secret.namespace, "name": secret.name }));
        let attributes = self.driver.options.cluster_id.as_ref().map(|cluster_id| json!({ "clusterID": cluster_id }));
        json!({
            "metadata": { "name": claim.volume_name() },
            "spec": {
                "capacity": { "storage": BYTES.to_string() },
                "accessModes": [claim.access_mode()],
                "volumeMode": volume_mode(claim),
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": claim.namespace,
                    "name": claim.name,
                },
                "csi": {
                    "driver": self.driver_name(),
                    "volumeHandle": handle,
                    "controllerPublishSecretRef": secret,
                    "volumeAttributes": attributes,
                },
            },
        })
    }
}

fn claim_object(claim: &Claim) -> Value {
    json!({
        "metadata": { "namespace": claim.namespace, "name": claim.name },
        "spec": {
            "accessModes": [claim.access_mode()],
            "volumeMode": volume_mode(claim),
            "storageClassName": "",
            "volumeName": claim.volume_name(),
            "resources": { "requests": { "storage": BYTES.to_string() } },
        },
    })
}

fn volume_mode(claim: &Claim) -> &'static str {
    if claim.block { "Block" } else { "Filesystem" }
}
