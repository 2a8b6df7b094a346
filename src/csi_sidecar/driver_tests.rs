//! What a driver's answers are worth, against a small driver on a socket.

use std::path::Path;

use tempfile::TempDir;
use tokio::net::UnixListener;
use tonic::Response;
use tonic::transport::Server;

use super::*;
use crate::csi::client;
use crate::csi::v1::controller_server::{Controller, ControllerServer};
use crate::csi::v1::list_volumes_response::{Entry, VolumeStatus};
use crate::csi::v1::{
    ControllerGetCapabilitiesResponse, ControllerGetVolumeResponse, ControllerServiceCapability, ListVolumesResponse,
    Volume, controller_get_volume_response, controller_service_capability,
};

const DEADLINE: Duration = Duration::from_secs(5);

/// What the driver says of a volume.
#[derive(Clone, Copy)]
enum Says {
    Nodes(&'static [&'static str]),
    NoStatus,
    Fails(Code),
    Never,
}

/// A driver with these capabilities and volumes.
#[derive(Clone, Default)]
struct Fake {
    rpcs: Vec<Rpc>,
    volumes: BTreeMap<&'static str, Says>,
}

impl Fake {
    fn with(volumes: &[(&'static str, Says)]) -> Self {
        Self { rpcs: Vec::new(), volumes: volumes.iter().copied().collect() }
    }

    /// Serves while the folder lives.
    fn start(self) -> (Driver, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("csi.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let incoming = futures::stream::unfold(listener, |listener| async {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        tokio::spawn(Server::builder().add_service(ControllerServer::new(self)).serve_with_incoming(incoming));
        (connect(&path), folder)
    }
}

fn connect(path: &Path) -> Driver {
    Driver::new(client::connect(path.to_str().unwrap()).unwrap())
}

fn owned(nodes: &[&str]) -> Vec<String> {
    nodes.iter().map(|node| (*node).to_owned()).collect()
}

#[tonic::async_trait]
impl Controller for Fake {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capabilities = self.rpcs.iter().map(|rpc| ControllerServiceCapability {
            r#type: Some(Type::Rpc(controller_service_capability::Rpc { r#type: *rpc as i32 })),
        });
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities: capabilities.collect() }))
    }

    async fn list_volumes(&self, _: Request<ListVolumesRequest>) -> Result<Response<ListVolumesResponse>, Status> {
        let entries = self.volumes.iter().map(|(id, says)| Entry {
            volume: Some(Volume { volume_id: (*id).to_owned(), ..Volume::default() }),
            status: match says {
                Says::Nodes(nodes) => Some(VolumeStatus { published_node_ids: owned(nodes), volume_condition: None }),
                _ => None,
            },
        });
        Ok(Response::new(ListVolumesResponse { entries: entries.collect(), next_token: String::new() }))
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        let status = match self.volumes.get(request.get_ref().volume_id.as_str()) {
            None => return Err(Status::not_found("no such volume")),
            Some(Says::Fails(code)) => return Err(Status::new(*code, "because")),
            Some(Says::Never) => return std::future::pending().await,
            Some(Says::NoStatus) => None,
            Some(Says::Nodes(nodes)) => Some(controller_get_volume_response::VolumeStatus {
                published_node_ids: owned(nodes),
                volume_condition: None,
            }),
        };
        Ok(Response::new(ControllerGetVolumeResponse { volume: None, status }))
    }
}

#[tokio::test]
async fn published_nodes_need_two_capabilities_each() {
    use Capability::{GetPublishedNodes, ListPublishedNodes};
    for (rpcs, expected) in [
        (&[Rpc::GetVolume][..], &[][..]),
        (&[Rpc::ListVolumes], &[]),
        (&[Rpc::ListVolumesPublishedNodes], &[]),
        (&[Rpc::ListVolumes, Rpc::ListVolumesPublishedNodes], &[ListPublishedNodes]),
        (&[Rpc::GetVolume, Rpc::ListVolumesPublishedNodes], &[GetPublishedNodes]),
        (&[Rpc::GetVolume, Rpc::ListVolumes], &[]),
    ] {
        let (driver, _folder) = Fake { rpcs: rpcs.to_vec(), ..Fake::default() }.start();
        let capabilities = driver.capabilities(DEADLINE).await.unwrap();
        assert_eq!(capabilities, expected.iter().copied().collect(), "{rpcs:?}");
    }
}

#[tokio::test]
async fn a_volume_without_a_status_is_not_listed() {
    let volumes = [("bare", Says::NoStatus), ("free", Says::Nodes(&[])), ("held", Says::Nodes(&["n1"]))];
    let (driver, _folder) = Fake::with(&volumes).start();
    let listed = driver.list(DEADLINE).await.unwrap();
    let got = driver.get(owned(&["bare", "free", "held"]).into_iter().collect(), DEADLINE).await;
    for published in [listed, got] {
        assert_eq!(published.keys().collect::<Vec<_>>(), ["free", "held"], "an empty set of nodes would be a proof");
    }
}

#[tokio::test]
async fn a_volume_that_hangs_or_fails_does_so_alone() {
    let names: Vec<&'static str> =
        vec!["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q"];
    let mut volumes: Vec<_> = names.iter().map(|name| (*name, Says::Nodes(&["n1"]))).collect();
    volumes.extend([("0-hangs", Says::Never), ("0-fails", Says::Fails(Code::Internal))]);
    let (driver, _folder) = Fake::with(&volumes).start();
    let handles = names.iter().copied().chain(["0-hangs", "0-fails", "absent"]).map(str::to_owned).collect();
    let published = driver.get(handles, Duration::from_millis(300)).await;
    for name in names {
        assert_eq!(published[name], Ok(BTreeSet::from(["n1".to_owned()])), "{name}");
    }
    let code = |volume: &str| published[volume].as_ref().unwrap_err().code;
    // The deadline travels with the call: whoever notices first says so.
    assert!(matches!(code("0-hangs"), "DeadlineExceeded" | "Cancelled"));
    assert_eq!(code("0-fails"), "Internal");
    assert!(!published.contains_key("absent"));
}

#[tokio::test]
async fn turns_are_bounded_and_end_with_the_sidecar() {
    let driver = connect(Path::new("/nobody/listens"));
    let mut turns = Vec::new();
    for _ in 0..UNPUBLISHES_AT_ONCE {
        turns.push(driver.turn().await.unwrap());
    }
    // Else tokio would make the task wait for its own sake, after so many turns.
    tokio::task::yield_now().await;
    let mut next = Box::pin(driver.turn());
    assert!(futures::poll!(&mut next).is_pending(), "one more has to wait");
    turns.pop();
    assert!(futures::poll!(&mut next).is_ready(), "until a call has ended");
    let last = driver.turn();
    driver.close();
    assert_eq!(last.await.unwrap_err().code, "Cancelled");
}
