//! Metrics of incidents: how long each step took, counted from the decision.

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
    pods: Counter,
}

impl Metrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        // 50 ms to about 7 minutes; a recovery that waits for a reboot is longer, and counts as such.
        let buckets = || Histogram::new(exponential_buckets(0.05, 2.0, 14));
        let steps = Family::<StepLabel, Histogram>::new_with_constructor(buckets as fn() -> Histogram);
        let pods = Counter::default();
        Self {
            steps: telemetry.register(
                "incident_step_seconds",
                "Time from the decision to each step of an incident",
                steps,
            ),
            pods: telemetry.register("released_pods", "Pods deleted by us, fenced", pods),
        }
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
        for (step, at) in STEPS {
            let same_episode = old.decided_at == new.decided_at;
            if let Some(reached) = at(&new).filter(|_| !same_episode || at(&old).is_none()) {
                let took = reached.signed_duration_since(decided).to_std().unwrap_or_default();
                self.steps.get_or_create(&StepLabel { step }).observe(took.as_secs_f64());
            }
        }
    }
}

type At = fn(&Timeline) -> Option<DateTime<Utc>>;

const STEPS: [(Step, At); 6] = [
    (Step::Tainted, |timeline| timeline.tainted_at),
    (Step::Fenced, |timeline| timeline.fenced_at),
    (Step::FirstReleased, |timeline| timeline.first_released_at),
    (Step::Released, |timeline| timeline.released_at),
    (Step::Detached, |timeline| timeline.detached_at),
    (Step::Recovered, |timeline| timeline.recovered_at),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::resiliency_policy::{self, decide::Decision};
    use crate::runtime::telemetry::{EventResult, InformerLabel, Outcome, QueueLabel};

    fn tainted() -> NodeFenceStatus {
        let at = |seconds| DateTime::from_timestamp(seconds, 0);
        let timeline = Timeline { decided_at: at(100), tainted_at: at(101), ..Timeline::default() };
        NodeFenceStatus { timeline: Some(timeline), ..NodeFenceStatus::default() }
    }

    /// Names are an interface: dashboards and alerts rest on them.
    #[test]
    fn the_list_of_metrics_is_as_recorded() {
        let telemetry = Telemetry::new();
        let (informer, queue) = (InformerLabel { informer: "i" }, QueueLabel { queue: "q" });
        let runtime = &telemetry.runtime;
        // A family without a member is not in the text.
        let _ = runtime.informer_objects.get_or_create(&informer);
        let _ = runtime.informer_relists.get_or_create(&informer);
        let _ = runtime.informer_idle.get_or_create(&informer);
        let _ = runtime.informer_undecodable.get_or_create(&informer);
        let _ = runtime.informer_errors.get_or_create(&informer);
        let _ = runtime.queue_depth.get_or_create(&queue);
        let _ = runtime.queue_running.get_or_create(&queue);
        runtime.reconciled("q", Outcome::Ok, std::time::Duration::ZERO);
        runtime.event(EventResult::Published);
        Metrics::register(&telemetry).reached(None, &tainted());
        resiliency_policy::metrics::Metrics::register(&telemetry).pass(&Decision::default(), &[]);
        let text = telemetry.encode().unwrap();
        let mut lines: Vec<_> =
            text.lines().filter(|line| line.starts_with("# HELP") || line.starts_with("# TYPE")).collect();
        lines.sort_unstable();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn a_step_is_observed_once_per_episode() {
        let telemetry = Telemetry::new();
        let metrics = Metrics::register(&telemetry);
        let status = tainted();
        metrics.reached(None, &status);
        metrics.reached(Some(&status), &status);
        let text = telemetry.encode().unwrap();
        assert!(text.contains("bulkhead_incident_step_seconds_count{step=\"Tainted\"} 1"), "{text}");
    }
}
