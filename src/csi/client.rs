//! The way to a CSI driver's Unix socket. Deadlines, retries and what an answer means are the caller's.

use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// The address of a driver is not a path of a Unix socket.
#[derive(Debug, thiserror::Error)]
#[error("CSI address {0:?} is not a Unix socket: give a path such as /csi/csi.sock or unix:///csi/csi.sock")]
pub struct InvalidAddress(String);

/// A channel to the driver at `address`: `unix:///path`, `unix:path` or a plain path.
///
/// Nothing is connected yet: the first call connects, and after a driver's restart the next call connects again. While
/// the socket is missing, calls fail with `Unavailable`.
///
/// # Errors
///
/// [`InvalidAddress`] when the address is empty or has another scheme.
pub fn connect(address: &str) -> Result<Channel, InvalidAddress> {
    let path = socket_path(address)?;
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The URI only sets the authority; drivers written in Go expect `localhost` there.
    Ok(Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector))
}

/// The path of the socket that `address` names.
///
/// # Errors
///
/// [`InvalidAddress`] when the address is empty or has another scheme than `unix`.
pub fn socket_path(address: &str) -> Result<PathBuf, InvalidAddress> {
    let path = match address.strip_prefix("unix:") {
        Some(rest) => rest.strip_prefix("//").unwrap_or(rest),
        None => address,
    };
    if path.is_empty() || path.contains("://") {
        return Err(InvalidAddress(address.to_owned()));
    }
    Ok(Path::new(path).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_unix_socket_is_understood() {
        for address in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            let path = socket_path(address).expect(address);
            assert_eq!(path, Path::new("/csi/csi.sock"));
        }
        assert_eq!(socket_path("unix:csi.sock").expect("relative"), Path::new("csi.sock"));
        for address in ["", "unix:", "unix://", "tcp://10.0.0.1:9000"] {
            assert!(socket_path(address).is_err(), "{address}");
        }
    }

    #[tokio::test]
    async fn a_missing_socket_is_unavailable() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("csi.sock");
        let channel = connect(path.to_str().expect("path")).expect("channel");
        let mut identity = super::super::v1::identity_client::IdentityClient::new(channel);
        let status = identity.probe(super::super::v1::ProbeRequest {}).await.expect_err("nobody listens");
        assert_eq!(status.code(), tonic::Code::Unavailable);
    }
}
