//! `/healthz`, `/readyz` and `/metrics`. Readiness is a list of named gates, so that whoever looks sees
//! *what* is missing, and of the queues that are stuck. Being a follower is not a reason to be unready.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{lock::lock, progress::Stuck, telemetry::Telemetry};
use crate::error::{Error, Result};

/// Media type of the metrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An informer renews its watch every 190 s, and tries again within a minute when that fails. One that asks for nothing
/// for so long is stuck.
const SILENCE: Duration = Duration::from_secs(600);

/// All gates of a process. Clones share them.
#[derive(Clone, Default)]
pub struct Health {
    /// Gate name → why it is closed; `None` when open.
    gates: Arc<Mutex<BTreeMap<String, Option<String>>>>,
}

/// One condition for readiness. Stays as it was last set when dropped.
#[derive(Clone)]
pub struct Gate {
    health: Health,
    name: String,
}

impl Health {
    /// No gates: ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a gate, closed as "starting".
    pub fn gate(&self, name: impl Into<String>) -> Gate {
        let gate = Gate { health: self.clone(), name: name.into() };
        gate.close("starting");
        gate
    }

    /// The closed gates and why.
    pub fn closed(&self) -> Vec<(String, String)> {
        let gates = self.lock();
        gates.iter().filter_map(|(name, why)| Some((name.clone(), why.clone()?))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Option<String>>> {
        lock(&self.gates)
    }
}

impl Gate {
    /// What the gate stands for works.
    pub fn open(&self) {
        self.health.lock().insert(self.name.clone(), None);
    }

    /// It does not, and this is why.
    pub fn close(&self, reason: impl Into<String>) {
        self.health.lock().insert(self.name.clone(), Some(reason.into()));
    }
}

/// Serves until `cancel`. Returns the address once it listens (port 0 chooses one).
pub async fn serve(
    address: SocketAddr,
    health: Health,
    telemetry: Telemetry,
    cancel: CancellationToken,
) -> Result<SocketAddr> {
    let failed = |source| Error::Io { context: format!("health and metrics on {address}"), source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    let router = Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state((health, telemetry));
    tokio::spawn(async move {
        // Not graceful: a scraper that keeps its connection must not delay the exit.
        let served = cancel.run_until_cancelled(axum::serve(listener, router).into_future()).await;
        if let Some(Err(error)) = served {
            tracing::error!(%error, "health and metrics are no longer served");
        }
    });
    Ok(local)
}

/// What a restart mends. Not whether the server answers, but whether we still ask; not whether reconciles hang, for the
/// driver that lets them hang does so after a restart too, but whether one blocks its thread.
async fn alive(State((_, telemetry)): State<(Health, Telemetry)>) -> impl IntoResponse {
    let silent = telemetry.silent_informers(SILENCE).into_iter();
    let blocked = telemetry.stuck_queues().into_iter().filter(|(_, stuck)| matches!(stuck, Stuck::Blocked(_)));
    answer(
        silent.map(|name| format!("informer {name}: asked for nothing for {SILENCE:?}")).chain(blocked.map(in_words)),
    )
}

async fn ready(State((health, telemetry)): State<(Health, Telemetry)>) -> impl IntoResponse {
    let closed = health.closed().into_iter().map(|(name, why)| format!("{name}: {why}"));
    answer(closed.chain(telemetry.stuck_queues().into_iter().map(in_words)))
}

fn in_words((queue, stuck): (&'static str, Stuck)) -> String {
    format!("queue {queue}: {stuck}")
}

/// A line for each thing that is wrong.
fn answer(wrong: impl Iterator<Item = String>) -> (StatusCode, String) {
    let lines: String = wrong.map(|line| line + "\n").collect();
    if lines.is_empty() { (StatusCode::OK, "ok\n".to_owned()) } else { (StatusCode::SERVICE_UNAVAILABLE, lines) }
}

async fn metrics(State((_, telemetry)): State<(Health, Telemetry)>) -> impl IntoResponse {
    match telemetry.encode() {
        Ok(text) => (StatusCode::OK, [(CONTENT_TYPE, OPEN_METRICS)], text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(CONTENT_TYPE, "text/plain")], error.to_string()),
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
