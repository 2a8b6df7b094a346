//! The test array as its users meet it: over its sockets.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used, reason = "tests")]

mod faults;
mod lists;
mod rules;

use std::ops::Deref;
use std::time::Duration;

use bulkhead::csi::client;
use bulkhead::csi::podmon::podmon_client::PodmonClient;
use bulkhead::csi::v1::controller_client::ControllerClient;
use bulkhead::csi::v1::identity_client::IdentityClient;
use bulkhead::csi::v1::node_client::NodeClient;
use bulkhead::csi::v1::volume_capability::AccessMode;
use bulkhead::csi::v1::volume_capability::access_mode::Mode;
use bulkhead::csi::v1::*;
use bulkhead_testbed::array::io_protocol::OpenVolume;
use bulkhead_testbed::array::{Array, ArrayOptions, NODE_KEY};
use bulkhead_testbed::ledger::Access;
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Longer than anything here takes, shorter than a person's patience.
const SOON: Duration = Duration::from_secs(10);

/// An array with nodes `a` and `b`.
struct Bed {
    array: Array,
    _folder: TempDir,
}

impl Deref for Bed {
    type Target = Array;

    fn deref(&self) -> &Array {
        &self.array
    }
}

impl Bed {
    fn new() -> Self {
        Bed::with(ArrayOptions::default())
    }

    fn with(options: ArrayOptions) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let array = Array::start(folder.path(), options).expect("array");
        array.add_node("a");
        array.add_node("b");
        Bed { array, _folder: folder }
    }

    fn channel(&self) -> Channel {
        client::connect(self.csi_socket().to_str().expect("path")).expect("address")
    }

    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel())
    }

    fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel())
    }

    fn podmon(&self) -> PodmonClient<Channel> {
        PodmonClient::new(self.channel())
    }

    fn plugins(&self) -> NodeClient<Channel> {
        let path = self.node_socket().to_str().expect("path");
        NodeClient::new(client::connect(path).expect("address"))
    }

    fn volume(&self, name: &str) -> String {
        self.create_volume(name, Access::SingleWriter, 1024).expect("volume")
    }

    async fn publish(&self, volume: &str, node: &str) -> Result<(), Status> {
        self.controller().controller_publish_volume(publish(volume, node)).await.map(drop)
    }

    async fn unpublish(&self, volume: &str, node: &str) -> Result<(), Status> {
        self.controller().controller_unpublish_volume(unpublish(volume, node)).await.map(drop)
    }

    async fn open(&self, volume: &str, node: &str) -> OpenVolume {
        OpenVolume::open(self.io_socket(), volume, node).await.expect("I/O socket")
    }
}

fn capability(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(volume_capability::AccessType::Mount(Default::default())),
    }
}

fn publish(volume: &str, node: &str) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(capability(Mode::SingleNodeWriter)),
        ..Default::default()
    }
}

fn unpublish(volume: &str, node: &str) -> ControllerUnpublishVolumeRequest {
    ControllerUnpublishVolumeRequest { volume_id: volume.to_owned(), node_id: node.to_owned(), ..Default::default() }
}

/// A request to the plugin of `node`.
fn at_node<T>(node: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(NODE_KEY, node.parse().expect("node id"));
    request
}

fn code<T>(answer: Result<T, Status>) -> Code {
    answer.err().map_or(Code::Ok, |status| status.code())
}
