//! A CSI driver's own sockets: the one of its services, and the one by which the kubelet gets to know it.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use futures::Stream;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;

use super::authority;

/// Serves on a new socket until `stop`; what is there from an earlier run is replaced. Only the owner may connect.
///
/// # Errors
///
/// When there can be no such socket.
pub async fn on_socket(services: Router, socket: &Path, stop: CancellationToken) -> io::Result<()> {
    let listener = listen(socket)?;
    // Not gracefully: a call that hangs must not hold up the end.
    tokio::select! {
        served = services.serve_with_incoming(accepted(listener)) => served.map_err(io::Error::other),
        () = stop.cancelled() => Ok(()),
    }
}

/// The same for calls of the kubelet's registration.
///
/// # Errors
///
/// When there can be no such socket.
pub async fn on_registration_socket(services: Router, socket: &Path, stop: CancellationToken) -> io::Result<()> {
    let connections = authority::replaced(accepted(listen(socket)?));
    tokio::select! {
        served = services.serve_with_incoming(connections) => served.map_err(io::Error::other),
        () = stop.cancelled() => Ok(()),
    }
}

fn accepted(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    futures::stream::unfold(listener, |listener| async {
        let stream = listener.accept().await.map(|(stream, _)| stream);
        Some((stream, listener))
    })
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
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o700))?;
    tracing::info!(socket = %socket.display(), "serving");
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_of_an_earlier_run_is_replaced_and_ours_alone() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("plugin/csi.sock");
        drop(listen(&socket).unwrap());
        assert!(UnixStream::connect(&socket).await.is_err());
        let _listener = listen(&socket).unwrap();
        UnixStream::connect(&socket).await.unwrap();
        assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
