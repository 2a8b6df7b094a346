//! How the kubelet gets to know the node plugin: it watches a folder for sockets and asks each who it is.

use bulkhead::csi::plugin_registration::registration_server::Registration;
use bulkhead::csi::plugin_registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tonic::{Request, Response, Status};

pub(super) struct KubeletRegistration {
    pub driver_name: String,
    /// The path of the plugin's socket, as the kubelet sees it.
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
