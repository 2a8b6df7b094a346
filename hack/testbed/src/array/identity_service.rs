//! The Identity service.

use std::sync::Arc;

use bulkhead::csi::v1::identity_server::Identity;
use bulkhead::csi::v1::plugin_capability::{Service, Type, service};
use bulkhead::csi::v1::*;
use tonic::{Request, Response, Status};

use super::calls::Method;
use super::driver::{About, Driver};

pub(super) struct IdentityService(pub Arc<Driver>);

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let name = self.0.options.driver_name.clone();
        let about = About::new(Method::GetPluginInfo, "", "");
        self.0
            .call(about, |_, _| {
                Ok(GetPluginInfoResponse {
                    name,
                    vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
                    ..GetPluginInfoResponse::default()
                })
            })
            .await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let about = About::new(Method::GetPluginCapabilities, "", "");
        self.0
            .call(about, |_, _| {
                let controller = PluginCapability {
                    r#type: Some(Type::Service(Service { r#type: service::Type::ControllerService.into() })),
                };
                Ok(GetPluginCapabilitiesResponse { capabilities: vec![controller] })
            })
            .await
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        self.0.call(About::new(Method::Probe, "", ""), |_, _| Ok(ProbeResponse { ready: Some(true) })).await
    }
}
