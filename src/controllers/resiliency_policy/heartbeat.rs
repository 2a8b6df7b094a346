//! What the heartbeats of the agents say: channel Agent. They make us faster and never slower: what they say is believed
//! only beside another sign, and what they do not say takes nothing away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::node_fence::{Channel, Evidence, EvidenceState};
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::Node;
use crate::api::time;
use crate::mutants::{self, Mutant};

use super::brakes::{self, Cluster};
use super::evidence::{self, Silence};

/// A kubelet renews its Lease every 10 s: after this time two renewals are missed.
pub const TWO_RENEWALS: Duration = Duration::from_secs(21);
/// What self-fencing takes after its deadline: an echo that no peer brought us (2 s between two rounds, 1.2 s for one), and
/// the end of the containers.
pub const SELF_FENCING_TAKES: Duration = Duration::from_secs(5);
/// After so many nodes were silent at once that it must have been us who did not hear, nothing is believed for this time.
const DEAF_FOR: Duration = Duration::from_secs(60);

/// What is known of the heartbeats of a node's agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Time since it was heard; none for one that was never heard by this process: it is unknown.
    pub silent_for: Option<Duration>,
    /// How many of how many peers that were asked do not reach it; none while they do not agree that it is out of reach.
    pub against: Option<(usize, usize)>,
    /// Time since it was heard last, by us or by a peer that was asked.
    pub out_of_reach_for: Option<Duration>,
}

impl Heartbeat {
    /// Whether it was heard, and is silent for that long.
    pub fn is_lost(&self, suspect_after: Duration) -> bool {
        self.silent_for.is_some_and(|silent| silent >= suspect_after)
    }

    /// Whether the peers say so too.
    pub fn is_confirmed(&self, suspect_after: Duration) -> bool {
        self.is_lost(suspect_after) && (self.against.is_some() || mutants::is_on(Mutant::PeersUnasked))
    }

    /// Whether an agent that cuts its own node off after that loss has done so by now, if it could. It proves nothing.
    pub fn has_had_time(&self, self_fencing: Option<Duration>) -> bool {
        let loss = self.out_of_reach_for.unwrap_or_default();
        self_fencing.is_none_or(|after| loss >= after.saturating_add(SELF_FENCING_TAKES))
    }

    /// The row of the plan.
    pub fn evidence(&self, now: time::Now) -> Evidence {
        let silent = self.silent_for.unwrap_or_default();
        let (against, asked) = self.against.unwrap_or_default();
        let since = now.wall - chrono::TimeDelta::from_std(silent).unwrap_or_default();
        Evidence {
            channel: Channel::Agent,
            state: EvidenceState::Failed,
            backend: None,
            since: time::stamp(since),
            reason: "HeartbeatLost".into(),
            message: Some(format!(
                "no heartbeat for {} s, and {against} of {asked} nodes that were asked do not reach it",
                silent.as_secs()
            )),
        }
    }
}

/// After which silence a node is suspected: the shortest time of all policies.
pub fn suspect_after<'a>(policies: impl IntoIterator<Item = &'a ResiliencyPolicy>) -> Option<Duration> {
    policies.into_iter().map(|policy| policy.spec.detection.agent.suspect_after.get()).min()
}

/// Whether we can hear at all.
#[derive(Clone, Debug, Default)]
pub struct Hearing {
    deaf_at: Option<Instant>,
}

impl Hearing {
    /// Listens: nothing is believed while as many nodes are lost as would be an outage for any policy, and for a time after
    /// that: then it is our own network. The outage brake itself does not count heartbeats: it holds back what the kubelets'
    /// silence declares as well, and for long.
    pub fn listen<'a>(
        &mut self,
        nodes: impl Iterator<Item = &'a Node> + Clone,
        silence: impl Fn(&Node) -> Silence,
        heard: &BTreeMap<String, Heartbeat>,
        policies: &[Arc<ResiliencyPolicy>],
        now: Instant,
    ) {
        let Some(after) = suspect_after(policies.iter().map(Arc::as_ref)) else { return };
        let is_lost = |node: &Node| of(heard, node).is_lost(after);
        // Nearly always: nobody's silence is looked at then.
        if !nodes.clone().any(is_lost) {
            return;
        }
        let kubelet = policies.iter().map(|policy| policy.spec.detection.kubelet.suspect_after.get()).min();
        let kubelet = kubelet.unwrap_or(Duration::MAX);
        let is_counted = |node: &&Node| is_lost(node) || evidence::is_suspected(node, silence(node), kubelet);
        let cluster = Cluster { nodes: nodes.clone().count(), suspected: nodes.filter(is_counted).count() };
        if policies.iter().any(|policy| brakes::is_outage(&policy.spec.limits, cluster)) {
            self.deaf_at = Some(now);
        }
    }

    /// What is believed of what is heard of a node.
    pub fn believed(&self, heard: &BTreeMap<String, Heartbeat>, node: &Node, now: Instant) -> Heartbeat {
        if self.is_deaf(now) { Heartbeat::default() } else { of(heard, node) }
    }

    fn is_deaf(&self, now: Instant) -> bool {
        self.deaf_at.is_some_and(|at| now.saturating_duration_since(at) < DEAF_FOR)
    }
}

fn of(heard: &BTreeMap<String, Heartbeat>, node: &Node) -> Heartbeat {
    node.metadata.name.as_ref().and_then(|name| heard.get(name)).copied().unwrap_or_default()
}
