//! The Identity service, and how the kubelet gets to know the node plugin: it watches a folder for sockets and asks each who
//! it is.

use tonic::{Request, Response, Status};

use crate::api::s3::DRIVER;
use crate::csi::plugin_registration::registration_server::Registration;
use crate::csi::plugin_registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use crate::csi::v1::identity_server::Identity;
use crate::csi::v1::plugin_capability::{Service, Type, service};
use crate::csi::v1::*;

/// The driver, whichever part of it.
pub struct DriverIdentity;

#[tonic::async_trait]
impl Identity for DriverIdentity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER.to_owned(),
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

/// What the kubelet is told when it asks.
pub struct KubeletRegistration {
    /// The plugin's socket, as the kubelet sees it.
    pub endpoint: String,
}

#[tonic::async_trait]
impl Registration for KubeletRegistration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            // Of CSI, all versions the kubelet speaks.
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = status.into_inner();
        if status.plugin_registered {
            tracing::info!("the kubelet has registered the plugin");
        } else {
            // It asks again after a while: nothing to do here.
            tracing::error!(error = status.error, "the kubelet has not registered the plugin");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
