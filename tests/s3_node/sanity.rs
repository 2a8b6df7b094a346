//! The conformance suite of CSI on the node plugin.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::Arc;

use bulkhead::csi::server;
use bulkhead::csi::v1::controller_server::{Controller, ControllerServer};
use bulkhead::csi::v1::identity_server::IdentityServer;
use bulkhead::csi::v1::{ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse};
use bulkhead::s3::node_service::identity::DriverIdentity;
use bulkhead_testbed::binaries::{Binaries, Program};
use libtest_mimic::Trial;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::world::{Shared, World, trial};

/// What makes a volume first: a Mountpoint Pod for it would need a kubelet. `publishing` and the tests on real nodes have
/// these.
const SKIPPED: &str = "should work|should be idempotent|volume does not exist on the specified path|with volume health";

pub fn trials(shared: &Arc<Shared>) -> Vec<Trial> {
    vec![trial(shared, "sanity::csi_sanity_passes", csi_sanity_passes)]
}

/// The suite asks the driver's other part what it can do before each question; that part is tested elsewhere.
struct NoController;

#[tonic::async_trait]
impl Controller for NoController {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        Ok(Response::new(ControllerGetCapabilitiesResponse::default()))
    }
}

async fn csi_sanity_passes(world: World) {
    let plugin = world.plugin().await;
    let programs =
        tokio::task::spawn_blocking(|| Binaries::ensure_all(None, &[Program::CsiSanity]).unwrap()).await.unwrap();
    // The suite makes up its targets; this has them where the kubelet has them.
    let script = world.folder.path().join("target.sh");
    let folder = world.kubelet.join("pods/11111111-1111-4111-8111-111111111111/volumes/kubernetes.io~csi/sanity");
    fs::write(&script, format!("#!/bin/sh\nmkdir -p {0}\necho {0}/mount\n", folder.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let controller = world.folder.path().join("controller.sock");
    let stop = CancellationToken::new();
    let services = Server::builder()
        .add_service(IdentityServer::new(DriverIdentity))
        .add_service(ControllerServer::new(NoController));
    let serving = tokio::spawn({
        let (controller, stop) = (controller.clone(), stop.clone());
        async move { server::on_socket(services, &controller, stop).await }
    });
    world.until("the other socket", || controller.exists()).await;
    let mut suite = Command::new(programs.path(Program::CsiSanity));
    suite
        .arg(format!("--csi.endpoint={}", plugin.socket.display()))
        .arg(format!("--csi.controllerendpoint={}", controller.display()))
        .arg(format!("--csi.createmountpathcmd={}", script.display()))
        .arg(format!("--csi.stagingdir={}", world.folder.path().join("staging").display()))
        .arg(format!("--ginkgo.skip={SKIPPED}"))
        .args(["--ginkgo.focus=Identity Service|Node Service", "--ginkgo.no-color"]);
    let output = tokio::task::spawn_blocking(move || suite.output().unwrap()).await.unwrap();
    stop.cancel();
    serving.await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Passed"), "{said}");
}
