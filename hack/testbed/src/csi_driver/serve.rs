//! Unix sockets of the driver.

use std::io;
use std::path::Path;

use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;

use super::authority;
use crate::array::accepted;

/// Serves on a new socket until `stop`; what is there from an earlier run is replaced.
pub(super) async fn on_socket(services: Router, socket: &Path, stop: CancellationToken) -> io::Result<()> {
    let listener = listen(socket)?;
    // Not gracefully: a call that hangs must not hold up the end.
    tokio::select! {
        served = services.serve_with_incoming(accepted(listener)) => served.map_err(io::Error::other),
        () = stop.cancelled() => Ok(()),
    }
}

/// The same for calls of the kubelet's registration.
pub(super) async fn on_registration_socket(services: Router, socket: &Path, stop: CancellationToken) -> io::Result<()> {
    let connections = authority::replaced(accepted(listen(socket)?));
    tokio::select! {
        served = services.serve_with_incoming(connections) => served.map_err(io::Error::other),
        () = stop.cancelled() => Ok(()),
    }
}

fn listen(socket: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    tracing::info!(socket = %socket.display(), "serving");
    Ok(listener)
}
