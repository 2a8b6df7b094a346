//! Clients of the Kubernetes API. kube's default client waits for ever for an answer and repeats requests
//! up to 15 times; each of ours says how long it waits and whether it repeats.

use std::{path::Path, time::Duration};

use http::{HeaderValue, header::USER_AGENT};
use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::sync::Semaphore;
use tower::{limit::ConcurrencyLimitLayer, timeout::TimeoutLayer};

use crate::error::{Error, Result};

/// How long reads wait for the first and each further piece of an answer, repetitions included.
const READ: Duration = Duration::from_secs(30);
/// How long writes wait. See also [`Writer`](super::apply::Writer), which bounds the whole call.
const WRITE: Duration = Duration::from_secs(5);
/// A watch is silent for up to its server-side timeout (190 s) plus the 5 s in which kube's watcher gives it up.
const WATCH_SILENCE: Duration = Duration::from_secs(210);
/// Requests of one client under way at once.
const CONCURRENCY: usize = 64;

/// The clients of a process, all for the same server and identity.
#[derive(Clone)]
pub struct Clients {
    /// Gets and lists: 30 s, repeated on 429, 503 and 504.
    pub reads: Client,
    /// Writes: 5 s, never repeated.
    pub writes: Client,
    /// Leases, as `writes`, but apart, so that a flood of writes cannot hold up a renewal.
    pub leases: Client,
    /// Watches: 30 s for the start, never repeated (the informer does), no limit on their number.
    pub watches: Client,
}

impl Clients {
    /// Clients for a kubeconfig file, or for where this process runs: `KUBECONFIG`, `~/.kube/config`, the pod's
    /// ServiceAccount. `user_agent` shows in the server's audit log.
    pub async fn load(kubeconfig: Option<&Path>, user_agent: &str) -> Result<Self> {
        Self::from_config(config(kubeconfig).await?, user_agent)
    }

    /// Clients for a configuration.
    pub fn from_config(mut config: Config, user_agent: &str) -> Result<Self> {
        let user_agent = HeaderValue::from_str(user_agent)
            .map_err(|error| Error::Invalid(format!("user agent {user_agent:?}: {error}")))?;
        config.headers.push((USER_AGENT, user_agent));
        let reads = Patience { answer: READ, silence: READ, repeat: true };
        let writes = Patience { answer: WRITE, silence: WRITE, repeat: false };
        let watches = Patience { answer: READ, silence: WATCH_SILENCE, repeat: false };
        Ok(Self {
            reads: client(&config, reads, CONCURRENCY)?,
            writes: client(&config, writes, CONCURRENCY)?,
            leases: client(&config, writes, CONCURRENCY)?,
            watches: client(&config, watches, Semaphore::MAX_PERMITS)?,
        })
    }
}

async fn config(kubeconfig: Option<&Path>) -> Result<Config> {
    let Some(path) = kubeconfig else {
        return Config::infer().await.map_err(|error| {
            Error::Invalid(format!("no cluster: {error}; give --kubeconfig or run inside a cluster"))
        });
    };
    let invalid = |error| Error::Invalid(format!("kubeconfig {}: {error}", path.display()));
    let file = Kubeconfig::read_from(path).map_err(invalid)?;
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(invalid)
}

/// How long a client waits.
#[derive(Clone, Copy)]
struct Patience {
    /// For the head of the answer, repetitions included.
    answer: Duration,
    /// Between two pieces of its body.
    silence: Duration,
    /// Whether requests are repeated on 429, 503 and 504.
    repeat: bool,
}

fn client(config: &Config, patience: Patience, concurrency: usize) -> Result<Client> {
    let mut config = config.clone();
    config.default_retry = patience.repeat;
    config.connect_timeout = Some(patience.answer.min(Duration::from_secs(10)));
    config.read_timeout = Some(patience.silence);
    // Or the time a pooled connection was idle would count as silence.
    config.reset_reader_on_write = true;
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&TimeoutLayer::new(patience.answer))
        .with_layer(&ConcurrencyLimitLayer::new(concurrency))
        .build())
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
