//! Logs and traces. Every line that is written while a key of a queue is worked on carries, in its span, the queue, the object, the
//! policies where they are known, and the trace id, which is the exported one where traces are sent. (What the S3 driver is called
//! for is in no queue: `s3::spans`.)

use std::time::Duration;

use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::error::{Error, Result};

/// How logs look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line, for machines.
    Json,
}

/// This crate would show the id of a key at `trace`, with what else it signs.
const NO_KEYS: &str = "aws_sigv4=debug";

/// Keeps the tracer alive; [`Tracing::shutdown`] sends what is left.
#[must_use]
pub struct Tracing(SdkTracerProvider);

/// Starts logging at `filter` (for example `info` or `bulkhead=debug,kube=warn`), and sends traces to `otlp_endpoint`
/// (gRPC, for example `http://collector:4317`) when one is given. Call once, inside a tokio runtime.
pub fn init(service: &'static str, format: LogFormat, filter: &str, otlp_endpoint: Option<&str>) -> Result<Tracing> {
    let filter = filter_of(filter)?;
    let provider = match otlp_endpoint {
        Some(endpoint) => exporter(service, endpoint)?,
        None => silent(),
    };
    subscriber(service, format, filter, &provider, std::io::stderr)
        .try_init()
        .map_err(|error| Error::Invalid(format!("logging is started twice: {error}")))?;
    Ok(Tracing(provider))
}

/// What is logged, without what would show whose key a request to S3 is signed with.
fn filter_of(text: &str) -> Result<EnvFilter> {
    let wrong = |error| Error::Invalid(format!("log filter {text:?}: {error}; use for example info"));
    let filter = EnvFilter::try_new(text).map_err(wrong)?;
    Ok(filter.add_directive(NO_KEYS.parse().map_err(wrong)?))
}

fn subscriber<W>(
    service: &'static str,
    format: LogFormat,
    filter: EnvFilter,
    provider: &SdkTracerProvider,
    writer: W,
) -> impl Subscriber + Send + Sync + use<W>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let logs = tracing_subscriber::fmt::layer().with_writer(writer);
    let logs = match format {
        LogFormat::Text => logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
        LogFormat::Json => logs.json().with_span_list(false).boxed(),
    };
    let traces = tracing_opentelemetry::layer().with_tracer(provider.tracer(service));
    tracing_subscriber::registry().with(filter).with(logs).with(traces)
}

fn exporter(service: &'static str, endpoint: &str) -> Result<SdkTracerProvider> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .map_err(|error| Error::Invalid(format!("OTLP endpoint {endpoint:?}: {error}")))?;
    let resource = Resource::builder().with_service_name(service).build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// Gives ids and keeps nothing.
fn silent() -> SdkTracerProvider {
    SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOff).build()
}

/// Notes the span's trace id in its field `trace_id`.
pub(crate) fn note_trace(span: &Span) {
    let context = span.context();
    let trace = context.span().span_context().clone();
    if trace.is_valid() {
        span.record("trace_id", tracing::field::display(trace.trace_id()));
    }
}

/// Notes in the span of the reconcile that runs which policies its work is for.
pub fn note_policies<'a>(names: impl IntoIterator<Item = &'a str>) {
    let names: Vec<_> = names.into_iter().collect();
    Span::current().record("policy", names.join(","));
}

impl Tracing {
    /// Sends the spans that are still buffered; waits at most a second.
    pub fn shutdown(self) {
        if let Err(error) = self.0.shutdown_with_timeout(Duration::from_secs(1)) {
            tracing::debug!(%error, "the last traces were not sent");
        }
    }
}

#[cfg(test)]
#[path = "logs_tests.rs"]
pub(crate) mod tests;
