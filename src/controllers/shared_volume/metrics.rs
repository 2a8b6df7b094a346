//! Metrics of shared volumes. Labels are enums: no volume, claim or server has a series of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use crate::api::shared_volume::{LastFailover, SharedVolume, SharedVolumePhase, SharedVolumeStatus};
use crate::runtime::telemetry::Telemetry;
use crate::storageos::providers::PublishError;

/// Upper bounds in seconds, 10 ms to two minutes: NFS itself may hold its clients up for 90 s after a switch.
const FAILOVER_SECONDS: [f64; 13] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
/// Upper bounds in seconds; a probe may take a minute.
const PROBE_SECONDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0, 10.0, 60.0];

/// Part of a failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum FailoverPhase {
    /// From the loss, or the request, to the slice.
    Switch,
    /// From the loss, or the request, to the first answer of the new server.
    Serving,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFailover {
    phase: FailoverPhase,
}

/// Why the server changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Cause {
    UserRequested,
    ProbeFailed,
    NodeFenced,
    PodLost,
    EndpointChanged,
    EndpointLost,
    CandidateRemoved,
    /// Another process had seen why.
    BackendChanged,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCause {
    reason: Cause,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InPhase {
    phase: &'static str,
}

/// What a probe came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum ProbeResult {
    /// The server serves.
    Answered,
    /// Nobody listens.
    Refused,
    /// No answer in time.
    TimedOut,
    /// Something else answered, or NFS that does not serve.
    NotNfs,
    /// The connection failed.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfProbe {
    result: ProbeResult,
}

/// What became of telling a provider the mount endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum PublishResult {
    Acknowledged,
    NotConnected,
    VolumeGone,
    VersionConflict,
    Refused,
    Unreachable,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPublish {
    result: PublishResult,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Written {
    /// A status.
    Record,
    /// The finalizer.
    Finalizer,
    /// A Service was made, changed or deleted.
    Service,
    /// An EndpointSlice was made, changed or deleted.
    EndpointSlice,
    /// An Endpoints object was made, changed or deleted.
    Endpoints,
    /// The annotation of a claim.
    Claim,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: Written,
}

/// What is counted.
#[derive(Clone)]
pub struct Metrics {
    objects: Family<InPhase, Gauge>,
    failover_seconds: Family<OfFailover, Histogram, fn() -> Histogram>,
    failovers: Family<OfCause, Counter>,
    probe_seconds: Family<OfProbe, Histogram, fn() -> Histogram>,
    publishes: Family<OfPublish, Counter>,
    writes: Family<Kind, Counter>,
}

impl Metrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        let failover_seconds: fn() -> Histogram = || Histogram::new(FAILOVER_SECONDS);
        let probe_seconds: fn() -> Histogram = || Histogram::new(PROBE_SECONDS);
        Self {
            objects: telemetry.register("shared_volumes", "SharedVolumes by phase", Family::default()),
            failover_seconds: telemetry.register(
                "shared_volume_failover_seconds",
                "Time from the loss of a server, or the request to change it, to the new slice, and to the first answer",
                Family::new_with_constructor(failover_seconds),
            ),
            failovers: telemetry.register(
                "shared_volume_failovers",
                "Changes of the active server by cause",
                Family::default(),
            ),
            probe_seconds: telemetry.register(
                "shared_volume_probe_seconds",
                "Duration of probes of NFS servers by result",
                Family::new_with_constructor(probe_seconds),
            ),
            publishes: telemetry.register(
                "shared_volume_publishes",
                "Mount endpoints that a provider was told, or told to forget, by result",
                Family::default(),
            ),
            writes: telemetry.register(
                "shared_volume_writes",
                "Writes of SharedVolumes and what they own",
                Family::default(),
            ),
        }
    }

    /// Something was written.
    pub fn wrote(&self, kind: Written) {
        self.writes.get_or_create(&Kind { kind }).inc();
    }

    /// A server was probed.
    pub fn probed(&self, result: ProbeResult, took: Duration) {
        self.probe_seconds.get_or_create(&OfProbe { result }).observe(took.as_secs_f64());
    }

    /// A provider was told a mount endpoint.
    pub fn published(&self, result: &Result<(), PublishError>) {
        let result = match result {
            Ok(()) => PublishResult::Acknowledged,
            Err(PublishError::NotConnected) => PublishResult::NotConnected,
            Err(PublishError::VolumeGone) => PublishResult::VolumeGone,
            Err(PublishError::VersionConflict) => PublishResult::VersionConflict,
            Err(PublishError::Refused(_)) => PublishResult::Refused,
            Err(PublishError::Unreachable(_)) => PublishResult::Unreachable,
        };
        self.publishes.get_or_create(&OfPublish { result }).inc();
    }

    /// A status was recorded: what is new in it of a failover is counted.
    pub fn recorded(&self, before: Option<&SharedVolumeStatus>, after: &SharedVolumeStatus) {
        let Some(failover) = &after.last_failover else { return };
        let known = before.and_then(|before| before.last_failover.as_ref());
        let known = known.filter(|known| known.detected_at == failover.detected_at);
        let is_new = |stamp: fn(&LastFailover) -> Option<DateTime<Utc>>| {
            stamp(failover).filter(|_| known.is_none_or(|known| stamp(known).is_none()))
        };
        if let Some(switched) = is_new(|it| it.switched_at) {
            self.failovers.get_or_create(&OfCause { reason: cause(&failover.reason) }).inc();
            self.took(FailoverPhase::Switch, failover, switched);
        }
        if let Some(serving) = is_new(|it| it.serving_at) {
            self.took(FailoverPhase::Serving, failover, serving);
        }
    }

    fn took(&self, phase: FailoverPhase, failover: &LastFailover, end: DateTime<Utc>) {
        let took = (end - failover.detected_at).to_std().unwrap_or_default();
        self.failover_seconds.get_or_create(&OfFailover { phase }).observe(took.as_secs_f64());
    }

    /// Takes in what there is, before each scrape.
    pub fn look(&self, shared_volumes: &[Arc<SharedVolume>]) {
        let mut counts: BTreeMap<SharedVolumePhase, i64> = SharedVolumePhase::ALL.map(|phase| (phase, 0)).into();
        for shared_volume in shared_volumes {
            let phase = shared_volume.status.as_ref().and_then(|status| status.phase);
            *counts.entry(phase.unwrap_or(SharedVolumePhase::Pending)).or_default() += 1;
        }
        for (phase, count) in counts {
            self.objects.get_or_create(&InPhase { phase: phase.as_str() }).set(count);
        }
    }
}

fn cause(reason: &str) -> Cause {
    match reason {
        "UserRequested" => Cause::UserRequested,
        "ProbeFailed" => Cause::ProbeFailed,
        "NodeFenced" => Cause::NodeFenced,
        "PodLost" => Cause::PodLost,
        "EndpointChanged" => Cause::EndpointChanged,
        "EndpointLost" => Cause::EndpointLost,
        "CandidateRemoved" => Cause::CandidateRemoved,
        "BackendChanged" => Cause::BackendChanged,
        _ => Cause::Other,
    }
}
