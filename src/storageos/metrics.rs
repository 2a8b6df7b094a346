//! Metrics under the names that the StorageOS api-manager gave them, so that its dashboards go on. Labels are bounded: what
//! was the text of an error there is its reason here.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::runtime::telemetry::Telemetry;

/// The buckets of Go's client.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Code of a request that got no answer.
pub(super) const NO_ANSWER: &str = "none";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Function {
    function: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Helper {
    function: &'static str,
    error: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Method {
    method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    code: String,
    method: &'static str,
}

/// What is counted of calls to control planes, of all providers together.
#[derive(Clone)]
pub struct Metrics {
    helper_seconds: Family<Function, Histogram, fn() -> Histogram>,
    helpers: Family<Helper, Counter>,
    in_flight: Gauge,
    request_seconds: Family<Method, Histogram, fn() -> Histogram>,
    requests: Family<Answer, Counter>,
    /// Durations of whole polls, for the store.
    pub polls: Histogram,
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Default for Metrics {
    /// Metrics that nobody reads.
    fn default() -> Self {
        Self {
            helper_seconds: Family::new_with_constructor(histogram as fn() -> Histogram),
            helpers: Family::default(),
            in_flight: Gauge::default(),
            request_seconds: Family::new_with_constructor(histogram as fn() -> Histogram),
            requests: Family::default(),
            polls: histogram(),
        }
    }
}

impl Metrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        let Self { helper_seconds, helpers, in_flight, request_seconds, requests, polls } = Self::default();
        Self {
            helper_seconds: telemetry.register_exact(
                "storageos_api_helper_duration_seconds",
                "Distribution of the length of time api helpers take to complete",
                helper_seconds,
            ),
            helpers: telemetry.register_exact(
                "storageos_api_helper",
                "Number of api helper calls, by function and reason of the error",
                helpers,
            ),
            in_flight: telemetry.register_exact(
                "storageos_api_in_flight_requests",
                "In-flight requests of the api client",
                in_flight,
            ),
            request_seconds: telemetry.register_exact(
                "storageos_api_request_duration_seconds",
                "Request latencies, by HTTP request method",
                request_seconds,
            ),
            requests: telemetry.register_exact(
                "storageos_api_requests",
                "Requests of the api client, by HTTP request method and response code",
                requests,
            ),
            polls: telemetry.register_exact(
                "storageos_shared_volume_reconcile_duration_seconds",
                "Distribution of the length of time taken to reconcile all shared volumes: from the beginning of a poll \
                 until the last volume that it changed is settled",
                polls,
            ),
        }
    }

    /// A helper is done; `error` is a reason, or empty.
    pub fn helped(&self, function: &'static str, error: &'static str, seconds: f64) {
        self.helper_seconds.get_or_create(&Function { function }).observe(seconds);
        self.helpers.get_or_create(&Helper { function, error }).inc();
    }

    /// A request is under way until what this returns is dropped.
    pub(super) fn requesting(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// A request is done.
    pub(super) fn requested(&self, method: &http::Method, status: Option<u16>, seconds: f64) {
        let method = match *method {
            http::Method::GET => "get",
            http::Method::POST => "post",
            _ => "put",
        };
        // A status that HTTP does not know would make a series each.
        let known = status.filter(|status| (100..600).contains(status));
        let code = known.map_or_else(|| NO_ANSWER.to_owned(), |status| status.to_string());
        self.request_seconds.get_or_create(&Method { method }).observe(seconds);
        self.requests.get_or_create(&Answer { code, method }).inc();
    }
}

/// Counts a request as under way.
pub(super) struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_seed() {
        let telemetry = Telemetry::new();
        let metrics = Metrics::register(&telemetry);
        metrics.helped("list_namespaces", "", 0.1);
        metrics.helped("list_volumes", "ServerError", 0.1);
        metrics.requested(&http::Method::GET, Some(200), 0.1);
        metrics.requested(&http::Method::PUT, None, 0.1);
        metrics.polls.observe(0.1);
        let _one = metrics.requesting();
        let text = telemetry.encode().unwrap();
        for line in [
            r#"storageos_api_helper_duration_seconds_count{function="list_namespaces"} 1"#,
            r#"storageos_api_helper_total{function="list_namespaces",error=""} 1"#,
            r#"storageos_api_helper_total{function="list_volumes",error="ServerError"} 1"#,
            "storageos_api_in_flight_requests 1",
            r#"storageos_api_request_duration_seconds_count{method="get"} 1"#,
            r#"storageos_api_requests_total{code="200",method="get"} 1"#,
            r#"storageos_api_requests_total{code="none",method="put"} 1"#,
            "storageos_shared_volume_reconcile_duration_seconds_count 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
    }
}
