//! Metrics of the passes.

use std::sync::Arc;

use kube::Resource as _;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::api::fencing::PolicyMode;
use crate::api::node_fence::{Channel, MACHINE_MAY_RUN, NodeFence, Phase};
use crate::api::proof::CLASS_NOT_FOUND;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::runtime::telemetry::Telemetry;

use super::decide::{self, Decision, Seen};
use super::tell;

/// What may hold a node.
const BRAKES: [&str; 7] =
    ["Paused", "MaintenanceWindow", "BudgetExhausted", "CorrelatedOutage", "Cooldown", "ArrayOutage", MACHINE_MAY_RUN];

/// Why a policy could not fence now: what condition FenceReady says where it is False.
const UNREADY: [&str; 5] = ["FencerMissing", "FencerSilent", CLASS_NOT_FOUND, "ProofUnreachable", "PodsUnmovable"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum PhaseLabel {
    Planned,
    Fencing,
    PodsReleased,
    Detached,
    Cleaning,
    Recovered,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InPhase {
    phase: PhaseLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HeldBy {
    brake: &'static str,
}

/// Whose silence declared a node failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Silent {
    /// The kubelet's: Kubernetes itself calls the node unreachable.
    Kubelet,
    /// The agent's, before that: its heartbeats.
    Agent,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SilentLabel {
    channel: Silent,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UnreadyFor {
    reason: &'static str,
}

/// Gauges that each pass sets.
pub struct Metrics {
    suspected: Gauge,
    held: Family<HeldBy, Gauge>,
    fences: Family<InPhase, Gauge>,
    unready: Family<UnreadyFor, Gauge>,
    unmoved: Gauge,
    crash_loops_held: Gauge,
    crash_loop_deletes: Counter,
    plugins_down: Gauge,
    contradicted: Gauge,
    machines: Gauge,
    without_storage: Gauge,
    detection: Family<SilentLabel, Histogram>,
}

impl Metrics {
    /// Registers them.
    pub fn register(telemetry: &Telemetry) -> Self {
        // 1 s to about 16 minutes, close together where the targets are.
        let buckets = || Histogram::new(exponential_buckets(1.0, 1.5, 18));
        let detection = Family::<SilentLabel, Histogram>::new_with_constructor(buckets as fn() -> Histogram);
        Self {
            detection: telemetry.register(
                "detection_seconds",
                "Time from the last sign of life of a failed node to the decision",
                detection,
            ),
            suspected: telemetry.register("suspected_nodes", "Nodes that give reason for suspicion", Gauge::default()),
            held: telemetry.register("held_nodes", "Nodes that a brake holds back", Family::default()),
            unready: telemetry.register(
                "policies_not_ready",
                "ResiliencyPolicies that could not have all their pods fenced now",
                Family::default(),
            ),
            unmoved: telemetry.register(
                "unmoved_pods",
                "Pods that stay though their volumes are tainted and their policies would move them",
                Gauge::default(),
            ),
            crash_loops_held: telemetry.register(
                "crash_loops_held",
                "Protected pods in CrashLoopBackOff that a budget or a brake leaves where they are",
                Gauge::default(),
            ),
            crash_loop_deletes: telemetry.register(
                "crash_loop_deletes",
                "Pods that were deleted so that they could start on another node",
                Counter::default(),
            ),
            plugins_down: telemetry.register(
                "driver_down_taints",
                "Taints that keep pods off a node where the node plugin of a CSI driver is not ready",
                Gauge::default(),
            ),
            contradicted: telemetry.register(
                "contradicted_power_reports",
                "Nodes that have no power by the word of a fencer and that are heard all the same",
                Gauge::default(),
            ),
            machines: telemetry.register(
                "machines_shut_out",
                "NodeFences that wait for a person: a machine is shut out, or kept out by its fencer, that may run, and whose Node is gone or may be another",
                Gauge::default(),
            ),
            without_storage: telemetry.register(
                "nodes_awaiting_storage",
                "Nodes that are there and keep our taint only since it is not proved that they reach their storage",
                Gauge::default(),
            ),
            fences: telemetry.register("node_fences", "NodeFences by phase", Family::default()),
        }
    }

    /// A pod was deleted because of its crash loop.
    pub fn rescheduled(&self) {
        self.crash_loop_deletes.inc();
    }

    /// A plan was written, on what was known of the node. Nothing is observed of one that has grown, of a node that others
    /// taint, that has no power or whose storage is in trouble, and where this process did not see the last sign of life.
    pub fn planned(&self, fence: &NodeFence, seen: &Seen) {
        let name = fence.metadata.name.as_deref().unwrap_or_default();
        let known = decide::fence_of(seen, name);
        if known.is_some_and(|known| known.spec.episode == fence.spec.episode) {
            return;
        }
        let silence = seen.live.get(name).map_or_else(|| seen.silence(name), |live| live.silence);
        let plan = &fence.spec.plan;
        let says = |channel: Channel| plan.evidence.iter().any(|row| row.channel == channel);
        let (channel, silent_for) = match plan.is_ahead_of_kubernetes() {
            true if says(Channel::Agent) => (Silent::Agent, silence.heartbeat.silent_for),
            false if says(Channel::Kubelet) => (Silent::Kubelet, silence.still_for.filter(|_| silence.has_moved)),
            _ => return,
        };
        if let Some(silent_for) = silent_for {
            self.detection.get_or_create(&SilentLabel { channel }).observe(silent_for.as_secs_f64());
        }
    }

    /// Takes in what the policies said before a pass. Nobody relies on one that only observes, or that is being deleted.
    pub fn ready(&self, policies: &[Arc<ResiliencyPolicy>]) {
        let acts = |policy: &&Arc<ResiliencyPolicy>| {
            policy.spec.mode != PolicyMode::DryRun && policy.metadata.deletion_timestamp.is_none()
        };
        for reason in UNREADY {
            let unready = policies.iter().filter(acts).filter_map(|policy| tell::unready(policy));
            let count = unready.filter(|lacking| lacking.reason == reason).count();
            self.unready.get_or_create(&UnreadyFor { reason }).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Takes a pass in.
    pub fn pass(&self, decision: &Decision, fences: &[Arc<NodeFence>]) {
        self.suspected.set(i64::try_from(decision.suspected.len()).unwrap_or(i64::MAX));
        self.unmoved.set(i64::try_from(decision.unmoved.len()).unwrap_or(i64::MAX));
        self.contradicted.set(i64::try_from(decision.contradicted.len()).unwrap_or(i64::MAX));
        self.plugins_down.set(i64::try_from(decision.plugins_down).unwrap_or(i64::MAX));
        self.crash_loops_held.set(i64::try_from(decision.crash_loops.held.len()).unwrap_or(i64::MAX));
        for brake in BRAKES {
            let held = decision.restrained.iter().filter(|held| held.brake == brake).count();
            self.held.get_or_create(&HeldBy { brake }).set(i64::try_from(held).unwrap_or(i64::MAX));
        }
        let machines = fences.iter().filter(|fence| fence.waits_for_word_of_its_machine()).count();
        self.machines.set(i64::try_from(machines).unwrap_or(i64::MAX));
        let without_storage = fences.iter().filter(|fence| fence.awaits_storage()).count();
        self.without_storage.set(i64::try_from(without_storage).unwrap_or(i64::MAX));
        let phases = [
            (Phase::Planned, PhaseLabel::Planned),
            (Phase::Fencing, PhaseLabel::Fencing),
            (Phase::PodsReleased, PhaseLabel::PodsReleased),
            (Phase::Detached, PhaseLabel::Detached),
            (Phase::Cleaning, PhaseLabel::Cleaning),
            (Phase::Recovered, PhaseLabel::Recovered),
        ];
        for (phase, label) in phases {
            let present = fences.iter().filter(|fence| fence.meta().name.is_some());
            let count =
                present.filter(|fence| fence.status.as_ref().and_then(|s| s.phase).unwrap_or(Phase::Planned) == phase);
            self.fences.get_or_create(&InPhase { phase: label }).set(i64::try_from(count.count()).unwrap_or(i64::MAX));
        }
    }
}
