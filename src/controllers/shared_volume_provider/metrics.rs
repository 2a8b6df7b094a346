//! Metrics of the polls, all providers together: none has a series of its own.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::runtime::clock::monotonic;
use crate::runtime::lock::lock;
use crate::runtime::telemetry::Telemetry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Polled {
    /// Why not all was listed; empty when all was.
    error: &'static str,
}

/// What is counted.
#[derive(Clone)]
pub struct Metrics {
    polls: Family<Polled, Counter>,
    seconds: Histogram,
    created: Counter,
    writes: Counter,
    last: Arc<Mutex<Option<Instant>>>,
}

impl Metrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        // 5 ms to about 80 s.
        let seconds = Histogram::new(exponential_buckets(0.005, 2.0, 15));
        let age = telemetry.register(
            "shared_volume_provider_last_poll_age_seconds",
            "Time since any provider was polled with success; -1 before the first",
            Gauge::<i64>::default(),
        );
        let last: Arc<Mutex<Option<Instant>>> = Arc::default();
        telemetry.before_scrape({
            let last = last.clone();
            move || {
                let last = *lock(&last);
                let seconds = last.map(|at| monotonic().saturating_duration_since(at).as_secs());
                age.set(seconds.map_or(-1, |seconds| i64::try_from(seconds).unwrap_or(i64::MAX)));
            }
        });
        Self {
            polls: telemetry.register(
                "shared_volume_provider_polls",
                "Polls of providers by what went wrong; empty when nothing did",
                Family::default(),
            ),
            seconds: telemetry.register("shared_volume_provider_poll_seconds", "Duration of whole polls", seconds),
            created: telemetry.register(
                "shared_volumes_discovered",
                "SharedVolumes written for volumes that a provider reported",
                Counter::default(),
            ),
            writes: telemetry.register(
                "shared_volume_provider_status_writes",
                "Writes of statuses of SharedVolumeProviders",
                Counter::default(),
            ),
            last,
        }
    }

    /// A poll is done; `error` is the reason of what went wrong, or empty.
    pub fn polled(&self, error: &'static str, seconds: Option<f64>) {
        self.polls.get_or_create(&Polled { error }).inc();
        if let Some(seconds) = seconds {
            self.seconds.observe(seconds);
            *lock(&self.last) = Some(monotonic());
        }
    }

    /// A SharedVolume was written.
    pub fn created(&self) {
        self.created.inc();
    }

    /// A status was written.
    pub fn recorded(&self) {
        self.writes.inc();
    }
}
