//! The Node service, for all nodes at once: the metadata key [`NODE_KEY`] says which node's plugin is called.

use std::sync::Arc;

use bulkhead::csi::v1::node_server::Node;
use bulkhead::csi::v1::node_service_capability::{Rpc, Type, rpc};
use bulkhead::csi::v1::*;
use tonic::{Request, Response, Status};

use super::calls::Method;
use super::controller_service::required;
use super::driver::{About, Driver};
use super::health;

/// The gRPC metadata key with the CSI node id of the node whose plugin is meant.
pub const NODE_KEY: &str = "bulkhead-csi-node-id";

pub(super) struct NodeService(pub Arc<Driver>);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_get_info(&self, request: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        let node = node_of(&request)?;
        self.0
            .call(About::new(Method::NodeGetInfo, "", &node), move |state, _| {
                state.link(&node)?;
                Ok(NodeGetInfoResponse { node_id: node, ..NodeGetInfoResponse::default() })
            })
            .await
    }

    async fn node_get_capabilities(
        &self,
        request: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        let node = node_of(&request)?;
        let about = About::new(Method::NodeGetCapabilities, "", &node);
        let tells_health = self.tells_health();
        self.0
            .call(about, move |_, _| {
                let mut has = vec![rpc::Type::StageUnstageVolume];
                if tells_health {
                    has.push(rpc::Type::GetVolumeHealth);
                }
                let capabilities = has
                    .into_iter()
                    .map(|kind| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) });
                Ok(NodeGetCapabilitiesResponse { capabilities: capabilities.collect() })
            })
            .await
    }

    async fn node_stage_volume(&self, request: Request<NodeStageVolumeRequest>) -> Answer<NodeStageVolumeResponse> {
        let node = node_of(&request)?;
        let request = request.into_inner();
        required("volume_id", &request.volume_id)?;
        required("staging_target_path", &request.staging_target_path)?;
        let about = About::new(Method::NodeStageVolume, &request.volume_id, &node);
        self.0
            .call(about, move |state, _| {
                state.stage(&request.volume_id, &node)?;
                Ok(NodeStageVolumeResponse {})
            })
            .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        let node = node_of(&request)?;
        let request = request.into_inner();
        required("volume_id", &request.volume_id)?;
        required("staging_target_path", &request.staging_target_path)?;
        let about = About::new(Method::NodeUnstageVolume, &request.volume_id, &node);
        self.0
            .call(about, move |state, _| {
                state.unstage(&request.volume_id, &node)?;
                Ok(NodeUnstageVolumeResponse {})
            })
            .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        let node = node_of(&request)?;
        let request = request.into_inner();
        required("volume_id", &request.volume_id)?;
        required("target_path", &request.target_path)?;
        let about = About::new(Method::NodePublishVolume, &request.volume_id, &node);
        self.0
            .call(about, move |state, _| {
                state.publish_to_pod(&request.volume_id, &node, &request.target_path)?;
                Ok(NodePublishVolumeResponse {})
            })
            .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let node = node_of(&request)?;
        let request = request.into_inner();
        required("volume_id", &request.volume_id)?;
        required("target_path", &request.target_path)?;
        let about = About::new(Method::NodeUnpublishVolume, &request.volume_id, &node);
        self.0
            .call(about, move |state, _| {
                state.unpublish_from_pod(&request.volume_id, &node, &request.target_path)?;
                Ok(NodeUnpublishVolumeResponse {})
            })
            .await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Answer<NodeGetVolumeHealthResponse> {
        let node = node_of(&request)?;
        let volume = request.into_inner().volume_id;
        let tells_health = self.tells_health();
        let about = About::new(Method::NodeGetVolumeHealth, &volume, &node);
        self.0
            .call(about, move |state, _| {
                if !tells_health {
                    return Err(Status::unimplemented("this driver does not tell the health of volumes"));
                }
                required("volume_id", &volume)?;
                state.volume(&volume)?;
                let health = health::health(&volume, state.health.on_node(&volume, &node));
                Ok(NodeGetVolumeHealthResponse { volume_health: Some(health) })
            })
            .await
    }
}

impl NodeService {
    fn tells_health(&self) -> bool {
        self.0.options.gets_health || self.0.options.lists_health
    }
}

fn node_of<T>(request: &Request<T>) -> Result<String, Status> {
    let value = request.metadata().get(NODE_KEY);
    let node = value.and_then(|value| value.to_str().ok());
    node.map(str::to_owned).ok_or_else(|| Status::invalid_argument(format!("metadata {NODE_KEY} is missing")))
}
