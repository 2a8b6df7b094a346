//! The objects of a certification: all in a namespace of its own, but for one FenceRequest. Nothing else is ever touched.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::fence_request::FenceRequest;
use crate::api::names::{self, hex};
use crate::api::slim::Node;
use crate::error::Error as ApiError;
use crate::kubectl::error::{Error, Result};

/// Marks what is ours; its value is the name of the namespace.
const LABEL: &str = "bulkhead.dev/certification";
/// The claim in our namespace.
const CLAIM: &str = "volume";
/// Where the counter is in both pods.
const FILE: &str = "/volume/counter";

/// A pod of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Counts, on the node that is cut off.
    Writer,
    /// Says how far the counter got, on the other node.
    Reader,
}

impl Role {
    /// The pod's name.
    pub fn pod(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Reader => "reader",
        }
    }

    fn arguments(self) -> [&'static str; 3] {
        ["scratch-volume", if self == Self::Writer { "write" } else { "read" }, FILE]
    }
}

/// What the pods run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// An image of `bulkhead-controller`.
    pub image: String,
    /// Its pull policy.
    pub pull_policy: Option<String>,
}

/// What is cut off.
pub struct Target<'a> {
    /// The driver.
    pub driver: &'a str,
    /// The volume.
    pub volume: &'a PersistentVolume,
    /// Its attachment to the node.
    pub attachment: &'a VolumeAttachment,
    /// The node.
    pub node: &'a Node,
    /// The proof that is asked for.
    pub proof: crate::api::fencing::Proof,
}

/// One certification's objects.
#[derive(Clone)]
pub struct Scratch {
    reads: Client,
    writes: Client,
    name: String,
}

impl Scratch {
    /// A name that nothing else has.
    pub fn new(reads: Client, writes: Client) -> Result<Self> {
        let mut random = [0_u8; 5];
        getrandom::fill(&mut random).map_err(|error| Error::Refused(format!("no random name: {error}")))?;
        Ok(Self { reads, writes, name: format!("bulkhead-certify-{}", hex(&random, 5)) })
    }

    /// Name of the namespace, and of the FenceRequest.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pods of ours.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.reads.clone(), &self.name)
    }

    fn labels(&self) -> Value {
        json!({ LABEL: self.name })
    }

    /// Creates the namespace.
    pub async fn create_namespace(&self) -> Result<Namespace> {
        let mut labels = self.labels();
        // The writer is root: a fresh volume often belongs to root.
        if let Some(labels) = labels.as_object_mut() {
            labels.insert("pod-security.kubernetes.io/enforce".into(), json!("baseline"));
        }
        let intent = json!({ "metadata": { "name": self.name, "labels": labels } });
        create(Api::all(self.writes.clone()), intent, "namespaces").await
    }

    /// Creates the claim.
    pub async fn create_claim(&self, class: &str, size: &str) -> Result<PersistentVolumeClaim> {
        let intent = json!({
            "metadata": { "name": CLAIM, "labels": self.labels() },
            "spec": {
                "storageClassName": class,
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": size } },
            },
        });
        create(Api::namespaced(self.writes.clone(), &self.name), intent, "persistentvolumeclaims").await
    }

    /// Creates a pod on a node.
    pub async fn create_pod(&self, role: Role, node: &str, program: &Program) -> Result<Pod> {
        let here = json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node] }] });
        let mut container = json!({
            "name": role.pod(),
            "image": program.image,
            "args": role.arguments(),
            "volumeMounts": [{ "name": "volume", "mountPath": "/volume" }],
            "resources": { "requests": { "cpu": "10m", "memory": "16Mi" }, "limits": { "memory": "64Mi" } },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            },
        });
        if let (Some(policy), Some(container)) = (&program.pull_policy, container.as_object_mut()) {
            container.insert("imagePullPolicy".into(), json!(policy));
        }
        let intent = json!({
            "metadata": { "name": role.pod(), "labels": self.labels() },
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                // It counts until it is killed.
                "terminationGracePeriodSeconds": 1,
                "securityContext": { "runAsUser": 0, "seccompProfile": { "type": "RuntimeDefault" } },
                "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [here],
                } } },
                "containers": [container],
                "volumes": [{ "name": "volume", "persistentVolumeClaim": { "claimName": CLAIM } }],
            },
        });
        create(Api::namespaced(self.writes.clone(), &self.name), intent, "pods").await
    }

    /// Asks the driver's sidecar to cut the node off, as the controller would. The request names no real node, so that no
    /// incident of the node takes it for its own; whom the sidecar cuts off is the CSI node id of the row.
    pub async fn create_request(&self, owner: &Namespace, target: &Target<'_>) -> Result<FenceRequest> {
        let Target { driver, volume, attachment, node, proof } = target;
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let annotation = attachment.annotations().get(names::ATTACHED_NODE_ID_ANNOTATION);
        let row = json!({
            "episode": 1,
            "name": volume.name_any(),
            "round": 1,
            "uid": volume.uid(),
            "volumeHandle": csi.map(|csi| &csi.volume_handle),
            "nodeID": annotation,
            "attachmentUID": attachment.uid(),
            "minimumProof": proof,
            "methods": [{ "type": "Unpublish" }],
        });
        let intent = json!({
            "apiVersion": FenceRequest::api_version(&()),
            "kind": FenceRequest::kind(&()),
            // Goes with the namespace, whatever becomes of us.
            "metadata": { "name": self.name, "labels": self.labels(), "ownerReferences": [{
                "apiVersion": "v1", "kind": "Namespace", "name": self.name, "uid": owner.uid(),
            }] },
            "spec": {
                "fencerName": driver,
                "nodeName": self.name,
                "episode": 1,
                "node": { "uid": node.uid(), "bootID": node.status.node_info.boot_id },
                "desired": "Fenced",
                "callTimeout": "30s",
                "volumes": [row],
            },
        });
        create(Api::all(self.writes.clone()), intent, "fencerequests.bulkhead.dev").await
    }

    /// Asks again: the sidecar reads once more.
    pub async fn ask_again(&self) -> Result<()> {
        let api: Api<FenceRequest> = Api::all(self.writes.clone());
        let raise = json!([{ "op": "replace", "path": "/spec/volumes/0/round", "value": 2 }]);
        let patch: json_patch::Patch =
            serde_json::from_value(raise).map_err(|error| Error::Unwritable(error.to_string()))?;
        let patched = api.patch(&self.name, &PatchParams::default(), &Patch::Json::<()>(patch)).await;
        patched.map(drop).map_err(Error::of_write("patch", "fencerequests.bulkhead.dev"))
    }

    /// The FenceRequest as it is.
    pub async fn request(&self) -> Result<Option<FenceRequest>> {
        Ok(Api::<FenceRequest>::all(self.reads.clone()).get_opt(&self.name).await?)
    }

    /// The claim as it is.
    pub async fn claim(&self) -> Result<PersistentVolumeClaim> {
        Ok(Api::namespaced(self.reads.clone(), &self.name).get(CLAIM).await?)
    }

    /// The volume of our claim, and its attachments.
    pub async fn volume(&self) -> Result<Option<(PersistentVolume, Vec<VolumeAttachment>)>> {
        let Some(name) = self.claim().await?.spec.and_then(|spec| spec.volume_name) else { return Ok(None) };
        let Some(volume) = Api::<PersistentVolume>::all(self.reads.clone()).get_opt(&name).await? else {
            return Ok(None);
        };
        let attachments = self.attachments(&[name]).await?;
        Ok(self.is_ours(&volume).then_some((volume, attachments)))
    }

    fn is_ours(&self, volume: &PersistentVolume) -> bool {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        claim.is_some_and(|claim| claim.namespace.as_deref() == Some(&self.name))
    }

    async fn attachments(&self, volumes: &[String]) -> Result<Vec<VolumeAttachment>> {
        let all = Api::<VolumeAttachment>::all(self.reads.clone()).list(&ListParams::default()).await?;
        let of_ours = |it: &VolumeAttachment| {
            it.spec.source.persistent_volume_name.as_ref().is_some_and(|name| volumes.contains(name))
        };
        Ok(all.items.into_iter().filter(of_ours).collect())
    }

    /// Deletes a pod.
    pub async fn delete_pod(&self, role: Role) -> Result<()> {
        let api: Api<Pod> = Api::namespaced(self.writes.clone(), &self.name);
        let deleted = api.delete(role.pod(), &DeleteParams::default()).await;
        deleted.map(drop).map_err(Error::of_write("delete", "pods"))
    }

    /// Deletes everything of ours, in whatever state it is. To be repeated until [`Scratch::left`] finds nothing.
    pub async fn delete(&self) -> Result<()> {
        self.reclaim().await?;
        self.delete_own::<FenceRequest>("fencerequests.bulkhead.dev").await?;
        self.delete_own::<Namespace>("namespaces").await
    }

    /// Of a StorageClass that retains its volumes: this one is not worth it. One that was there before the claim is somebody
    /// else's, and is left as it is.
    async fn reclaim(&self) -> Result<()> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.reads.clone(), &self.name);
        let Some(claim) = claims.get_opt(CLAIM).await? else { return Ok(()) };
        for volume in self.volumes().await? {
            if volume.creation_timestamp() < claim.creation_timestamp() {
                continue;
            }
            let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
            if policy == Some("Delete") {
                continue;
            }
            let api: Api<PersistentVolume> = Api::all(self.writes.clone());
            let intent = json!({
                "metadata": { "uid": volume.uid() }, "spec": { "persistentVolumeReclaimPolicy": "Delete" },
            });
            let patched = api.patch(&volume.name_any(), &PatchParams::default(), &Patch::Merge(&intent)).await;
            patched.map_err(Error::of_write("patch", "persistentvolumes"))?;
        }
        Ok(())
    }

    async fn volumes(&self) -> Result<Vec<PersistentVolume>> {
        let all = Api::<PersistentVolume>::all(self.reads.clone()).list(&ListParams::default()).await?;
        Ok(all.items.into_iter().filter(|volume| self.is_ours(volume)).collect())
    }

    /// Deletes the object of our name if it is ours: by label and uid.
    async fn delete_own<K>(&self, resource: &'static str) -> Result<()>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.writes.clone());
        let Some(object) = api.get_opt(&self.name).await? else { return Ok(()) };
        if object.labels().get(LABEL) != Some(&self.name) || object.meta().deletion_timestamp.is_some() {
            return Ok(());
        }
        let mut only = DeleteParams::background();
        only.preconditions = Some(Preconditions { uid: object.uid(), resource_version: None });
        match api.delete(&self.name, &only).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(Error::of_write("delete", resource)(error)),
        }
    }

    /// What is still there of ours, by kind and name.
    pub async fn left(&self) -> Result<Vec<String>> {
        let mut left = BTreeMap::new();
        if self.request().await?.is_some() {
            left.insert("FenceRequest".to_owned(), vec![self.name.clone()]);
        }
        if Api::<Namespace>::all(self.reads.clone()).get_opt(&self.name).await?.is_some() {
            left.insert("Namespace".to_owned(), vec![self.name.clone()]);
        }
        let volumes: Vec<_> = self.volumes().await?.iter().map(ResourceExt::name_any).collect();
        left.insert("PersistentVolume".to_owned(), volumes.clone());
        let attachments = self.attachments(&volumes).await?;
        left.insert("VolumeAttachment".to_owned(), attachments.iter().map(ResourceExt::name_any).collect());
        Ok(left.into_iter().flat_map(|(kind, names)| names.into_iter().map(move |it| format!("{kind} {it}"))).collect())
    }
}

async fn create<K>(api: Api<K>, intent: Value, resource: &'static str) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object: K =
        serde_json::from_value(intent).map_err(|error| ApiError::Invalid(format!("{resource}: {error}")))?;
    api.create(&PostParams::default(), &object).await.map_err(Error::of_write("create", resource))
}
