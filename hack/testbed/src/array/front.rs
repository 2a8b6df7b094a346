//! The driver's controller as a process of its own, as far as one process can have another: it has its own runtime, and a
//! crash ends that runtime with every connection and every call under way. It has a Unix socket and, if asked for, a TCP
//! address: the management that a driver of its own program calls.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead::csi::podmon::podmon_server::PodmonServer;
use bulkhead::csi::v1::controller_server::ControllerServer;
use bulkhead::csi::v1::identity_server::IdentityServer;
use futures::Stream;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::server::Router;

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
    /// Where the management is served over TCP, besides.
    management: Mutex<Option<SocketAddr>>,
    /// Held while it stops: it starts again only when nothing of it runs any more.
    stopping: tokio::sync::Mutex<()>,
}

impl Front {
    pub fn new(socket: PathBuf, driver: Arc<Driver>) -> Self {
        Front {
            socket,
            driver,
            runtime: Mutex::new(None),
            management: Mutex::new(None),
            stopping: tokio::sync::Mutex::new(()),
        }
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
        let services = self.services();
        runtime.spawn(async move {
            if let Err(error) = services.serve_with_incoming(accepted(listener)).await {
                tracing::error!(%error, "the driver's socket failed");
            }
        });
        if let Some(address) = *lock(&self.management) {
            self.spawn_management(&runtime, address)?;
        }
        *running = Some(runtime);
        Ok(())
    }

    /// Serves the same over TCP, from now on also after each restart. Returns the address with the port that was chosen.
    pub fn serve_management(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let running = lock(&self.runtime);
        let Some(runtime) = &*running else {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the array's management has crashed: restart it first",
            ));
        };
        let address = self.spawn_management(runtime, address)?;
        *lock(&self.management) = Some(address);
        Ok(address)
    }

    fn spawn_management(&self, runtime: &Runtime, address: SocketAddr) -> io::Result<SocketAddr> {
        let _entered = runtime.enter();
        let listener = listen(address)?;
        let address = listener.local_addr()?;
        let services = self.services();
        runtime.spawn(async move {
            if let Err(error) = services.serve_with_incoming(accepted_tcp(listener)).await {
                tracing::error!(%error, "the array's management address failed");
            }
        });
        Ok(address)
    }

    fn services(&self) -> Router {
        tonic::transport::Server::builder()
            .add_service(IdentityServer::new(IdentityService(self.driver.clone())))
            .add_service(ControllerServer::new(ControllerService(self.driver.clone())))
            .add_service(PodmonServer::new(PodmonService(self.driver.clone())))
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

/// A listening TCP socket of the runtime that was entered.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// The connections of a listening TCP socket. Small messages are not held back.
pub(super) fn accepted_tcp(listener: TcpListener) -> impl Stream<Item = io::Result<TcpStream>> {
    futures::stream::unfold(listener, |listener| async {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream.set_nodelay(true).map(|()| stream),
            Err(error) => Err(error),
        };
        Some((stream, listener))
    })
}
