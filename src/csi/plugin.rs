//! What every CSI plugin of ours says of itself: to its callers by the Identity service, and to the kubelet, which watches a
//! folder for sockets and asks each who it is.

use tonic::{Request, Response, Status};

use super::plugin_registration::registration_server::Registration;
use super::plugin_registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use super::v1::identity_server::Identity;
use super::v1::plugin_capability::{Service, Type, service};
use super::v1::*;

/// The driver, whichever part of it. It says nothing of what is behind it: a plugin is alive without its storage.
pub struct PluginIdentity {
    /// The driver's name.
    pub driver_name: String,
}

#[tonic::async_trait]
impl Identity for PluginIdentity {
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

/// What the kubelet is told when it asks.
pub struct KubeletRegistration {
    /// The driver's name.
    pub driver_name: String,
    /// The plugin's socket, as the kubelet sees it.
    pub endpoint: String,
}

#[tonic::async_trait]
impl Registration for KubeletRegistration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.driver_name.clone(),
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
