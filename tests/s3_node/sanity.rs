//! The conformance suite of CSI on the node plugin.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bulkhead::api::s3::DRIVER;
use bulkhead::csi::client::connect;
use bulkhead::csi::plugin::PluginIdentity;
use bulkhead::csi::server;
use bulkhead::csi::v1::controller_server::{Controller, ControllerServer};
use bulkhead::csi::v1::controller_service_capability::{self, rpc};
use bulkhead::csi::v1::identity_client::IdentityClient;
use bulkhead::csi::v1::identity_server::{Identity, IdentityServer};
use bulkhead::csi::v1::node_client::NodeClient;
use bulkhead::csi::v1::node_server::{Node, NodeServer};
use bulkhead::csi::v1::volume_capability::access_mode::Mode;
use bulkhead::csi::v1::*;
use bulkhead_testbed::binaries::{Binaries, Program};
use libtest_mimic::Trial;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

use super::world::{HANDLE, Shared, World, trial};

/// The pod of the suite's volume, and the volume.
const WORKLOAD: &str = "11111111-1111-4111-8111-111111111111";
const VOLUME: &str = "sanity";
/// How many of the suite's questions are about what the plugin does: all others are of capabilities that it does not have.
const QUESTIONS: usize = 17;

type Answer<T> = Result<Response<T>, Status>;

pub fn trials(shared: &Arc<Shared>) -> Vec<Trial> {
    vec![trial(shared, "sanity::csi_sanity_passes", csi_sanity_passes)]
}

/// Stands in for the driver's other part, which is tested elsewhere: it makes the volume that the Mountpoint Pod is for.
struct OneVolume;

#[tonic::async_trait]
impl Controller for OneVolume {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        let creates = controller_service_capability::Rpc { r#type: rpc::Type::CreateDeleteVolume.into() };
        let creates = ControllerServiceCapability { r#type: Some(controller_service_capability::Type::Rpc(creates)) };
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: vec![creates] }))
    }

    async fn create_volume(&self, _: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        let volume_context = [("bucketName".to_owned(), "bucket".to_owned())].into();
        let volume = Volume { volume_id: HANDLE.to_owned(), volume_context, ..Volume::default() };
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(&self, _: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        Ok(Response::new(DeleteVolumeResponse {}))
    }
}

/// Hands everything to the plugin, but two things that the suite cannot be told: that a bucket is a volume for many nodes, and
/// where the kubelet has its targets.
struct AsTheKubelet {
    identity: IdentityClient<Channel>,
    node: NodeClient<Channel>,
}

fn target(path: &str) -> String {
    path.strip_suffix("/target").unwrap_or(path).to_owned()
}

#[tonic::async_trait]
impl Identity for AsTheKubelet {
    async fn get_plugin_info(&self, call: Request<GetPluginInfoRequest>) -> Answer<GetPluginInfoResponse> {
        self.identity.clone().get_plugin_info(call).await
    }

    async fn get_plugin_capabilities(
        &self,
        call: Request<GetPluginCapabilitiesRequest>,
    ) -> Answer<GetPluginCapabilitiesResponse> {
        self.identity.clone().get_plugin_capabilities(call).await
    }

    async fn probe(&self, call: Request<ProbeRequest>) -> Answer<ProbeResponse> {
        self.identity.clone().probe(call).await
    }
}

#[tonic::async_trait]
impl Node for AsTheKubelet {
    async fn node_get_info(&self, call: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        self.node.clone().node_get_info(call).await
    }

    async fn node_get_capabilities(
        &self,
        call: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        self.node.clone().node_get_capabilities(call).await
    }

    async fn node_publish_volume(&self, call: Request<NodePublishVolumeRequest>) -> Answer<NodePublishVolumeResponse> {
        let mut call = call.into_inner();
        call.target_path = target(&call.target_path);
        if let Some(mode) = call.volume_capability.as_mut().and_then(|capability| capability.access_mode.as_mut()) {
            assert_eq!(mode.mode(), Mode::SingleNodeWriter);
            mode.mode = Mode::MultiNodeMultiWriter.into();
        }
        self.node.clone().node_publish_volume(call).await
    }

    async fn node_unpublish_volume(
        &self,
        call: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let mut call = call.into_inner();
        call.target_path = target(&call.target_path);
        self.node.clone().node_unpublish_volume(call).await
    }

    async fn node_get_volume_stats(
        &self,
        call: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        let mut call = call.into_inner();
        call.volume_path = target(&call.volume_path);
        self.node.clone().node_get_volume_stats(call).await
    }
}

/// A program of one line for the suite.
fn script(world: &World, name: &str, line: &str) -> PathBuf {
    let path = world.folder.path().join(name);
    fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

async fn csi_sanity_passes(world: World) {
    let programs =
        tokio::task::spawn_blocking(|| Binaries::ensure_all(None, &[Program::CsiSanity]).unwrap()).await.unwrap();
    // Not before: a mounter does not wait for ever, and to build the suite takes minutes.
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    world.attach_volume(VOLUME, "", &[(&pod, &[WORKLOAD])]).await;
    let mount = world.target_of(WORKLOAD, VOLUME);
    let make = format!("mkdir -p {}\necho {}", mount.parent().unwrap().display(), mount.display());
    let look = "if [ -d \"${1%/target}\" ]; then echo directory; else echo not_found; fi";
    let (make, look) = (script(&world, "make.sh", &make), script(&world, "look.sh", look));

    let stop = CancellationToken::new();
    let (node, controller) = (world.folder.path().join("node.sock"), world.folder.path().join("controller.sock"));
    let channel = connect(plugin.socket.to_str().unwrap()).unwrap();
    let between = || AsTheKubelet { identity: IdentityClient::new(channel.clone()), node: plugin.calls.clone() };
    let of_node = Server::builder().add_service(IdentityServer::new(between())).add_service(NodeServer::new(between()));
    let of_controller = Server::builder()
        .add_service(IdentityServer::new(PluginIdentity { driver_name: DRIVER.to_owned() }))
        .add_service(ControllerServer::new(OneVolume));
    let serving = [(of_node, node.clone()), (of_controller, controller.clone())].map(|(services, socket)| {
        let stop = stop.clone();
        tokio::spawn(async move { server::on_socket(services, &socket, stop).await })
    });
    world.until("both sockets", || node.exists() && controller.exists()).await;
    let mut suite = Command::new(programs.path(Program::CsiSanity));
    let path = |name: &str, path: &Path| format!("--csi.{name}={}", path.display());
    suite
        .args([path("endpoint", &node), path("controllerendpoint", &controller)])
        .args([path("createmountpathcmd", &make), path("checkpathcmd", &look)])
        .arg(path("stagingdir", &world.folder.path().join("staging")))
        .args(["--ginkgo.focus=Identity Service|Node Service", "--ginkgo.no-color"]);
    let output = tokio::task::spawn_blocking(move || suite.output().unwrap()).await.unwrap();
    stop.cancel();
    for serving in serving {
        serving.await.unwrap().unwrap();
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let passed = said.split(" Passed").next().and_then(|before| before.split_whitespace().last()?.parse().ok());
    assert!(passed >= Some(QUESTIONS), "{said}");
    assert!(!mount.exists());
}
