//! Kubeconfig files and clients for one apiserver. Certificates come from [`crate::pki`].

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use tower::timeout::TimeoutLayer;

use crate::pki::CertificateFiles;

/// How long a request of the testbed's clients may take until the response starts. Watches may
/// go on for longer: only their start is limited.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a kubeconfig could not be written or used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file could not be used.
    #[error("cannot use {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: kube::config::KubeconfigError,
    },
    /// No client could be made from it.
    #[error("cannot make a client from {path}: {source}")]
    Client {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: kube::Error,
    },
}

/// Writes a kubeconfig for `user`, whose current context is the server on `port`.
///
/// # Errors
/// When the file cannot be written.
pub fn write(
    path: &Path,
    port: u16,
    authority: &Path,
    user: &str,
    files: &CertificateFiles,
) -> Result<(), KubeconfigError> {
    // JSON is YAML, so nothing needs quoting by hand.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": authority,
        }}],
        "users": [{"name": user, "user": {
            "client-certificate": files.certificate,
            "client-key": files.key,
        }}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
        "current-context": "testbed",
    });
    std::fs::write(path, format!("{config:#}\n"))
        .map_err(|source| KubeconfigError::Write { path: path.to_owned(), source })
}

/// A client with a limit on each request and without kube's own retries, so that a test sees
/// what the apiserver answered. With a `port`, it talks to another server of the same testbed.
///
/// # Errors
/// When the kubeconfig cannot be read or its certificates cannot be used.
pub async fn client(path: &Path, port: Option<u16>) -> Result<Client, KubeconfigError> {
    let read_error = |source| KubeconfigError::Read { path: path.to_owned(), source };
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(read_error)?;
    if let Some(port) = port {
        for cluster in kubeconfig.clusters.iter_mut().flat_map(|named| &mut named.cluster) {
            cluster.server = Some(format!("https://127.0.0.1:{port}"));
        }
    }
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(read_error)?;
    config.connect_timeout = Some(REQUEST_TIMEOUT);
    config.default_retry = false;
    let builder =
        ClientBuilder::try_from(config).map_err(|source| KubeconfigError::Client { path: path.to_owned(), source })?;
    Ok(builder.with_layer(&TimeoutLayer::new(REQUEST_TIMEOUT)).build())
}

/// The answer to a plain GET, such as of `/readyz`.
///
/// # Errors
/// When there is no answer, or one that is not a success.
pub async fn get(client: &Client, path: &str) -> Result<String, kube::Error> {
    let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request_text(request).await
}
