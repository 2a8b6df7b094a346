//! The CSI driver of the test array, as a program of its own for nodes that are real.
//!
//! In the controller's mode it passes the calls on its socket on to the array's management. In the node's mode it is the
//! node plugin: it registers with the kubelet, and its volumes are FUSE file systems whose every operation is asked of the
//! array over the storage link. It decides nothing about access: that is the array's.
//!
//! The file systems end with the program, as those of any FUSE driver in a pod: their mounts stay as dead ones (ENOTCONN)
//! until somebody unstages them, which works, or stages them anew.

mod connection;
mod controller;
mod errno;
mod file_system;
mod loop_device;
pub mod manifests;
mod mounts;
mod node;
mod publish;
mod stage;
mod volume;
mod writer;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// What the controller's mode needs to know.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// Where its socket is made.
    pub socket: PathBuf,
    /// The array's management.
    pub management: SocketAddr,
}

/// Which generation of CSI's health a node plugin speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum NodeHealth {
    /// None.
    #[default]
    None,
    /// A VolumeCondition with the statistics, as up to CSI 1.12.
    Condition,
    /// NodeGetVolumeHealth, as in CSI 1.13.
    Health,
}

/// What the node's mode needs to know.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Where its socket is made; the kubelet must find it under the same path.
    pub socket: PathBuf,
    /// The CSI driver's name.
    pub driver_name: String,
    /// The CSI node id: the array knows the node by it.
    pub node_id: String,
    /// Where the array serves I/O.
    pub io: SocketAddr,
    /// How long one operation waits for the array until it is an I/O error.
    pub io_timeout: Duration,
    /// What it says of its volumes' health.
    pub health: NodeHealth,
    /// The folder in which the kubelet looks for plugins, if it shall find this one.
    pub registry: Option<PathBuf>,
}

/// Serves in the controller's mode until `stop`.
///
/// # Errors
///
/// When the socket cannot be made, or fails.
pub async fn run_controller(options: ControllerOptions, stop: CancellationToken) -> io::Result<()> {
    controller::run(options, stop).await
}

/// Serves in the node's mode until `stop`. What is mounted then stays mounted, dead.
///
/// # Errors
///
/// When a socket cannot be made, or fails.
pub async fn run_node(options: NodeOptions, stop: CancellationToken) -> io::Result<()> {
    node::run(options, stop).await
}
