//! Polls storage control planes, keeps in memory what they report ([`Providers`]), and writes a SharedVolume for each shared
//! volume that has a claim. Keyed by the name of the SharedVolumeProvider.

mod act;
pub mod decide;
pub mod discovery;
mod feed;
pub mod flags;
pub mod link;
pub(crate) mod metrics;
pub mod observe;
pub mod pace;
mod poll;
pub mod status;
mod tell;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::controllers::{Context, ProviderStores};
use crate::error::Result;
use crate::runtime::lock::lock;
use crate::runtime::queue::{self, Next, Queue, QueueConfig, UNSEEN_PACE};
use crate::runtime::store::ObjectKey;
use crate::storageos::Credentials;
use crate::storageos::metrics::Metrics as ApiMetrics;
use crate::storageos::providers::Providers;

use decide::Seen;
use link::Link;
use metrics::Metrics;
use observe::{SECRET_PACE, SecretMemory};

/// Providers worked on at once.
const CONCURRENCY: usize = 4;

/// How the controller works.
#[derive(Clone, Debug)]
pub struct Config {
    /// Time between two lists, where a provider does not say.
    pub poll: Duration,
}

/// The store of reports, with its metrics; one for the whole process.
pub fn providers(cx: &Context) -> (Providers, ApiMetrics) {
    let metrics = ApiMetrics::register(&cx.telemetry);
    (Providers::measured(metrics.polls.clone()), metrics)
}

/// A poll that runs.
struct Running {
    is: decide::Poll,
    link: Arc<Mutex<Link>>,
    _ends: DropGuard,
}

struct Controller {
    cx: Context,
    stores: ProviderStores,
    providers: Providers,
    config: Config,
    metrics: Metrics,
    api_metrics: ApiMetrics,
    queue: Queue<String>,
    polls: Mutex<HashMap<String, Running>>,
    secrets: Mutex<HashMap<String, SecretMemory>>,
}

/// Runs the controller until `cancel`.
pub async fn run(
    cx: Context,
    stores: ProviderStores,
    (providers, api_metrics): (Providers, ApiMetrics),
    config: Config,
    cancel: CancellationToken,
) {
    let (queue, receiver) = queue::queue();
    let metrics = Metrics::register(&cx.telemetry);
    let (telemetry, leadership) = (cx.telemetry.clone(), cx.writer.leadership().clone());
    let receiver = receiver.after(stores.wait_synced(&cx.stores));
    let controller = Arc::new(Controller {
        cx,
        stores,
        providers,
        config,
        metrics,
        api_metrics,
        queue,
        polls: Mutex::default(),
        secrets: Mutex::default(),
    });
    feed::start(&controller.cx, &controller.stores, &controller.providers, &controller.queue);
    // A poll outlives the pass that began it.
    let config = QueueConfig::new("shared_volume_provider", "SharedVolumeProvider", CONCURRENCY);
    let reconcile = {
        let controller = controller.clone();
        move |provider: String| {
            let controller = controller.clone();
            async move { controller.reconcile(&provider).await }
        }
    };
    queue::run(config, receiver, &telemetry, cancel, Some(leadership), reconcile).await;
    controller.polls().clear();
}

impl Controller {
    async fn reconcile(&self, name: &str) -> Result<Next> {
        let (seen, credentials) = self.observe(name).await?;
        let decision = decide::decide(&seen, self.cx.clock.now());
        tracing::debug!(provider = name, reason = decision.reason, effects = decision.effects.len(), "decided");
        let done = self.act(name, &seen, credentials, &decision.effects).await;
        if seen.poll.as_ref().is_some_and(|poll| poll.link.is_done) {
            self.providers.end(name);
        }
        match done {
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(Next::After(UNSEEN_PACE)),
            done => done.map(|()| if seen.provider.is_some() { Next::After(SECRET_PACE) } else { Next::Await }),
        }
    }

    async fn observe(&self, name: &str) -> Result<(Seen, Option<Credentials>)> {
        let Some(provider) = self.stores.providers.get(&ObjectKey::cluster(name)) else {
            return Ok((Seen::default(), None));
        };
        let reference = &provider.spec.credentials_ref;
        // One pass of a provider at a time: nobody else looks for it meanwhile.
        let memory = self.secrets().remove(name).filter(|memory| memory.is_of(reference));
        let mut memory = memory.unwrap_or_else(|| SecretMemory::new(reference));
        let read = memory.read(&self.cx.clients.reads, self.cx.clock.now().mono).await;
        self.secrets().insert(name.to_owned(), memory);
        let (secret, credentials) = read?;
        let poll = self.polls().get(name).map(|running| {
            let link = lock(&running.link).clone();
            decide::Poll { link, ..running.is.clone() }
        });
        let (candidates, fed) = observe::volumes(&self.cx, &self.stores, &self.providers, &provider);
        Ok((Seen { provider: Some(provider), secret, poll, candidates, fed }, credentials))
    }

    fn secrets(&self) -> MutexGuard<'_, HashMap<String, SecretMemory>> {
        lock(&self.secrets)
    }

    fn polls(&self) -> MutexGuard<'_, HashMap<String, Running>> {
        lock(&self.polls)
    }
}
