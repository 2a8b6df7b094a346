//! When a policy declares a dead node failed, at the latest, by what tells of it. It is the controller's own rule that is asked, at
//! each moment at which there may be something new to decide on. Pure.

use std::time::Duration;

use crate::api::node_fence::{Channel, Evidence, EvidenceState};
use crate::api::resiliency_policy::{ResiliencyPolicy, ResiliencyPolicySpec};
use crate::api::slim::{Node, Pod, StatusCondition};
use crate::api::time::{self, Now};
use crate::controllers::resiliency_policy::decide::{AT_REST, SOON};
use crate::controllers::resiliency_policy::evidence::{self, Outside, Silence};
use crate::controllers::resiliency_policy::heartbeat::{Heartbeat, SELF_FENCING_TAKES, TWO_RENEWALS};
use crate::controllers::resiliency_policy::select::Effective;
use crate::heartbeat::verdict;
use crate::kubectl::foresee;

/// Kubernetes' `--node-monitor-grace-period`, and the 5 s in which the controller-manager looks again.
pub const UNREACHABLE: Duration = Duration::from_secs(55);
/// Where it comes from.
pub const GRACE_PERIOD: &str = "Kubernetes' default node-monitor-grace-period";

/// Who tells of a dead node beside Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tellers {
    /// The agents, by heartbeats that one of them does not send any more.
    pub heartbeats: bool,
    /// An array, so long after it knows that the path is lost.
    pub array: Option<Duration>,
    /// A fencer, as soon as it sees that there is no power.
    pub fencer: bool,
}

impl Tellers {
    /// All of them, in words.
    pub fn named(&self) -> String {
        let named = [(self.heartbeats, "heartbeats"), (self.array.is_some(), "array"), (self.fencer, "fencer")];
        named.into_iter().filter(|(is_there, _)| *is_there).map(|(_, name)| name).collect::<Vec<_>>().join(" and ")
    }
}

/// When a node is declared failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Time since its last sign of life.
    pub after: Duration,
    /// What was waited for last.
    pub by: String,
}

/// When the policy by itself declares a node failed of which these tell; `None`: never.
pub fn declared(policy: &ResiliencyPolicy, tellers: Tellers, now: Now) -> Option<Declared> {
    let (policies, late) = (Effective::alone(policy), seen_late(&policy.spec, tellers));
    let declares = |after: Duration| {
        let (node, silence, outside) = seen(&policies, tellers, (after, late), now);
        evidence::declares(&node, silence, &not_ready(), &policies, outside, now).is_some()
    };
    let found = moments(&policy.spec, tellers).into_iter().find(|(after, _)| declares(*after));
    found.map(|(after, by)| Declared { after, by })
}

/// How long after two renewals are missed that is seen. The last renewal counts from the pass that finds it; and it is a pass that
/// finds the time over: passes are a second apart only from the one on that suspects the node.
fn seen_late(spec: &ResiliencyPolicySpec, tellers: Tellers) -> Duration {
    let (kubelet, agent) = (spec.detection.kubelet.suspect_after.get(), spec.detection.agent.suspect_after.get());
    let suspected_after = if tellers.heartbeats { kubelet.min(agent) } else { kubelet };
    let found = suspected_after.min(TWO_RENEWALS) + AT_REST;
    AT_REST + found.saturating_sub(TWO_RENEWALS).max(SOON)
}

/// The moments at which there may be something new to decide on, in order, with what it is.
fn moments(spec: &ResiliencyPolicySpec, tellers: Tellers) -> Vec<(Duration, String)> {
    let detection = &spec.detection;
    let (suspect_after, decisive_after) = (&detection.agent.suspect_after, &detection.kubelet.decisive_after);
    let mut moments = vec![
        (TWO_RENEWALS + seen_late(spec, tellers), "two renewals of its Lease are missed".to_owned()),
        (UNREACHABLE, GRACE_PERIOD.to_owned()),
    ];
    // That a time has passed is seen by the next pass.
    if !decisive_after.get().is_zero() {
        let by = format!("detection.kubelet.decisiveAfter {decisive_after}");
        moments.push((UNREACHABLE + decisive_after.get() + SOON, by));
    }
    if tellers.heartbeats {
        let by = format!("detection.agent.suspectAfter {suspect_after}, and the answers of other agents");
        moments.push((verdict::reached_after(suspect_after.get()), by));
    }
    if let Some(after) = spec.self_fencing.deadline().filter(|_| tellers.heartbeats) {
        let by = format!("selfFencing.after {}, and what that takes", spec.self_fencing.after);
        moments.push((after + SELF_FENCING_TAKES + SOON, by));
    }
    if let Some(lost) = tellers.array {
        let storage = &detection.storage;
        let by = format!("detection.storage: period {}, lossThreshold {}", storage.period, storage.loss_threshold);
        moments.push((lost, by));
    }
    moments.sort_by_key(|(after, _)| *after);
    moments
}

/// What the controller sees of the node so long `after`, if it sees everything as late as it may: of its Lease so `late`.
fn seen(
    policies: &Effective,
    tellers: Tellers,
    (after, late): (Duration, Duration),
    now: Now,
) -> (Node, Silence, Outside) {
    let is_unreachable = after >= UNREACHABLE;
    let node = if is_unreachable { foresee::failed(&Node::default(), now) } else { Node::default() };
    let is_told = after >= verdict::reached_after(policies.agent_suspect_after());
    let heartbeat = Heartbeat {
        silent_for: Some(after),
        against: is_told.then_some((verdict::PEERS_MIN, verdict::PEERS_MIN)),
        out_of_reach_for: Some(after),
    };
    let silence = Silence {
        lease_age: after.checked_sub(late),
        still_for: Some(after),
        has_moved: true,
        unreachable_for: after.checked_sub(UNREACHABLE),
        heartbeat: if tellers.heartbeats { heartbeat } else { Heartbeat::default() },
        ..Silence::default()
    };
    let outside = Outside {
        storage: tellers.array.filter(|lost| after >= *lost).map(|_| says(Channel::Storage, now)),
        power: tellers.fencer.then(|| says(Channel::Power, now)),
    };
    (node, silence, outside)
}

/// A pod of the node, which the node lifecycle controller marks when it gives the node up.
fn not_ready() -> Pod {
    let mut pod = Pod::default();
    let (type_, status) = ("Initialized".to_owned(), "True".to_owned());
    pod.status.conditions = vec![StatusCondition { type_, status, last_transition_time: None }];
    pod
}

fn says(channel: Channel, now: Now) -> Evidence {
    Evidence {
        channel,
        state: EvidenceState::Failed,
        backend: None,
        since: time::stamp(now.wall),
        reason: "Foreseen".into(),
        message: None,
    }
}

#[cfg(test)]
#[path = "declared_tests.rs"]
mod tests;
