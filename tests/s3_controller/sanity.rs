//! The conformance suite of CSI.

use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead::csi::client;
use bulkhead::csi::v1::controller_client::ControllerClient;
use bulkhead::csi::v1::controller_server::{Controller, ControllerServer};
use bulkhead::csi::v1::identity_client::IdentityClient;
use bulkhead::csi::v1::identity_server::{Identity, IdentityServer};
use bulkhead::csi::v1::node_server::{Node, NodeServer};
use bulkhead::csi::v1::volume_capability::access_mode::Mode;
use bulkhead::csi::v1::*;
use bulkhead_testbed::binaries::{Binaries, Program};
use futures::stream;
use tokio::net::UnixListener;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::PROGRAMS;
use crate::bed::Bed;

/// Stands between the suite and the driver. The suite asks for volumes of one node, which a bucket is not: on the way they
/// become volumes of any number of nodes.
#[derive(Clone)]
struct Shared(Channel);

fn shared(mut capabilities: Vec<VolumeCapability>) -> Vec<VolumeCapability> {
    for mode in capabilities.iter_mut().filter_map(|capability| capability.access_mode.as_mut()) {
        mode.mode = Mode::MultiNodeMultiWriter.into();
    }
    capabilities
}

type Answer<T> = Result<Response<T>, Status>;

impl Shared {
    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.0.clone())
    }

    fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.0.clone())
    }
}

#[tonic::async_trait]
impl Identity for Shared {
    async fn get_plugin_info(&self, request: Request<GetPluginInfoRequest>) -> Answer<GetPluginInfoResponse> {
        self.identity().get_plugin_info(request.into_inner()).await
    }

    async fn get_plugin_capabilities(
        &self,
        request: Request<GetPluginCapabilitiesRequest>,
    ) -> Answer<GetPluginCapabilitiesResponse> {
        self.identity().get_plugin_capabilities(request.into_inner()).await
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Answer<ProbeResponse> {
        self.identity().probe(request.into_inner()).await
    }
}

/// Before it deletes a volume the suite makes sure that it is mounted nowhere.
#[tonic::async_trait]
impl Node for Shared {
    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        Ok(Response::new(NodeGetCapabilitiesResponse::default()))
    }

    async fn node_unpublish_volume(
        &self,
        _: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        Ok(Response::new(NodeUnpublishVolumeResponse::default()))
    }
}

#[tonic::async_trait]
impl Controller for Shared {
    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        let mut request = request.into_inner();
        request.volume_capabilities = shared(request.volume_capabilities);
        self.controller().create_volume(request).await
    }

    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        self.controller().delete_volume(request.into_inner()).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        let mut request = request.into_inner();
        request.volume_capabilities = shared(request.volume_capabilities);
        self.controller().validate_volume_capabilities(request).await
    }

    async fn controller_get_capabilities(
        &self,
        request: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        self.controller().controller_get_capabilities(request.into_inner()).await
    }
}

fn between(bed: &Bed) -> PathBuf {
    let socket = bed.path("between.sock");
    let driver = bed.socket().display().to_string();
    bed.runtime.block_on(async {
        let listener = UnixListener::bind(&socket).unwrap();
        let service = Shared(client::connect(&driver).unwrap());
        let server = tonic::transport::Server::builder()
            .add_service(IdentityServer::new(service.clone()))
            .add_service(NodeServer::new(service.clone()))
            .add_service(ControllerServer::new(service));
        let connections = stream::unfold(listener, |listener| async {
            let connection = listener.accept().await.map(|(connection, _)| connection);
            Some((connection, listener))
        });
        tokio::spawn(server.serve_with_incoming(connections));
    });
    socket
}

pub fn csi_sanity_passes(bed: &Bed) {
    let programs = Binaries::ensure_all(None, &PROGRAMS).unwrap();
    let before = bed.s3.buckets().unwrap();
    let told = run(
        &programs.path(Program::CsiSanity),
        &[
            format!("--csi.endpoint={}", between(bed).display()),
            format!("--csi.mountdir={}", bed.path("sanity-mount").display()),
            format!("--csi.stagingdir={}", bed.path("sanity-staging").display()),
            // The node service is asked by tests of its own.
            "--ginkgo.focus=Identity Service|Controller Service".to_owned(),
            "--ginkgo.skip=Node Service".to_owned(),
            "--ginkgo.no-color".to_owned(),
        ],
    );
    assert!(told.contains("SUCCESS!"), "{told}");
    let ran = told.lines().find(|line| line.starts_with("Ran ")).unwrap_or_default();
    let count: u32 = ran.split_whitespace().nth(1).and_then(|count| count.parse().ok()).unwrap_or_default();
    assert!(count >= 15, "the suite ran less than it should: {ran}");
    assert_eq!(bed.s3.buckets().unwrap(), before, "each volume of the suite is deleted, and its bucket with it");
}

fn run(program: &Path, args: &[String]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}");
    told
}
