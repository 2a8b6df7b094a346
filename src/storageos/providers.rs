//! What every provider reported last, in memory. The controller of providers feeds it; that of shared volumes reads it, is
//! told of every change, and publishes through it, so that a switch waits for no write of a status.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::mpsc;

use crate::api::provider_volume::{Observation, ProviderVolume};
use crate::api::shared_volume_provider::SharedVolumeProviderSpec;
use crate::api::time;
use crate::runtime::clock::monotonic;
use crate::runtime::lock::lock;

use super::reported::{Provider, Reach, Round};

/// A control plane that can be told where a volume is mounted from.
pub trait ControlPlane: Send + Sync {
    /// Publishes the mount endpoint of a volume; an empty one un-publishes.
    fn publish<'a>(
        &'a self,
        namespace_id: &'a str,
        volume_id: &'a str,
        endpoint: &'a str,
    ) -> BoxFuture<'a, Result<(), PublishError>>;
}

/// Why a provider did not take a mount endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// There is no such provider, or nobody has logged in to it yet.
    #[error("there is no connection to the provider: see the conditions of its SharedVolumeProvider")]
    NotConnected,
    /// It has no such volume.
    #[error("the provider does not have the volume any more")]
    VolumeGone,
    /// Somebody else wrote to the volume between read and write, twice.
    #[error("somebody else keeps writing to the volume; it is tried again")]
    VersionConflict,
    /// It said no.
    #[error("the provider refuses: {0}")]
    Refused(String),
    /// No answer.
    #[error("the provider does not answer: {0}")]
    Unreachable(String),
}

/// Times in which the provider's spec differs from the flags of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// `spec.cacheExpiryInterval`.
    pub cache_expiry: Option<Duration>,
    /// `spec.createPollInterval`.
    pub create_poll: Option<Duration>,
    /// `spec.createWaitDuration`.
    pub create_wait: Option<Duration>,
}

impl From<&SharedVolumeProviderSpec> for Intervals {
    fn from(spec: &SharedVolumeProviderSpec) -> Self {
        let named = |it: &Option<time::Duration>| it.as_ref().map(time::Duration::get);
        Self {
            cache_expiry: named(&spec.cache_expiry_interval),
            create_poll: named(&spec.create_poll_interval),
            create_wait: named(&spec.create_wait_duration),
        }
    }
}

/// What [`Providers::observe`] says of this volume may be another thing now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Changed {
    /// Name of the SharedVolumeProvider.
    pub provider: String,
    /// Id of the volume there.
    pub volume_id: String,
}

/// What all providers reported. Clones share it.
#[derive(Clone, Default)]
pub struct Providers(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    providers: HashMap<String, Provider>,
    subscribers: Vec<mpsc::UnboundedSender<Changed>>,
    /// Durations of whole polls; see [`Providers::settled`].
    durations: Option<Histogram>,
}

/// Reading.
impl Providers {
    /// What is known of a volume.
    pub fn observe(&self, provider: &str, volume_id: &str) -> Observation {
        let mut state = self.lock();
        let Some(provider) = state.providers.get_mut(provider) else { return Observation::NotPolled };
        if !provider.asked.contains(volume_id) {
            provider.asked.insert(volume_id.to_owned());
        }
        provider.observe(volume_id)
    }

    /// The times that the provider's spec names; `None` if there is no such provider.
    pub fn intervals(&self, provider: &str) -> Option<Intervals> {
        self.lock().providers.get(provider).map(|provider| provider.intervals)
    }

    /// Everything that changes from now on, also when a provider stops answering, or answers again.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Changed> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.lock().subscribers.push(sender);
        receiver
    }

    /// Tells a provider where a volume is mounted from; an empty endpoint un-publishes it.
    ///
    /// # Errors
    /// When the provider does not take it.
    pub async fn publish(
        &self,
        provider: &str,
        namespace_id: &str,
        volume_id: &str,
        endpoint: &str,
    ) -> Result<(), PublishError> {
        let (control_plane, namespace_id) = {
            let state = self.lock();
            let provider = state.providers.get(provider).ok_or(PublishError::NotConnected)?;
            let control_plane = provider.control_plane.clone().ok_or(PublishError::NotConnected)?;
            // A SharedVolume need not name the namespace.
            let known = || provider.volumes.get(volume_id).map(|volume| volume.namespace_id.clone());
            let named = Some(namespace_id).filter(|id| !id.is_empty()).map(str::to_owned);
            (control_plane, named.or_else(known).ok_or(PublishError::VolumeGone)?)
        };
        control_plane.publish(&namespace_id, volume_id, endpoint).await?;
        if let Some(provider) = self.lock().providers.get_mut(provider) {
            provider.has_published(volume_id, endpoint);
        }
        Ok(())
    }

    /// A volume needs no more work: what the current poll changed of it is done, or can only be done later. The time from the
    /// beginning of a poll until this holds of all its volumes is `storageos_shared_volume_reconcile_duration_seconds`.
    pub fn settled(&self, provider: &str, volume_id: &str) {
        let mut state = self.lock();
        if let Some(round) = state.providers.get_mut(provider).and_then(|provider| provider.round.as_mut()) {
            round.pending.remove(volume_id);
        }
        state.measure(provider);
    }

    /// Nobody asks for this volume any more: no poll waits for it, and it is not remembered as gone.
    pub fn unasked(&self, provider: &str, volume_id: &str) {
        let mut state = self.lock();
        if let Some(provider) = state.providers.get_mut(provider) {
            provider.unasked(volume_id);
        }
        state.measure(provider);
    }
}

/// Feeding.
impl Providers {
    /// A store that measures polls.
    pub fn measured(durations: Histogram) -> Self {
        Self(Arc::new(Mutex::new(State { durations: Some(durations), ..State::default() })))
    }

    /// There is a provider of that name, with these times. What it reported before stays.
    pub fn configure(&self, provider: &str, intervals: Intervals) {
        self.lock().providers.entry(provider.to_owned()).or_default().intervals = intervals;
    }

    /// Who is told mount endpoints from now on; nobody without.
    pub fn connect(&self, provider: &str, control_plane: Option<Arc<dyn ControlPlane>>) {
        self.lock().providers.entry(provider.to_owned()).or_default().control_plane = control_plane;
    }

    /// The provider is gone, and all that it reported.
    pub fn forget(&self, provider: &str) {
        let mut state = self.lock();
        if let Some(gone) = state.providers.remove(provider) {
            let affected = gone.volumes.into_keys().chain(gone.asked).collect();
            state.tell(provider, affected);
        }
    }

    /// A poll begins. What the one before has left to do is counted to this one.
    pub fn begin(&self, provider: &str, began: Instant) {
        let mut state = self.lock();
        let unsettled = state.finish_round(provider);
        let provider = state.providers.entry(provider.to_owned()).or_default();
        provider.round = Some(Round { began, pending: unsettled, is_open: true });
    }

    /// All lists of the poll have come, and what is new was made.
    pub fn end(&self, provider: &str) {
        let mut state = self.lock();
        if let Some(round) = state.providers.get_mut(provider).and_then(|provider| provider.round.as_mut()) {
            round.is_open = false;
        }
        state.measure(provider);
    }

    /// The current poll is not done before this volume is settled: its SharedVolume is new.
    pub fn expect(&self, provider: &str, volume_id: &str) {
        let mut state = self.lock();
        if let Some(round) = state.providers.get_mut(provider).and_then(|provider| provider.round.as_mut()) {
            round.pending.insert(volume_id.to_owned());
        }
    }

    /// The provider does not answer.
    pub fn silent(&self, provider: &str) {
        self.change(provider, |provider| {
            let is_new = std::mem::replace(&mut provider.reach, Reach::Silent) != Reach::Silent;
            if is_new { provider.all() } else { HashSet::new() }
        });
    }

    /// These are all its namespaces, by id.
    pub fn namespaces(&self, provider: &str, ids: &[String]) {
        self.change(provider, |provider| provider.has_namespaces(ids));
    }

    /// All volumes of one namespace, by a list that began then; or the list failed. Returns whether that changes anything.
    pub fn listed(
        &self,
        provider: &str,
        namespace_id: &str,
        volumes: Option<Vec<ProviderVolume>>,
        began: Instant,
    ) -> bool {
        self.change(provider, |provider| match volumes {
            Some(volumes) => provider.has_volumes(namespace_id, volumes, began),
            None => provider.has_failed(namespace_id),
        })
    }

    /// All that a provider reported, in the order of ids.
    pub fn volumes(&self, provider: &str) -> Vec<Arc<ProviderVolume>> {
        let state = self.lock();
        let volumes = state.providers.get(provider).map(|provider| provider.volumes.values().cloned());
        let mut volumes: Vec<_> = volumes.into_iter().flatten().collect();
        volumes.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        volumes
    }

    /// Providers that report a volume of this claim, which has to be bound to be served.
    pub fn of_claim(&self, namespace: &str, name: &str) -> Vec<String> {
        let is_of = |volume: &Arc<ProviderVolume>| volume.claim_name == name && volume.claim_namespace == namespace;
        let state = self.lock();
        let found = state.providers.iter().filter(|(_, provider)| provider.volumes.values().any(is_of));
        found.map(|(name, _)| name.clone()).collect()
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Provider) -> HashSet<String>) -> bool {
        let mut state = self.lock();
        let provider = state.providers.entry(name.to_owned()).or_default();
        let affected = change(provider);
        if let Some(round) = &mut provider.round {
            round.pending.extend(affected.intersection(&provider.asked).cloned());
        }
        let has_changed = !affected.is_empty();
        state.tell(name, affected);
        has_changed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn tell(&mut self, provider: &str, affected: HashSet<String>) {
        for volume_id in affected {
            let changed = Changed { provider: provider.to_owned(), volume_id };
            self.subscribers.retain(|subscriber| subscriber.send(changed.clone()).is_ok());
        }
    }

    /// Counts the poll if it is done.
    fn measure(&mut self, provider: &str) {
        let round = self.providers.get(provider).and_then(|provider| provider.round.as_ref());
        if round.is_some_and(|round| !round.is_open && round.pending.is_empty()) {
            self.finish_round(provider);
        }
    }

    /// Counts the poll as it is. Returns what it has left to do.
    fn finish_round(&mut self, provider: &str) -> HashSet<String> {
        let round = self.providers.get_mut(provider).and_then(|provider| provider.round.take());
        let Some(round) = round else { return HashSet::new() };
        if let Some(durations) = &self.durations {
            durations.observe(monotonic().saturating_duration_since(round.began).as_secs_f64());
        }
        round.pending
    }
}

#[cfg(test)]
#[path = "providers_tests.rs"]
mod tests;
