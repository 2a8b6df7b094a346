//! I15: before Kubernetes gives a node up it is declared failed only when it is silent, its peers do not reach it, and its
//! kubelet has missed two renewals, its storage path is lost, or a fencer says that it has no power; or when a fencer says so and its
//! kubelet has missed two renewals.

use bulkhead::api::node_fence::{Channel, EvidenceState, NodeFence};
use bulkhead::api::slim::{Lease, Node};
use kube::ResourceExt;

use crate::process::hearing::SAID_FOR;
use crate::time::{Millis, SECOND, micro};
use crate::world::World;

/// The shortest silence that a policy here counts.
const SILENCE: Millis = 3 * SECOND;
/// A kubelet renews its Lease every 10 s.
const TWO_RENEWALS: Millis = 20 * SECOND;

impl World {
    /// A pass has decided to begin with a node.
    pub(super) fn judge_heartbeats(&mut self, fence: &NodeFence) {
        let evidence = &fence.spec.plan.evidence;
        let says =
            |channel: Channel| evidence.iter().any(|it| it.channel == channel && it.state == EvidenceState::Failed);
        let node = fence.name_any();
        let is_given_up = self.api.get::<Node>(&node).is_some_and(|node| node.ready() != "True");
        if is_given_up || !says(Channel::Agent) && !says(Channel::Power) {
            return;
        }
        self.counts.declared_early += 1;
        let Some(machine) = self.machines.get(&node) else { return };
        let network = &machine.network;
        let passed = |since: Option<Millis>| since.map(|since| self.now - since);
        let is_silent = passed(network.unheard_since).is_some_and(|passed| passed >= SILENCE);
        let met_lately = passed(network.met_again_at).is_some_and(|passed| passed < SAID_FOR);
        let is_reached = network.unmet_since.is_none() && !met_lately;
        let is_told = says(Channel::Agent) && (says(Channel::Storage) || says(Channel::Power));
        let wrong = if says(Channel::Agent) && !is_silent {
            "is heard"
        } else if says(Channel::Agent) && is_reached {
            "is reached by its peers"
        } else if !is_told && !self.has_missed_two_renewals(&node) {
            "renews its Lease"
        } else {
            return;
        };
        self.oracle.break_("I15", self.now, format!("{node} is declared failed, and {wrong}"));
    }

    pub(super) fn has_missed_two_renewals(&self, node: &str) -> bool {
        let renewed = self.api.get::<Lease>(node).and_then(|lease| lease.spec.renew_time.clone());
        renewed.is_none_or(|renewed| renewed.0 <= micro(self.now.saturating_sub(TWO_RENEWALS)).0)
    }
}
