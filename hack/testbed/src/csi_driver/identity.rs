//! The Identity service of the node plugin. It says nothing of the array: a plugin is alive without it.

use bulkhead::csi::v1::identity_server::Identity;
use bulkhead::csi::v1::plugin_capability::{Service, Type, service};
use bulkhead::csi::v1::*;
use tonic::{Request, Response, Status};

pub(super) struct NodeIdentity {
    pub driver_name: String,
}

#[tonic::async_trait]
impl Identity for NodeIdentity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.driver_name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        // CSI wants all parts of a driver to say the same.
        let controller = PluginCapability {
            r#type: Some(Type::Service(Service { r#type: service::Type::ControllerService.into() })),
        };
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: vec![controller] }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
