//! Metrics of the node service.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::runtime::telemetry::Telemetry;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Outcome {
    Published,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: Outcome,
}

/// Metrics of the node service.
#[derive(Clone)]
pub struct Metrics {
    publishes: Family<OutcomeLabel, Counter>,
    publish: Histogram,
    repair: Histogram,
}

impl Metrics {
    /// Adds them.
    pub fn register(telemetry: &Telemetry) -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.01, 2.0, 14));
        Self {
            publishes: telemetry.register("s3_publishes", "Calls of NodePublishVolume, by outcome", Family::default()),
            publish: telemetry.register(
                "s3_publish_duration_seconds",
                "From a call of NodePublishVolume to the mount in the pod's folder",
                seconds(),
            ),
            repair: telemetry.register(
                "s3_repair_duration_seconds",
                "From finding a mount dead, or assigned to another Mountpoint Pod, to the new mount in its place",
                seconds(),
            ),
        }
    }

    /// A call was answered.
    pub fn published(&self, is_done: bool, took: Duration) {
        let outcome = if is_done { Outcome::Published } else { Outcome::Failed };
        self.publishes.get_or_create(&OutcomeLabel { outcome }).inc();
        if is_done {
            self.publish.observe(took.as_secs_f64());
        }
    }

    /// A mount was made again.
    pub fn repaired(&self, took: Duration) {
        self.repair.observe(took.as_secs_f64());
    }
}
