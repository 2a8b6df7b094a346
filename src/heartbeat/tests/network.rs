//! A network in memory: agents and a replica that run the protocol, on a clock that the test moves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::super::agent::{Agent, Outgoing};
use super::super::keys::KeyPair;
use super::super::monitor::{Monitor, Sight};
use super::super::replicas::Replica;
use super::super::tracker::{Known, Refusal};
use super::super::verdict::Verdict;
use super::{address, keys};

pub const AFTER: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(100);

/// Agents `n0`, `n1` … and a replica.
pub struct Network {
    pub monitor: Monitor,
    pub agents: BTreeMap<usize, Agent>,
    known: BTreeMap<usize, Known>,
    pub now: Instant,
    step: u64,
    fresh: u128,
    dice: u64,
    /// Agents that are off: they neither send nor receive.
    pub off: BTreeSet<usize>,
    /// Ways that are cut: the datagrams of the first do not reach the second. `None` is the replica.
    pub cut: BTreeSet<(Option<usize>, Option<usize>)>,
    /// Whether the replica looks and listens.
    pub is_paused: bool,
    /// Whether it asks peers.
    pub asks: bool,
    /// Of a thousand datagrams so many are lost.
    pub loss: u64,
    pub verdicts: Vec<Verdict>,
    pub refused: Vec<Refusal>,
    /// All that reached the replica.
    pub taped: Vec<Vec<u8>>,
}

impl Network {
    /// So many agents; those with odd numbers in another zone, if there are zones.
    pub fn new(agents: usize, zones: &[&str]) -> Self {
        let now = Instant::now() + Duration::from_secs(3600);
        let mut network = Self {
            monitor: Monitor::new(keys(255), now),
            agents: BTreeMap::new(),
            known: BTreeMap::new(),
            now,
            step: 0,
            fresh: 1,
            dice: 1,
            off: BTreeSet::new(),
            cut: BTreeSet::new(),
            is_paused: false,
            asks: true,
            loss: 0,
            verdicts: Vec::new(),
            refused: Vec::new(),
            taped: Vec::new(),
        };
        for number in 0..agents {
            let zone = zones.get(number % zones.len().max(1)).map(|zone| (*zone).to_owned());
            network.begin(number, keys(number as u8 + 1), zone);
        }
        network
    }

    /// An agent's process begins, and its node's report tells of it.
    pub fn begin(&mut self, number: usize, keys: KeyPair, zone: Option<String>) {
        self.begin_with(number, Agent::new(keys.clone()), keys, zone);
    }

    /// The same with what an earlier process knew.
    pub fn begin_with(&mut self, number: usize, mut agent: Agent, keys: KeyPair, zone: Option<String>) {
        let known = Known { key: keys.public(), at: address(number as u16), zone, is_ready: true };
        agent.set_replicas(&[self.replica()]);
        self.monitor.know(&name(number), Some(known.clone()));
        self.known.insert(number, known);
        self.agents.insert(number, agent);
    }

    /// The kubelet of its node is well no more, or is again.
    pub fn set_ready(&mut self, number: usize, is_ready: bool) {
        let known = self.known.get_mut(&number).unwrap();
        known.is_ready = is_ready;
        self.monitor.know(&name(number), Some(known.clone()));
    }

    pub fn replica(&self) -> Replica {
        Replica { key: self.monitor.key(), at: address(999) }
    }

    /// The replica's process begins anew: other keys, empty memory.
    pub fn restart_replica(&mut self, keys: KeyPair) {
        self.monitor = Monitor::new(keys, self.now);
        for (number, known) in &self.known {
            self.monitor.know(&name(*number), Some(known.clone()));
        }
    }

    pub fn tell_replica(&mut self) {
        let replica = self.replica();
        self.agents.values_mut().for_each(|agent| agent.set_replicas(&[replica]));
    }

    pub fn of(&self, number: usize) -> Sight {
        self.monitor.of(&name(number), self.now)
    }

    pub fn run(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / STEP.as_millis() {
            self.step();
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        self.step += 1;
        let now = self.now;
        let mut flying: VecDeque<(Option<usize>, Outgoing)> = VecDeque::new();
        for (number, agent) in self.agents.iter_mut().filter(|(number, _)| !self.off.contains(number)) {
            let mut beats = Vec::new();
            if self.step.is_multiple_of(10) {
                let fresh = &mut self.fresh;
                let nonce = || {
                    *fresh += 1;
                    Ok((*fresh << 64 | *fresh).to_be_bytes())
                };
                beats = agent.beat();
                beats.extend(agent.ask_neighbours(nonce).unwrap());
            }
            flying.extend(beats.into_iter().chain(agent.due(now)).map(|out| (Some(*number), out)));
        }
        if self.step.is_multiple_of(2) && !self.is_paused {
            let fresh = &mut self.fresh;
            let mut nonce = || {
                *fresh += 1;
                Ok((*fresh << 64 | *fresh).to_be_bytes())
            };
            let look = self.monitor.look(self.asks.then_some(AFTER), now, &mut nonce).unwrap();
            self.verdicts.extend(look.verdicts);
            flying.extend(look.send.into_iter().map(|out| (None, out)));
        }
        while let Some((from, (to, datagram))) = flying.pop_front() {
            let to = self.whose(to);
            flying.extend(self.deliver(from, to, &datagram).into_iter().map(|out| (to, out)));
        }
    }

    fn whose(&self, at: SocketAddr) -> Option<usize> {
        self.known.iter().find(|(_, known)| known.at == at).map(|(number, _)| *number)
    }

    fn deliver(&mut self, from: Option<usize>, to: Option<usize>, datagram: &[u8]) -> Vec<Outgoing> {
        if self.cut.contains(&(from, to)) || self.is_lost() {
            return Vec::new();
        }
        let Some(number) = to else {
            if !self.is_paused {
                self.taped.push(datagram.to_vec());
                self.refused.extend(self.monitor.receive(datagram, self.now).err());
            }
            return Vec::new();
        };
        let source = from.map_or(self.replica().at, |number| address(number as u16));
        let is_off = self.off.contains(&number);
        let agent = self.agents.get_mut(&number).filter(|_| !is_off);
        agent.map(|agent| agent.receive(source, datagram, self.now)).unwrap_or_default()
    }
}

impl Network {
    /// The same for each run (the constants are those of Knuth's MMIX).
    fn is_lost(&mut self) -> bool {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % 1_000 < self.loss
    }

    /// Cuts a node off from everybody.
    pub fn cut_off(&mut self, number: usize) {
        for other in self.agents.keys().copied().map(Some).chain([None]) {
            self.cut.extend([(Some(number), other), (other, Some(number))]);
        }
    }
}

pub fn name(number: usize) -> String {
    format!("n{number}")
}
