//! Metrics. Their names are `bulkhead_*`; labels are enums or names fixed in our
//! code, never names of objects or texts of errors.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use prometheus_client::{
    encoding::{
        EncodeLabelSet, EncodeLabelValue,
        text::{encode_eof, encode_registry},
    },
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry},
};

use super::{
    clock::monotonic,
    lock::lock,
    progress::{Progress, Stuck},
};
use crate::error::{Error, ErrorClass, Result};

/// Brings a gauge up to date.
type Refresh = Box<dyn Fn() + Send + Sync>;

/// The shared metric registry of a process.
#[derive(Clone)]
pub struct Telemetry {
    registry: Arc<Mutex<Registry>>,
    /// Metrics whose whole names somebody else fixed.
    exact: Arc<Mutex<Registry>>,
    refresh: Arc<Mutex<Vec<Refresh>>>,
    /// Informer → when it last asked the server for a list or a watch.
    asked: Arc<Mutex<BTreeMap<&'static str, Instant>>>,
    /// Queue → how it gets on.
    progress: Arc<Mutex<BTreeMap<&'static str, Progress>>>,
    /// The runtime's own metrics.
    pub(crate) runtime: RuntimeMetrics,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self::new()
    }
}

impl Telemetry {
    /// An own registry with the runtime's metrics in it.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("bulkhead");
        let runtime = RuntimeMetrics::register(&mut registry);
        Self {
            registry: Arc::new(Mutex::new(registry)),
            exact: Arc::default(),
            refresh: Arc::default(),
            asked: Arc::default(),
            progress: Arc::default(),
            runtime,
        }
    }

    /// Adds a metric under `bulkhead_<name>` and returns it.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        Adder(&mut lock(&self.registry)).with(name, help, metric)
    }

    /// Adds a metric under exactly this name, which another project has fixed. Counters end in `_total` all the same.
    pub fn register_exact<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        Adder(&mut lock(&self.exact)).with(name, help, metric)
    }

    /// Runs `update` before each scrape, for gauges that depend on the time of day.
    pub fn before_scrape(&self, update: impl Fn() + Send + Sync + 'static) {
        lock(&self.refresh).push(Box::new(update));
    }

    /// An informer asks the server for a list or a watch.
    pub(crate) fn informer_asks(&self, informer: &'static str) {
        lock(&self.asked).insert(informer, monotonic());
    }

    /// The informers that asked the server for nothing for longer than `limit`.
    pub(crate) fn silent_informers(&self, limit: Duration) -> Vec<&'static str> {
        let now = monotonic();
        let silent = |asked: Instant| now.saturating_duration_since(asked) > limit;
        lock(&self.asked).iter().filter(|(_, asked)| silent(**asked)).map(|(informer, _)| *informer).collect()
    }

    /// A queue tells how it gets on.
    pub(crate) fn queue_moves(&self, queue: &'static str, progress: Progress) {
        lock(&self.progress).insert(queue, progress);
    }

    /// The queues that do not get on with their work, and why.
    pub(crate) fn stuck_queues(&self) -> Vec<(&'static str, Stuck)> {
        let now = monotonic();
        lock(&self.progress).iter().filter_map(|(queue, progress)| Some((*queue, progress.stuck(now)?))).collect()
    }

    /// All metrics in OpenMetrics text form.
    pub fn encode(&self) -> Result<String> {
        for update in lock(&self.refresh).iter() {
            update();
        }
        let mut text = String::new();
        encode_registry(&mut text, &lock(&self.registry))
            .and_then(|()| encode_registry(&mut text, &lock(&self.exact)))
            .and_then(|()| encode_eof(&mut text))
            .map_err(|error| Error::Invalid(format!("metrics cannot be encoded: {error}")))?;
        Ok(text)
    }
}

/// Label: which informer (a name fixed in our code).
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct InformerLabel {
    pub informer: &'static str,
}

/// Label: which queue (a name fixed in our code).
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct QueueLabel {
    pub queue: &'static str,
}

/// Labels of one finished reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabels {
    pub queue: &'static str,
    pub outcome: Outcome,
}

/// How a reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Ok,
    Failed(ErrorClass),
}

impl EncodeLabelValue for Outcome {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
    ) -> std::result::Result<(), std::fmt::Error> {
        match self {
            Self::Ok => "Ok".encode(encoder),
            Self::Failed(class) => class.encode(encoder),
        }
    }
}

/// Label: what became of an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EventLabel {
    pub result: EventResult,
}

/// What became of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum EventResult {
    Published,
    Failed,
    DroppedFull,
    DroppedRepeated,
    DroppedRate,
    DroppedNotLeader,
}

/// Metrics of the runtime layer.
#[derive(Clone)]
pub(crate) struct RuntimeMetrics {
    pub informer_objects: Family<InformerLabel, Gauge>,
    pub informer_relists: Family<InformerLabel, Counter>,
    pub informer_idle: Family<InformerLabel, Gauge>,
    pub informer_undecodable: Family<InformerLabel, Counter>,
    pub informer_errors: Family<InformerLabel, Counter>,
    pub queue_depth: Family<QueueLabel, Gauge>,
    pub queue_running: Family<QueueLabel, Gauge>,
    pub reconciles: Family<OutcomeLabels, Counter>,
    pub reconcile_seconds: Family<QueueLabel, Histogram, fn() -> Histogram>,
    pub events: Family<EventLabel, Counter>,
    pub leader: Gauge,
}

/// Buckets from 1 ms to about 65 s, the default deadline.
fn reconcile_histogram() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(0.001, 4.0, 9))
}

/// Registers a metric and hands it back.
struct Adder<'a>(&'a mut Registry);

impl Adder<'_> {
    fn metric<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.with(name, help, M::default())
    }

    fn with<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }
}

impl RuntimeMetrics {
    fn register(registry: &mut Registry) -> Self {
        let mut add = Adder(registry);
        Self {
            informer_objects: add.metric("informer_objects", "Objects in the cache"),
            informer_relists: add.metric("informer_relists", "Completed lists"),
            informer_idle: add.metric("informer_idle_seconds", "Seconds since the last event or list"),
            informer_undecodable: add.metric("informer_undecodable", "Objects that could not be read"),
            informer_errors: add.metric("informer_errors", "Failed lists and watches"),
            queue_depth: add.metric("queue_depth", "Keys that wait for a worker"),
            queue_running: add.metric("queue_running", "Reconciles that run"),
            reconciles: add.metric("reconcile", "Finished reconciles"),
            reconcile_seconds: add.with(
                "reconcile_seconds",
                "Duration of reconciles",
                Family::new_with_constructor(reconcile_histogram as fn() -> Histogram),
            ),
            events: add.metric("events", "Kubernetes Events by result"),
            leader: add.metric("leader", "1 while this process holds its Lease"),
        }
    }

    /// Counts what became of an Event.
    pub fn event(&self, result: EventResult) {
        self.events.get_or_create(&EventLabel { result }).inc();
    }

    /// Records one finished reconcile.
    pub fn reconciled(&self, queue: &'static str, outcome: Outcome, took: Duration) {
        self.reconciles.get_or_create(&OutcomeLabels { queue, outcome }).inc();
        self.reconcile_seconds.get_or_create(&QueueLabel { queue }).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn names_have_the_prefix_and_labels_are_bounded() {
        let telemetry = Telemetry::new();
        let failed = Outcome::Failed(ErrorClass::Deadline);
        telemetry.runtime.reconciled("node_fence", failed, Duration::from_millis(2));
        let own = telemetry.register("own_things", "Ours", Counter::<u64>::default());
        own.inc();
        let text = telemetry.encode().unwrap();
        assert!(text.contains(r#"bulkhead_reconcile_total{queue="node_fence",outcome="Deadline"} 1"#), "{text}");
        assert!(text.contains(r#"bulkhead_reconcile_seconds_count{queue="node_fence"} 1"#), "{text}");
        assert!(text.contains("bulkhead_own_things_total 1"), "{text}");
    }

    #[test]
    fn gauges_are_refreshed_at_each_scrape() {
        let telemetry = Telemetry::new();
        let gauge = telemetry.register("age", "Age", Gauge::<i64>::default());
        let handle = gauge.clone();
        telemetry.before_scrape(move || {
            handle.inc();
        });
        telemetry.encode().unwrap();
        assert!(telemetry.encode().unwrap().contains("bulkhead_age 2"));
    }
}
