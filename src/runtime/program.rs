//! What our long-running programs have in common: flags, logging, clients, leadership, health, and an orderly end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};

use super::client::Clients;
use super::events::Events;
use super::health::{self, Health};
use super::leader::{self, Ended, Leadership, LeaseSpec, LeaseTimes};
use super::logs::{self, LogFormat, Tracing};
use super::queue;
use super::telemetry::Telemetry;
use super::writer::Writer;

/// How long the work may take to end: a little longer than the queues give themselves, so that they can say what they
/// stopped. With the release of the Lease this fits in 5 s.
const DRAIN: Duration = queue::DRAIN.saturating_add(Duration::from_millis(250));

/// Flags of every program; each is an environment variable too.
#[derive(Clone, Debug, clap::Args)]
pub struct Flags {
    /// Kubeconfig file. Without it: KUBECONFIG, ~/.kube/config, or the pod's ServiceAccount.
    #[arg(long, env = "BULKHEAD_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the operator, where its Leases live.
    #[arg(long, env = "BULKHEAD_NAMESPACE", default_value = crate::api::names::OPERATOR_NAMESPACE)]
    pub namespace: String,
    /// Name of this replica in the Lease and in Events; its pod's name.
    #[arg(long, env = "BULKHEAD_IDENTITY", default_value = "bulkhead")]
    pub identity: String,
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, env = "BULKHEAD_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// What to log, for example info or bulkhead=debug,kube=warn.
    #[arg(long, env = "BULKHEAD_LOG", default_value = "info,kube_client=warn,tower=warn,hyper=warn")]
    pub log: String,
    /// How logs look.
    #[arg(long, env = "BULKHEAD_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Where to send traces, as OTLP over gRPC, for example http://collector:4317. Off without it.
    #[arg(long, env = "BULKHEAD_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
}

/// A program that serves its health and metrics, and does nothing else yet.
pub struct Serving {
    flags: Flags,
    service: &'static str,
    clients: Clients,
    telemetry: Telemetry,
    health: Health,
    cancel: CancellationToken,
    tracing: Tracing,
}

/// A program that has started.
pub struct Program {
    /// Clients.
    pub clients: Clients,
    /// Metrics.
    pub telemetry: Telemetry,
    /// Readiness gates.
    pub health: Health,
    /// Writes, each asking for leadership.
    pub writer: Writer,
    /// Events.
    pub events: Events,
    /// Cancelled when the program is to end.
    pub cancel: CancellationToken,
    candidacy: Candidacy,
    tracing: Tracing,
}

/// Our standing for the Lease. It has a token of its own: we stand until the work has ended, so that no successor leads
/// while we may still write or call.
struct Candidacy {
    election: JoinHandle<Ended>,
    withdraw: CancellationToken,
}

impl Flags {
    /// Starts logging, clients and the health server. Call once, first.
    pub async fn serve(&self, service: &'static str) -> Result<Serving> {
        let tracing = logs::init(service, self.log_format, &self.log, self.otlp_endpoint.as_deref())?;
        let telemetry = Telemetry::new();
        let health = Health::new();
        let cancel = CancellationToken::new();
        let clients = Clients::load(self.kubeconfig.as_deref(), service).await?;
        let address = health::serve(self.listen, health.clone(), telemetry.clone(), cancel.clone()).await?;
        tracing::info!(%address, version = env!("CARGO_PKG_VERSION"), "{service} started");
        Ok(Serving { flags: self.clone(), service, clients, telemetry, health, cancel, tracing })
    }
}

impl Serving {
    /// Stands for the Lease, and starts Events.
    pub fn lead(self, lease: String) -> Program {
        let Self { flags, service, clients, telemetry, health, cancel, tracing } = self;
        let spec = LeaseSpec {
            namespace: flags.namespace.clone(),
            name: lease,
            identity: flags.identity.clone(),
            times: LeaseTimes::default(),
        };
        let withdraw = CancellationToken::new();
        let (leadership, election) = leader::lead(clients.leases.clone(), spec, &telemetry, withdraw.clone());
        let candidacy = Candidacy { election, withdraw };
        let serving = Self { flags, service, clients, telemetry, health, cancel, tracing };
        serving.begin(leadership, candidacy)
    }

    /// Starts Events, for a program that writes without a Lease: what it writes is its own by another rule.
    pub fn without_lease(self) -> Program {
        let withdraw = CancellationToken::new();
        let withdrawn = withdraw.clone();
        let election = tokio::spawn(async move {
            withdrawn.cancelled().await;
            Ended::Stopped
        });
        self.begin(Leadership::always(), Candidacy { election, withdraw })
    }

    fn begin(self, leadership: Leadership, candidacy: Candidacy) -> Program {
        let Self { flags, service, clients, telemetry, health, cancel, tracing } = self;
        let events = Events::spawn(
            clients.writes.clone(),
            service,
            &flags.identity,
            leadership.clone(),
            &telemetry,
            cancel.clone(),
        );
        let writer = Writer::new(clients.writes.clone(), leadership, service);
        Program { clients, telemetry, health, writer, events, cancel, candidacy, tracing }
    }
}

impl Program {
    /// Runs `work` until SIGTERM, SIGINT or the loss of leadership, and ends in order: no new work, running work ends
    /// (or is dropped after about 3 s), and only then the Lease is released. Losing the Lease is a failure: the next process starts with empty memory.
    pub async fn run(self, work: impl Future<Output = ()>) -> ExitCode {
        let Self { cancel, candidacy, tracing, .. } = self;
        let lost = serve_until(stop_signal(), cancel, candidacy, work).await;
        tracing.shutdown();
        if lost {
            tracing::error!("the Lease is lost; the process ends, the next one starts afresh");
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }
}

/// Runs `work` until `stop`, `cancel`, its own end or the loss of the Lease, and ends in order. Returns whether the Lease
/// was lost.
async fn serve_until(
    stop: impl Future<Output = ()>,
    cancel: CancellationToken,
    Candidacy { mut election, withdraw }: Candidacy,
    work: impl Future<Output = ()>,
) -> bool {
    // Work ends by itself once it is cancelled; if it ends before, so does the program.
    let guard = cancel.clone().drop_guard();
    let working = async {
        let drained = async {
            cancel.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            () = work => {}
            () = drained => tracing::warn!("the work did not end in {DRAIN:?}; it is stopped"),
        }
        drop(guard);
    };
    let stopping = async {
        let ended = tokio::select! {
            () = stop => None,
            ended = &mut election => Some(ended),
            () = cancel.cancelled() => None,
        };
        cancel.cancel();
        ended
    };
    let (ended, ()) = tokio::join!(stopping, working);
    withdraw.cancel();
    let ended = match ended {
        Some(ended) => ended,
        None => election.await,
    };
    !matches!(ended, Ok(Ended::Stopped))
}

async fn stop_signal() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Prints why the program could not start, and what to do.
pub fn failed(error: &Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
