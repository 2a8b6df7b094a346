//! Clients of the Kubernetes API. kube's default client waits for ever for an answer and repeats requests
//! up to 15 times; each of ours says how long it waits and whether it repeats.

use std::path::Path;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::retry::RetryPolicy;
use kube::client::{ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::Semaphore;
use tower::limit::ConcurrencyLimitLayer;
use tower::retry::RetryLayer;
use tower::timeout::TimeoutLayer;
use tower::{BoxError, ServiceBuilder};

use crate::error::{Error, Result};

/// How long reads wait for the first and each further piece of an answer, repetitions included.
const READ: Duration = Duration::from_secs(30);
/// How long writes wait. See also [`Writer`](super::writer::Writer), which bounds the whole call.
const WRITE: Duration = Duration::from_secs(5);
/// A watch is silent for up to its server-side timeout (190 s) plus the 5 s in which kube's watcher gives it up.
const WATCH_SILENCE: Duration = Duration::from_secs(210);
/// How long a connection may take without TLS: a lost packet is repeated after 1 s, and after 3 s.
const CONNECT: Duration = Duration::from_secs(2);
/// A silent connection is asked after this time, and given up after three questions that nobody answered, 19 s in all:
/// sooner than a node is fenced. Without it, a node that was cut off and is back waits on its old watches, up to 210 s.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(3), 3);
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

    /// Clients of a person, as kubectl finds them: in that file, or `KUBECONFIG`, or `~/.kube/config`; for that context, or the
    /// current one.
    pub async fn of_person(kubeconfig: Option<&Path>, context: Option<&str>, user_agent: &str) -> Result<Self> {
        let what = kubeconfig.map_or_else(|| "kubeconfig".to_owned(), |path| format!("kubeconfig {}", path.display()));
        let invalid = |error| Error::Invalid(format!("{what}: {error}; give --kubeconfig and --context as to kubectl"));
        let file = kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from).map_err(invalid)?;
        let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
        let config = Config::from_custom_kubeconfig(file, &options).await.map_err(invalid)?;
        Self::from_config(config, user_agent)
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

/// As kube's own builder, on connections that notice that nobody is there any more.
fn client(config: &Config, patience: Patience, concurrency: usize) -> Result<Client> {
    if config.proxy_url.is_some() {
        return Err(Error::Invalid("no way through a proxy to the API server is built in; remove proxy-url".into()));
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp())?);
    connector.set_connect_timeout(Some(patience.answer.min(Duration::from_secs(10))));
    connector.set_read_timeout(Some(patience.silence));
    connector.set_write_timeout(config.write_timeout);
    // Or the time a pooled connection was idle would count as silence.
    connector.set_reset_reader_on_write(true);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(patience.repeat.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build(connector));
    Ok(ClientBuilder::new(service, config.default_namespace.clone())
        .with_layer(&TimeoutLayer::new(patience.answer))
        .with_layer(&ConcurrencyLimitLayer::new(concurrency))
        .build())
}

fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT));
    let (after, every, times) = KEEPALIVE;
    tcp.set_keepalive(Some(after));
    tcp.set_keepalive_interval(Some(every));
    tcp.set_keepalive_retries(Some(times));
    tcp
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
