//! The CSI driver beside us: what it can do, ControllerUnpublishVolume, and the list of published nodes. Every call
//! has a deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::api::driver_report::Capability;
use crate::csi::v1::controller_client::ControllerClient;
use crate::csi::v1::controller_service_capability::Type;
use crate::csi::v1::controller_service_capability::rpc::Type as Rpc;
use crate::csi::v1::identity_client::IdentityClient;
use crate::csi::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetVolumeRequest, ControllerUnpublishVolumeRequest,
    GetPluginInfoRequest, ListVolumesRequest, ProbeRequest,
};

use super::decide::{Failure, FailureClass};

/// More pages than any real list has: a driver that hands out tokens for ever is cut off here.
const PAGES_MAX: usize = 100_000;
/// ControllerGetVolume calls under way at once.
const GETS_AT_ONCE: usize = 16;
/// ControllerUnpublishVolume calls under way at once: more only make an array slower.
const UNPUBLISHES_AT_ONCE: usize = 128;

/// The driver.
#[derive(Clone)]
pub struct Driver {
    channel: Channel,
    unpublishes: Arc<Semaphore>,
}

/// Published node ids by volume handle, or why they cannot be told.
pub type Published = BTreeMap<String, Result<BTreeSet<String>, Failure>>;

impl Driver {
    /// The driver behind a channel.
    pub fn new(channel: Channel) -> Self {
        Self { channel, unpublishes: Arc::new(Semaphore::new(UNPUBLISHES_AT_ONCE)) }
    }

    /// The driver's name. The driver must be ready.
    pub async fn name(&self, deadline: Duration) -> Result<String, Failure> {
        let mut client = IdentityClient::new(self.channel.clone());
        let ready = call(deadline, client.probe(timed(ProbeRequest {}, deadline))).await?.ready;
        let unavailable =
            |message: &str| Failure { code: "Unavailable", class: FailureClass::Retry, message: message.into() };
        if ready == Some(false) {
            return Err(unavailable("the driver answers Probe with ready: false"));
        }
        let name = call(deadline, client.get_plugin_info(timed(GetPluginInfoRequest {}, deadline))).await?.name;
        // Everything of ours is called after it: a sidecar without a name would serve nobody, for as long as it lives.
        if name.is_empty() { Err(unavailable("the driver tells no name")) } else { Ok(name) }
    }

    /// What the driver can answer.
    pub async fn capabilities(&self, deadline: Duration) -> Result<BTreeSet<Capability>, Failure> {
        let rpcs = self.rpcs(deadline).await?;
        let has = |rpc: Rpc| rpcs.contains(&(rpc as i32));
        let mut capabilities = BTreeSet::new();
        if has(Rpc::PublishUnpublishVolume) {
            capabilities.insert(Capability::Unpublish);
        }
        if has(Rpc::ListVolumes) && has(Rpc::ListVolumesPublishedNodes) {
            capabilities.insert(Capability::ListPublishedNodes);
        }
        // Without it the published nodes that ControllerGetVolume tells "MUST not" be interpreted (csi.proto).
        if has(Rpc::GetVolume) && has(Rpc::ListVolumesPublishedNodes) {
            capabilities.insert(Capability::GetPublishedNodes);
        }
        if has(Rpc::VolumeCondition) && (has(Rpc::ListVolumes) || has(Rpc::GetVolume)) {
            capabilities.insert(Capability::VolumeCondition);
        }
        if has(Rpc::GetVolumeHealth) || has(Rpc::ListVolumeHealth) {
            capabilities.insert(Capability::VolumeHealth);
        }
        Ok(capabilities)
    }

    /// The numbers of the controller RPC capabilities, those too that we do not know.
    pub async fn rpcs(&self, deadline: Duration) -> Result<BTreeSet<i32>, Failure> {
        let mut client = ControllerClient::new(self.channel.clone());
        let request = timed(ControllerGetCapabilitiesRequest {}, deadline);
        let answer = call(deadline, client.controller_get_capabilities(request)).await?;
        let types = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
        Ok(types.map(|Type::Rpc(rpc)| rpc.r#type).collect())
    }

    /// The way to the driver, for calls that are not about fencing.
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Waits for a turn at [`Driver::unpublish`]; keep it until the call has ended. Fails once [`Driver::close`] was
    /// called.
    pub async fn turn(&self) -> Result<OwnedSemaphorePermit, Failure> {
        self.unpublishes.clone().acquire_owned().await.map_err(|_| Failure {
            code: "Cancelled",
            class: FailureClass::Retry,
            message: "the sidecar ends; nothing was sent".into(),
        })
    }

    /// No more turns: we are about to end.
    pub fn close(&self) {
        self.unpublishes.close();
    }

    /// Takes a node's access to a volume away.
    pub async fn unpublish(
        &self,
        request: ControllerUnpublishVolumeRequest,
        deadline: Duration,
    ) -> Result<(), Failure> {
        let mut client = ControllerClient::new(self.channel.clone());
        call(deadline, client.controller_unpublish_volume(timed(request, deadline))).await.map(drop)
    }

    /// All volumes with their published nodes, every page read. A list with a page missing or a token repeated is no
    /// list: what is absent from it would look unpublished.
    pub async fn list(&self, deadline: Duration) -> Result<Published, Failure> {
        let whole = async {
            let mut client = ControllerClient::new(self.channel.clone());
            let mut published = BTreeMap::<String, BTreeSet<String>>::new();
            let mut tokens = BTreeSet::new();
            let mut token = String::new();
            for _ in 0..PAGES_MAX {
                let request = ListVolumesRequest { max_entries: 0, starting_token: token.clone() };
                let page = call(deadline, client.list_volumes(timed(request, deadline))).await?;
                for entry in page.entries {
                    // Without a status nothing is said about the nodes: it is as if the volume were not listed.
                    if let (Some(volume), Some(status)) = (entry.volume, entry.status) {
                        published.entry(volume.volume_id).or_default().extend(status.published_node_ids);
                    }
                }
                if page.next_token.is_empty() {
                    return Ok(published.into_iter().map(|(handle, nodes)| (handle, Ok(nodes))).collect());
                }
                if !tokens.insert(page.next_token.clone()) {
                    return Err(incomplete("the driver repeats a page token"));
                }
                token = page.next_token;
            }
            Err(incomplete("the driver's list does not end"))
        };
        tokio::time::timeout(deadline, whole).await.unwrap_or_else(|_| Err(timed_out(deadline)))
    }

    /// Published nodes of single volumes, for drivers that do not list them: side by side, with one deadline for all.
    /// A volume that fails or hangs fails alone; one that is not there is not listed, which is no proof.
    pub async fn get(&self, handles: BTreeSet<String>, deadline: Duration) -> Published {
        let end = tokio::time::Instant::now() + deadline;
        let reads = handles.into_iter().map(|handle| async move {
            let read = tokio::time::timeout_at(end, self.get_one(&handle, deadline)).await;
            (handle, read.unwrap_or_else(|_| Err(timed_out(deadline))))
        });
        let answers: Vec<_> = futures::stream::iter(reads).buffer_unordered(GETS_AT_ONCE).collect().await;
        answers.into_iter().filter_map(|(handle, nodes)| Some((handle, nodes.transpose()?))).collect()
    }

    async fn get_one(&self, handle: &str, deadline: Duration) -> Result<Option<BTreeSet<String>>, Failure> {
        let mut client = ControllerClient::new(self.channel.clone());
        let request = timed(ControllerGetVolumeRequest { volume_id: handle.to_owned() }, deadline);
        match call(deadline, client.controller_get_volume(request)).await {
            // As in a list: without a status nothing is said.
            Ok(answer) => Ok(answer.status.map(|status| status.published_node_ids.into_iter().collect())),
            Err(failure) if failure.code == "NotFound" => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

pub(super) fn incomplete(message: &str) -> Failure {
    Failure { code: "IncompleteList", class: FailureClass::Retry, message: message.into() }
}

pub(super) fn timed_out(deadline: Duration) -> Failure {
    let message = format!("no answer within {deadline:?}");
    Failure { code: "DeadlineExceeded", class: FailureClass::Retry, message }
}

/// The deadline travels with the call, so that the driver can give up as well. A little later than we do: the client
/// library tells its own timeout as Cancelled, and who looks at the answer needs to know that it was time that ran out.
pub(super) fn timed<T>(message: T, deadline: Duration) -> Request<T> {
    const OURS_FIRST: Duration = Duration::from_millis(500);
    let mut request = Request::new(message);
    request.set_timeout(deadline + OURS_FIRST);
    request
}

pub(super) async fn call<T>(
    deadline: Duration,
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(deadline, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(classify(&status)),
        Err(_) => Err(timed_out(deadline)),
    }
}

/// gRPC codes that may pass are tried again; the others are an answer. (CSI spec, "Error Scheme"; a call that a
/// crashing driver cuts off ends in Cancelled or Unknown.)
pub fn classify(status: &Status) -> Failure {
    use FailureClass::{Retry, Stop};
    let (code, class) = match status.code() {
        Code::Ok => ("OK", Retry),
        Code::Cancelled => ("Cancelled", Retry),
        Code::Unknown => ("Unknown", Retry),
        Code::InvalidArgument => ("InvalidArgument", Stop),
        Code::DeadlineExceeded => ("DeadlineExceeded", Retry),
        Code::NotFound => ("NotFound", Stop),
        Code::AlreadyExists => ("AlreadyExists", Stop),
        Code::PermissionDenied => ("PermissionDenied", Stop),
        Code::ResourceExhausted => ("ResourceExhausted", Retry),
        Code::FailedPrecondition => ("FailedPrecondition", Stop),
        Code::Aborted => ("Aborted", Retry),
        Code::OutOfRange => ("OutOfRange", Stop),
        Code::Unimplemented => ("Unimplemented", Stop),
        Code::Internal => ("Internal", Retry),
        Code::Unavailable => ("Unavailable", Retry),
        Code::DataLoss => ("DataLoss", Stop),
        Code::Unauthenticated => ("Unauthenticated", Stop),
    };
    Failure { code, class, message: status.message().to_owned() }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
