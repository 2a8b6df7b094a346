//! Which agents are known, and when each was heard last, by this process and its own monotonic clock. Never heard is
//! unknown. Time in which nobody was listening is nobody's silence.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::api::node_volume_report::NodeVolumeReport;
use crate::api::slim::Node;

use super::keys::{KeyId, KeyPair, PairKey, PublicKey};
use super::wire::{self, Message};

/// Longest pause between two [`Tracker::tick`]s; a longer one is ours, and not the nodes'.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Label of a node's topology domain.
const ZONE: &str = "topology.kubernetes.io/zone";
/// Keys whose counters are kept after their agents are gone.
const RETIRED_MAX: usize = 65_536;

/// What an agent's node says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its key.
    pub key: PublicKey,
    /// Where its peers reach it.
    pub at: SocketAddr,
    /// The topology domain of its node, if that has one.
    pub zone: Option<String>,
    /// Whether the kubelet of its node is well.
    pub is_ready: bool,
}

/// An agent that may be heard.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Its node.
    pub node: String,
    /// What its node says of it.
    pub known: Known,
    /// Its key's name.
    pub id: KeyId,
    /// What we share with it.
    pub pair: PairKey,
    /// The highest counter.
    counter: u64,
    heard: Option<Instant>,
}

/// Why a datagram is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// It is none of this version.
    Malformed,
    /// No agent is known by that key.
    UnknownSender,
    /// It is not of whom it claims to be.
    Forged,
    /// Its counter was there before.
    Replayed,
    /// Nobody asked for it, or it is none for replicas.
    Unexpected,
}

/// An authentic datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Whose.
    pub sender: KeyId,
    /// What it says.
    pub message: Message,
}

/// All agents.
#[derive(Debug)]
pub struct Tracker {
    keys: KeyPair,
    agents: HashMap<KeyId, Agent>,
    by_node: BTreeMap<String, KeyId>,
    /// The keys of all agents in order.
    ring: BTreeSet<KeyId>,
    /// Counters of keys that are known no more: none of their datagrams counts twice either.
    retired: HashMap<KeyId, u64>,
    ticked: Instant,
}

impl Known {
    /// What a node and the report of its agent say. A report of another Node of that name says nothing.
    pub fn of(node: &Node, report: &NodeVolumeReport) -> Option<Self> {
        let status = report.status.as_ref()?;
        let is_its_own = node.metadata.uid.is_some() && status.node_uid == node.metadata.uid;
        let endpoint = status.heartbeat.as_ref().filter(|_| is_its_own)?;
        let at = SocketAddr::new(endpoint.address.parse().ok()?, endpoint.port);
        let labels = node.metadata.labels.as_ref();
        let zone = labels.and_then(|labels| labels.get(ZONE)).cloned();
        let is_ready = node.ready() == "True";
        Some(Self { key: PublicKey::parse(&endpoint.public_key)?, at, zone, is_ready })
    }
}

impl Agent {
    /// Time since it was heard.
    pub fn silent_for(&self, now: Instant) -> Option<Duration> {
        self.heard.map(|heard| now.saturating_duration_since(heard))
    }
}

impl Tracker {
    /// Knows nobody yet.
    pub fn new(keys: KeyPair, now: Instant) -> Self {
        let (agents, by_node, retired) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        Self { keys, agents, by_node, ring: BTreeSet::new(), retired, ticked: now }
    }

    /// Our own key.
    pub fn key(&self) -> PublicKey {
        self.keys.public()
    }

    /// What is known of a node's agent now. With another key it is another process, which was never heard.
    pub fn know(&mut self, node: &str, known: Option<Known>) {
        let id = known.as_ref().map(|known| known.key.id());
        if let Some(before) = self.by_node.get(node).copied().filter(|before| Some(*before) != id) {
            self.forget(node, before);
        }
        let (Some(known), Some(id)) = (known, id) else { return };
        if let Some(agent) = self.agents.get_mut(&id) {
            // Two nodes with one key are none of them: a key is one process's own.
            if agent.node == node {
                agent.known = known;
            }
            return;
        }
        let Some(pair) = self.keys.with_agent(known.key) else { return };
        let counter = self.retired.remove(&id).unwrap_or_default();
        self.by_node.insert(node.to_owned(), id);
        self.ring.insert(id);
        self.agents.insert(id, Agent { node: node.to_owned(), known, id, pair, counter, heard: None });
    }

    fn forget(&mut self, node: &str, id: KeyId) {
        self.by_node.remove(node);
        self.ring.remove(&id);
        if let Some(agent) = self.agents.remove(&id) {
            if self.retired.len() >= RETIRED_MAX {
                self.retired.clear();
            }
            self.retired.insert(id, agent.counter);
        }
    }

    /// Takes a datagram in. Whatever an agent says to us shows that it is there.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) -> Result<Received, Refusal> {
        let datagram = wire::parse(bytes).ok_or(Refusal::Malformed)?;
        if !matches!(datagram.message, Message::Heartbeat | Message::Leaving | Message::Answer { .. }) {
            return Err(Refusal::Unexpected);
        }
        let agent = self.agents.get_mut(&datagram.sender).ok_or(Refusal::UnknownSender)?;
        if !datagram.is_of(&agent.pair) {
            return Err(Refusal::Forged);
        }
        if datagram.counter <= agent.counter {
            return Err(Refusal::Replayed);
        }
        agent.counter = datagram.counter;
        agent.heard = (datagram.message != Message::Leaving).then_some(now);
        Ok(Received { sender: datagram.sender, message: datagram.message })
    }

    /// Time goes on; more than [`PAUSE_MAX`] since the last tick, and we were not listening: what lies unread was sent
    /// meanwhile, or was dropped, and no agent was silent.
    pub fn tick(&mut self, now: Instant) {
        if self.is_behind(now) {
            for agent in self.agents.values_mut().filter(|agent| agent.heard.is_some()) {
                agent.heard = Some(now);
            }
        }
        self.ticked = now;
    }

    /// Whether nobody knows what was said of late.
    pub fn is_behind(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.ticked) > PAUSE_MAX
    }

    /// The agent of a node.
    pub fn of(&self, node: &str) -> Option<&Agent> {
        self.by_node.get(node).and_then(|id| self.agents.get(id))
    }

    /// The agent with that key.
    pub fn by_key(&self, id: KeyId) -> Option<&Agent> {
        self.agents.get(&id)
    }

    /// The keys of all agents in order.
    pub fn ring(&self) -> &BTreeSet<KeyId> {
        &self.ring
    }

    /// All agents, by the names of their nodes.
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.by_node.values().filter_map(|id| self.agents.get(id))
    }
}
