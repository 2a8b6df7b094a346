//! Metrics of the paths.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

use crate::runtime::telemetry::Telemetry;

use super::decide::Answer;
use super::status::PathReport;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Outcome {
    Connected,
    Disconnected,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    result: Outcome,
}

/// Metrics of the paths.
#[derive(Clone)]
pub struct Metrics {
    calls: Family<CallLabels, Counter>,
    cycles: Histogram,
    disconnected: Gauge,
    silent: Gauge,
}

impl Metrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        let buckets = prometheus_client::metrics::histogram::exponential_buckets(0.05, 3.0, 8);
        Self {
            calls: telemetry.register(
                "connectivity_calls",
                "Questions to the driver whether a node reaches the array",
                Family::default(),
            ),
            cycles: telemetry.register(
                "connectivity_cycle_seconds",
                "Duration of one pass over all nodes that are asked about",
                Histogram::new(buckets),
            ),
            disconnected: telemetry.register(
                "disconnected_nodes",
                "Nodes of which the array says that they do not reach it",
                Gauge::default(),
            ),
            silent: telemetry.register(
                "silent_backends",
                "Storage backends that do not say which nodes reach them",
                Gauge::default(),
            ),
        }
    }

    /// An answer, or none, has come.
    pub fn asked(&self, answer: Answer) {
        let result = match answer {
            Answer::Connected => Outcome::Connected,
            Answer::Disconnected(_) => Outcome::Disconnected,
            Answer::Unknown(_) => Outcome::Unknown,
        };
        self.calls.get_or_create(&CallLabels { result }).inc();
    }

    /// A pass has ended.
    pub fn cycle(&self, took: Duration) {
        self.cycles.observe(took.as_secs_f64());
    }

    /// What is told now.
    pub fn paths(&self, report: &PathReport) {
        self.disconnected.set(i64::try_from(report.disconnected()).unwrap_or(i64::MAX));
        self.silent.set(i64::try_from(report.silent()).unwrap_or(i64::MAX));
    }
}
