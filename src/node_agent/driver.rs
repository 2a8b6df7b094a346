//! The CSI node plugins of this node: where they are, and their calls. The kubelet's folder of registration sockets
//! names them; whoever serves one there is trusted by the kubelet with the same calls. Every call has a deadline.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::csi::client;
use crate::csi::plugin_registration::InfoRequest;
use crate::csi::plugin_registration::registration_client::RegistrationClient;
use crate::csi::v1::identity_client::IdentityClient;
use crate::csi::v1::node_client::NodeClient;
use crate::csi::v1::node_service_capability::Type;
use crate::csi::v1::node_service_capability::rpc::Type as Rpc;
use crate::csi::v1::volume_health::VolumeHealthEntry;
use crate::csi::v1::{
    GetPluginInfoRequest, NodeGetCapabilitiesRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCondition,
};

use super::volumes::driver::Generation;

/// Deadline of the questions that need no storage.
const ASKING: Duration = Duration::from_secs(2);
/// Kind of plugin that a CSI driver registers as.
const CSI_PLUGIN: &str = "CSIPlugin";

/// Why a call failed: the gRPC code in CamelCase, and what the driver said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// gRPC code.
    pub code: String,
    /// The driver's words.
    pub message: String,
}

/// Where the plugins are looked for.
#[derive(Clone, Debug)]
pub struct Plugins {
    /// A process of the host, such as `/proc/1`.
    pub host: String,
    /// The kubelet's root folder.
    pub kubelet_root: String,
    /// One more driver, beside us.
    pub beside: Option<String>,
}

/// One driver's node plugin.
#[derive(Clone)]
pub struct Plugin {
    channel: Channel,
    /// The socket, by which the channel connects.
    _socket: Option<Arc<OwnedFd>>,
}

impl Plugins {
    /// All that answer, by the driver's name.
    pub async fn find(&self) -> BTreeMap<String, Plugin> {
        let places = self.clone();
        let listed = tokio::task::spawn_blocking(move || places.registrations());
        let sockets = match tokio::time::timeout(ASKING, listed).await {
            Ok(Ok(Ok(sockets))) => sockets,
            other => {
                tracing::debug!(?other, "the kubelet's folder of registration sockets cannot be read");
                Vec::new()
            }
        };
        let registered = sockets.into_iter().map(|socket| self.registered(socket));
        let found = futures::future::join_all(registered).await;
        let mut plugins: BTreeMap<_, _> = found.into_iter().flatten().collect();
        if let Some(address) = &self.beside
            && let Ok(channel) = client::connect(address)
            && let Ok(name) = driver_name(channel.clone()).await
        {
            plugins.insert(name, Plugin { channel, _socket: None });
        }
        plugins
    }

    /// The sockets in the kubelet's folder.
    fn registrations(&self) -> io::Result<Vec<String>> {
        let folder = format!("{}/plugins_registry", self.kubelet_root);
        let opened = self.open(&folder, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut sockets = Vec::new();
        for entry in Dir::new(opened)? {
            let entry = entry?;
            if entry.file_type() == FileType::Socket
                && let Ok(name) = entry.file_name().to_str()
            {
                sockets.push(format!("{folder}/{name}"));
            }
        }
        Ok(sockets)
    }

    /// Opens a path of the host.
    fn open(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let root =
            rustix::fs::openat(CWD, format!("{}/root", self.host), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?)
    }

    /// A channel to a socket of the host, by its descriptor: its path may be long, and is another one for us.
    fn connect(&self, path: &str) -> io::Result<Plugin> {
        let path = client::socket_path(path).map_err(io::Error::other)?;
        let socket = self.open(&path.to_string_lossy(), OFlags::PATH)?;
        let channel = client::connect(&format!("/proc/self/fd/{}", socket.as_raw_fd())).map_err(io::Error::other)?;
        Ok(Plugin { channel, _socket: Some(Arc::new(socket)) })
    }

    async fn registered(&self, socket: String) -> Option<(String, Plugin)> {
        let asked = async {
            let registration = self.connect(&socket).map_err(internal)?;
            let mut client = RegistrationClient::new(registration.channel.clone());
            let info = call(ASKING, client.get_info(InfoRequest {})).await?;
            if info.r#type != CSI_PLUGIN {
                return Ok(None);
            }
            // Without an endpoint it serves its calls where it registers.
            let endpoint = if info.endpoint.is_empty() { socket.clone() } else { info.endpoint };
            let plugin = self.connect(&endpoint).map_err(internal)?;
            Ok(Some((info.name, plugin)))
        };
        asked.await.unwrap_or_else(|failure: Failure| {
            // A plugin that was removed may leave its socket behind.
            tracing::debug!(socket, code = failure.code, message = failure.message, "no plugin answers here");
            None
        })
    }
}

impl Plugin {
    /// NodeUnpublishVolume. A volume that the driver does not know is not published.
    pub async fn unpublish(&self, handle: &str, target: &str, deadline: Duration) -> Result<(), Failure> {
        let request = NodeUnpublishVolumeRequest { volume_id: handle.to_owned(), target_path: target.to_owned() };
        let mut client = NodeClient::new(self.channel.clone());
        known(call(deadline, client.node_unpublish_volume(timed(request, deadline))).await.map(drop))
    }

    /// NodeUnstageVolume. A volume that the driver does not know is not staged.
    pub async fn unstage(&self, handle: &str, staging: &str, deadline: Duration) -> Result<(), Failure> {
        let request =
            NodeUnstageVolumeRequest { volume_id: handle.to_owned(), staging_target_path: staging.to_owned() };
        let mut client = NodeClient::new(self.channel.clone());
        known(call(deadline, client.node_unstage_volume(timed(request, deadline))).await.map(drop))
    }

    /// What the driver's node plugin can do, as numbers of the specification.
    async fn capabilities(&self) -> Result<Vec<i32>, Failure> {
        let mut client = NodeClient::new(self.channel.clone());
        let request = timed(NodeGetCapabilitiesRequest {}, ASKING);
        let answer = call(ASKING, client.node_get_capabilities(request)).await?;
        let told = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
        Ok(told.map(|Type::Rpc(rpc)| rpc.r#type).collect())
    }

    /// Whether the driver stages volumes.
    pub async fn stages(&self) -> Result<bool, Failure> {
        Ok(self.capabilities().await?.contains(&(Rpc::StageUnstageVolume as i32)))
    }

    /// How the plugin can be asked about the health of volumes, if at all.
    pub async fn tells_health(&self) -> Result<Option<Generation>, Failure> {
        let capabilities = self.capabilities().await?;
        let has = |rpc: Rpc| capabilities.contains(&(rpc as i32));
        if has(Rpc::GetVolumeHealth) {
            return Ok(Some(Generation::Health));
        }
        Ok((has(Rpc::GetVolumeStats) && has(Rpc::VolumeCondition)).then_some(Generation::Condition))
    }

    /// NodeGetVolumeHealth.
    pub async fn volume_health(
        &self,
        handle: &str,
        path: &str,
        staging: &str,
        deadline: Duration,
    ) -> Result<Vec<VolumeHealthEntry>, Failure> {
        let request = NodeGetVolumeHealthRequest {
            volume_id: handle.to_owned(),
            volume_publish_path: path.to_owned(),
            staging_target_path: staging.to_owned(),
        };
        let mut client = NodeClient::new(self.channel.clone());
        let answer = call(deadline, client.node_get_volume_health(timed(request, deadline))).await?;
        Ok(answer.volume_health.map(|health| health.health_statuses).unwrap_or_default())
    }

    /// The VolumeCondition of NodeGetVolumeStats.
    pub async fn volume_condition(
        &self,
        handle: &str,
        path: &str,
        staging: &str,
        deadline: Duration,
    ) -> Result<Option<VolumeCondition>, Failure> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: handle.to_owned(),
            volume_path: path.to_owned(),
            staging_target_path: staging.to_owned(),
        };
        let mut client = NodeClient::new(self.channel.clone());
        Ok(call(deadline, client.node_get_volume_stats(timed(request, deadline))).await?.volume_condition)
    }
}

async fn driver_name(channel: Channel) -> Result<String, Failure> {
    let mut client = IdentityClient::new(channel);
    Ok(call(ASKING, client.get_plugin_info(timed(GetPluginInfoRequest {}, ASKING))).await?.name)
}

fn known(answer: Result<(), Failure>) -> Result<(), Failure> {
    answer.or_else(|failure| if failure.code == "NotFound" { Ok(()) } else { Err(failure) })
}

fn internal(error: io::Error) -> Failure {
    Failure { code: "Unavailable".into(), message: error.to_string() }
}

/// The deadline travels with the call, so that the driver can give up as well; ours is the first to end, because the
/// client library tells its own as Cancelled.
fn timed<T>(message: T, deadline: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline + Duration::from_millis(500));
    request
}

async fn call<T>(
    deadline: Duration,
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Failure> {
    let failed = |code: Code, message: String| Failure { code: format!("{code:?}"), message };
    match tokio::time::timeout(deadline, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(failed(status.code(), status.message().to_owned())),
        Err(_) => Err(failed(Code::DeadlineExceeded, format!("no answer within {deadline:?}"))),
    }
}
