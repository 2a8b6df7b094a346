//! CSI Controller service of the S3 driver: a bucket per claim.
//!
//! It keeps nothing: a volume is its bucket, and the bucket's name follows from the name that the provisioner asks for. So an
//! attempt that is repeated, by this process or the next, finds the bucket that the first one made. Data is never deleted
//! here: S3 refuses to delete a bucket with objects in it, and nobody empties it.

pub mod cleanup;
mod client;
mod decide;
mod refusal;
mod service;

use std::io;
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::api::s3::DRIVER;
use crate::csi::plugin::PluginIdentity;
use crate::csi::server;
use crate::csi::v1::controller_server::ControllerServer;
use crate::csi::v1::identity_server::IdentityServer;
use crate::error::{Error, Result};
use crate::s3::keys::Keys;

pub use self::client::{Deletion, Endpoint, S3, S3Error, error_code};
pub use self::decide::NonEmptyBucket;

use self::service::ControllerService;

/// Flags of the controller service; upstream's names for what upstream has.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// URL of the S3 server, such as https://s3.example.com. Buckets are part of the path.
    #[arg(long = "s3-endpoint-url", env = "AWS_ENDPOINT_URL", id = "s3_endpoint_url")]
    pub endpoint_url: Option<String>,
    /// Region that requests are signed for and buckets are made in.
    #[arg(long = "s3-region", env = "AWS_REGION", id = "s3_region", default_value = "us-east-1")]
    pub region: String,
    /// PEM file with the certificate authorities of the S3 server, instead of those of the system.
    #[arg(long = "s3-ca-file", env = "AWS_CA_BUNDLE", id = "s3_ca_file")]
    pub ca_file: Option<String>,
    /// What becomes of a volume that is deleted while there are objects in its bucket.
    #[arg(long, env = "NON_EMPTY_BUCKET", value_enum, default_value = "keep")]
    pub non_empty_bucket: NonEmptyBucket,
    /// Log what the controller's sweep of stale attachments does, each line with the word cleanup: where the Scality driver's
    /// pages look for it. It comes from Events, of which a watch is kept.
    #[arg(long, env = "BULKHEAD_S3_LOG_CLEANUP")]
    pub log_cleanup: bool,
}

/// What the controller service works with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its socket.
    pub socket: PathBuf,
    /// Where S3 is.
    pub endpoint: Endpoint,
    /// The driver's own keys.
    pub keys: Option<Keys>,
    /// What becomes of a volume with objects in its bucket.
    pub non_empty_bucket: NonEmptyBucket,
}

impl Args {
    /// The settings that these flags mean, with the driver's own keys from the environment.
    ///
    /// # Errors
    /// When a flag is missing or cannot be used; the text says which.
    pub fn settings(self, socket: PathBuf) -> Result<Settings> {
        let url = self.endpoint_url.filter(|url| !url.is_empty());
        let url = url.ok_or_else(|| {
            Error::Invalid(
                "AWS_ENDPOINT_URL is not set: give the URL of the S3 server, such as https://s3.example.com".into(),
            )
        })?;
        let ca_file = self.ca_file.filter(|file| !file.is_empty());
        let authorities = ca_file.as_deref().map(Path::new).map(read).transpose()?;
        let endpoint = Endpoint::new(&url, &self.region, authorities).map_err(Error::Invalid)?;
        let keys = Keys::of_environment(|name| std::env::var(name).ok()).map_err(Error::Invalid)?;
        Ok(Settings { socket, endpoint, keys, non_empty_bucket: self.non_empty_bucket })
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(io_error(format!("the file of certificate authorities, {}", file.display())))
}

/// Serves Identity and Controller at the settings' socket until `cancel`. What is there from an earlier run is replaced.
///
/// # Errors
/// When the socket cannot be opened.
pub async fn serve(settings: Settings, cancel: CancellationToken) -> Result<()> {
    let service = ControllerService::new(S3::new(settings.endpoint), settings.keys, settings.non_empty_bucket);
    let identity = IdentityServer::new(PluginIdentity { driver_name: DRIVER.to_owned() });
    let services = Server::builder().add_service(identity).add_service(ControllerServer::new(service));
    let served = server::on_socket(services, &settings.socket, cancel).await;
    served.map_err(io_error(format!("CSI socket {}", settings.socket.display())))
}

fn io_error(context: String) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { context, source }
}
