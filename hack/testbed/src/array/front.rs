//! The driver's controller as a process of its own, as far as one process can have another: it has its own runtime, and a
//! crash ends that runtime with every connection and every call under way.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead::csi::podmon::podmon_server::PodmonServer;
use bulkhead::csi::v1::controller_server::ControllerServer;
use bulkhead::csi::v1::identity_server::IdentityServer;
use futures::Stream;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};

use super::controller_service::ControllerService;
use super::driver::Driver;
use super::identity_service::IdentityService;
use super::podmon_service::PodmonService;
use crate::lock::lock;

#[derive(Debug)]
pub(super) struct Front {
    socket: PathBuf,
    driver: Arc<Driver>,
    runtime: Mutex<Option<Runtime>>,
    /// Held while it stops: it starts again only when nothing of it runs any more.
    stopping: tokio::sync::Mutex<()>,
}

impl Front {
    pub fn new(socket: PathBuf, driver: Arc<Driver>) -> Self {
        Front { socket, driver, runtime: Mutex::new(None), stopping: tokio::sync::Mutex::new(()) }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn is_running(&self) -> bool {
        lock(&self.runtime).is_some()
    }

    /// Does nothing if it runs already.
    pub fn start(&self) -> io::Result<()> {
        let mut running = lock(&self.runtime);
        if running.is_some() {
            return Ok(());
        }
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("csi-driver").enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(&self.socket)?
        };
        let services = tonic::transport::Server::builder()
            .add_service(IdentityServer::new(IdentityService(self.driver.clone())))
            .add_service(ControllerServer::new(ControllerService(self.driver.clone())))
            .add_service(PodmonServer::new(PodmonService(self.driver.clone())));
        runtime.spawn(async move {
            if let Err(error) = services.serve_with_incoming(accepted(listener)).await {
                tracing::error!(%error, "the driver's socket failed");
            }
        });
        *running = Some(runtime);
        Ok(())
    }

    /// Returns when nothing of it runs any more.
    pub async fn stop(&self) {
        let _stopping = self.stopping.lock().await;
        let Some(runtime) = self.take() else {
            return;
        };
        let ended = tokio::task::spawn_blocking(move || {
            runtime.shutdown_timeout(Duration::from_secs(5));
        });
        if let Err(error) = ended.await {
            tracing::error!(%error, "the driver's runtime did not end");
        }
    }

    /// Starts it when the last stop is complete.
    pub async fn restart(&self) -> io::Result<()> {
        let _stopped = self.stopping.lock().await;
        self.start()
    }

    fn take(&self) -> Option<Runtime> {
        let mut running = lock(&self.runtime);
        let runtime = running.take()?;
        if let Err(error) = std::fs::remove_file(&self.socket) {
            tracing::debug!(%error, socket = %self.socket.display(), "no socket to remove");
        }
        Some(runtime)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if let Some(runtime) = self.take() {
            runtime.shutdown_background();
        }
    }
}

/// The connections of a listener, as tonic wants them.
pub(crate) fn accepted(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    futures::stream::unfold(listener, |listener| async {
        let stream = listener.accept().await.map(|(stream, _)| stream);
        Some((stream, listener))
    })
}
