//! Metrics of heartbeats, for agents and replicas.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge};

use crate::runtime::telemetry::Telemetry;

use super::monitor::Counts;
use super::tracker::Refusal;
use super::verdict::Verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum ResultValue {
    Accepted,
    Malformed,
    UnknownSender,
    Forged,
    Replayed,
    Unexpected,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: ResultValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum VerdictValue {
    Reachable,
    Unreachable,
    Inconclusive,
    TooFewPeers,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabel {
    verdict: VerdictValue,
}

/// Metrics of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaMetrics {
    datagrams: Family<ResultLabel, Counter>,
    verdicts: Family<VerdictLabel, Counter>,
    heard: Gauge,
    silent: Gauge,
    missing: Gauge,
}

impl ReplicaMetrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        let (heard, silent, missing) = (Gauge::default(), Gauge::default(), Gauge::default());
        Self {
            datagrams: telemetry.register("heartbeat_datagrams", "Datagrams received, by result", Family::default()),
            verdicts: telemetry.register(
                "heartbeat_verdicts",
                "Verdicts of the peers of silent nodes",
                Family::default(),
            ),
            heard: telemetry.register("heartbeat_nodes_heard", "Nodes whose agents are heard", heard),
            silent: telemetry.register(
                "heartbeat_nodes_silent",
                "Nodes whose agents were heard and are silent",
                silent,
            ),
            missing: telemetry.register(
                "heartbeat_nodes_missing",
                "Nodes that are Ready, whose agents send heartbeats of which none arrives here",
                missing,
            ),
        }
    }

    /// A datagram came.
    pub fn received(&self, result: Result<(), Refusal>) {
        let result = match result {
            Ok(()) => ResultValue::Accepted,
            Err(Refusal::Malformed) => ResultValue::Malformed,
            Err(Refusal::UnknownSender) => ResultValue::UnknownSender,
            Err(Refusal::Forged) => ResultValue::Forged,
            Err(Refusal::Replayed) => ResultValue::Replayed,
            Err(Refusal::Unexpected) => ResultValue::Unexpected,
        };
        self.datagrams.get_or_create(&ResultLabel { result }).inc();
    }

    /// A verdict was reached.
    pub fn judged(&self, verdict: Verdict) {
        let verdict = match verdict {
            Verdict::Reachable => VerdictValue::Reachable,
            Verdict::Unreachable { .. } => VerdictValue::Unreachable,
            Verdict::Inconclusive => VerdictValue::Inconclusive,
            Verdict::TooFewPeers => VerdictValue::TooFewPeers,
        };
        self.verdicts.get_or_create(&VerdictLabel { verdict }).inc();
    }

    /// So many nodes are heard, and so many are not.
    pub fn counted(&self, Counts { heard, silent, missing }: Counts) {
        for (gauge, count) in [(&self.heard, heard), (&self.silent, silent), (&self.missing, missing)] {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum SentValue {
    Sent,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SentLabel {
    result: SentValue,
}

/// Metrics of an agent.
#[derive(Clone, Debug)]
pub struct AgentMetrics {
    sent: Family<SentLabel, Counter>,
    replicas: Gauge,
}

impl AgentMetrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        let (sent, replicas) = (Family::default(), Gauge::default());
        Self {
            sent: telemetry.register("heartbeat_sent", "Datagrams sent, by result", sent),
            replicas: telemetry.register("heartbeat_replicas", "Replicas of the controller that are sent to", replicas),
        }
    }

    /// A datagram was sent, or could not be.
    pub fn sent(&self, is_sent: bool) {
        let result = if is_sent { SentValue::Sent } else { SentValue::Failed };
        self.sent.get_or_create(&SentLabel { result }).inc();
    }

    /// So many replicas are known.
    pub fn replicas(&self, count: usize) {
        self.replicas.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}
