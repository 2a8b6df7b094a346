//! An S3 server in this process: real requests, signatures and checksums; its buckets are folders that tests look into.
//!
//! It is served over TCP on any address of this machine, so that real nodes reach it too. What was asked is in
//! [`S3Server::requests`]; what is to go wrong, in [`S3Server::faults`]; who may use which bucket, in [`S3Server::keys`].

mod faults;
mod keys;
mod records;
mod service;
mod tagged;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

pub use self::faults::{Effect, Fault, FaultId, Faults};
pub use self::keys::{KeyPair, Keys, Usable};
pub use self::records::Request;
pub use http::Method;
pub use s3s::S3ErrorCode;

use self::records::Records;
use self::service::Front;
use crate::lock::lock;

/// How long calls under way may take to end when the server stops.
const END: Duration = Duration::from_secs(5);
/// How often [`S3Server::wait_for`] looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A running S3 server; it ends when this is dropped.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    folder: PathBuf,
    keys: Keys,
    faults: Faults,
    records: Records,
    runtime: Mutex<Option<Runtime>>,
}

impl S3Server {
    /// Serves at `address` (port 0 for any that is free). Buckets become folders of `folder`, which must be there.
    ///
    /// # Errors
    /// When the folder cannot be read, or the address is not to be had.
    pub fn start(folder: &Path, address: SocketAddr) -> io::Result<Self> {
        let mut server = Self {
            address,
            folder: folder.canonicalize()?,
            keys: Keys::default(),
            faults: Faults::default(),
            records: Records::default(),
            runtime: Mutex::new(None),
        };
        server.address = server.serve()?;
        Ok(server)
    }

    fn serve(&self) -> io::Result<SocketAddr> {
        let front = Front {
            s3: service::build(&self.folder, &self.keys)?,
            faults: self.faults.clone(),
            records: self.records.clone(),
        };
        // A runtime of its own: its end cuts every connection, and a test that blocks does not hold it up.
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("s3-server").enable_all().build()?;
        let listener = std::net::TcpListener::bind(self.address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener)?
        };
        runtime.spawn(service::serve(listener, Arc::new(front)));
        *lock(&self.runtime) = Some(runtime);
        Ok(address)
    }

    /// Where it is, with the port that was chosen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as clients want it, such as `http://127.0.0.1:9000`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Who may sign requests, and what for. There is nobody at first.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// What is to go wrong.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// What was asked so far, in the order in which it came in.
    pub fn requests(&self) -> Vec<Request> {
        self.records.all()
    }

    /// Waits until the requests are as they shall be. Returns whether they were within `patience`.
    pub async fn wait_for(&self, patience: Duration, wanted: impl Fn(&[Request]) -> bool) -> bool {
        let looking = async {
            while !wanted(&self.requests()) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::time::timeout(patience, looking).await.is_ok()
    }

    /// The names of all buckets.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn buckets(&self) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                names.extend(entry.file_name().into_string());
            }
        }
        Ok(names)
    }

    /// The folder of a bucket, which may not be there; an object is the file at its key.
    pub fn bucket(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes a bucket that belongs to no key; those that may use every bucket, or this one, can use it.
    ///
    /// # Errors
    /// When there is one of this name.
    pub fn create_bucket(&self, name: &str) -> io::Result<()> {
        std::fs::create_dir(self.bucket(name))
    }

    /// Goes down: connections are cut, and new ones are refused. Buckets, keys, faults and records stay.
    pub async fn stop(&self) {
        let Some(runtime) = lock(&self.runtime).take() else { return };
        let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(END));
        if let Err(error) = ended.await {
            tracing::error!(%error, "the S3 server did not end");
        }
    }

    /// Comes back at the same address.
    ///
    /// # Errors
    /// When the address was taken meanwhile.
    pub async fn restart(&self) -> io::Result<()> {
        self.stop().await;
        self.serve().map(|_| ())
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some(runtime) = lock(&self.runtime).take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests;
