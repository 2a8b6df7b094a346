//! What can go wrong with a cluster.

use std::path::PathBuf;
use std::time::Duration;

use crate::TestbedError;
use crate::array::ClaimError;
use crate::ganesha::GaneshaError;
use crate::images::ImagesError;
use crate::mount_s3::MountS3Error;
use crate::nodes::NodeError;
use crate::process::ProcessError;
use crate::real_nodes::RealNodeError;

/// Why a cluster could not be set up or did not get where it should.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The control plane.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// A program.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A volume.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The API.
    #[error("the API server refused a request: {0}")]
    Api(#[from] kube::Error),
    /// An object of ours.
    #[error("an object is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The machine.
    #[error("array: {0}")]
    Array(std::io::Error),
    /// The machine.
    #[error("proxy before one of our programs: {0}")]
    Proxy(std::io::Error),
    /// A real node.
    #[error(transparent)]
    RealNode(#[from] RealNodeError),
    /// An image.
    #[error(transparent)]
    Images(#[from] ImagesError),
    /// The program that serves buckets.
    #[error(transparent)]
    MountS3(#[from] MountS3Error),
    /// The program that serves NFS.
    #[error(transparent)]
    Ganesha(#[from] GaneshaError),
    /// A file of this machine.
    #[error("cannot use {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Waiting ended.
    #[error("{what}: not within {limit:?}; last seen: {last}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// What was there instead.
        last: String,
    },
}
