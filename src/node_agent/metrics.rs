//! Metrics of the agent.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

use crate::api::hysteresis::Sample;
use crate::api::node_volume_report::{CleanupState, Remnant, RemnantKind};
use crate::api::volume::Check;
use crate::runtime::lock::lock;
use crate::runtime::telemetry::Telemetry;

use super::children::Children;
use super::volumes::report::NodeHealth;
use super::volumes::settle::Look;

/// Label: how a clean-up stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Outcome {
    Clean,
    Blocked,
}

/// Label: what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// Label: what a look at a volume gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LookLabel {
    check: CheckValue,
    result: LookResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CheckValue(Check);

impl EncodeLabelValue for CheckValue {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> fmt::Result {
        write!(encoder, "{:?}", self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum LookResult {
    Good,
    Bad,
    NoAnswer,
    Unknown,
}

/// Metrics of the agent.
#[derive(Clone)]
pub struct Metrics {
    looks: Family<LookLabel, Counter>,
    pass: Histogram,
    late: Histogram,
    volumes: Gauge,
    unhealthy: Gauge,
    holder: Gauge,
    cleanups: Family<OutcomeLabel, Counter>,
    seconds: Histogram,
    remaining: Family<KindLabel, Gauge>,
    began: Arc<Mutex<Option<Instant>>>,
    self_fences: Counter,
    self_fenced_pods: Gauge,
}

impl Metrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry, children: Children) -> Self {
        let alive: Gauge = telemetry.register("node_agent_children", "Child processes alive", Gauge::default());
        let hung: Gauge =
            telemetry.register("node_agent_children_hung", "Child processes that cannot be killed", Gauge::default());
        telemetry.before_scrape(move || {
            alive.set(i64::try_from(children.alive()).unwrap_or(i64::MAX));
            hung.set(i64::try_from(children.hung()).unwrap_or(i64::MAX));
        });
        let buckets = exponential_buckets(0.25, 2.0, 13);
        Self {
            holder: telemetry.register("node_agent_holder", "1 while this agent acts for the node", Gauge::default()),
            cleanups: telemetry.register("node_cleanups", "Clean-ups by outcome", Family::default()),
            seconds: telemetry.register(
                "node_cleanup_seconds",
                "From the first look at an incident's volumes to Clean",
                Histogram::new(buckets),
            ),
            remaining: telemetry.register("node_cleanup_remaining", "What cannot be removed", Family::default()),
            began: Arc::default(),
            self_fences: telemetry.register(
                "node_self_fences",
                "Times that protected pods were stopped since the node was alone",
                Counter::default(),
            ),
            self_fenced_pods: telemetry.register(
                "node_self_fenced_pods",
                "Pods that are stopped now",
                Gauge::default(),
            ),
            looks: telemetry.register("node_volume_looks", "Looks at volumes by check and result", Family::default()),
            pass: telemetry.register(
                "node_volume_pass_seconds",
                "One look at all volumes of the node, without what may wait",
                Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            ),
            late: telemetry.register(
                "node_volume_loop_delay_seconds",
                "How much later than planned a look at all volumes began",
                Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            ),
            volumes: telemetry.register("node_volumes", "Volumes that are looked at", Gauge::default()),
            unhealthy: telemetry.register("node_volumes_unhealthy", "Of these, not Healthy", Gauge::default()),
        }
    }

    /// Protected pods are stopped.
    pub fn self_fenced(&self) {
        self.self_fences.inc();
    }

    /// So many are.
    pub fn self_fenced_pods(&self, count: usize) {
        self.self_fenced_pods.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Samples of one volume.
    pub fn looked(&self, looks: &[Look]) {
        for look in looks {
            let result = match look.sample {
                Sample::Good => LookResult::Good,
                Sample::Bad(_) => LookResult::Bad,
                Sample::NoAnswer(_) => LookResult::NoAnswer,
                Sample::Unknown => LookResult::Unknown,
            };
            self.looks.get_or_create(&LookLabel { check: CheckValue(look.check), result }).inc();
        }
    }

    /// A look at all volumes began so much later than planned, and took so long.
    pub fn passed(&self, late: Duration, took: Duration) {
        self.late.observe(late.as_secs_f64());
        self.pass.observe(took.as_secs_f64());
    }

    /// Volumes that are looked at, and how many of these are not Healthy.
    pub fn volumes(&self, health: &NodeHealth) {
        self.volumes.set(health.checked.into());
        self.unhealthy.set(health.unhealthy.into());
    }

    /// This agent acts for the node.
    pub fn holds(&self) {
        self.holder.set(1);
    }

    /// A clean-up stands elsewhere than before.
    pub fn changed(&self, state: CleanupState, at: Instant) {
        let mut began = lock(&self.began);
        let outcome = match state {
            CleanupState::Inventory | CleanupState::Cleaning => {
                began.get_or_insert(at);
                return;
            }
            CleanupState::Clean => {
                let begun = began.take().unwrap_or(at);
                self.seconds.observe(at.saturating_duration_since(begun).as_secs_f64());
                Outcome::Clean
            }
            CleanupState::Blocked => {
                began.get_or_insert(at);
                Outcome::Blocked
            }
        };
        self.cleanups.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// What is left now and cannot be removed.
    pub fn remaining(&self, remaining: &[Remnant]) {
        let mut counts = BTreeMap::new();
        for remnant in remaining {
            *counts.entry(remnant.kind).or_insert(0) += 1;
        }
        for kind in RemnantKind::ALL {
            let count = counts.get(&kind).copied().unwrap_or(0);
            self.remaining.get_or_create(&KindLabel { kind: kind.as_str() }).set(count);
        }
    }
}
