//! The poll of one provider: lists its namespaces, and each of them for itself, so that one that fails or hangs holds up no
//! other; keeps the login; and wakes the queue when there is news. Where nothing is to be discovered it reads only the volumes
//! that SharedVolumes name.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::Semaphore;
use tokio::time::{Instant as Moment, sleep_until};

use crate::api::provider_volume::{Observation, ProviderVolume};
use crate::api::selector::LabelSelector;
use crate::api::shared_volume::SharedVolume;
use crate::api::slim;
use crate::runtime::clock::monotonic;
use crate::runtime::leader::Leadership;
use crate::runtime::lock::lock;
use crate::runtime::queue::Queue;
use crate::runtime::random_unit;
use crate::runtime::store::{ObjectKey, Store};
use crate::storageos::metrics::Metrics as ApiMetrics;
use crate::storageos::providers::Providers;
use crate::storageos::wire::{Namespace, Volume};
use crate::storageos::{CallError, Client};

use super::link::{Failing, Failure, Link, State};
use super::metrics::Metrics;
use super::{observe, pace};

/// Stands for the namespaces that nobody reads where nothing is listed. No namespace has this id. What was not read yet may
/// be there, and is not taken for gone.
const UNREAD: &str = "";

/// The Kubernetes namespaces that a provider serves.
#[derive(Clone)]
pub struct Served {
    pub selector: Option<LabelSelector>,
    pub namespaces: Store<slim::Namespace>,
}

impl Served {
    /// Whether volumes of claims there are ours to serve.
    pub fn is_served(&self, namespace: &str) -> bool {
        let Some(selector) = &self.selector else { return true };
        self.namespaces
            .get(&ObjectKey::cluster(namespace))
            .is_some_and(|namespace| selector.matches(&namespace.metadata.labels.clone().unwrap_or_default()))
    }

    /// Whether the provider's namespace is worth a list. One without a counterpart in Kubernetes may hold anything.
    fn is_listed(&self, namespace: &Namespace) -> bool {
        self.namespaces.get(&ObjectKey::cluster(&namespace.name)).is_none() || self.is_served(&namespace.name)
    }
}

/// What a poll works with.
pub struct Poller {
    pub provider: String,
    pub client: Client,
    pub providers: Providers,
    pub link: Arc<Mutex<Link>>,
    pub queue: Queue<String>,
    pub leadership: Leadership,
    pub served: Served,
    pub interval: Duration,
    /// With these no volumes are listed: only those that they name are read.
    pub named: Option<Store<SharedVolume>>,
    pub metrics: Metrics,
    pub api_metrics: ApiMetrics,
}

/// What one call asks for.
#[derive(Clone)]
struct Part {
    namespace: Namespace,
    /// Volumes that are read one by one; without, all are listed.
    ids: Option<BTreeSet<String>>,
}

/// What came back.
enum Answer {
    Login,
    Namespaces(Result<Vec<Namespace>, CallError>),
    Volumes(Part, Instant, Result<Vec<Volume>, CallError>),
}

type Calls = FuturesUnordered<BoxFuture<'static, Answer>>;

/// A poll under way.
struct Round {
    began: Instant,
    /// Whether the namespaces are still waited for.
    is_beginning: bool,
    /// The first thing that went wrong.
    error: &'static str,
    is_told: bool,
}

impl Poller {
    /// Polls for ever.
    pub async fn run(self) {
        let mut calls = Calls::new();
        // Namespaces that are being listed, perhaps since an earlier poll.
        let mut listing = HashSet::new();
        // Those that failed are listed one at a time: the others need the calls.
        let suspects = Arc::new(Semaphore::new(1));
        let mut failures = 0;
        let mut round = Round { began: monotonic(), is_beginning: false, error: "", is_told: true };
        let (mut next, mut refresh) = (Moment::now(), Moment::now());
        loop {
            tokio::select! {
                () = sleep_until(next), if !round.is_beginning => {
                    next = Moment::now() + self.interval;
                    if self.leadership.remaining().is_some() {
                        round = self.begin(&calls);
                    }
                }
                () = sleep_until(refresh) => {
                    refresh = Moment::now() + self.client.refresh_in().max(Duration::from_millis(100));
                    calls.push(self.keep_login());
                }
                Some(answer) = calls.next() => match answer {
                    Answer::Login => refresh = Moment::now() + self.client.refresh_in(),
                    Answer::Namespaces(answer) => {
                        round.is_beginning = false;
                        failures = if answer.is_ok() { 0 } else { failures + 1 };
                        next = Moment::from_std(round.began) + pace::pause(self.interval, failures, random_unit());
                        self.has_namespaces(answer, &mut round, &calls, &mut listing, &suspects);
                        refresh = refresh.min(Moment::now() + self.client.refresh_in());
                        self.end_if_done(&mut round, &listing);
                    }
                    Answer::Volumes(part, began, answer) => {
                        listing.remove(&part.namespace.id);
                        if let Err(error) = &answer {
                            round.error = error.reason();
                        }
                        let is_news = self.has_volumes(&part, answer, began);
                        self.end_if_done(&mut round, &listing);
                        if is_news {
                            self.queue.add(self.provider.clone());
                        }
                    }
                }
            }
        }
    }

    fn begin(&self, calls: &Calls) -> Round {
        let began = monotonic();
        self.link().is_done = false;
        self.providers.begin(&self.provider, began);
        let (client, lists) = (self.client.clone(), self.named.is_none());
        let ask = async move {
            Answer::Namespaces(match client.namespaces().await {
                // Who lists no volumes need not be allowed to: it is an answer, and the login is good.
                Err(error) if !lists && error.status() == Some(403) => Ok(Vec::new()),
                answer => answer,
            })
        };
        calls.push(ask.boxed());
        Round { began, is_beginning: true, error: "", is_told: false }
    }

    fn keep_login(&self) -> BoxFuture<'static, Answer> {
        let client = self.client.clone();
        let keep = async move {
            // The next poll tells of a login that fails.
            if client.refresh_in().is_zero()
                && let Err(error) = client.refresh().await
            {
                tracing::debug!(%error, "the login could not be refreshed");
            }
            Answer::Login
        };
        keep.boxed()
    }

    fn has_namespaces(
        &self,
        answer: Result<Vec<Namespace>, CallError>,
        round: &mut Round,
        calls: &Calls,
        listing: &mut HashSet<String>,
        suspects: &Arc<Semaphore>,
    ) {
        let mut link = self.link();
        link.endpoint = self.client.endpoint().or(link.endpoint.take());
        let namespaces = match answer {
            Ok(namespaces) => namespaces,
            Err(error) => {
                tracing::debug!(provider = self.provider, %error, "the provider cannot be polled");
                round.error = error.reason();
                link.state = State::Down(failure(&error));
                drop(link);
                self.metrics.polled(round.error, None);
                self.providers.silent(&self.provider);
                return;
            }
        };
        link.state = State::Up;
        let parts = self.parts(namespaces);
        let mut ids: Vec<_> = parts.iter().map(|part| part.namespace.id.clone()).collect();
        link.keep(&ids.iter().cloned().collect());
        if self.named.is_some() {
            ids.push(UNREAD.to_owned());
        }
        self.providers.namespaces(&self.provider, &ids);
        for part in parts {
            if listing.insert(part.namespace.id.clone()) {
                let is_suspect = link.failing.contains_key(&part.namespace.id);
                calls.push(self.list(part, is_suspect.then(|| suspects.clone())));
            }
        }
    }

    /// What is asked for: whole namespaces, or the volumes that are named.
    fn parts(&self, namespaces: Vec<Namespace>) -> Vec<Part> {
        let Some(shared_volumes) = &self.named else {
            let listed = namespaces.into_iter().filter(|it| self.served.is_listed(it));
            return listed.map(|namespace| Part { namespace, ids: None }).collect();
        };
        let mut names: BTreeMap<_, _> = namespaces.into_iter().map(|it| (it.id, it.name)).collect();
        let named = observe::named(shared_volumes, &self.provider, &self.providers).into_iter();
        let part = named.map(|(id, ids)| {
            // One that is not shown to us may have volumes that are.
            let name = names.remove(&id).unwrap_or_else(|| id.clone());
            Part { namespace: Namespace { id, name }, ids: Some(ids) }
        });
        part.collect()
    }

    fn list(&self, part: Part, turns: Option<Arc<Semaphore>>) -> BoxFuture<'static, Answer> {
        let client = self.client.clone();
        let list = async move {
            let _turn = match &turns {
                Some(turns) => turns.acquire().await.ok(),
                None => None,
            };
            let began = monotonic();
            let volumes = match &part.ids {
                None => client.volumes(&part.namespace).await,
                Some(ids) => client.named_volumes(&part.namespace, ids).await,
            };
            Answer::Volumes(part, began, volumes)
        };
        list.boxed()
    }

    /// Returns whether anybody has to look before the poll is done.
    fn has_volumes(&self, part: &Part, answer: Result<Vec<Volume>, CallError>, began: Instant) -> bool {
        let namespace = &part.namespace;
        let mut link = self.link();
        let before = (link.failing.get(&namespace.id).cloned(), link.shared.get(&namespace.id).cloned());
        let volumes = match answer {
            Ok(volumes) => {
                link.failing.remove(&namespace.id);
                Some(volumes)
            }
            Err(error) => {
                let failing = Failing { name: namespace.name.clone(), failure: failure(&error) };
                link.failing.insert(namespace.id.clone(), failing);
                None
            }
        };
        let reports = volumes.map(|volumes| {
            let mut shared = BTreeSet::new();
            let reports = volumes.into_iter().filter_map(|volume| {
                let is_shared = volume.is_shared();
                let report = volume.report(namespace)?;
                if is_shared {
                    shared.insert(report.id.clone());
                }
                self.is_ours(&report.claim_namespace).then_some(report)
            });
            let reports: Vec<_> = reports.collect();
            link.shared.insert(namespace.id.clone(), shared);
            reports
        });
        let after = (link.failing.get(&namespace.id).cloned(), link.shared.get(&namespace.id).cloned());
        drop(link);
        let lost = reports.as_ref().map(|reports| self.lost(part, reports)).unwrap_or_default();
        let has_lost = self.lose(&namespace.id, reports.as_deref(), lost, began);
        let has_changed = self.providers.listed(&self.provider, &namespace.id, reports, began);
        has_changed || has_lost || before != after
    }

    /// Volumes that were asked for one by one, are not there, and of which nobody knows that yet.
    fn lost(&self, part: &Part, reports: &[ProviderVolume]) -> Vec<ProviderVolume> {
        let there: BTreeSet<_> = reports.iter().map(|report| report.id.as_str()).collect();
        let missing = part.ids.iter().flatten().filter(|id| !there.contains(id.as_str()));
        let unknown = missing.filter(|id| {
            let known = self.providers.observe(&self.provider, id);
            known != Observation::Gone && known.last().is_none()
        });
        let lost = unknown.map(|id| ProviderVolume {
            id: id.clone(),
            namespace_id: part.namespace.id.clone(),
            ..ProviderVolume::default()
        });
        lost.collect()
    }

    /// The store takes for gone what it knew: it has to know these before the list comes that is without them.
    fn lose(
        &self,
        namespace_id: &str,
        reports: Option<&[ProviderVolume]>,
        lost: Vec<ProviderVolume>,
        began: Instant,
    ) -> bool {
        if lost.is_empty() {
            return false;
        }
        let with = reports.unwrap_or_default().iter().cloned().chain(lost).collect();
        self.providers.listed(&self.provider, namespace_id, Some(with), began)
    }

    /// A volume without the label may be anybody's: a SharedVolume that names it is fed.
    fn is_ours(&self, claim_namespace: &str) -> bool {
        claim_namespace.is_empty() || self.served.is_served(claim_namespace)
    }

    fn end_if_done(&self, round: &mut Round, listing: &HashSet<String>) {
        if round.is_beginning || round.is_told || !listing.is_empty() {
            return;
        }
        round.is_told = true;
        let took = monotonic().saturating_duration_since(round.began).as_secs_f64();
        self.api_metrics.helped("list_shared_volumes", round.error, took);
        let mut link = self.link();
        link.is_done = true;
        if link.state == State::Up {
            self.metrics.polled(round.error, Some(took));
        }
        drop(link);
        // The pass that follows makes what is new, and says that the poll is done.
        self.queue.add(self.provider.clone());
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        lock(&self.link)
    }
}

/// An error as it is reported.
pub fn failure(error: &CallError) -> Failure {
    Failure { reason: error.reason(), message: error.to_string() }
}
