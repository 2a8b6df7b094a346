//! A CSI node plugin that registers as the kubelet expects it, writes down every call, and does as it is told.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bulkhead::csi::plugin_registration::registration_server::{Registration, RegistrationServer};
use bulkhead::csi::plugin_registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use bulkhead::csi::v1::node_server::{Node, NodeServer};
use bulkhead::csi::v1::node_service_capability::{Rpc, Type, rpc};
use bulkhead::csi::v1::*;
use rustix::mount::{UnmountFlags, unmount};
use tokio::net::UnixListener;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

pub const DRIVER: &str = "csi.example.com";

/// What the plugin does.
#[derive(Default)]
pub struct Behaviour {
    /// Stages volumes.
    pub stages: bool,
    /// Unmounts what it is told to unpublish or to unstage, and its own mount of the volume.
    pub unmounts: bool,
    /// Calls of NodeUnpublishVolume that do not come back.
    pub hangs: usize,
    /// Code with which every call is refused.
    pub refuses: Option<tonic::Code>,
    /// What it says of the health of volumes.
    pub health: Told,
}

/// What a plugin says of the health of all volumes, and how.
#[derive(Clone, Default)]
pub enum Told {
    /// It cannot say anything.
    #[default]
    Nothing,
    /// As CSI 1.3 to 1.12 has it.
    Condition(bool),
    /// As CSI 1.13 has it: status and reason.
    Health(Vec<(i32, &'static str)>),
}

#[derive(Clone)]
pub struct Plugin {
    folder: PathBuf,
    pub behaviour: Arc<Mutex<Behaviour>>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Plugin {
    pub fn new(kubelet_root: &Path, behaviour: Behaviour) -> Self {
        let folder = kubelet_root.join("plugins").join(DRIVER);
        Self { folder, behaviour: Arc::new(Mutex::new(behaviour)), calls: Arc::default() }
    }

    /// Serves, and makes itself known to the kubelet.
    pub fn register(&self) {
        let kubelet_root = self.folder.parent().unwrap().parent().unwrap();
        std::fs::create_dir_all(kubelet_root.join("plugins_registry")).unwrap();
        std::fs::create_dir_all(&self.folder).unwrap();
        let endpoint = self.folder.join("csi.sock");
        let node = Server::builder().add_service(NodeServer::new(self.clone()));
        tokio::spawn(node.serve_with_incoming(incoming(&endpoint)));
        let registration = RegistrationServer::new(Registered(endpoint.to_str().unwrap().to_owned()));
        let socket = kubelet_root.join("plugins_registry").join(format!("{DRIVER}-reg.sock"));
        tokio::spawn(Server::builder().add_service(registration).serve_with_incoming(incoming(&socket)));
    }

    /// The calls so far, such as `NodeUnpublishVolume handle-1 /path`.
    pub fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    /// The plugin's own mount of a volume.
    pub fn private(&self, handle: &str) -> PathBuf {
        self.folder.join("private").join(handle)
    }

    fn called(&self, call: String) -> Result<bool, Status> {
        self.calls.lock().unwrap().push(call);
        let behaviour = self.behaviour.lock().unwrap();
        match behaviour.refuses {
            Some(code) => Err(Status::new(code, "as the test says")),
            None => Ok(behaviour.unmounts),
        }
    }
}

fn incoming(socket: &Path) -> impl futures::Stream<Item = std::io::Result<tokio::net::UnixStream>> + Send + use<> {
    let listener = UnixListener::bind(socket).unwrap();
    futures::stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
}

/// What is not mounted is unmounted.
fn take_away(path: &Path) {
    let _ = unmount(path, UnmountFlags::empty());
}

struct Registered(String);

#[tonic::async_trait]
impl Registration for Registered {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: DRIVER.into(),
            endpoint: self.0.clone(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        _: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Plugin {
    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let unmounts = self.called(format!("NodeUnpublishVolume {} {}", request.volume_id, request.target_path))?;
        let hangs = {
            let mut behaviour = self.behaviour.lock().unwrap();
            let hangs = behaviour.hangs > 0;
            behaviour.hangs = behaviour.hangs.saturating_sub(1);
            hangs
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        if unmounts {
            take_away(Path::new(&request.target_path));
        }
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let call = format!("NodeUnstageVolume {} {}", request.volume_id, request.staging_target_path);
        if self.called(call)? {
            take_away(Path::new(&request.staging_target_path));
            take_away(&self.private(&request.volume_id));
        }
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let behaviour = self.behaviour.lock().unwrap();
        let mut can = Vec::from_iter(behaviour.stages.then_some(rpc::Type::StageUnstageVolume));
        can.extend_from_slice(match behaviour.health {
            Told::Nothing => &[],
            Told::Condition(_) => &[rpc::Type::GetVolumeStats, rpc::Type::VolumeCondition],
            Told::Health(_) => &[rpc::Type::GetVolumeHealth],
        });
        let capability = |can| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: can as i32 })) };
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: can.into_iter().map(capability).collect() }))
    }

    async fn node_stage_volume(
        &self,
        _: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        Err(Status::unimplemented("not for the agent"))
    }

    async fn node_publish_volume(
        &self,
        _: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        Err(Status::unimplemented("not for the agent"))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.called(format!("NodeGetVolumeStats {} {}", request.volume_id, request.volume_path))?;
        let Told::Condition(abnormal) = self.behaviour.lock().unwrap().health else {
            return Err(Status::unimplemented("no condition"));
        };
        let volume_condition = Some(VolumeCondition { abnormal, message: "as the test says".into() });
        Ok(Response::new(NodeGetVolumeStatsResponse { usage: Vec::new(), volume_condition }))
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        let NodeGetVolumeHealthRequest { volume_id, volume_publish_path, .. } = request.into_inner();
        self.called(format!("NodeGetVolumeHealth {volume_id} {volume_publish_path}"))?;
        let Told::Health(told) = self.behaviour.lock().unwrap().health.clone() else {
            return Err(Status::unimplemented("no health"));
        };
        let entry = |(status, reason): (i32, &str)| volume_health::VolumeHealthEntry {
            status,
            reason: reason.into(),
            message: "as the test says".into(),
        };
        let health = VolumeHealth { volume_id, health_statuses: told.into_iter().map(entry).collect() };
        Ok(Response::new(NodeGetVolumeHealthResponse { volume_health: Some(health) }))
    }

    async fn node_expand_volume(
        &self,
        _: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("not for the agent"))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        Err(Status::unimplemented("not for the agent"))
    }
}
