//! A pod's volumes on its node: which they are, reporting them in use, mounting and unmounting them on the array.

use std::sync::Arc;

use bulkhead::csi::client;
use bulkhead::csi::v1::node_client::NodeClient;
use bulkhead::csi::v1::*;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{Api, ResourceExt};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::kubelet::Kubelet;
use crate::array::{Array, NODE_KEY};

/// A volume of a pod on one of our arrays.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub array: Arc<Array>,
    pub handle: String,
    /// As attach/detach and kubelet call it.
    pub unique_name: String,
    pub writable: bool,
    pub attach_required: bool,
}

/// The volumes of a pod, or `None` while a claim is not bound.
pub(super) async fn of_pod(kubelet: &Kubelet, pod: &Pod) -> kube::Result<Option<Vec<Volume>>> {
    let mut volumes = Vec::new();
    for (claim, read_only) in claims(pod) {
        let Some(bound) = bound_volume(kubelet, pod, &claim).await? else {
            return Ok(None);
        };
        let Some(spec) = bound.spec else { continue };
        let Some(csi) = spec.csi else { continue };
        let Some(array) = kubelet.world.array(&csi.driver) else {
            continue;
        };
        let modes = spec.access_modes.unwrap_or_default();
        volumes.push(Volume {
            array,
            unique_name: format!("kubernetes.io/csi/{}^{}", csi.driver, csi.volume_handle),
            writable: !read_only && modes.iter().any(|mode| mode != "ReadOnlyMany"),
            attach_required: attach_required(kubelet, &csi.driver).await?,
            handle: csi.volume_handle,
        });
    }
    Ok(Some(volumes))
}

/// The claims a pod names, and whether it mounts them read-only.
fn claims(pod: &Pod) -> Vec<(String, bool)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let claims = volumes.filter_map(|volume| {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some((claim.claim_name.clone(), claim.read_only == Some(true)));
        }
        volume.ephemeral.as_ref()?;
        Some((format!("{}-{}", pod.name_any(), volume.name), false))
    });
    claims.collect()
}

async fn bound_volume(kubelet: &Kubelet, pod: &Pod, claim: &str) -> kube::Result<Option<PersistentVolume>> {
    let client = &kubelet.world.client;
    let namespace = pod.namespace().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    let Some(claim) = kubelet.ask(|| claims.get_opt(claim)).await? else {
        return Ok(None);
    };
    let phase = claim.status.and_then(|status| status.phase);
    let name = claim.spec.and_then(|spec| spec.volume_name);
    match (phase.as_deref(), name) {
        (Some("Bound"), Some(name)) => {
            let volumes: Api<PersistentVolume> = Api::all(client.clone());
            kubelet.ask(|| volumes.get_opt(&name)).await
        }
        _ => Ok(None),
    }
}

async fn attach_required(kubelet: &Kubelet, driver: &str) -> kube::Result<bool> {
    let drivers: Api<CSIDriver> = Api::all(kubelet.world.client.clone());
    let driver = kubelet.ask(|| drivers.get_opt(driver)).await?;
    Ok(driver.is_none_or(|driver| driver.spec.attach_required != Some(false)))
}

impl Volume {
    /// Stages the volume on the node and publishes it to the pod.
    pub async fn mount(&self, kubelet: &Kubelet, pod_uid: &str) -> Result<(), Status> {
        let mut plugin = self.plugin()?;
        let stage = NodeStageVolumeRequest {
            volume_id: self.handle.clone(),
            staging_target_path: self.staging_path(),
            ..Default::default()
        };
        plugin.node_stage_volume(kubelet.as_node(stage)?).await?;
        let publish = NodePublishVolumeRequest {
            volume_id: self.handle.clone(),
            staging_target_path: self.staging_path(),
            target_path: self.target_path(pod_uid),
            ..Default::default()
        };
        plugin.node_publish_volume(kubelet.as_node(publish)?).await?;
        Ok(())
    }

    /// Unpublishes the volume from the pod and unstages it, unless another pod of the node has it.
    pub async fn unmount(&self, kubelet: &Kubelet, pod_uid: &str) -> Result<(), Status> {
        let mut plugin = self.plugin()?;
        let unpublish =
            NodeUnpublishVolumeRequest { volume_id: self.handle.clone(), target_path: self.target_path(pod_uid) };
        plugin.node_unpublish_volume(kubelet.as_node(unpublish)?).await?;
        let unstage =
            NodeUnstageVolumeRequest { volume_id: self.handle.clone(), staging_target_path: self.staging_path() };
        match plugin.node_unstage_volume(kubelet.as_node(unstage)?).await {
            Err(status) if status.code() != Code::FailedPrecondition => Err(status),
            // Another pod has it.
            _ => Ok(()),
        }
    }

    fn plugin(&self) -> Result<NodeClient<Channel>, Status> {
        let address = self.array.node_socket().to_string_lossy();
        let channel = client::connect(&address).map_err(|error| Status::invalid_argument(error.to_string()))?;
        Ok(NodeClient::new(channel))
    }

    fn staging_path(&self) -> String {
        format!("/stage/{}", self.handle)
    }

    fn target_path(&self, pod_uid: &str) -> String {
        format!("/pods/{pod_uid}/{}", self.handle)
    }
}

impl Kubelet {
    /// A request to this node's CSI plugin.
    fn as_node<T>(&self, message: T) -> Result<Request<T>, Status> {
        let mut request = Request::new(message);
        let id = self.csi_node_id.parse();
        let id = id.map_err(|_| Status::invalid_argument("the CSI node id is not ASCII"))?;
        request.metadata_mut().insert(NODE_KEY, id);
        Ok(request)
    }
}
