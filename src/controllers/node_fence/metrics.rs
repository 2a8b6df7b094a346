//! Metrics of incidents: how long each step took, counted from the decision, and how long the taint stayed.

use chrono::{DateTime, Utc};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::api::node_fence::{NodeFenceStatus, Timeline};
use crate::runtime::telemetry::Telemetry;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Step {
    Tainted,
    Fenced,
    FirstReleased,
    Released,
    Detached,
    Recovered,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabel {
    step: Step,
}

/// What incidents are counted by.
#[derive(Clone)]
pub struct Metrics {
    steps: Family<StepLabel, Histogram>,
    taints: Histogram,
    pods: Counter,
    reports_failed: Counter,
}

impl Metrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        // 50 ms to more than a day: a recovery may wait for a person who repairs the node.
        let buckets = || Histogram::new(exponential_buckets(0.05, 2.0, 22));
        let steps = Family::<StepLabel, Histogram>::new_with_constructor(buckets as fn() -> Histogram);
        let pods = Counter::default();
        Self {
            steps: telemetry.register(
                "incident_step_seconds",
                "Time from the decision to each step of an incident",
                steps,
            ),
            taints: telemetry.register("taint_seconds", "Time that our taint stayed on a node", buckets()),
            reports_failed: telemetry.register(
                "node_reports_not_created",
                "NodeVolumeReports that could not be created: their agents cannot report",
                Counter::default(),
            ),
            pods: telemetry.register("released_pods", "Pods deleted by us, fenced", pods),
        }
    }

    /// The report of a node could not be created.
    pub fn report_failed(&self) {
        self.reports_failed.inc();
    }

    /// A pod was released.
    pub fn released(&self) {
        self.pods.inc();
    }

    /// Observes the steps that a record reached for the first time.
    pub fn reached(&self, before: Option<&NodeFenceStatus>, after: &NodeFenceStatus) {
        let timeline = |status: &NodeFenceStatus| status.timeline.clone().unwrap_or_default();
        let (old, new) = (before.map(timeline).unwrap_or_default(), timeline(after));
        let Some(decided) = new.decided_at else { return };
        let same_episode = old.decided_at == new.decided_at;
        let reached = |at: At| at(&new).filter(|_| !same_episode || at(&old).is_none());
        for (step, at) in STEPS {
            if let Some(when) = reached(at) {
                self.steps.get_or_create(&StepLabel { step }).observe(seconds(decided, when));
            }
        }
        // The taint goes with the last of an incident.
        if let (Some(tainted), Some(recovered)) = (new.tainted_at, reached(RECOVERED)) {
            self.taints.observe(seconds(tainted, recovered));
        }
    }
}

fn seconds(from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
    to.signed_duration_since(from).to_std().unwrap_or_default().as_secs_f64()
}

type At = fn(&Timeline) -> Option<DateTime<Utc>>;

const RECOVERED: At = |timeline| timeline.recovered_at;
const STEPS: [(Step, At); 6] = [
    (Step::Tainted, |timeline| timeline.tainted_at),
    (Step::Fenced, |timeline| timeline.fenced_at),
    (Step::FirstReleased, |timeline| timeline.first_released_at),
    (Step::Released, |timeline| timeline.released_at),
    (Step::Detached, |timeline| timeline.detached_at),
    (Step::Recovered, RECOVERED),
];
