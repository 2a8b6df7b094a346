//! Polls storage control planes, keeps in memory what they report ([`Providers`]), and writes a SharedVolume for each shared
//! volume that has a claim. Keyed by the name of the SharedVolumeProvider.

pub mod act;
pub mod decide;
pub mod discovery;
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::api::shared_volume::SharedVolume;
use crate::api::shared_volume_provider::{DiscoveryMode, SharedVolumeProvider};
use crate::api::slim::PersistentVolumeClaim;
use crate::controllers::{Context, ProviderStores};
use crate::error::Result;
use crate::runtime::queue::{self, Next, Queue, QueueConfig};
use crate::runtime::store::{Change, ObjectKey};
use crate::storageos::metrics::Metrics as ApiMetrics;
use crate::storageos::providers::{ControlPlane, Intervals, Providers};
use crate::storageos::{Client, Credentials, Settings};

use act::Discoverer;
use decide::{Effect, Secret, Seen};
use link::{Link, State};
use metrics::Metrics;
use observe::{SECRET_PACE, SecretMemory};
use poll::{Poller, Served};

/// Providers worked on at once.
const CONCURRENCY: usize = 4;
/// Somebody wrote in between, or the store has not seen our own write yet.
const UNSEEN_PACE: Duration = Duration::from_millis(100);
/// SharedVolumes come in crowds: their changes are gathered for this long.
const GATHER: Duration = Duration::from_millis(250);

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
    controller.clone().feed();
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
    fn feed(self: Arc<Self>) {
        let of_provider = |_: &Self, change: &Change<SharedVolumeProvider>| {
            let view = |it: &Arc<SharedVolumeProvider>| (it.uid(), it.metadata.generation);
            let is_other = change.old.as_ref().map(view) != change.new.as_ref().map(view);
            is_other.then(|| change.key.name.clone()).into_iter().collect()
        };
        self.clone().on(self.stores.providers.subscribe(), Duration::ZERO, of_provider);
        let of_claim = |this: &Self, change: &Change<PersistentVolumeClaim>| {
            let ObjectKey { namespace, name } = &change.key;
            this.providers.of_claim(namespace.as_deref().unwrap_or_default(), name)
        };
        self.clone().on(self.cx.stores.claims.subscribe(), Duration::ZERO, of_claim);
        let of_shared_volume = |_: &Self, change: &Change<SharedVolume>| {
            // Its backend never changes.
            let came_or_went = change.old.is_none() || change.new.is_none();
            let it = change.new.as_ref().or(change.old.as_ref()).filter(|_| came_or_went);
            let backend = it.and_then(|it| it.spec.backend.provider.as_ref());
            backend.map(|backend| backend.name.clone()).into_iter().collect()
        };
        self.clone().on(self.stores.shared_volumes.subscribe(), GATHER, of_shared_volume);
    }

    fn on<K: Send + Sync + 'static>(
        self: Arc<Self>,
        mut changes: mpsc::UnboundedReceiver<Change<K>>,
        pace: Duration,
        providers: fn(&Self, &Change<K>) -> Vec<String>,
    ) {
        tokio::spawn(async move {
            while let Some(change) = changes.recv().await {
                for provider in providers(&self, &change) {
                    if pace.is_zero() { self.queue.add(provider) } else { self.queue.add_after(provider, pace) }
                }
            }
        });
    }

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
            let link = running.link.lock().unwrap_or_else(PoisonError::into_inner).clone();
            decide::Poll { link, ..running.is.clone() }
        });
        let (candidates, fed) = observe::volumes(&self.cx, &self.stores, &self.providers, &provider);
        Ok((Seen { provider: Some(provider), secret, poll, candidates, fed }, credentials))
    }

    async fn act(&self, name: &str, seen: &Seen, credentials: Option<Credentials>, effects: &[Effect]) -> Result<()> {
        let Some(provider) = &seen.provider else {
            self.polls().remove(name);
            self.secrets().remove(name);
            self.providers.forget(name);
            return Ok(());
        };
        if effects.contains(&Effect::Connect) {
            if let (Some(credentials), Secret::Usable(secret)) = (credentials, &seen.secret) {
                self.connect(provider, credentials, secret);
            }
        } else if effects.contains(&Effect::Disconnect) {
            self.polls().remove(name);
            self.providers.connect(name, None);
            self.providers.silent(name);
        }
        let Self { cx, metrics, providers, .. } = self;
        let created = Discoverer { cx, metrics, providers, provider }.create(effects).await;
        for effect in effects {
            if let Effect::Record { provider, status } = effect {
                act::record(&self.cx, &self.metrics, provider, status).await?;
            }
        }
        created
    }

    /// Begins a poll in place of the one that runs, with what that one has brought.
    fn connect(&self, provider: &SharedVolumeProvider, credentials: Credentials, secret: &str) {
        let (name, spec) = (provider.name_any(), &provider.spec);
        self.providers.configure(&name, Intervals::from(spec));
        let mut polls = self.polls();
        let before =
            polls.remove(&name).map(|running| running.link.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let link = Arc::new(Mutex::new(Link { state: State::Pending, ..before.unwrap_or_default() }));
        let cancel = CancellationToken::new();
        match Client::new(&Settings::from(spec), credentials, self.api_metrics.clone()) {
            Ok(client) => {
                let control_plane: Arc<dyn ControlPlane> = Arc::new(client.clone());
                self.providers.connect(&name, Some(control_plane));
                let poller = Poller {
                    provider: name.clone(),
                    client,
                    providers: self.providers.clone(),
                    link: link.clone(),
                    queue: self.queue.clone(),
                    leadership: self.cx.writer.leadership().clone(),
                    served: Served {
                        selector: spec.namespace_selector.clone(),
                        namespaces: self.cx.stores.namespaces.clone(),
                    },
                    interval: spec.poll_interval.as_ref().map_or(self.config.poll, |it| it.get()),
                    named: (spec.discovery.mode == DiscoveryMode::Disabled).then(|| self.stores.shared_volumes.clone()),
                    metrics: self.metrics.clone(),
                    api_metrics: self.api_metrics.clone(),
                };
                let ended = cancel.clone();
                tokio::spawn(async move { ended.run_until_cancelled(poller.run()).await });
            }
            Err(error) => {
                self.providers.connect(&name, None);
                self.providers.silent(&name);
                link.lock().unwrap_or_else(PoisonError::into_inner).state = State::Down(poll::failure(&error));
                self.queue.add(name.clone());
            }
        }
        let is = decide::Poll {
            generation: provider.metadata.generation.unwrap_or_default(),
            uid: provider.uid().unwrap_or_default(),
            secret: secret.to_owned(),
            link: Link::default(),
        };
        polls.insert(name, Running { is, link, _ends: cancel.drop_guard() });
    }

    fn secrets(&self) -> MutexGuard<'_, HashMap<String, SecretMemory>> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn polls(&self) -> MutexGuard<'_, HashMap<String, Running>> {
        self.polls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
