//! Keeps a [`Store`] equal to the cluster: kube-runtime's `watcher`, with the traps around it closed.
//! Works with any kind that knows its resource, also slim ones that deserialize a few fields only.

use std::{fmt, time::Duration};

use futures::{StreamExt as _, pin_mut};
use kube::{Api, Client, Resource, client::Body};
use kube_runtime::watcher::{self, DefaultBackoff, Event};
use serde::{Serialize, de::DeserializeOwned};
use tokio_util::sync::CancellationToken;

use super::{
    clock::monotonic,
    guarded::Guarded,
    packing::Packer,
    protobuf::{Protobuf, Sieve},
    store::{IndexFn, Indexer, Store},
    telemetry::{InformerLabel, RuntimeMetrics, Telemetry},
};
use crate::api::slim::protobuf::Message;
use crate::error::api_code;

/// Watch starts in a row that may fail with HTTP 410 before the list is made anew. kube's watcher
/// retries such a start with the same resourceVersion for ever; a real apiserver reports 410 inside
/// the stream, but proxies and aggregated servers do not.
const GONE_LIMIT: u32 = 3;

/// Server-side watch timeout in seconds, below the 240 s after which some load balancers drop silent
/// connections without a word. Up to [`TIMEOUT_JITTER`] is added, so that kinds do not reconnect together.
const WATCH_TIMEOUT: u32 = 180;
const TIMEOUT_JITTER: u32 = 10;

/// The longest pause of an eager informer while nobody answers at all.
const EAGER_PAUSE: Duration = Duration::from_secs(1);

/// What to watch and what to keep of it.
pub struct Informer<K> {
    api: Api<K>,
    name: &'static str,
    config: watcher::Config,
    indexers: Vec<Indexer<K>>,
    packer: Packer<K>,
    keep: Box<dyn Fn(&K) -> bool + Send + Sync>,
    protobuf: Option<&'static Message>,
    sieve: Option<Sieve>,
    eager: bool,
    fields_are_optional: bool,
    is_one_of_many: bool,
}

impl<K> Informer<K>
where
    K: Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Watches everything `api` reaches; `name` is the label of its metrics. Give it a client made for
    /// watches ([`Clients::watches`](super::client::Clients)).
    pub fn new(api: Api<K>, name: &'static str) -> Self {
        let jitter = name.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
        let timeout = WATCH_TIMEOUT + jitter % (TIMEOUT_JITTER + 1);
        let config = watcher::Config::default().streaming_lists().timeout(timeout);
        let (indexers, packer, keep) = (Vec::new(), Packer::none(), Box::new(|_: &K| true));
        Self {
            api,
            name,
            config,
            indexers,
            packer,
            keep,
            protobuf: None,
            sieve: None,
            eager: false,
            fields_are_optional: false,
            is_one_of_many: false,
        }
    }

    /// Adds an index: `values` gives the values under which [`Store::by_index`] finds an object.
    #[must_use]
    pub fn index(mut self, name: &'static str, values: IndexFn<K>) -> Self {
        self.indexers.push((name, values));
        self
    }

    /// Keeps the objects compressed: for a kind of which there are many, and few are looked at. Each look costs some
    /// microseconds. It must be read as it is written.
    #[must_use]
    pub fn packed(mut self) -> Self
    where
        K: Serialize,
    {
        self.packer = Packer::json();
        self
    }

    /// Asks for protobuf: for a kind of Kubernetes of which there are many, or which often changes.
    #[must_use]
    pub fn protobuf(mut self, message: &'static Message) -> Self {
        self.protobuf = Some(message);
        self
    }

    /// Of an object in protobuf that does not pass this only the name is read: for a kind of which most are not kept.
    /// [`keep`](Self::keep) must refuse what has nothing but a name, as it would refuse the whole.
    #[must_use]
    pub fn sift(mut self, sieve: Sieve) -> Self {
        self.sieve = Some(sieve);
        self
    }

    /// Keeps only objects for which `keep` holds; for everyone else the others do not exist. It is asked
    /// when an object arrives, so its answer may only change together with the object (or a relist).
    #[must_use]
    pub fn keep(mut self, keep: impl Fn(&K) -> bool + Send + Sync + 'static) -> Self {
        self.keep = Box::new(keep);
        self
    }

    /// Asks the server only for objects with these field values.
    #[must_use]
    pub fn fields(mut self, selector: &str) -> Self {
        self.config = self.config.fields(selector);
        self
    }

    /// The same where the server can select by these fields: with an older definition of the kind it cannot, and is asked for
    /// all objects. [`keep`](Self::keep) has to choose in any case.
    #[must_use]
    pub fn fields_if_served(mut self, selector: &str) -> Self {
        self.fields_are_optional = true;
        self.fields(selector)
    }

    /// Asks the server only for objects with these labels.
    #[must_use]
    pub fn labels(mut self, selector: &str) -> Self {
        self.config = self.config.labels(selector);
        self
    }

    /// Asks each second while nobody answers, for a node that is cut off and has work to do when it is back. Asking nobody
    /// costs a server nothing; one that answers with an error is given as long a pause as ever.
    #[must_use]
    pub fn eager(mut self) -> Self {
        self.eager = true;
        self
    }

    /// It is one of many under one name, which come and go: it has no gauges, which would show only the last of them, and
    /// its end is no sign that the program is stuck.
    #[must_use]
    pub fn one_of_many(mut self) -> Self {
        self.is_one_of_many = true;
        self
    }

    /// Starts watching in a task that ends with `cancel`.
    pub fn spawn(self, cancel: CancellationToken, telemetry: &Telemetry) -> Store<K> {
        let store = Store::with(self.indexers, self.packer);
        let label = InformerLabel { informer: self.name };
        let metrics = telemetry.runtime.clone();
        // A series that begins with its first error shows no increase, by which an alert would see it.
        metrics.informer_undecodable.get_or_create(&label).inc_by(0);
        metrics.informer_errors.get_or_create(&label).inc_by(0);
        if !self.is_one_of_many {
            telemetry.before_scrape(gauges(store.clone(), metrics.clone(), label.clone()));
        }
        let liveness = Some(telemetry.clone()).filter(|_| !self.is_one_of_many);
        let Self { keep, protobuf, sieve, eager, fields_are_optional, .. } = self;
        let feed = Feed { store: store.clone(), keep, eager, fields_are_optional, label, metrics };
        let protobuf = protobuf.map(|message| Protobuf::new(message, sieve));
        let watch = watch_for_ever(guarded(self.api, self.name, liveness, protobuf), self.config, feed);
        tokio::spawn(async move { cancel.run_until_cancelled(watch).await });
        store
    }
}

/// How much is kept, and for how long nothing came.
fn gauges<K>(store: Store<K>, metrics: RuntimeMetrics, label: InformerLabel) -> impl Fn() {
    move || {
        let idle = monotonic().saturating_duration_since(store.last_progress()).as_secs();
        metrics.informer_idle.get_or_create(&label).set(i64::try_from(idle).unwrap_or(i64::MAX));
        metrics.informer_objects.get_or_create(&label).set(i64::try_from(store.len()).unwrap_or(i64::MAX));
    }
}

/// The same resources as `api`, decoded with a guard around each object, and asked for in protobuf where that is known. Each
/// request is a sign of life, if somebody asks for them: kube's watcher renews a watch without a word.
fn guarded<K: Resource<DynamicType = ()>>(
    api: Api<K>,
    name: &'static str,
    liveness: Option<Telemetry>,
    protobuf: Option<Protobuf>,
) -> Api<Guarded<K>> {
    let namespace = api.namespace().map(str::to_owned);
    let inner = api.into_client();
    let noted = tower::service_fn(move |request: http::Request<Body>| {
        liveness.iter().for_each(|telemetry| telemetry.informer_asks(name));
        let (inner, protobuf) = (inner.clone(), protobuf.clone());
        async move {
            match protobuf {
                Some(protobuf) => protobuf.send(&inner, request).await,
                None => Ok(inner.send(request).await?.map(axum::body::Body::new)),
            }
        }
    });
    let client = Client::new(noted, namespace.as_deref().unwrap_or_default());
    match namespace {
        Some(namespace) => Api::namespaced_with(client, &namespace, &()),
        None => Api::all_with(client, &()),
    }
}

/// Runs one watcher after the other: a new one lists again.
async fn watch_for_ever<K>(api: Api<Guarded<K>>, mut config: watcher::Config, feed: Feed<K>)
where
    K: Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    // One backoff for all watchers, or a server that always answers 410 would be listed in a hot loop.
    let mut backoff = DefaultBackoff::default();
    loop {
        match run_watcher(&api, &config, &feed, &mut backoff).await {
            Restart::Gone => tracing::warn!(
                informer = feed.label.informer,
                "watch cannot be resumed (HTTP 410 at its start): listing again"
            ),
            Restart::NoStreamingLists => {
                tracing::info!(informer = feed.label.informer, "the server has no streaming lists: listing in pages");
                config.initial_list_strategy = watcher::InitialListStrategy::ListWatch;
            }
            Restart::NoSuchField(error) => {
                tracing::warn!(
                    informer = feed.label.informer,
                    %error,
                    "the server cannot select: all objects are watched; apply our definition to watch the wanted only"
                );
                config.field_selector = None;
            }
        }
    }
}

/// Why a watcher was given up.
enum Restart {
    /// [`GONE_LIMIT`] watch starts in a row answered 410.
    Gone,
    /// The server refuses `sendInitialEvents` (feature gate `WatchList` is off, as by default in 1.33).
    NoStreamingLists,
    /// The server refuses a field selector that it need not know.
    NoSuchField(watcher::Error),
}

async fn run_watcher<K>(
    api: &Api<Guarded<K>>,
    config: &watcher::Config,
    feed: &Feed<K>,
    backoff: &mut DefaultBackoff,
) -> Restart
where
    K: Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    let events = watcher::watcher(api.clone(), config.clone());
    pin_mut!(events);
    let mut gone = 0;
    let streaming = config.initial_list_strategy == watcher::InitialListStrategy::StreamingList;
    while let Some(event) = events.next().await {
        let error = match event {
            Ok(event) => {
                gone = 0;
                feed.take(event);
                continue;
            }
            Err(error) => error,
        };
        feed.failed(&error);
        match start_code(&error) {
            Some(410) => gone += 1,
            Some(422) if streaming => return Restart::NoStreamingLists,
            Some(400) if feed.fields_are_optional && config.field_selector.is_some() => {
                return Restart::NoSuchField(error);
            }
            _ => gone = 0,
        }
        if let Some(pause) = backoff.next() {
            tokio::time::sleep(pause_after(&error, pause, feed.eager)).await;
        }
        if gone >= GONE_LIMIT {
            return Restart::Gone;
        }
    }
    // Not reached: kube's watcher never ends by itself. A new list is the safe answer.
    Restart::Gone
}

/// HTTP code with which a list or a watch failed to start.
fn start_code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => api_code(error),
        _ => None,
    }
}

/// Shorter for who is eager, where there was no answer of the server, not even an error.
fn pause_after(error: &watcher::Error, pause: Duration, eager: bool) -> Duration {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error)
            if eager && api_code(error).is_none() =>
        {
            pause.min(EAGER_PAUSE)
        }
        _ => pause,
    }
}

/// Brings events into the store.
struct Feed<K> {
    store: Store<K>,
    keep: Box<dyn Fn(&K) -> bool + Send + Sync>,
    eager: bool,
    fields_are_optional: bool,
    label: InformerLabel,
    metrics: RuntimeMetrics,
}

impl<K: Resource> Feed<K> {
    fn take(&self, event: Event<Guarded<K>>) {
        match event {
            Event::Init => self.store.list_begins(),
            Event::InitApply(object) | Event::Apply(object) => self.apply(object),
            Event::Delete(object) => self.store.remove(&object.key()),
            Event::InitDone => {
                self.store.list_done();
                self.metrics.informer_relists.get_or_create(&self.label).inc();
            }
        }
    }

    fn apply(&self, object: Guarded<K>) {
        let key = object.key();
        match object {
            Guarded::Readable(object) if (self.keep)(&object) => self.store.insert(*object),
            Guarded::Readable(_) => self.store.remove(&key),
            Guarded::Unreadable { error, .. } => {
                self.metrics.informer_undecodable.get_or_create(&self.label).inc();
                let informer = self.label.informer;
                tracing::warn!(informer, object = %key, error, "object cannot be read; what was known of it is kept");
                self.store.keep(&key);
            }
        }
    }

    fn failed(&self, error: &watcher::Error) {
        self.metrics.informer_errors.get_or_create(&self.label).inc();
        tracing::debug!(informer = self.label.informer, %error, "list or watch failed; it is tried again");
    }
}

#[cfg(test)]
#[path = "informer_tests.rs"]
mod tests;
