//! What the channels say about a node. Ready condition, lifecycle taints and Lease age are one channel (kubelet to
//! API) and never count twice; what an array says is another, and what is seen of its power; `Unknown` never counts.

use std::time::Duration;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Taint;

use crate::api::names;
use crate::api::node_fence::{Channel, Evidence, EvidenceState, LEASE_NOT_RENEWED};
use crate::api::resiliency_policy::DecisiveChannel;
use crate::api::slim::{Node, Pod};
use crate::api::time;
use crate::mutants::{self, Mutant};

use super::heartbeat::{self, Heartbeat};
use super::select::Effective;

/// What is known of a node's kubelet beyond the Node object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    /// Time since its Lease was seen to change; `None` while that cannot be told (the watch is not proved live).
    pub lease_age: Option<Duration>,
    /// Time since its Lease was seen to change, proved or not. When most Leases stand still no age is proved, and that
    /// is the clearest sign that the observer is at fault: it counts for `maxUnhealthy`, and, while it is short, against what
    /// others say of the node. It declares nobody.
    pub still_for: Option<Duration>,
    /// When its Lease was renewed last, as far as was seen, by the clock of the node: what the API has is compared with it.
    pub renewed_at: Option<DateTime<Utc>>,
    /// Whether its Lease was seen to move, and not only found.
    pub has_moved: bool,
    /// How long after one renewal of its Lease the next would have been seen.
    pub next_renewal: Duration,
    /// Time since it was first seen unreachable without interruption.
    pub unreachable_for: Option<Duration>,
    /// What is heard of its agent.
    pub heartbeat: Heartbeat,
}

/// How much later than the last heartbeat a renewal of the Lease may be seen that was sent before it: a watch can be late, and a
/// pass too.
const LATE_RENEWAL: Duration = Duration::from_secs(5);

impl Silence {
    /// Whether the kubelet renewed its Lease while its agent was silent already, as far as can be told: the machine lives, and it
    /// is the heartbeats that get lost.
    fn outlives_heartbeats(&self) -> bool {
        let Some(still) = self.still_for else { return false };
        let silent = self.heartbeat.out_of_reach_for.or(self.heartbeat.silent_for).unwrap_or_default();
        if self.has_moved { still + LATE_RENEWAL < silent } else { self.may_renew() }
    }

    /// Whether the kubelet may be renewing its Lease as ever: it was seen to, or was only found, by a new leader or in a new list, and
    /// nobody has looked for long enough. A node-lifecycle controller whose own watch lags behind, as after an outage of the API
    /// server, writes Ready=Unknown over kubelets that never fell silent; it takes three of their renewals or more to be right.
    pub fn may_renew(&self) -> bool {
        self.still_for.is_some_and(|still| still < self.next_renewal)
    }

    /// The same for the node as the API has it: seen unreachable for the first time just now is no less unreachable.
    pub fn read_live(self, node: &Node) -> Self {
        let unreachable_for = node.is_unreachable().then(|| self.unreachable_for.unwrap_or(Duration::ZERO));
        Self { unreachable_for, ..self }
    }
}

/// Whether the node gives reason for suspicion. Suspicion alone writes nothing; it counts for `maxUnhealthy`.
pub fn is_suspected(node: &Node, silence: Silence, suspect_after: Duration) -> bool {
    node.ready() != "True"
        || node.taints().iter().any(|taint| taint.key == names::UNREACHABLE_TAINT)
        || silence.still_for.is_some_and(|still| still >= suspect_after)
}

/// What others than the node say of it, where that is bad. Alone none of it declares a node failed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outside {
    /// The array of one of the pod's volumes: the path is lost.
    pub storage: Option<Evidence>,
    /// An external fencer: it has no power.
    pub power: Option<Evidence>,
}

/// The evidence that declares the node failed for a pod under these policies; `None` while it does not.
pub fn declares(
    node: &Node,
    silence: Silence,
    pod: &Pod,
    policies: &Effective,
    outside: Outside,
    now: time::Now,
) -> Option<Vec<Evidence>> {
    let said = Said::of(node, silence, pod, policies, outside);
    said.is_enough(policies).then(|| said.into_rows(node, silence, now))
}

/// What counts of all that is said of a node, for a pod under its policies.
struct Said<'a> {
    /// Kubernetes gave the kubelet up, and its Lease does not contradict.
    kubelet: bool,
    /// For as long as the policies wait for that.
    is_given_up_for_long: bool,
    /// Two renewals of the Lease are missed.
    lease: bool,
    /// The agent is out of reach.
    agent: bool,
    /// Taints.
    taints: Vec<&'a Taint>,
    /// What others say.
    outside: Outside,
}

impl<'a> Said<'a> {
    fn of(node: &'a Node, silence: Silence, pod: &Pod, policies: &Effective, outside: Outside) -> Self {
        let Outside { storage, power } = outside;
        let is_silent = !silence.may_renew() || mutants::is_on(Mutant::LeaseIgnored);
        let kubelet = node.is_unreachable() && is_silent;
        let long_enough = silence.unreachable_for.unwrap_or_default() >= policies.decisive_after();
        let missed = silence.lease_age.is_some_and(|age| age >= heartbeat::TWO_RENEWALS);
        let missed = missed || mutants::is_on(Mutant::HeartbeatAlone);
        // Heartbeats share the way of the kubelet's word, so they count beside another sign only: the taint, what the array
        // says, what is seen of the power, or two renewals of the Lease that are missed, which by themselves say nothing yet. A
        // kubelet that went on renewing since contradicts them, until it falls silent as well.
        let lost = silence.heartbeat.is_confirmed(policies.agent_suspect_after())
            && (kubelet || missed || !silence.outlives_heartbeats());
        // Before the taint an agent that cuts its node off by itself is given the time for it.
        let in_time = kubelet || silence.heartbeat.has_had_time(policies.self_fencing_after());
        // What is said of its power counts once the node had the time to contradict, and did not.
        let power = power.filter(|_| in_time && (kubelet || missed || lost));
        let agent = lost && in_time && (kubelet || missed || storage.is_some() || power.is_some());
        Self {
            kubelet,
            is_given_up_for_long: kubelet && long_enough,
            lease: !kubelet && missed && (agent || power.is_some()),
            agent,
            taints: counting_taints(node, pod, policies, kubelet && long_enough),
            outside: Outside { storage, power },
        }
    }

    /// Whether a channel that decides alone says so, or as many as must agree.
    fn is_enough(&self, policies: &Effective) -> bool {
        let Self { kubelet, lease, agent, outside, .. } = self;
        let is_decided = self.is_given_up_for_long && policies.is_decisive(DecisiveChannel::Kubelet)
            || !self.taints.is_empty() && policies.is_decisive(DecisiveChannel::Taint);
        let is_tainted = self.independent_taint().is_some();
        let channels = [*kubelet || *lease, is_tainted, *agent, outside.storage.is_some(), outside.power.is_some()];
        is_decided || channels.into_iter().filter(|says| *says).count() >= policies.required_channels()
    }

    /// A taint that others set: those of the lifecycle controller repeat what the kubelet's channel says.
    fn independent_taint(&self) -> Option<&'a Taint> {
        self.taints.iter().find(|taint| !is_lifecycle(&taint.key)).copied()
    }

    /// The rows of the plan. Who reads them takes each for what has counted.
    fn into_rows(self, node: &Node, silence: Silence, now: time::Now) -> Vec<Evidence> {
        let mut rows = Vec::new();
        if self.kubelet {
            rows.push(kubelet_evidence(node, silence, now));
        }
        if self.lease {
            rows.push(lease_evidence(silence, now));
        }
        if self.agent {
            rows.push(silence.heartbeat.evidence(now));
        }
        let taint = self.independent_taint().or_else(|| self.taints.first().copied().filter(|_| !self.kubelet));
        rows.extend(taint.map(|taint| taint_evidence(taint, now)));
        rows.extend(self.outside.storage);
        rows.extend(self.outside.power);
        rows
    }
}

/// The taints that count for a pod. Those of the lifecycle controller are no channel of their own: they count where taints decide
/// alone, or not at all. They follow the Ready condition, so that what is not taken away yet says nothing, and `unreachable` says no
/// more than Ready=Unknown does, and no sooner than the policies ask for.
fn counting_taints<'a>(node: &'a Node, pod: &Pod, policies: &Effective, is_given_up_for_long: bool) -> Vec<&'a Taint> {
    if !pod.is("Initialized") || pod.is("Ready") {
        return Vec::new();
    }
    let is_decisive = policies.is_decisive(DecisiveChannel::Taint);
    let counts = |taint: &Taint| match taint.key.as_str() {
        names::UNREACHABLE_TAINT => is_decisive && is_given_up_for_long,
        names::NOT_READY_TAINT => is_decisive && node.ready() != "True",
        _ => true,
    };
    node.taints().iter().filter(|taint| policies.counts_taint(taint) && counts(taint)).collect()
}

fn kubelet_evidence(node: &Node, silence: Silence, now: time::Now) -> Evidence {
    let since = node.ready_since();
    let lease = match silence.lease_age {
        Some(age) => format!("Lease {} s old", age.as_secs()),
        None => "Lease age not known".into(),
    };
    Evidence {
        channel: Channel::Kubelet,
        state: EvidenceState::Failed,
        backend: None,
        since: time::stamp(since.unwrap_or(now.wall)),
        reason: "NodeUnreachable".into(),
        message: Some(format!("Ready=Unknown, taint unreachable:NoSchedule, {lease}")),
    }
}

/// What the kubelet's channel says before Kubernetes itself does.
fn lease_evidence(silence: Silence, now: time::Now) -> Evidence {
    let age = silence.lease_age.unwrap_or_default();
    Evidence {
        channel: Channel::Kubelet,
        state: EvidenceState::Failed,
        backend: None,
        since: time::stamp(now.wall - chrono::TimeDelta::from_std(age).unwrap_or_default()),
        reason: LEASE_NOT_RENEWED.into(),
        message: Some(format!("Lease {} s old: two renewals are missed", age.as_secs())),
    }
}

fn taint_evidence(taint: &Taint, now: time::Now) -> Evidence {
    Evidence {
        channel: Channel::Taint,
        state: EvidenceState::Failed,
        backend: None,
        since: time::stamp(taint.time_added.as_ref().map_or(now.wall, time::from_k8s)),
        reason: "NodeTainted".into(),
        message: Some(format!("taint {}:{} and a protected pod is not Ready", taint.key, taint.effect)),
    }
}

fn is_lifecycle(key: &str) -> bool {
    matches!(key, names::UNREACHABLE_TAINT | names::NOT_READY_TAINT)
}
