//! Our programs behind a [`Tap`](crate::fault_proxy::Tap): the shipped binaries under their shipped rights, stopped at a
//! chosen call.

use std::ffi::OsString;
use std::path::Path;

use bulkhead::csi::client;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;

use super::{Cluster, ClusterError, common_args};
use crate::Identity;
use crate::array::Array;
use crate::fault_proxy::{Script, Tap, serve_api, serve_csi};
use crate::process::Process;

/// A running program with its tap.
pub struct Tapped {
    /// The program.
    pub process: Process,
    /// Its way to those it calls.
    pub tap: Tap,
    _proxies: JoinSet<()>,
    _folder: TempDir,
}

impl Tapped {
    /// Kills it (SIGKILL) and returns when it is gone. Nothing of what it sent and was stopped passes any more.
    pub async fn kill(self) {
        self.tap.end();
        self.process.kill().await;
    }
}

/// What is set up before the program starts.
struct Ways {
    args: Vec<OsString>,
    tap: Tap,
    proxies: JoinSet<()>,
    folder: TempDir,
}

impl Cluster {
    /// A `bulkhead-controller` of that name behind a tap.
    ///
    /// # Errors
    /// When the proxy or the program cannot be started.
    pub async fn tapped_controller(&self, name: &str, script: &Script) -> Result<Tapped, ClusterError> {
        let mut ways = self.ways(&Identity::OperatorController, name, script).await?;
        ways.args.extend(self.options.controller_args.iter().map(OsString::from));
        self.launch_tapped("bulkhead-controller", name, ways)
    }

    /// A `bulkhead-csi-sidecar` of that name beside an array, behind a tap.
    ///
    /// # Errors
    /// When a proxy or the program cannot be started.
    pub async fn tapped_sidecar(&self, name: &str, array: &Array, script: &Script) -> Result<Tapped, ClusterError> {
        let mut ways = self.ways(&Identity::CsiSidecar, name, script).await?;
        let socket = ways.folder.path().join("csi.sock");
        let listener = UnixListener::bind(&socket).map_err(ClusterError::Proxy)?;
        let driver = array.csi_socket().to_string_lossy();
        let driver = client::connect(&driver).map_err(|error| ClusterError::Proxy(std::io::Error::other(error)))?;
        ways.proxies.spawn(serve_csi(listener, driver, ways.tap.clone()));
        ways.args.extend([OsString::from("--csi-address"), socket.into_os_string()]);
        self.launch_tapped("bulkhead-csi-sidecar", name, ways)
    }

    async fn ways(&self, identity: &Identity, name: &str, script: &Script) -> Result<Ways, ClusterError> {
        let folder = tempfile::tempdir().map_err(ClusterError::Proxy)?;
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(ClusterError::Proxy)?;
        let address = listener.local_addr().map_err(ClusterError::Proxy)?;
        let kubeconfig = folder.path().join("kubeconfig");
        write_kubeconfig(&kubeconfig, &format!("http://{address}")).map_err(ClusterError::Proxy)?;
        let (tap, mut proxies) = (script.tap(), JoinSet::new());
        proxies.spawn(serve_api(listener, self.testbed.client(identity).await?, tap.clone()));
        Ok(Ways { args: common_args(&kubeconfig, name), tap, proxies, folder })
    }

    fn launch_tapped(&self, program: &str, name: &str, ways: Ways) -> Result<Tapped, ClusterError> {
        let Ways { args, tap, proxies, folder } = ways;
        let process = self.launch(program, name, args)?;
        Ok(Tapped { process, tap, _proxies: proxies, _folder: folder })
    }
}

/// Without credentials: the proxy has them.
fn write_kubeconfig(path: &Path, server: &str) -> std::io::Result<()> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "tapped", "cluster": { "server": server } }],
        "users": [{ "name": "tapped", "user": {} }],
        "contexts": [{ "name": "tapped", "context": { "cluster": "tapped", "user": "tapped" } }],
        "current-context": "tapped",
    });
    std::fs::write(path, config.to_string())
}
