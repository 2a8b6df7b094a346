//! The test array: a storage array with a CSI driver, for many nodes at once.
//!
//! Three Unix sockets: the driver's controller (Identity, Controller, podmon), the node plugins (Identity, Node; metadata
//! says which node), and volume I/O. For nodes that are real, management and I/O are served over TCP, too; their CSI
//! driver is a program of its own ([`csi_driver`](crate::csi_driver)). Where csi-addons is to speak to it, each part of the driver has
//! one more socket. The array is honest about access: I/O passes only while the node is published. It
//! is not careful: a second publish of a single-writer volume is accepted unless told otherwise, so that it can be
//! misused. What happened is in the [`Ledger`]; what is to go wrong is in the [`FaultScript`].

mod calls;
mod controller_service;
mod csi_addons_service;
mod driver;
mod faults;
pub mod file_protocol;
mod files;
mod front;
pub(crate) mod health;
mod identity_service;
pub mod io_protocol;
mod io_server;
mod listing;
mod networks;
mod node_service;
mod objects;
mod podmon_service;
mod state;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bulkhead::csi::v1::identity_server::IdentityServer;
use bulkhead::csi::v1::node_server::NodeServer;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::{Code, Status};

pub use self::calls::{Call, CallLog, Method};
pub use self::faults::{Effect, FAILURE_CODES, Fault, FaultId, FaultScript};
pub(crate) use self::front::accepted;
pub use self::health::Ailment;
pub use self::node_service::NODE_KEY;
pub use self::objects::{Claim, ClaimError, SecretRef};
pub use self::state::{Link, MultiAttach};

use self::driver::Driver;
use self::front::Front;
use self::identity_service::IdentityService;
use self::node_service::NodeService;
use self::state::State;
use crate::ledger::{Access, Ledger};
use crate::lock::lock;

/// How an array behaves.
#[derive(Clone, Debug)]
pub struct ArrayOptions {
    /// The CSI driver's name.
    pub driver_name: String,
    /// What becomes of a second publish of a single-writer volume.
    pub multi_attach: MultiAttach,
    /// Volumes are attached by the controller. Without it there is no publish and no unpublish, and staging gives the
    /// node its access (`attachRequired: false`).
    pub attaches: bool,
    /// The cluster of the storage that its volumes name (`volumeAttributes.clusterID`), as those of Ceph do.
    pub cluster_id: Option<String>,
    /// The most entries a page of `ListVolumes` has, whatever the caller asks for; 0 for no limit.
    pub page_size: usize,
    /// `ListVolumes` is there.
    pub lists_volumes: bool,
    /// `ListVolumes` and `ControllerGetVolume`, where they are there, show the published nodes.
    pub lists_published_nodes: bool,
    /// `ControllerGetVolume` is there.
    pub gets_volume: bool,
    /// Both tell a `VolumeCondition`, as drivers of CSI 1.3 to 1.12 do; so does the node service.
    pub tells_condition: bool,
    /// `ControllerGetVolumeHealth` is there, as in drivers of CSI 1.13; so is `NodeGetVolumeHealth`.
    pub gets_health: bool,
    /// `ControllerListVolumeHealth` is there, and with it all of `gets_health`.
    pub lists_health: bool,
    /// The podmon extension is there.
    pub has_podmon: bool,
    /// Its answer about I/O counts what the node itself did, not what anybody did.
    pub tells_io_per_node: bool,
    /// The secret (key, value) that publish and unpublish must bring; `Unauthenticated` without it.
    pub required_secret: Option<(String, String)>,
}

impl Default for ArrayOptions {
    fn default() -> Self {
        ArrayOptions {
            driver_name: "array.testbed.bulkhead.dev".to_owned(),
            multi_attach: MultiAttach::Accept,
            attaches: true,
            cluster_id: None,
            page_size: 0,
            lists_volumes: true,
            lists_published_nodes: true,
            gets_volume: true,
            tells_condition: false,
            gets_health: false,
            lists_health: false,
            has_podmon: true,
            tells_io_per_node: false,
            required_secret: None,
        }
    }
}

/// A running array. Dropping it ends its servers; what it knew is gone, clones of its [`Ledger`] stay.
#[derive(Debug)]
pub struct Array {
    driver: Arc<Driver>,
    front: Arc<Front>,
    node_socket: PathBuf,
    io_socket: PathBuf,
    /// The servers that a crash of the driver does not touch. Ended by being dropped.
    servers: Mutex<JoinSet<()>>,
}

impl Array {
    /// Starts an array whose sockets are in `folder`, which must exist.
    ///
    /// # Errors
    ///
    /// When a socket cannot be bound (a Unix socket's path has at most 107 bytes) or the thread cannot be started.
    pub fn start(folder: &Path, options: ArrayOptions) -> io::Result<Self> {
        let ledger = Ledger::default();
        let (crash, crashes) = mpsc::unbounded_channel();
        let driver = Arc::new(Driver {
            state: Mutex::new(State::new(ledger.clone(), &options)),
            calls: CallLog::new(ledger.clone()),
            faults: FaultScript::default(),
            links: watch::Sender::new(()),
            options,
            ledger,
            crash,
        });
        let front = Arc::new(Front::new(folder.join("csi.sock"), driver.clone()));
        front.start()?;
        let array = Array {
            node_socket: folder.join("node.sock"),
            io_socket: folder.join("io.sock"),
            driver,
            front,
            servers: Mutex::default(),
        };
        array.serve(crashes)?;
        Ok(array)
    }

    fn serve(&self, mut crashes: mpsc::UnboundedReceiver<()>) -> io::Result<()> {
        let listener = UnixListener::bind(&self.node_socket)?;
        let plugins = tonic::transport::Server::builder()
            .add_service(IdentityServer::new(IdentityService(self.driver.clone())))
            .add_service(NodeServer::new(NodeService(self.driver.clone())));
        let mut servers = lock(&self.servers);
        servers.spawn(async move {
            if let Err(error) = plugins.serve_with_incoming(accepted(listener)).await {
                tracing::error!(%error, "the node plugins' socket failed");
            }
        });
        let listener = UnixListener::bind(&self.io_socket)?;
        servers.spawn(io_server::serve(accepted(listener), self.driver.clone()));
        let front = self.front.clone();
        servers.spawn(async move {
            while crashes.recv().await.is_some() {
                front.stop().await;
            }
        });
        Ok(())
    }

    /// The CSI driver's name.
    pub fn driver_name(&self) -> &str {
        &self.driver.options.driver_name
    }

    /// The socket of the driver's controller: for the attacher and our sidecar.
    pub fn csi_socket(&self) -> &Path {
        self.front.socket()
    }

    /// The socket of the node plugins; see [`NODE_KEY`].
    pub fn node_socket(&self) -> &Path {
        &self.node_socket
    }

    /// The socket for volume I/O; see [`io_protocol`].
    pub fn io_socket(&self) -> &Path {
        &self.io_socket
    }

    /// Serves the array's management (Identity, Controller, podmon) over TCP, too. It is the driver's controller as far as
    /// faults go: a crash ends it, a restart brings it back on the same address. Returns the address, with the port that
    /// was chosen if `address` has port 0.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound, or the management has crashed.
    pub fn serve_management(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        self.front.serve_management(address)
    }

    /// Serves volume I/O over TCP, too. Returns the address, with the port that was chosen if `address` has port 0.
    ///
    /// # Errors
    ///
    /// When the address cannot be bound.
    pub fn serve_io(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = front::listen(address)?;
        let address = listener.local_addr()?;
        lock(&self.servers).spawn(io_server::serve(front::accepted_tcp(listener), self.driver.clone()));
        Ok(address)
    }

    /// What happened.
    pub fn ledger(&self) -> &Ledger {
        &self.driver.ledger
    }

    /// What is to go wrong.
    pub fn faults(&self) -> &FaultScript {
        &self.driver.faults
    }

    /// What was called.
    pub fn calls(&self) -> &CallLog {
        &self.driver.calls
    }

    /// Ends the driver's controller as a crash does: socket gone, connections cut, calls under way lost. Volumes, access and
    /// I/O stay.
    pub async fn crash(&self) {
        self.front.stop().await;
    }

    /// Starts the driver's controller again, when the crash is complete.
    ///
    /// # Errors
    ///
    /// When the socket cannot be bound or the thread cannot be started.
    pub async fn restart(&self) -> io::Result<()> {
        self.front.restart().await
    }

    /// The driver's controller is running.
    pub fn is_running(&self) -> bool {
        self.front.is_running()
    }

    /// From now on every call that needs the array's management is `Unavailable`, until the fault is removed.
    pub fn gateway_down(&self) -> FaultId {
        self.faults().add(Fault::gateway(Effect::Fail(Code::Unavailable)))
    }

    /// Changes what becomes of a second publish.
    pub fn set_multi_attach(&self, multi_attach: MultiAttach) {
        lock(&self.driver.state).multi_attach = multi_attach;
    }

    /// Registers a node by its CSI node id, with its link up. Nothing can be published to a node the array does not know.
    pub fn add_node(&self, node: &str) {
        lock(&self.driver.state).add_node(node);
    }

    /// Changes the path between a node and the array.
    pub fn set_link(&self, node: &str, link: Link) {
        lock(&self.driver.state).set_link(node, link);
        self.driver.links.send_replace(());
    }

    /// What was staged on the node is staged no more: its kernel is new.
    pub fn forget_staging(&self, node: &str) {
        lock(&self.driver.state).forget_staging(node);
    }

    /// Creates a volume as `CreateVolume` does and returns its handle. The same again is the same volume.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if the name is in use with another size or access.
    pub fn create_volume(&self, name: &str, access: Access, bytes: i64) -> Result<String, Status> {
        let volume = lock(&self.driver.state).create(name, access, bytes)?;
        Ok(volume.to_string())
    }

    /// From now on the driver's controller says this of the volume; nothing: it is well.
    pub fn set_health(&self, volume: &str, ailments: Vec<Ailment>) {
        lock(&self.driver.state).health.set(volume, ailments);
    }

    /// From now on the driver's plugin on this node says this of the volume; nothing: it is well.
    pub fn set_health_on_node(&self, volume: &str, node: &str, ailments: Vec<Ailment>) {
        lock(&self.driver.state).health.set_on_node(volume, node, ailments);
    }

    /// Deletes the volume behind everyone's back, also while it is published.
    pub fn lose_volume(&self, volume: &str) {
        lock(&self.driver.state).lose(volume);
    }

    /// Brings a lost volume back as it was: files, and the nodes that have access.
    ///
    /// # Errors
    ///
    /// `NotFound` if it was not lost.
    pub fn find_volume(&self, volume: &str) -> Result<(), Status> {
        lock(&self.driver.state).find(volume)
    }

    /// Takes the volume away from the node behind everyone's back.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such volume or node.
    pub fn unpublish_unasked(&self, volume: &str, node: &str) -> Result<(), Status> {
        lock(&self.driver.state).unpublish(volume, Some(node))
    }

    /// The CSI node ids that have access to the volume now, in truth.
    pub fn published_nodes(&self, volume: &str) -> Vec<String> {
        let state = lock(&self.driver.state);
        let published = state.volume(volume).map(|(_, volume)| &volume.published);
        published.map_or_else(|_| Vec::new(), |nodes| nodes.keys().map(|node| node.to_string()).collect())
    }
}
