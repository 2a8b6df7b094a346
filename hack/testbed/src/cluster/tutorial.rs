//! The cluster on which the pages of `docs/tutorials` run, and what a shell needs to follow them: one and the same for people,
//! who get it with `hack/tutorial`, and for the test that carries the pages out.

use std::env::{join_paths, split_paths, var_os};
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::real::{RealCluster, RealClusterOptions};
use super::{ClusterError, root};
use crate::Identity;
use crate::binaries::Program;
use crate::ganesha::Ganesha;
use crate::real_nodes::{self, remote};

/// Names for `testbed node` the socket of a testbed that it did not start itself.
pub const SOCKET_VARIABLE: &str = "BULKHEAD_TESTBED_SOCKET";
/// Programs of ours that the pages call.
const OURS: [&str; 2] = ["kubectl-bulkhead", "testbed"];

/// Three real nodes with all that we ship, an array, an S3 server, and the image of an NFS server.
pub struct Tutorial {
    /// The cluster.
    pub cluster: RealCluster,
    /// Programs under the names that people call them by, and the socket.
    folder: TempDir,
}

impl Tutorial {
    /// What this machine lacks for it.
    ///
    /// # Errors
    /// When it lacks something.
    pub fn check() -> Result<(), ClusterError> {
        real_nodes::check()?;
        Ok(Ganesha::find().map(drop)?)
    }

    /// Starts it, with the programs of this folder.
    ///
    /// # Errors
    /// When the cluster does not start.
    pub async fn start(programs: &Path) -> Result<Self, ClusterError> {
        Self::check()?;
        let options = RealClusterOptions { s3: true, nfs: true, ..RealClusterOptions::new(programs) };
        let cluster = RealCluster::start(options).await?;
        let folder = tempfile::tempdir().map_err(|source| file_error(Path::new("a temporary folder"), source))?;
        let tutorial = Self { cluster, folder };
        let kubectl = tutorial.cluster.testbed.binaries().path(Program::Kubectl);
        let ours = OURS.map(|name| (name, programs.join(name)));
        for (name, program) in [("kubectl", kubectl)].into_iter().chain(ours) {
            let link = tutorial.folder.path().join(name);
            symlink(program, &link).map_err(|source| file_error(&link, source))?;
        }
        Ok(tutorial)
    }

    /// A program in the repository's folder that finds kubectl, its plugin, the cluster, and `testbed`.
    ///
    /// # Errors
    /// When the kubeconfig cannot be written.
    pub fn command(&self, program: &str) -> Result<Command, ClusterError> {
        let mut command = Command::new(program);
        command
            .current_dir(root())
            .env("PATH", self.path())
            .env("KUBECONFIG", self.cluster.testbed.kubeconfig(&Identity::Admin)?)
            .env(SOCKET_VARIABLE, self.socket());
        Ok(command)
    }

    /// Lets `testbed node` of such a program break nodes, until this is dropped.
    ///
    /// # Errors
    /// When the socket cannot be opened.
    pub async fn serve(&self) -> Result<(), ClusterError> {
        Ok(remote::serve(&self.cluster.nodes, &self.socket()).await?)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn path(&self) -> OsString {
        let before = var_os("PATH").unwrap_or_default();
        let folders = [self.folder.path().to_owned()].into_iter().chain(split_paths(&before));
        // Only a folder with a colon in its name cannot be joined, and none came out of a split.
        join_paths(folders).unwrap_or(before)
    }
}

fn file_error(path: &Path, source: std::io::Error) -> ClusterError {
    ClusterError::File { path: path.to_owned(), source }
}
