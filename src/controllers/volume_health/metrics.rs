//! Metrics of the health of volumes. Labels are enums: no volume has a series of its own.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use chrono::{DateTime, Utc};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::api::volume::{NOT_ATTACHED, NOT_MOUNTED, NOT_USABLE, Source, TaintEffect};
use crate::api::volume_health::{Observation, Phase, VolumeHealth, VolumeHealthStatus, VolumeTaint};
use crate::runtime::telemetry::Telemetry;

use super::taints;

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Written {
    /// A VolumeHealth was created.
    Create,
    /// One that a person had created was completed.
    Own,
    /// A status.
    Record,
    /// A VolumeHealth was deleted.
    Delete,
    /// Label and finalizer of a VolumeHealth.
    Mark,
    /// Marks and reservation of a PersistentVolume.
    Project,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: Written,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InPhase {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTaint {
    key: &'static str,
    effect: &'static str,
    source: &'static str,
}

/// What is counted.
#[derive(Clone)]
pub struct Metrics {
    phases: Family<InPhase, Gauge>,
    taints: Family<OfTaint, Gauge>,
    detection: Histogram,
    age: Gauge<f64, AtomicU64>,
    writes: Family<Kind, Counter>,
    held: Gauge,
}

impl Metrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        // 100 ms to about 55 minutes: a node that fails counts from when it was last Ready.
        let detection = Histogram::new(exponential_buckets(0.1, 2.0, 16));
        Self {
            phases: telemetry.register("volumes", "Volumes by phase of their VolumeHealth", Family::default()),
            taints: telemetry.register("volume_taints", "Taints of volumes", Family::default()),
            detection: telemetry.register(
                "volume_detection_seconds",
                "Time from the first sign of a trouble to the taint",
                detection,
            ),
            age: telemetry.register(
                "volume_observation_age_seconds",
                "Longest time for which nobody has looked at a volume that somebody should look at",
                Gauge::default(),
            ),
            writes: telemetry.register("volume_health_writes", "Writes of VolumeHealths", Family::default()),
            held: telemetry.register(
                "volume_node_taints_held",
                "1 while so many nodes fail together that no new taint follows from it",
                Gauge::default(),
            ),
        }
    }

    /// Something was written.
    pub fn wrote(&self, kind: Written) {
        self.writes.get_or_create(&Kind { kind }).inc();
    }

    /// Observes how long each new taint took.
    pub fn tainted(&self, before: &VolumeHealthStatus, after: &VolumeHealthStatus, now: DateTime<Utc>) {
        let is_new = |taint: &&VolumeTaint| !before.taints.iter().any(|it| it.key == taint.key);
        for taint in after.taints.iter().filter(|taint| taint.source != Source::Manual).filter(is_new) {
            let leads = |it: &&Observation| taints::key_of(it).is_some_and(|key| key.as_str() == taint.key);
            let since = after.observations.iter().filter(leads).map(|it| it.first_seen).max();
            if let Some(since) = since {
                self.detection.observe((now - since).to_std().unwrap_or_default().as_secs_f64());
            }
        }
    }

    /// Takes in what there is, before each scrape.
    pub fn look(&self, healths: &[Arc<VolumeHealth>], silent_for: f64, held: bool) {
        self.age.set(silent_for);
        self.held.set(held.into());
        for phase in [Phase::Healthy, Phase::Degraded, Phase::Unhealthy, Phase::Unknown] {
            let is_in = |health: &&Arc<VolumeHealth>| {
                health.status.as_ref().and_then(|status| status.phase).unwrap_or(Phase::Unknown) == phase
            };
            let count = healths.iter().filter(is_in).count();
            self.phases.get_or_create(&InPhase { phase: phase_name(phase) }).set(size(count));
        }
        // A family that no taint belongs to any more must go back to nothing.
        self.taints.clear();
        for taint in healths.iter().flat_map(|health| health.taints()) {
            let label = OfTaint {
                key: key_name(&taint.key),
                effect: effect_name(taint.effect()),
                source: source_name(taint.source),
            };
            self.taints.get_or_create(&label).inc();
        }
    }
}

fn size(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Keys that people choose have no bound.
fn key_name(key: &str) -> &'static str {
    [NOT_ATTACHED, NOT_MOUNTED, NOT_USABLE].into_iter().find(|known| *known == key).unwrap_or("Custom")
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Healthy => "Healthy",
        Phase::Degraded => "Degraded",
        Phase::Unhealthy => "Unhealthy",
        Phase::Unknown => "Unknown",
    }
}

fn effect_name(effect: TaintEffect) -> &'static str {
    match effect {
        TaintEffect::NoEffect => "NoEffect",
        TaintEffect::NoAttachOrMount => "NoAttachOrMount",
    }
}

fn source_name(source: Source) -> &'static str {
    match source {
        Source::NodeAgent => "NodeAgent",
        Source::CSIController => "CSIController",
        Source::CSINode => "CSINode",
        Source::NodeLifecycle => "NodeLifecycle",
        Source::Manual => "Manual",
    }
}
