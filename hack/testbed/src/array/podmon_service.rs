//! The podmon extension, with the answers a compatible driver owes (see `podmon.proto`).

use std::sync::Arc;
use std::time::Duration;

use bulkhead::csi::podmon::podmon_server::Podmon;
use bulkhead::csi::podmon::{ValidateVolumeHostConnectivityRequest, ValidateVolumeHostConnectivityResponse};
use tonic::{Request, Response, Status};

use super::calls::Method;
use super::driver::{About, Driver};
use super::state::{Link, State};

/// How far back I/O counts as recent when the caller does not say.
const DEFAULT_SAMPLE: Duration = Duration::from_secs(5);

pub(super) struct PodmonService(pub Arc<Driver>);

#[tonic::async_trait]
impl Podmon for PodmonService {
    async fn validate_volume_host_connectivity(
        &self,
        request: Request<ValidateVolumeHostConnectivityRequest>,
    ) -> Result<Response<ValidateVolumeHostConnectivityResponse>, Status> {
        if !self.0.options.has_podmon {
            return Err(Status::unimplemented("this driver has no podmon extension"));
        }
        let request = request.into_inner();
        let volume = request.volume_ids.first().map_or("", String::as_str);
        let about = About::new(Method::ValidateVolumeHostConnectivity, volume, &request.node_id);
        let per_node = self.0.options.tells_io_per_node;
        self.0.call(about, move |state, _| validate(state, &request, per_node)).await
    }
}

fn validate(
    state: &State,
    request: &ValidateVolumeHostConnectivityRequest,
    per_node: bool,
) -> Result<ValidateVolumeHostConnectivityResponse, Status> {
    if request.node_id.is_empty() {
        if !request.volume_ids.is_empty() {
            return Err(Status::invalid_argument("node_id is missing"));
        }
        return Ok(ValidateVolumeHostConnectivityResponse {
            messages: vec!["ValidateVolumeHostConnectivity is implemented".to_owned()],
            ..Default::default()
        });
    }
    let sample = match u64::try_from(request.io_sample_time_seconds) {
        Ok(0) => DEFAULT_SAMPLE,
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            return Err(Status::invalid_argument("io_sample_time_seconds is negative"));
        }
    };
    let now = state.ledger.now();
    let mut response = ValidateVolumeHostConnectivityResponse {
        connected: state.link(&request.node_id)? == Link::Up,
        ..Default::default()
    };
    for id in &request.volume_ids {
        match state.volume(id) {
            Ok((_, volume)) => {
                // Counted per volume, from whichever node, as most arrays do; else by what this node wrote.
                let last = match per_node {
                    false => volume.last_write.as_ref().map(|last| last.at),
                    true => state.ledger.last_write(id, &request.node_id),
                };
                response.ios_in_progress |= last.is_some_and(|at| now.since(at) <= sample);
            }
            Err(status) => response.messages.push(status.message().to_owned()),
        }
    }
    Ok(response)
}
