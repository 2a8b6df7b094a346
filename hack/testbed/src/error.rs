//! What can go wrong with a testbed.

use std::io;
use std::path::PathBuf;

use crate::apply::ApplyError;
use crate::binaries::BinariesError;
use crate::kubeconfig::KubeconfigError;
use crate::pki::PkiError;
use crate::process::ProcessError;

/// Why a testbed could not be started or used.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// A program is missing.
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    /// A certificate could not be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A kubeconfig could not be made or used.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// A program could not be started, or ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Files could not be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A file of the testbed could not be written.
    #[error("cannot set up the testbed's folder in {folder}: {source}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No ports.
    #[error("no free port on 127.0.0.1: {0}")]
    Ports(io::Error),
    /// A component did not become ready in time.
    #[error("{component} is not ready after {seconds} s ({last}); its last output:\n{tail}")]
    NotReady {
        /// The component's program.
        component: &'static str,
        /// How long it was waited for.
        seconds: u64,
        /// What its health endpoint said last.
        last: String,
        /// The end of its log.
        tail: String,
    },
    /// kubectl failed.
    #[error("kubectl {arguments} failed: {message}")]
    Kubectl {
        /// Its arguments.
        arguments: String,
        /// What it printed.
        message: String,
    },
    /// helm failed.
    #[error("helm {arguments} failed: {message}")]
    Helm {
        /// Its arguments.
        arguments: String,
        /// What it printed.
        message: String,
    },
    /// The request needs a component that does not run.
    #[error("{0} does not run in this testbed")]
    NotRunning(&'static str),
}
