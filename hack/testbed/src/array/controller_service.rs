//! The Controller service: CSI's words on one side, the array's state on the other.

use std::collections::HashMap;
use std::sync::Arc;

use bulkhead::csi::v1::controller_server::Controller;
use bulkhead::csi::v1::controller_service_capability::{Rpc, Type, rpc};
use bulkhead::csi::v1::volume_capability::access_mode::Mode;
use bulkhead::csi::v1::*;
use tonic::{Request, Response, Status};

use super::calls::Method;
use super::driver::{About, Driver};
use super::{health, listing};
use crate::ledger::Access;

pub(super) struct ControllerService(pub Arc<Driver>);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        let options = &self.0.options;
        let mut has = vec![rpc::Type::CreateDeleteVolume];
        if options.attaches {
            has.push(rpc::Type::PublishUnpublishVolume);
            has.push(rpc::Type::PublishReadonly);
        }
        if options.lists_volumes {
            has.push(rpc::Type::ListVolumes);
        }
        // It says of ControllerGetVolume too that its published nodes may be read.
        if options.lists_published_nodes && (options.lists_volumes || options.gets_volume) {
            has.push(rpc::Type::ListVolumesPublishedNodes);
        }
        if options.gets_volume {
            has.push(rpc::Type::GetVolume);
        }
        if options.tells_condition {
            has.push(rpc::Type::VolumeCondition);
        }
        if options.gets_health || options.lists_health {
            has.push(rpc::Type::GetVolumeHealth);
        }
        if options.lists_health {
            has.push(rpc::Type::ListVolumeHealth);
        }
        let about = About::new(Method::ControllerGetCapabilities, "", "");
        self.0
            .call(about, move |_, _| {
                let capabilities = has
                    .into_iter()
                    .map(|kind| ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) });
                Ok(ControllerGetCapabilitiesResponse { capabilities: capabilities.collect() })
            })
            .await
    }

    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        let request = request.into_inner();
        required("name", &request.name)?;
        let access = access(&request.volume_capabilities)?;
        let bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        let about = About::new(Method::CreateVolume, &request.name, "");
        self.0
            .call(about, move |state, _| {
                let id = state.create(&request.name, access, bytes)?;
                Ok(CreateVolumeResponse {
                    volume: Some(Volume { volume_id: id.to_string(), capacity_bytes: bytes, ..Volume::default() }),
                })
            })
            .await
    }

    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        let request = request.into_inner();
        required("volume_id", &request.volume_id)?;
        let about = About::new(Method::DeleteVolume, &request.volume_id, "");
        self.0
            .call(about, move |state, _| {
                state.delete(&request.volume_id)?;
                Ok(DeleteVolumeResponse {})
            })
            .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        let request = request.into_inner();
        let about = About::new(Method::ControllerPublishVolume, &request.volume_id, &request.node_id);
        let driver = self.0.clone();
        self.0
            .call(about, move |state, _| {
                driver.attaches()?;
                required("volume_id", &request.volume_id)?;
                required("node_id", &request.node_id)?;
                driver.authenticate(&request.secrets)?;
                let Some(capability) = &request.volume_capability else {
                    return Err(Status::invalid_argument("volume_capability is missing"));
                };
                let read_only = request.readonly || mode(capability)? == Mode::MultiNodeReaderOnly;
                state.publish(&request.volume_id, &request.node_id, read_only)?;
                Ok(ControllerPublishVolumeResponse::default())
            })
            .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        let request = request.into_inner();
        let about = About::new(Method::ControllerUnpublishVolume, &request.volume_id, &request.node_id);
        let driver = self.0.clone();
        self.0
            .call(about, move |state, _| {
                driver.attaches()?;
                required("volume_id", &request.volume_id)?;
                driver.authenticate(&request.secrets)?;
                // Without a node id, CSI means all nodes.
                let node = Some(request.node_id.as_str()).filter(|node| !node.is_empty());
                state.unpublish(&request.volume_id, node)?;
                Ok(ControllerUnpublishVolumeResponse {})
            })
            .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        let request = request.into_inner();
        required("volume_id", &request.volume_id)?;
        let asked = access(&request.volume_capabilities)?;
        let about = About::new(Method::ValidateVolumeCapabilities, &request.volume_id, "");
        self.0
            .call(about, move |state, _| {
                let has = state.volume(&request.volume_id)?.1.access;
                if has != asked && has != Access::MultiWriter {
                    return Ok(ValidateVolumeCapabilitiesResponse {
                        confirmed: None,
                        message: format!("the volume is {has:?}"),
                    });
                }
                let confirmed = validate_volume_capabilities_response::Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    ..Default::default()
                };
                Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
            })
            .await
    }

    async fn list_volumes(&self, request: Request<ListVolumesRequest>) -> Answer<ListVolumesResponse> {
        let request = request.into_inner();
        let driver = self.0.clone();
        self.0
            .call(About::new(Method::ListVolumes, "", ""), move |state, effects| {
                if !driver.options.lists_volumes {
                    return Err(Status::unimplemented("this driver does not list volumes"));
                }
                listing::page(state, effects, &driver.options, &request)
            })
            .await
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Answer<ControllerGetVolumeResponse> {
        let request = request.into_inner();
        let about = About::new(Method::ControllerGetVolume, &request.volume_id, "");
        let driver = self.0.clone();
        self.0
            .call(about, move |state, effects| {
                if !driver.options.gets_volume {
                    return Err(Status::unimplemented("this driver does not get volumes"));
                }
                required("volume_id", &request.volume_id)?;
                listing::one(state, effects, &driver.options, &request.volume_id)
            })
            .await
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<ControllerListVolumeHealthRequest>,
    ) -> Answer<ControllerListVolumeHealthResponse> {
        let request = request.into_inner();
        let driver = self.0.clone();
        self.0
            .call(About::new(Method::ControllerListVolumeHealth, "", ""), move |state, _| {
                if !driver.options.lists_health {
                    return Err(Status::unimplemented("this driver does not list the health of volumes"));
                }
                health::page(state, &driver.options, &request)
            })
            .await
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<ControllerGetVolumeHealthRequest>,
    ) -> Answer<ControllerGetVolumeHealthResponse> {
        let volume = request.into_inner().volume_id;
        let about = About::new(Method::ControllerGetVolumeHealth, &volume, "");
        let driver = self.0.clone();
        self.0
            .call(about, move |state, _| {
                if !driver.options.gets_health && !driver.options.lists_health {
                    return Err(Status::unimplemented("this driver does not tell the health of volumes"));
                }
                required("volume_id", &volume)?;
                state.volume(&volume)?;
                let health = health::health(&volume, state.health.of(&volume));
                Ok(ControllerGetVolumeHealthResponse { volume_health: Some(health) })
            })
            .await
    }
}

impl Driver {
    fn attaches(&self) -> Result<(), Status> {
        if self.options.attaches {
            return Ok(());
        }
        Err(Status::unimplemented("this driver does not attach volumes"))
    }

    /// Checks the controller-publish secret, if the array wants one.
    fn authenticate(&self, secrets: &HashMap<String, String>) -> Result<(), Status> {
        match &self.options.required_secret {
            Some((key, value)) if secrets.get(key) != Some(value) => {
                Err(Status::unauthenticated(format!("secret {key:?} is missing or wrong")))
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn required(field: &str, value: &str) -> Result<(), Status> {
    if value.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is missing")));
    }
    Ok(())
}

fn mode(capability: &VolumeCapability) -> Result<Mode, Status> {
    let mode = capability.access_mode.as_ref().map(|mode| mode.mode());
    mode.filter(|mode| *mode != Mode::Unknown).ok_or_else(|| Status::invalid_argument("access_mode is missing"))
}

/// The widest access that the capabilities ask for.
fn access(capabilities: &[VolumeCapability]) -> Result<Access, Status> {
    let modes = capabilities.iter().map(mode).collect::<Result<Vec<_>, _>>()?;
    if modes.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities are missing"));
    }
    let shared = |mode: &Mode| matches!(mode, Mode::MultiNodeMultiWriter | Mode::MultiNodeSingleWriter);
    Ok(if modes.iter().any(shared) {
        Access::MultiWriter
    } else if modes.iter().all(|mode| *mode == Mode::MultiNodeReaderOnly) {
        Access::ReadOnly
    } else {
        Access::SingleWriter
    })
}
