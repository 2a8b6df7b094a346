//! Metrics of the S3 mounts. Labels are enums: no volume and no node has a series of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::slim::Pod;
use crate::api::time;
use crate::runtime::telemetry::Telemetry;

use super::decide::{Decision, Effect, Seen};

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Written {
    /// An attachment was created.
    Create,
    /// An attachment was changed.
    Replace,
    /// An attachment was emptied and deleted.
    Remove,
    /// A Mountpoint Pod was created.
    CreatePod,
    /// A Mountpoint Pod was told to unmount.
    Retire,
    /// A Mountpoint Pod was deleted.
    DeletePod,
    /// A status.
    Record,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: Written,
}

/// State of a Mountpoint Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum State {
    Pending,
    Serving,
    Draining,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InState {
    state: State,
}

/// What is counted.
#[derive(Clone)]
pub struct Metrics {
    attach: Histogram,
    pods: Family<InState, Gauge>,
    workloads: Gauge,
    stale: Counter,
    orphans: Counter,
    writes: Family<Kind, Counter>,
}

impl Metrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        // 50 ms to about 27 minutes: a claim may be bound long after its pod was scheduled.
        let attach = Histogram::new(exponential_buckets(0.05, 2.0, 16));
        Self {
            attach: telemetry.register(
                "s3_attach_seconds",
                "Time from the scheduling of a workload to its attachment to a Mountpoint Pod",
                attach,
            ),
            pods: telemetry.register("s3_mountpoint_pods", "Mountpoint Pods by state", Family::default()),
            workloads: telemetry.register(
                "s3_attached_workloads",
                "Workloads that are attached to Mountpoint Pods, once for each volume",
                Gauge::default(),
            ),
            stale: telemetry.register(
                "s3_stale_attachments_removed",
                "Attachments removed by age, of workloads whose end was not seen",
                Counter::default(),
            ),
            orphans: telemetry.register(
                "s3_orphans_removed",
                "Mountpoint Pods that no attachment named and that were told to unmount or deleted",
                Counter::default(),
            ),
            writes: telemetry.register("s3_writes", "Writes of attachments and Mountpoint Pods", Family::default()),
        }
    }

    /// Something was written.
    pub fn wrote(&self, kind: Written) {
        self.writes.get_or_create(&Kind { kind }).inc();
    }

    /// An effect was carried out.
    pub fn did(&self, effect: &Effect, seen: &Seen, decision: &Decision, now: DateTime<Utc>) {
        let kind = match effect {
            Effect::Create(_) => Written::Create,
            Effect::Replace { .. } => Written::Replace,
            Effect::Remove(_) => Written::Remove,
            Effect::CreatePod { .. } => Written::CreatePod,
            Effect::Retire(_) => Written::Retire,
            Effect::DeletePod { .. } => Written::DeletePod,
            Effect::Record { .. } => Written::Record,
        };
        self.wrote(kind);
        match effect {
            Effect::Create(after) => self.attached(None, after, seen, now),
            Effect::Replace { before, after } => {
                self.attached(Some(before), after, seen, now);
                self.stale.inc_by(stale(before, decision));
            }
            Effect::Remove(before) => drop(self.stale.inc_by(stale(before, decision))),
            Effect::Retire(pod) | Effect::DeletePod { pod, .. } if decision.orphans.contains(pod.name()) => {
                self.orphans.inc();
            }
            _ => {}
        }
    }

    /// A Mountpoint Pod that says of no mount was told to unmount or deleted.
    pub fn ended(&self, effect: &Effect, forgotten: bool) {
        self.wrote(if matches!(effect, Effect::Retire(_)) { Written::Retire } else { Written::DeletePod });
        self.orphans.inc_by(forgotten.into());
    }

    fn attached(
        &self,
        before: Option<&MountpointS3PodAttachment>,
        after: &MountpointS3PodAttachment,
        seen: &Seen,
        now: DateTime<Utc>,
    ) {
        let known: BTreeSet<_> = before.map(|it| it.spec.workloads()).unwrap_or_default().into_iter().collect();
        let workloads = after.spec.workloads().into_iter().filter(|uid| !known.contains(uid));
        for workload in workloads.filter_map(|uid| seen.workloads.get(uid)) {
            let waited = scheduled(&workload.pod).and_then(|since| (now - since).to_std().ok()).unwrap_or_default();
            self.attach.observe(waited.as_secs_f64());
        }
    }

    /// Takes in what there is, before each scrape.
    pub fn look(&self, pods: &[Arc<MountpointPod>], attachments: &[Arc<MountpointS3PodAttachment>]) {
        for state in [State::Pending, State::Serving, State::Draining, State::Failed] {
            let count = pods.iter().filter(|pod| state_of(pod) == state).count();
            self.pods.get_or_create(&InState { state }).set(size(count));
        }
        self.workloads.set(size(attachments.iter().map(|it| it.spec.workloads().len()).sum()));
    }
}

fn stale(before: &MountpointS3PodAttachment, decision: &Decision) -> u64 {
    let stale = before.spec.workloads().into_iter().filter(|uid| decision.stale.contains(*uid));
    u64::try_from(stale.count()).unwrap_or(u64::MAX)
}

fn size(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn scheduled(pod: &Pod) -> Option<DateTime<Utc>> {
    let scheduled = pod.condition("PodScheduled").and_then(|condition| condition.last_transition_time.as_ref());
    scheduled.or(pod.metadata.creation_timestamp.as_ref()).map(time::from_k8s)
}

fn state_of(pod: &MountpointPod) -> State {
    match pod {
        pod if pod.has_ended() => State::Failed,
        pod if pod.is_terminating() || pod.needs_unmount() => State::Draining,
        pod if pod.status.phase.as_deref() == Some("Running") => State::Serving,
        _ => State::Pending,
    }
}
