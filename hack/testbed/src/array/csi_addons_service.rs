//! csi-addons' services of the driver: its controller shuts addresses out of the array, and its plugin on a node tells by which
//! address the array sees that node. A socket for each, as each has a sidecar.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::UnixListener;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status};

use super::Array;
use super::calls::Method;
use super::driver::{About, Driver};
use super::front::accepted;
use crate::csi_addons::protocol::fence::fence_controller_server::{FenceController, FenceControllerServer};
use crate::csi_addons::protocol::fence::*;
use crate::csi_addons::protocol::identity::capability::{NetworkFence, Service, Type, network_fence, service};
use crate::csi_addons::protocol::identity::identity_server::{Identity, IdentityServer};
use crate::csi_addons::protocol::identity::*;
use crate::lock::lock;

type Answer<T> = Result<Response<T>, Status>;

impl Array {
    /// Serves csi-addons' calls of one part of the driver: of its plugin on the node with this CSI node id, or of its controller.
    /// Returns the socket. A crash of the driver's controller leaves it alone.
    ///
    /// # Errors
    ///
    /// When the socket cannot be bound.
    pub fn serve_csi_addons(&self, node: Option<&str>) -> io::Result<PathBuf> {
        let mut servers = lock(&self.servers);
        // None is ever taken out, so the number is no other's.
        let socket = self.io_socket.with_file_name(format!("csi-addons-{}.sock", servers.len()));
        let listener = UnixListener::bind(&socket)?;
        let services = services(&self.driver, node);
        servers.spawn(async move {
            if let Err(error) = services.serve_with_incoming(accepted(listener)).await {
                tracing::error!(%error, "a socket for csi-addons failed");
            }
        });
        Ok(socket)
    }
}

fn services(driver: &Arc<Driver>, node: Option<&str>) -> Router {
    let (part, fences) = match node {
        None => (service::Type::ControllerService, network_fence::Type::NetworkFence),
        Some(_) => (service::Type::NodeService, network_fence::Type::GetClientsToFence),
    };
    let capabilities =
        [Type::Service(Service { r#type: part.into() }), Type::NetworkFence(NetworkFence { r#type: fences.into() })];
    let identity = PartOfDriver { name: driver.options.driver_name.clone(), capabilities };
    let router = tonic::transport::Server::builder().add_service(IdentityServer::new(identity));
    match node {
        None => router.add_service(FenceControllerServer::new(Controller(driver.clone()))),
        Some(node) => {
            router.add_service(FenceControllerServer::new(Plugin { driver: driver.clone(), node: node.to_owned() }))
        }
    }
}

struct PartOfDriver {
    name: String,
    capabilities: [Type; 2],
}

#[tonic::async_trait]
impl Identity for PartOfDriver {
    async fn get_identity(&self, _: Request<GetIdentityRequest>) -> Answer<GetIdentityResponse> {
        let vendor_version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Response::new(GetIdentityResponse { name: self.name.clone(), vendor_version }))
    }

    async fn get_capabilities(&self, _: Request<GetCapabilitiesRequest>) -> Answer<GetCapabilitiesResponse> {
        let capabilities = self.capabilities.map(|kind| Capability { r#type: Some(kind) });
        Ok(Response::new(GetCapabilitiesResponse { capabilities: capabilities.into() }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Answer<ProbeResponse> {
        Ok(Response::new(ProbeResponse {}))
    }
}

struct Controller(Arc<Driver>);

impl Controller {
    async fn change<T>(&self, method: Method, cidrs: Vec<Cidr>, shut_out: bool) -> Answer<T>
    where
        T: Default + Send + 'static,
    {
        let cidrs: Vec<String> = cidrs.into_iter().map(|cidr| cidr.cidr).collect();
        self.0
            .call(About::new(method, "", ""), move |state, _| {
                state.networks.fence(&cidrs, shut_out).map_err(Status::invalid_argument)?;
                Ok(T::default())
            })
            .await
    }
}

#[tonic::async_trait]
impl FenceController for Controller {
    async fn fence_cluster_network(
        &self,
        request: Request<FenceClusterNetworkRequest>,
    ) -> Answer<FenceClusterNetworkResponse> {
        self.change(Method::FenceClusterNetwork, request.into_inner().cidrs, true).await
    }

    async fn unfence_cluster_network(
        &self,
        request: Request<UnfenceClusterNetworkRequest>,
    ) -> Answer<UnfenceClusterNetworkResponse> {
        self.change(Method::UnfenceClusterNetwork, request.into_inner().cidrs, false).await
    }
}

struct Plugin {
    driver: Arc<Driver>,
    node: String,
}

#[tonic::async_trait]
impl FenceController for Plugin {
    async fn get_fence_clients(&self, _: Request<GetFenceClientsRequest>) -> Answer<GetFenceClientsResponse> {
        let node = self.node.clone();
        self.driver
            .call(About::new(Method::GetFenceClients, "", &self.node), move |state, _| {
                let client = state.networks.client(&node);
                let client = client.ok_or_else(|| Status::failed_precondition("the array has seen no such node"))?;
                let addresses = vec![Cidr { cidr: client.to_string() }];
                Ok(GetFenceClientsResponse { clients: vec![ClientDetails { id: node, addresses }] })
            })
            .await
    }
}
