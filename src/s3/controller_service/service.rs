//! The Controller service: CSI's words on one side, buckets on the other.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};

use tonic::{Request, Response, Status};
use tracing::Instrument as _;

use crate::csi::v1::controller_server::Controller;
use crate::csi::v1::controller_service_capability::{Rpc, Type, rpc};
use crate::csi::v1::volume_capability::AccessType;
use crate::csi::v1::volume_capability::access_mode::Mode;
use crate::csi::v1::*;
use crate::runtime::lock::lock;
use crate::s3::keys::Keys;
use crate::s3::spans;

use super::client::{Deletion, S3};
use super::decide::{self, NonEmptyBucket, Source};
use super::refusal;

type Answer<T> = Result<Response<T>, Status>;

pub(super) struct ControllerService {
    s3: S3,
    keys: Option<Keys>,
    non_empty_bucket: NonEmptyBucket,
    /// Bucket and capacity of what this process made. CSI wants a name that is asked for with another capacity to be
    /// refused; a bucket knows of none, so a process that starts afresh accepts what it is asked for.
    capacities: Mutex<BTreeMap<String, i64>>,
}

impl ControllerService {
    pub fn new(s3: S3, keys: Option<Keys>, non_empty_bucket: NonEmptyBucket) -> Self {
        Self { s3, keys, non_empty_bucket, capacities: Mutex::default() }
    }

    /// The keys of a call: those that came with it, else the driver's own.
    fn keys(&self, secrets: &HashMap<String, String>) -> Result<(Keys, Source), Status> {
        if secrets.is_empty() {
            let own = self.keys.clone().ok_or_else(|| {
                Status::failed_precondition(format!(
                    "no keys of S3: put them into {}, or name a Secret in the StorageClass",
                    refusal::place(Source::Driver)
                ))
            })?;
            return Ok((own, Source::Driver));
        }
        let given = Keys::of_secret(secrets).map_err(|wrong| {
            Status::invalid_argument(format!("no keys of S3 in {}: {wrong}", refusal::place(Source::Secret)))
        })?;
        Ok((given, Source::Secret))
    }

    async fn create(&self, bucket: &str, capacity: i64, secrets: &HashMap<String, String>) -> Result<Source, Status> {
        if let Some(other) = self.capacities().get(bucket).copied().filter(|other| *other != capacity) {
            return Err(Status::already_exists(format!("bucket {bucket} is there, for {other} bytes, not {capacity}")));
        }
        let (keys, source) = self.keys(secrets)?;
        let doing = format!("bucket {bucket} cannot be made");
        let made = self.s3.create_bucket(bucket, &keys).await;
        made.map_err(|error| refusal::status(&doing, &error, source))?;
        self.capacities().insert(bucket.to_owned(), capacity);
        Ok(source)
    }

    async fn delete(&self, bucket: &str, secrets: &HashMap<String, String>) -> Result<(), Status> {
        let (keys, source) = self.keys(secrets)?;
        let doing = format!("bucket {bucket} cannot be deleted");
        let deletion = self.s3.delete_bucket(bucket, &keys).await;
        match deletion.map_err(|error| refusal::status(&doing, &error, source))? {
            Deletion::Done => tracing::info!(bucket, "bucket deleted"),
            Deletion::Missing => tracing::info!(bucket, "there is no such bucket any more"),
            Deletion::NotEmpty if self.non_empty_bucket == NonEmptyBucket::Keep => {
                tracing::warn!(bucket, "the volume goes, its bucket stays: there is data in it");
            }
            Deletion::NotEmpty => {
                return Err(Status::failed_precondition(format!(
                    "bucket {bucket} is kept: there is data in it; empty it with a tool of S3 (old versions and \
                     unfinished uploads count), or set the volume's reclaim policy to Retain"
                )));
            }
        }
        self.capacities().remove(bucket);
        Ok(())
    }

    async fn make(&self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        required("name", &request.name)?;
        usable(&request.volume_capabilities, &[Mode::MultiNodeMultiWriter])?;
        if request.volume_content_source.is_some() {
            return Err(Status::invalid_argument("a bucket cannot be made from a snapshot or another volume"));
        }
        let range = request.capacity_range.unwrap_or_default();
        let capacity = decide::capacity(range.required_bytes, range.limit_bytes).map_err(Status::out_of_range)?;
        let bucket = decide::bucket_name(&request.name);
        let source = self.create(&bucket, capacity, &request.secrets).await?;
        tracing::info!(volume = request.name, bucket, "bucket made");
        let volume = Volume {
            capacity_bytes: capacity,
            volume_context: decide::volume_context(&bucket, source).into_iter().collect(),
            volume_id: bucket,
            ..Volume::default()
        };
        Ok(CreateVolumeResponse { volume: Some(volume) })
    }

    async fn take_away(&self, request: DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Status> {
        required("volume_id", &request.volume_id)?;
        if decide::is_ours(&request.volume_id) {
            self.delete(&request.volume_id, &request.secrets).await?;
        } else {
            tracing::warn!(volume = request.volume_id, "not a bucket that was made here: nothing is deleted");
        }
        Ok(DeleteVolumeResponse {})
    }

    async fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
        required("volume_id", &request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities is missing"));
        }
        // A volume that a person made has a handle of that person's choice.
        let bucket = request.volume_context.get(decide::BUCKET_NAME).unwrap_or(&request.volume_id);
        if !decide::is_bucket_name(bucket) {
            return Err(Status::not_found(format!("no bucket is called {bucket}")));
        }
        let (keys, source) = self.keys(&request.secrets)?;
        let doing = format!("bucket {bucket} cannot be looked at");
        let there = self.s3.has_bucket(bucket, &keys).await;
        if !there.map_err(|error| refusal::status(&doing, &error, source))? {
            return Err(Status::not_found(format!("there is no bucket {bucket}")));
        }
        let modes = [Mode::MultiNodeMultiWriter, Mode::MultiNodeReaderOnly];
        Ok(match usable(&request.volume_capabilities, &modes) {
            Err(wrong) => ValidateVolumeCapabilitiesResponse { message: wrong.message().to_owned(), confirmed: None },
            Ok(()) => ValidateVolumeCapabilitiesResponse {
                message: String::new(),
                confirmed: Some(validate_volume_capabilities_response::Confirmed {
                    volume_context: request.volume_context,
                    volume_capabilities: request.volume_capabilities,
                    parameters: request.parameters,
                    mutable_parameters: request.mutable_parameters,
                }),
            },
        })
    }

    fn capacities(&self) -> MutexGuard<'_, BTreeMap<String, i64>> {
        lock(&self.capacities)
    }
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        let kind = rpc::Type::CreateDeleteVolume.into();
        let capability = ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind })) };
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: vec![capability] }))
    }

    /// Parameters of the StorageClass do not matter, as in the Scality driver: all there is to say is in its Secrets and
    /// mount options.
    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        let request = request.into_inner();
        let span = spans::call("CreateVolume", &request.name, None);
        self.make(request).instrument(span).await.map(Response::new)
    }

    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        let request = request.into_inner();
        let span = spans::call("DeleteVolume", &request.volume_id, None);
        self.take_away(request).instrument(span).await.map(Response::new)
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        let request = request.into_inner();
        let span = spans::call("ValidateVolumeCapabilities", &request.volume_id, None);
        self.validate(request).instrument(span).await.map(Response::new)
    }
}

fn required(field: &str, value: &str) -> Result<(), Status> {
    if value.is_empty() {
        return Err(Status::invalid_argument(format!("{field} is missing")));
    }
    Ok(())
}

/// A bucket is a folder for any number of nodes.
fn usable(capabilities: &[VolumeCapability], modes: &[Mode]) -> Result<(), Status> {
    if capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities is missing"));
    }
    for capability in capabilities {
        if matches!(capability.access_type, Some(AccessType::Block(_))) {
            return Err(Status::invalid_argument(
                "a bucket is no block device: use volumeMode Filesystem in the claim",
            ));
        }
        let mode = capability.access_mode.as_ref().and_then(|access| Mode::try_from(access.mode).ok());
        if !mode.is_some_and(|mode| modes.contains(&mode)) {
            return Err(Status::invalid_argument(
                "a bucket is for any number of nodes: use accessModes [ReadWriteMany] in the claim",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::client::Endpoint;
    use super::*;
    use crate::runtime::logs::tests::Lines;

    #[tokio::test]
    async fn lines_of_a_call_say_which_call_it_is() {
        let (lines, _logging) = Lines::of_this_thread();
        let endpoint = Endpoint::new("http://192.0.2.1", "us-east-1", None).unwrap();
        let service = ControllerService::new(S3::new(endpoint), None, NonEmptyBucket::Keep);
        let request = DeleteVolumeRequest { volume_id: "of-somebody".to_owned(), ..DeleteVolumeRequest::default() };
        Controller::delete_volume(&service, Request::new(request)).await.unwrap();
        let line = lines.of("not a bucket that was made here: nothing is deleted").pop().unwrap();
        let span = &line["span"];
        assert_eq!((&span["method"], &span["volume"]), (&"DeleteVolume".into(), &"of-somebody".into()));
        assert!(Lines::have_trace(span), "{line}");
    }
}
