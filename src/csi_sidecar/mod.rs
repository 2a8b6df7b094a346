//! `bulkhead-csi-sidecar`: answers FenceRequests for the CSI driver beside it, and reports what the driver says of its
//! volumes ([`health`]) and of the nodes that reach its array ([`connectivity`]). Volumes are called side by side, each
//! with its deadline; a row is recorded as Started before its first call; one list of published nodes serves all rows
//! of a request that wait for it. Where a policy says so csi-addons is asked instead ([`network_fence`]).

pub mod act;
pub mod connectivity;
pub mod decide;
pub mod driver;
pub mod health;
mod holding;
pub mod io;
#[cfg(test)]
mod io_tests;
mod judge;
pub mod memory;
pub mod methods;
pub mod metrics;
pub mod network_fence;
pub mod observe;
pub mod report;
pub mod status;
#[cfg(test)]
mod tests;
pub mod unfence;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::{Api, ResourceExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::fence_request::FenceRequest;
use crate::error::Result;
use crate::runtime::client::Clients;
use crate::runtime::clock::Clock;
use crate::runtime::events::Events;
use crate::runtime::health::Health;
use crate::runtime::informer::Informer;
use crate::runtime::lock::lock;
use crate::runtime::queue::{self, Next, Queue, QueueConfig, UNSEEN_PACE_OF_FENCES};
use crate::runtime::store::{ObjectKey, Store};
use crate::runtime::telemetry::Telemetry;
use crate::runtime::writer::Writer;

use driver::Driver;
use memory::Memory;
use metrics::Metrics;

/// Passes that may follow each other before the informer is asked again.
const STEPS: usize = 8;

/// What the sidecar works with.
#[derive(Clone)]
pub struct Context {
    /// The driver beside us.
    pub driver: Driver,
    /// Its name, which is our fencer name.
    pub name: String,
    /// Clients.
    pub clients: Clients,
    /// Writes, each asking for leadership.
    pub writer: Writer,
    /// Events.
    pub events: Events,
    /// Where metrics are.
    pub telemetry: Telemetry,
    /// Those of calls of fences.
    pub metrics: Metrics,
    /// Clocks.
    pub clock: Clock,
    /// Calls to the driver under way.
    pub calls: TaskTracker,
}

impl Context {
    /// A call of a fence that began then has ended.
    fn called(&self, method: metrics::Method, began: Instant, failure: Option<&decide::Failure>) {
        self.metrics.called(method, self.clock.now().mono.saturating_duration_since(began), failure);
    }
}

/// Memory shared with the calls under way.
pub type Shared = Arc<Mutex<Memory>>;

struct Sidecar {
    cx: Context,
    store: Store<FenceRequest>,
    queue: Queue<String>,
    /// By request name, with the uid: memory belongs to one object of that name, not to its successor.
    memories: Mutex<HashMap<String, (Option<String>, Shared)>>,
}

/// Serves the requests that name this driver until `cancel`; then no call begins any more, and those under way may end.
pub async fn run(cx: Context, health: &Health, cancel: CancellationToken) {
    let api: Api<FenceRequest> = Api::all(cx.clients.watches.clone());
    let informer = Informer::new(api, "fencerequests").fields(&format!("spec.fencerName={}", cx.name));
    let store = informer.spawn(cancel.clone(), &cx.telemetry);
    let gate = health.gate("informer fencerequests");
    gate.close("the first list has not arrived");
    let (queue, receiver) = queue::queue();
    queue.follow(store.subscribe(), None, |change| [change.key.name.clone()]);
    let leadership = cx.writer.leadership().clone();
    let telemetry = cx.telemetry.clone();
    if cancel.run_until_cancelled(store.wait_synced()).await.is_none() {
        return;
    }
    gate.open();
    let (driver, calls) = (cx.driver.clone(), cx.calls.clone());
    let sidecar = Arc::new(Sidecar { cx, store, queue, memories: Mutex::default() });
    let config = QueueConfig {
        name: "fence_request",
        kind: "FenceRequest",
        concurrency: 16,
        deadline: Duration::from_secs(360),
    };
    let reconcile = move |name: String| {
        let sidecar = sidecar.clone();
        async move { sidecar.reconcile(&name).await }
    };
    let serving = queue::run(config, receiver, &telemetry, cancel.clone(), Some(leadership), reconcile);
    let ((), stopped) = tokio::join!(serving, async {
        cancel.cancelled().await;
        driver.close();
        tokio::time::Instant::now()
    });
    drain(&calls, stopped + queue::DRAIN).await;
}

/// Waits for the calls under way. One that outlives us may still reach the backend; the next leader sends it again.
async fn drain(calls: &TaskTracker, until: tokio::time::Instant) {
    calls.close();
    if tokio::time::timeout_at(until, calls.wait()).await.is_err() {
        tracing::warn!(calls = calls.len(), "calls of the driver or of csi-addons are still under way at shutdown");
    }
}

impl Sidecar {
    async fn reconcile(&self, name: &str) -> Result<Next> {
        let Some(mut request) = self.store.get(&ObjectKey::cluster(name)) else {
            lock(&self.memories).remove(name);
            return Ok(Next::Await);
        };
        let memory = self.memory(&request);
        for _ in 0..STEPS {
            let now = self.cx.clock.now();
            let mut seen = observe::observe(request.clone(), &memory);
            let mut decision = decide::decide(&seen, now);
            if !decision.read.is_empty() {
                seen.reading = Some(observe::read(&self.cx, &request, decision.read).await);
                decision = decide::decide(&seen, self.cx.clock.now());
            }
            if !decision.ask.is_empty() {
                seen.busy = Some(observe::ask(&self.cx, &request, decision.ask).await);
                decision = decide::decide(&seen, self.cx.clock.now());
            }
            if decision.look {
                let before = lock(&memory).others.clone();
                let looked = network_fence::look(&self.cx, &request, &before).await;
                let now = self.cx.clock.now();
                lock(&memory).looked = Some(now.mono);
                if let Some(looked) = looked {
                    lock(&memory).others = looked.others;
                    seen.holds = Some(looked.holds);
                }
                seen.looked = Some(now.mono);
                decision = decide::decide(&seen, now);
            }
            if decision.let_in {
                seen.let_in = Some(network_fence::give_back(&self.cx, &request).await);
                decision = decide::decide(&seen, self.cx.clock.now());
            }
            if decision.effects.is_empty() {
                return Ok(decision.look_again.into());
            }
            let wake = {
                let (queue, name) = (self.queue.clone(), name.to_owned());
                move || queue.add(name.clone())
            };
            match act::act(&self.cx, &request, &memory, decision.effects, wake).await {
                // What was written is newer than the store: go on with it.
                Ok(Some(written)) => request = Arc::new(written),
                Ok(None) => return Ok(decision.look_again.into()),
                Err(error) if error.is_conflict() => return Ok(Next::After(UNSEEN_PACE_OF_FENCES)),
                Err(error) => return Err(error),
            }
        }
        Ok(Next::After(Duration::from_millis(10)))
    }

    fn memory(&self, request: &FenceRequest) -> Shared {
        let mut memories = lock(&self.memories);
        let (uid, memory) = memories.entry(request.name_any()).or_default();
        if *uid != request.metadata.uid {
            (*uid, *memory) = (request.metadata.uid.clone(), Shared::default());
        }
        memory.clone()
    }
}
