//! A StorageOS control plane in this process: real HTTP, tokens that expire, versions that conflict, and volumes that move
//! through detached, host and nfs as a CSI driver asks for it.
//!
//! What a driver or a failing node would do is in [`StorageOs::volumes`]; what is to go wrong, in [`StorageOs::faults`]; what
//! was asked, in [`StorageOs::requests`].

mod faults;
mod records;
mod service;
mod tls;
mod volumes;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

pub use self::faults::{Effect, Fault, FaultId, Faults};
pub use self::records::Request;
pub use self::tls::Tls;
pub use self::volumes::{AccessMode, Attachment, NewVolume, Rule, Volume, Volumes};
pub use http::Method;

use self::records::Records;
use crate::lock::lock;

/// How long a token lives where a test does not say.
const TOKEN_LIFE: Duration = Duration::from_secs(300);
/// How long calls under way may take to end when the server stops.
const END: Duration = Duration::from_secs(5);
/// How often [`StorageOs::wait_for`] looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Who may log in, and who has.
#[derive(Debug)]
struct Sessions {
    /// User name and password.
    users: BTreeMap<String, String>,
    /// Token and its end.
    tokens: BTreeMap<String, Instant>,
    life: Duration,
    issued: u64,
}

/// What the handlers share.
#[derive(Clone, Debug)]
struct Shared {
    sessions: Arc<Mutex<Sessions>>,
    volumes: Volumes,
    faults: Faults,
    records: Records,
}

/// A running control plane; it ends when this is dropped.
#[derive(Debug)]
pub struct StorageOs {
    address: SocketAddr,
    tls: Option<Tls>,
    shared: Shared,
    runtime: Mutex<Option<Runtime>>,
}

impl StorageOs {
    /// Serves on any free port of 127.0.0.1, without TLS. The user `storageos` has the password `storageos`.
    ///
    /// # Errors
    /// When there is no port to be had.
    pub fn start() -> io::Result<Self> {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), None)
    }

    /// Serves at an address (port 0 for any that is free), with TLS or without.
    ///
    /// # Errors
    /// When the address is not to be had.
    pub fn start_at(address: SocketAddr, tls: Option<Tls>) -> io::Result<Self> {
        let sessions = Sessions {
            users: BTreeMap::from([("storageos".to_owned(), "storageos".to_owned())]),
            tokens: BTreeMap::new(),
            life: TOKEN_LIFE,
            issued: 0,
        };
        let shared = Shared {
            sessions: Arc::new(Mutex::new(sessions)),
            volumes: Volumes::default(),
            faults: Faults::default(),
            records: Records::default(),
        };
        let mut server = Self { address, tls, shared, runtime: Mutex::new(None) };
        server.address = server.serve(address)?;
        Ok(server)
    }

    /// Another front of the same control plane, at a port of its own: its volumes and users, but its own faults and records.
    ///
    /// # Errors
    /// When there is no port to be had.
    pub fn another_endpoint(&self) -> io::Result<Self> {
        let shared = Shared { faults: Faults::default(), records: Records::default(), ..self.shared.clone() };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = Self { address, tls: self.tls.clone(), shared, runtime: Mutex::new(None) };
        server.address = server.serve(address)?;
        Ok(server)
    }

    fn serve(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        // A runtime of its own: its end cuts every connection, and a test that blocks does not hold it up.
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("storageos").enable_all().build()?;
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let routes = service::routes(self.shared.clone());
        match &self.tls {
            None => {
                runtime.spawn(async move { axum::serve(listener, routes).await });
            }
            Some(tls) => {
                let listener = tls.listener(listener)?;
                runtime.spawn(async move { axum::serve(listener, routes).await });
            }
        }
        *lock(&self.runtime) = Some(runtime);
        Ok(address)
    }

    /// Where it is, with the port that was chosen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a SharedVolumeProvider names it.
    pub fn endpoint(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.address)
    }

    /// What a driver, a node or a person does with volumes.
    pub fn volumes(&self) -> &Volumes {
        &self.shared.volumes
    }

    /// What is to go wrong.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// What was asked so far, in the order in which it came in.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.records.all()
    }

    /// How many requests had this method and a path that ends so.
    pub fn count(&self, method: &Method, path_end: &str) -> usize {
        self.requests().iter().filter(|it| it.method == *method && it.path.ends_with(path_end)).count()
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

    /// Gives a user, who may be new, this password. Tokens that were given out stay good.
    pub fn set_password(&self, user: &str, password: &str) {
        lock(&self.shared.sessions).users.insert(user.to_owned(), password.to_owned());
    }

    /// How long tokens live that are given out from now on.
    pub fn set_token_life(&self, life: Duration) {
        lock(&self.shared.sessions).life = life;
    }

    /// All tokens end now.
    pub fn expire_tokens(&self) {
        lock(&self.shared.sessions).tokens.clear();
    }

    /// Goes down: connections are cut, and new ones are refused. Volumes, users and records stay.
    pub async fn stop(&self) {
        let Some(runtime) = lock(&self.runtime).take() else { return };
        let ended = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(END));
        if let Err(error) = ended.await {
            tracing::error!(%error, "the StorageOS control plane did not end");
        }
    }

    /// Comes back at the same address.
    ///
    /// # Errors
    /// When the address was taken meanwhile.
    pub async fn restart(&self) -> io::Result<()> {
        self.stop().await;
        self.serve(self.address).map(|_| ())
    }
}

impl Drop for StorageOs {
    fn drop(&mut self) {
        if let Some(runtime) = lock(&self.runtime).take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests;
