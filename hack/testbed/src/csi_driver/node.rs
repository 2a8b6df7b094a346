//! The node's mode: the Identity and Node services on a socket, and the registration with the kubelet.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bulkhead::csi::plugin::{KubeletRegistration, PluginIdentity};
use bulkhead::csi::plugin_registration::registration_server::RegistrationServer;
use bulkhead::csi::server;
use bulkhead::csi::v1::identity_server::IdentityServer;
use bulkhead::csi::v1::node_server::{Node, NodeServer};
use bulkhead::csi::v1::node_service_capability::{Rpc, Type, rpc};
use bulkhead::csi::v1::volume_capability::AccessType;
use bulkhead::csi::v1::volume_capability::access_mode::Mode;
use bulkhead::csi::v1::*;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::stage::Volumes;
use super::volume::Usage;
use super::{NodeHealth, NodeOptions};
use crate::array::health;

pub(super) async fn run(options: NodeOptions, stop: CancellationToken) -> io::Result<()> {
    let driver_name = options.driver_name.clone();
    let volumes = Arc::new(Volumes::new(options.clone()));
    let services = Server::builder()
        .add_service(IdentityServer::new(PluginIdentity { driver_name: driver_name.clone() }))
        .add_service(NodeServer::new(NodePlugin { node_id: options.node_id, volumes }));
    let serving = server::on_socket(services, &options.socket, stop.clone());
    let Some(registry) = options.registry else {
        return serving.await;
    };
    let socket = registry.join(format!("{driver_name}-reg.sock"));
    let endpoint = options.socket.display().to_string();
    let registration = RegistrationServer::new(KubeletRegistration { driver_name, endpoint });
    let registering = server::on_registration_socket(Server::builder().add_service(registration), &socket, stop);
    tokio::try_join!(serving, registering).map(drop)
}

struct NodePlugin {
    node_id: String,
    volumes: Arc<Volumes>,
}

type Answer<T> = Result<Response<T>, Status>;

impl NodePlugin {
    /// File systems block; a thread of their own keeps that from the others.
    async fn blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Volumes) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let volumes = self.volumes.clone();
        let done = tokio::task::spawn_blocking(move || act(&volumes)).await;
        done.map_err(|error| Status::internal(format!("the node plugin failed: {error}")))?.map(Response::new)
    }
}

#[tonic::async_trait]
impl Node for NodePlugin {
    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        Ok(Response::new(NodeGetInfoResponse { node_id: self.node_id.clone(), ..NodeGetInfoResponse::default() }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        let mut has = vec![rpc::Type::StageUnstageVolume, rpc::Type::GetVolumeStats];
        has.extend(match self.volumes.tells() {
            NodeHealth::None => None,
            NodeHealth::Condition => Some(rpc::Type::VolumeCondition),
            NodeHealth::Health => Some(rpc::Type::GetVolumeHealth),
        });
        let capabilities =
            has.into_iter().map(|kind| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) });
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: capabilities.collect() }))
    }

    async fn node_stage_volume(&self, request: Request<NodeStageVolumeRequest>) -> Answer<NodeStageVolumeResponse> {
        let request = request.into_inner();
        required("volume_id", &request.volume_id)?;
        required("staging_target_path", &request.staging_target_path)?;
        let usage = usage(request.volume_capability.as_ref(), false)?;
        self.blocking(move |volumes| {
            volumes.stage(&request.volume_id, Path::new(&request.staging_target_path), usage)?;
            Ok(NodeStageVolumeResponse {})
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        let request = request.into_inner();
        required("volume_id", &request.volume_id)?;
        required("staging_target_path", &request.staging_target_path)?;
        self.blocking(move |volumes| {
            volumes.unstage(&request.volume_id, Path::new(&request.staging_target_path))?;
            Ok(NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        let request = request.into_inner();
        required("volume_id", &request.volume_id)?;
        required("target_path", &request.target_path)?;
        let usage = usage(request.volume_capability.as_ref(), request.readonly)?;
        if request.staging_target_path.is_empty() {
            return Err(Status::failed_precondition("staging_target_path is missing: this driver stages its volumes"));
        }
        self.blocking(move |volumes| {
            let (staging, target) = (Path::new(&request.staging_target_path), Path::new(&request.target_path));
            volumes.publish(&request.volume_id, staging, target, usage)?;
            Ok(NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        required("volume_id", &request.volume_id)?;
        required("target_path", &request.target_path)?;
        self.blocking(move |volumes| {
            volumes.unpublish(&request.volume_id, Path::new(&request.target_path))?;
            Ok(NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        let request = request.into_inner();
        required("volume_id", &request.volume_id)?;
        required("volume_path", &request.volume_path)?;
        self.blocking(move |volumes| {
            let usage = volumes.usage(&request.volume_id, Path::new(&request.volume_path))?;
            let ailments = match volumes.tells() {
                NodeHealth::Condition => Some(volumes.health(&request.volume_id)?),
                NodeHealth::None | NodeHealth::Health => None,
            };
            let volume_condition = ailments.map(|ailments| health::condition(&ailments));
            Ok(NodeGetVolumeStatsResponse { usage: vec![usage], volume_condition })
        })
        .await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Answer<NodeGetVolumeHealthResponse> {
        let volume = request.into_inner().volume_id;
        required("volume_id", &volume)?;
        self.blocking(move |volumes| {
            if volumes.tells() != NodeHealth::Health {
                return Err(Status::unimplemented("this plugin does not tell the health of volumes"));
            }
            let health = health::health(&volume, &volumes.health(&volume)?);
            Ok(NodeGetVolumeHealthResponse { volume_health: Some(health) })
        })
        .await
    }
}

fn required(field: &str, value: &str) -> Result<(), Status> {
    if value.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is missing")));
    }
    Ok(())
}

fn usage(capability: Option<&VolumeCapability>, read_only: bool) -> Result<Usage, Status> {
    let capability = capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
    let mode = capability.access_mode.as_ref().map(|mode| mode.mode());
    let only_reads = matches!(mode, Some(Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly));
    let block = matches!(capability.access_type, Some(AccessType::Block(_)));
    Ok(Usage { block, read_only: read_only || only_reads })
}
