//! What a controller hears of the agents, as `heartbeat::monitor` of the product would have it: beats come each second, and the
//! peers of those that are silent are asked. Followed from what the machines' networks carry, without the datagrams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead::controllers::resiliency_policy::heartbeat::{self, Heartbeat};
use bulkhead::heartbeat::verdict::PEERS_MIN;

use crate::others::Machine;
use crate::time::{MINUTE, Millis, SECOND, millis};
use crate::world::World;

use super::Pid;

/// An agent beats each second.
const BEAT: Millis = SECOND;
/// How long a round of questions lasts at most.
const ROUND: Millis = 1_200;
/// How soon the peers are asked again; each time there is something new to decide on.
pub(super) const ASK_EVERY: Millis = 2 * SECOND;
/// Kubernetes itself has given a node up after that.
const ASKED_FOR: Millis = MINUTE;
/// What the peers said is of a round that began this long ago at most: they are asked again 2 s after the last answer.
pub(crate) const SAID_FOR: Millis = 3_400;
/// More peers are not asked.
const PEERS_MAX: usize = 5;

impl World {
    /// What is heard of each agent; nothing where they do not beat.
    pub(crate) fn heartbeats(&self, pid: Pid) -> BTreeMap<String, Heartbeat> {
        let machines = self.members().filter(|_| self.shape.beats);
        machines.map(|(name, machine)| (name.clone(), self.heard(pid, machine).unwrap_or_default())).collect()
    }

    /// Whether the peers of a node are being asked, and it matters.
    pub(super) fn is_asking_peers(&self) -> bool {
        let silent = self.members().filter_map(|(_, machine)| machine.network.unheard_since);
        self.shape.beats && silent.into_iter().any(|since| self.now < since + ASKED_FOR)
    }

    /// `None` for one that was never heard by this process.
    fn heard(&self, pid: Pid, machine: &Machine) -> Option<Heartbeat> {
        let process = &self.processes[pid];
        let unheard = machine.network.unheard_since;
        if unheard.unwrap_or(self.now) < process.started_at + BEAT {
            return None;
        }
        // Time in which nobody listened is nobody's silence.
        let heard_at = unheard.map_or(self.now, |since| since.max(process.woke_at.unwrap_or_default()));
        let silent = self.now.saturating_sub(heard_at);
        let unreached = machine.network.unmet_since.map_or(0, |since| self.now - since);
        let policies = &self.controllers[pid].views.policies.objects;
        let after = heartbeat::suspect_after(policies.values().map(Arc::as_ref));
        let is_asked = after.is_some_and(|after| silent >= millis(after) + ROUND);
        Some(Heartbeat {
            silent_for: Some(Duration::from_millis(silent)),
            against: if is_asked { self.peers_against(machine) } else { None },
            out_of_reach_for: Some(Duration::from_millis(silent.min(unreached))),
        })
    }

    /// How many of how many peers say that the node is out of reach. Who is heard reaches somebody.
    fn peers_against(&self, machine: &Machine) -> Option<(usize, usize)> {
        let network = &machine.network;
        let said = |since: Millis| since + ROUND <= self.now;
        // They may not have been asked again since.
        let said_before = |until: Millis| self.now < until + SAID_FOR;
        if !network.unmet_since.map_or_else(|| network.met_again_at.is_some_and(said_before), said) {
            return None;
        }
        let heard = self.members().filter(|(_, it)| it.network.unheard_since.is_none()).count();
        let asked = heard.min(PEERS_MAX);
        (asked >= PEERS_MIN).then_some((asked, asked))
    }
}
