//! A CSI driver's own sockets: the one of its services, and the one by which the kubelet gets to know it.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::pin::pin;

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

/// The same for calls of the kubelet's registration. At `stop` the socket goes, as node-driver-registrar's does: by it the kubelet
/// knows the driver, and while it is there so is the driver in the Node's CSINode, also when nobody serves it any more.
///
/// # Errors
///
/// When there can be no such socket, or it cannot be removed.
pub async fn on_registration_socket(services: Router, socket: &Path, stop: CancellationToken) -> io::Result<()> {
    let listener = listen(socket)?;
    let own = identity(socket)?;
    let mut serving = pin!(services.serve_with_incoming(authority::replaced(accepted(listener))));
    tokio::select! {
        served = &mut serving => served.map_err(io::Error::other),
        // A pod that replaces this one may have bound its own there by now: without it the kubelet would take the driver for gone,
        // while that pod runs on. Ours is still open, so nobody else's has its inode.
        () = stop.cancelled() => match identity(socket) {
            Ok(there) if there == own => std::fs::remove_file(socket),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    }
}

/// Device and inode.
fn identity(socket: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(socket).map(|about| (about.dev(), about.ino()))
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

    async fn served_until(socket: &Path, stop: &CancellationToken) -> tokio::task::JoinHandle<io::Result<()>> {
        let before = identity(socket).ok();
        let (path, stop) = (socket.to_owned(), stop.clone());
        let services = tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
        let serving = tokio::spawn(async move { on_registration_socket(services, &path, stop).await });
        while identity(socket).is_err() || identity(socket).ok() == before {
            tokio::task::yield_now().await;
        }
        serving
    }

    #[tokio::test]
    async fn at_its_end_a_registration_takes_its_own_socket_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("driver-reg.sock");
        let (first, second) = (CancellationToken::new(), CancellationToken::new());
        let old = served_until(&socket, &first).await;
        let new = served_until(&socket, &second).await;
        first.cancel();
        old.await.unwrap().unwrap();
        assert!(UnixStream::connect(&socket).await.is_ok(), "who came later is served on");
        second.cancel();
        new.await.unwrap().unwrap();
        assert!(!socket.exists());
    }
}
