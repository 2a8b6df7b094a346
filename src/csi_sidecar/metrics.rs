//! Metrics of the calls of fences: how often the driver or csi-addons was asked, how long it took, and what came of it.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::runtime::telemetry::Telemetry;

use super::decide::Failure;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Method {
    /// Takes a node's access to a volume away.
    ControllerUnpublishVolume,
    /// The published nodes of all volumes, every page.
    ListVolumes,
    /// The same of single volumes, all those of a request.
    ControllerGetVolume,
    /// csi-addons: from the object to its result.
    NetworkFence,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    method: Method,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: Method,
    /// `Ok`, or the code of the failure: those of gRPC, and ours.
    result: &'static str,
}

/// Metrics of the calls of fences.
#[derive(Clone)]
pub struct Metrics {
    calls: Family<Answered, Counter>,
    seconds: Family<Asked, Histogram>,
}

impl Metrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        // 10 ms to about 10 minutes: callTimeout may be 5.
        let buckets = || Histogram::new(exponential_buckets(0.01, 3.0, 11));
        let seconds = Family::<Asked, Histogram>::new_with_constructor(buckets as fn() -> Histogram);
        Self {
            calls: telemetry.register("fence_calls", "Calls of fences by what came of them", Family::default()),
            seconds: telemetry.register("fence_call_seconds", "Duration of calls of fences", seconds),
        }
    }

    /// A call has ended.
    pub fn called(&self, method: Method, took: Duration, failure: Option<&Failure>) {
        let result = failure.map_or("Ok", |failure| failure.code);
        self.calls.get_or_create(&Answered { method, result }).inc();
        self.seconds.get_or_create(&Asked { method }).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::super::decide::FailureClass;
    use super::*;

    #[test]
    fn a_call_is_counted_by_what_came_of_it_and_timed_whatever_that_was() {
        let telemetry = Telemetry::new();
        let metrics = Metrics::register(&telemetry);
        let refused =
            Failure { code: "PermissionDenied", class: FailureClass::Stop, message: "not this one: vol-7".into() };
        metrics.called(Method::ControllerUnpublishVolume, Duration::from_secs(2), None);
        metrics.called(Method::ControllerUnpublishVolume, Duration::from_secs(300), Some(&refused));
        let text = telemetry.encode().unwrap();
        for line in [
            "bulkhead_fence_calls_total{method=\"ControllerUnpublishVolume\",result=\"Ok\"} 1",
            "bulkhead_fence_calls_total{method=\"ControllerUnpublishVolume\",result=\"PermissionDenied\"} 1",
            "bulkhead_fence_call_seconds_sum{method=\"ControllerUnpublishVolume\"} 302.0",
            "bulkhead_fence_call_seconds_count{method=\"ControllerUnpublishVolume\"} 2",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("vol-7"), "what a driver says is no label");
    }
}
