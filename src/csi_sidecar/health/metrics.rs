//! Metrics of the volumes' health.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

use crate::runtime::clock::monotonic;
use crate::runtime::lock::lock;
use crate::runtime::telemetry::Telemetry;

use super::super::decide::Failure;

/// A call about volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(missing_docs, reason = "named as in CSI")]
pub enum Method {
    ListVolumes,
    ControllerGetVolume,
    ControllerListVolumeHealth,
    ControllerGetVolumeHealth,
    ValidateVolumeCapabilities,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Outcome {
    Ok,
    NotFound,
    Timeout,
    Unavailable,
    Unimplemented,
    Failed,
}

/// Labels of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: Method,
    result: Outcome,
}

/// Metrics of the volumes' health.
#[derive(Clone)]
pub struct Metrics {
    calls: Family<CallLabels, Counter>,
    sweeps: Histogram,
    checked: Gauge,
    oldest: Arc<Mutex<Option<Instant>>>,
}

impl Metrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        let buckets = prometheus_client::metrics::histogram::exponential_buckets(0.05, 3.0, 9);
        let oldest = Arc::<Mutex<Option<Instant>>>::default();
        let age: Gauge = telemetry.register(
            "volume_health_oldest_sample_seconds",
            "Since the driver told something of the volume of which it did so the longest ago",
            Gauge::default(),
        );
        telemetry.before_scrape({
            let oldest = oldest.clone();
            move || {
                let since = lock(&oldest).unwrap_or_else(monotonic);
                let seconds = monotonic().saturating_duration_since(since).as_secs();
                age.set(i64::try_from(seconds).unwrap_or(i64::MAX));
            }
        });
        Self {
            calls: telemetry.register("volume_health_calls", "Calls to the driver about volumes", Family::default()),
            sweeps: telemetry.register(
                "volume_health_sweep_seconds",
                "Duration of one pass over all volumes that were due",
                Histogram::new(buckets),
            ),
            checked: telemetry.register("volume_health_volumes", "Volumes that are asked about", Gauge::default()),
            oldest,
        }
    }

    /// Counts a call by its result, and passes that on.
    pub fn called<T>(&self, method: Method, answer: Result<T, Failure>) -> Result<T, Failure> {
        let result = match answer.as_ref().map_err(|failure| failure.code) {
            Ok(_) => Outcome::Ok,
            Err("NotFound") => Outcome::NotFound,
            Err("DeadlineExceeded" | "Cancelled") => Outcome::Timeout,
            Err("Unavailable") => Outcome::Unavailable,
            Err("Unimplemented") => Outcome::Unimplemented,
            Err(_) => Outcome::Failed,
        };
        self.calls.get_or_create(&CallLabels { method, result }).inc();
        answer
    }

    /// A pass has ended.
    pub fn swept(&self, took: Duration, oldest: Option<Instant>) {
        self.sweeps.observe(took.as_secs_f64());
        *lock(&self.oldest) = oldest;
    }

    /// So many volumes are asked about.
    pub fn checked(&self, volumes: usize) {
        self.checked.set(i64::try_from(volumes).unwrap_or(i64::MAX));
    }
}
