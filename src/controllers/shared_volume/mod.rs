//! Gives the NFS server behind a claim one address that survives failover: a Service without a selector, our own
//! EndpointSlices, and the mount endpoint told to whoever needs it. Keyed by namespace and name.

mod act;
pub mod choose;
pub mod claim;
pub mod decide;
pub mod deletion;
pub mod endpoints;
pub mod failover;
mod feed;
pub mod flags;
mod memories;
pub mod memory;
pub(crate) mod metrics;
pub mod objects;
mod observe;
mod prober;
pub mod publish;
mod publisher;
pub mod serve;
mod server_pods;
pub mod servers;
pub mod service;
pub mod slices;
pub mod status;
mod tell;
#[cfg(test)]
mod tests;
mod verify;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::controllers::{Context, SharedVolumeStores};
use crate::error::{Error, Result};
use crate::runtime::queue::{self, Next, QueueConfig, UNSEEN_PACE_OF_MOUNTS};
use crate::runtime::random_unit;
use crate::runtime::store::{self, ObjectKey};
use crate::storageos::providers::Providers;

use decide::{Decision, Effect, Intervals, Seen};
use feed::Feed;
use memories::{Asked, Memories, VolumeOf};
use metrics::Metrics;
use observe::Observer;
use prober::{Pace, Prober};
use publisher::Publisher;
use server_pods::ServerPods;
use verify::{Hidden, Live};

/// SharedVolumes worked on at once: as many as there may be writes under way.
const CONCURRENCY: usize = 64;
/// By how much of it the time until a volume is verified again may be longer.
const SPREAD: f64 = 0.1;

/// How the controller works.
#[derive(Clone, Debug)]
pub struct Config {
    /// Times, where no provider has its own.
    pub intervals: Intervals,
    /// Domain of the cluster's DNS.
    pub cluster_domain: String,
}

impl Default for Config {
    fn default() -> Self {
        Self { intervals: Intervals::default(), cluster_domain: "cluster.local".to_owned() }
    }
}

struct Controller {
    observer: Observer,
    publisher: Publisher,
    memories: Memories,
    asked: Asked,
    metrics: Metrics,
}

/// Runs the controller until `cancel`.
pub async fn run(
    cx: Context,
    stores: SharedVolumeStores,
    providers: Providers,
    config: Config,
    cancel: CancellationToken,
) {
    let (queue, receiver) = queue::queue();
    let telemetry = cx.telemetry.clone();
    let leadership = cx.writer.leadership().clone();
    let receiver = receiver.after(stores.wait_synced(&cx.stores));
    let metrics = Metrics::register(&telemetry);
    telemetry.before_scrape({
        let (stores, metrics) = (stores.clone(), metrics.clone());
        move || metrics.look(&stores.shared_volumes.list())
    });
    let server_pods = ServerPods::new(cx.clients.watches.clone(), telemetry.clone(), queue.clone(), cancel.clone());
    let prober = Prober::new(queue.clone(), leadership.clone(), cx.clock.clone(), metrics.clone());
    Feed { cx: cx.clone(), stores: stores.clone(), server_pods: server_pods.clone(), queue: queue.clone() }
        .start(&providers);
    let memories = Memories::default();
    let publisher = Publisher {
        cx: cx.clone(),
        providers: providers.clone(),
        metrics: metrics.clone(),
        memories: memories.clone(),
        queue,
        cancel: cancel.clone(),
        under_way: Arc::default(),
    };
    let hidden = Hidden::default();
    let observer = Observer { cx, stores, providers, server_pods, prober, hidden, config };
    let controller = Arc::new(Controller { observer, publisher, memories, asked: Asked::default(), metrics });
    let config = QueueConfig::new("shared_volume", "SharedVolume", CONCURRENCY);
    let reconcile = move |key: ObjectKey| {
        let controller = controller.clone();
        async move { controller.reconcile(&key).await }
    };
    queue::run(config, receiver, &telemetry, cancel, Some(leadership), reconcile).await;
}

impl Controller {
    async fn reconcile(&self, key: &ObjectKey) -> Result<Next> {
        let observer = &self.observer;
        let Some(mut seen) = observer.observe(key, self.memories.of(key)).await? else {
            return self.forget(key).await;
        };
        self.ask(key, Some(&seen));
        let decision = self.decide(key, &mut seen).await?;
        tracing::debug!(%key, reason = decision.reason, effects = decision.effects.len(), "decided");
        let pace = Pace::from(&seen.shared_volume.spec.probe);
        observer.prober.want(key, &decision.probes, pace);
        for effect in &decision.effects {
            match act::act(&observer.cx, &seen, effect).await {
                Ok(()) => self.did(key, &seen, effect),
                Err(error) => {
                    let is_late = error.is_conflict();
                    let next = self.failed(key, effect, error)?;
                    // Until the store shows what was written meanwhile, the same would be refused again.
                    store::settle(|| !is_late || self.observer.shows(&seen, effect)).await;
                    return Ok(next);
                }
            }
        }
        self.finish(key, &seen, &decision);
        store::settle(|| decision.effects.iter().all(|effect| self.observer.shows(&seen, effect))).await;
        Ok(next(&seen, &decision, observer.hidden.look_again(key, &seen)))
    }

    /// What to do; if that is to read live, what to do about what was read.
    async fn decide(&self, key: &ObjectKey, seen: &mut Seen) -> Result<Decision> {
        let cx = &self.observer.cx;
        let decision = decide::decide(seen, cx.clock.now());
        if !decision.effects.contains(&Effect::Verify) {
            return Ok(decision);
        }
        let lagging = seen.service.is_none();
        Live::read(&cx.clients.reads, seen).await?.onto(seen);
        self.observer.hidden.learn(key, seen);
        if lagging {
            self.observer.hidden.is_ahead(key, seen);
        }
        self.memories.keep(key, &seen.memory, decision.memory, false);
        seen.memory = self.memories.of(key);
        Ok(decide::decide(seen, cx.clock.now()))
    }

    /// The SharedVolume is gone.
    async fn forget(&self, key: &ObjectKey) -> Result<Next> {
        let observer = &self.observer;
        observer.server_pods.select(key, None).await?;
        observer.prober.want(key, &[], Pace::default());
        observer.hidden.forget(key);
        self.memories.forget(key);
        self.ask(key, None);
        Ok(Next::Await)
    }

    /// Says which volume this SharedVolume asks for: no poll of a provider waits for one that nobody asks for.
    fn ask(&self, key: &ObjectKey, seen: Option<&Seen>) {
        let provider = seen.and_then(|seen| seen.shared_volume.spec.backend.provider.as_ref());
        let volume = provider.map(|it| VolumeOf { provider: it.name.clone(), volume_id: it.volume_id.clone() });
        if let Some(left) = self.asked.ask(key, volume) {
            self.observer.providers.unasked(&left.provider, &left.volume_id);
        }
    }

    fn did(&self, key: &ObjectKey, seen: &Seen, effect: &Effect) {
        // Kubernetes may have begun to make a slice of the selector that was just taken off.
        if matches!(effect, Effect::RepairService { before, .. } if !before.spec.selector.is_empty()) {
            self.observer.hidden.suspect(key);
        }
        act::written(effect).into_iter().for_each(|kind| self.metrics.wrote(kind));
        if let Effect::Record { status, .. } = effect {
            self.metrics.recorded(seen.shared_volume.status.as_ref(), status);
        }
    }

    /// What was decided on is gone, or the API server will not have it: decide anew.
    fn failed(&self, key: &ObjectKey, effect: &Effect, error: Error) -> Result<Next> {
        if let Some(refusal) = act::refusal(effect, &error, self.observer.cx.clock.now().mono) {
            self.memories.note(key, |memory| memory.refused = Some(refusal));
            return Ok(Next::After(Duration::ZERO));
        }
        if error.is_conflict() || error.is_not_found() {
            self.observer.hidden.read_again(key);
        }
        // One that exists and is not shown may never be: that is no moment's matter.
        let passes = error.is_not_found() || (error.is_conflict() && !act::is_creation(effect));
        if passes { Ok(Next::After(UNSEEN_PACE_OF_MOUNTS)) } else { Err(error) }
    }

    /// All effects have succeeded, but for what a provider has yet to take.
    fn finish(&self, key: &ObjectKey, seen: &Seen, decision: &Decision) {
        let Decision { memory, notes, .. } = decision;
        let publication = decision.effects.iter().find(|effect| matches!(effect, Effect::Publish { .. }));
        self.memories.keep(key, &seen.memory, memory.clone(), publication.is_some());
        match publication {
            Some(effect) => self.publisher.begin(key, seen, effect, memory.published.clone(), notes),
            None => tell::tell(&self.observer.cx, seen, notes),
        }
        let provider = seen.shared_volume.spec.backend.provider.as_ref().filter(|_| is_settled(decision));
        let providers = &self.observer.providers;
        if let Some(it) = provider
            // What was reported meanwhile is another pass's.
            && Some(providers.observe(&it.name, &it.volume_id)) == seen.observation
        {
            providers.settled(&it.name, &it.volume_id);
        }
    }
}

/// Whether a poll of the provider need not wait for it: all is done, or nothing can be done before something else changes. A
/// server that is being asked and a Service that is being made are neither.
fn is_settled(decision: &Decision) -> bool {
    let is_under_way = matches!(decision.reason, "Switch" | "ServiceNotSeen");
    decision.is_settled || (decision.effects.is_empty() && !is_under_way)
}

/// When to look again: at once after a write, for what follows from it is the next pass's; and when what no watch brings is
/// to be looked for.
fn next(seen: &Seen, decision: &Decision, hidden: Option<Duration>) -> Next {
    let has_written = decision.effects.iter().any(|effect| act::written(effect).is_some());
    // What was read live is not enough yet: it is read again.
    let is_unseen = decision.effects.contains(&Effect::Verify);
    let look_again = match decision.look_again {
        _ if has_written => Some(Duration::ZERO),
        None if is_unseen => Some(seen.intervals.create_poll),
        // Volumes of providers are verified at different times: after a start it would be all of them at one.
        Some(after) if decision.is_settled && seen.observation.is_some() => {
            Some(after.mul_f64(1.0 + SPREAD * random_unit()))
        }
        look_again => look_again,
    };
    look_again.into_iter().chain(hidden).min().into()
}
