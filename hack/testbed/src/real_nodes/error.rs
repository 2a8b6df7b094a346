//! What can go wrong with real nodes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::TestbedError;
use crate::binaries::BinariesError;
use crate::image::ImageError;
use crate::pki::PkiError;
use crate::process::ProcessError;

/// Why a real node could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum RealNodeError {
    /// Not on this machine.
    #[error(
        "this machine can have no real nodes, for want of: {missing}. hack/prerequisites installs the packages; \
         simulated nodes need none of it"
    )]
    Requirements {
        /// What is missing.
        missing: String,
    },
    /// Every subnet is in use.
    #[error("no free subnet of 10.100.0.0/16 to 10.163.0.0/16: end other testbeds, see `testbed status`")]
    NoSubnet,
    /// The control plane cannot be reached from the nodes.
    #[error("the API server does not listen in the nodes' network: set TestbedOptions::advertise_address")]
    NotAdvertised,
    /// Too many nodes.
    #[error("a testbed has at most {0} real nodes")]
    TooMany(u8),
    /// The name is in use.
    #[error("there is a node named {0} already")]
    Exists(String),
    /// The guard does not start.
    #[error("the guard of the real nodes does not start: {0}")]
    Guard(io::Error),
    /// A program of the system failed.
    #[error("{command} failed: {message}")]
    Command {
        /// The command line.
        command: String,
        /// What it printed.
        message: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The node is off.
    #[error("node {0} is off: heal it first")]
    Off(String),
    /// Nobody is there to be signalled.
    #[error("on node {node} runs no {program}")]
    NotRunning {
        /// The node.
        node: String,
        /// The program.
        program: String,
    },
    /// A step of the start took too long.
    #[error("node {node}: {what}: not within {limit:?}; last output:\n{tail}")]
    Timeout {
        /// The node.
        node: String,
        /// What was waited for.
        what: &'static str,
        /// How long.
        limit: Duration,
        /// The end of the log.
        tail: String,
    },
    /// The text names no fault.
    #[error(
        "{0:?} is nothing that can happen to a node: cut-control, cut-storage, lossy-control, lossy-storage, freeze or kill \
         (these two followed by kubelet, containerd, kube-proxy or everything), reboot, heal"
    )]
    UnknownFault(String),
    /// The line is no step of a script.
    #[error("{0:?} is no step: write [TIME] NODE ACTION, as in `5s node-1 cut-control`")]
    UnknownStep(String),
    /// Nobody answers on the socket.
    #[error("no testbed with real nodes answers on {socket} ({source}): start one with `testbed up --real-nodes 2`")]
    Remote {
        /// The socket.
        socket: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The testbed could not do it.
    #[error("{0}")]
    Refused(String),
    /// No such node.
    #[error("there is no real node {0}")]
    Unknown(String),
    /// A program is missing.
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    /// A program could not be started, or ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A certificate could not be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The control plane.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// An image could not be written.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The API.
    #[error("the API server refused a request: {0}")]
    Api(#[from] kube::Error),
}
