//! The agent's side: beats for every replica, echoes for whoever carries a replica's probe here, and errands for replicas
//! that ask about others; and what it hears of its neighbours. No socket, no clock: what comes in is given, what goes out is returned.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::keys::{KeyId, KeyPair, PairKey};
use super::peers::{Acquaintance, Heard, Peers};
use super::replicas::Replica;
use super::wire::{self, Carried, Datagram, Errand, Message, Neighbour, Nonce};

/// A probe that nobody answered is sent once more after this time.
const REPEAT: Duration = Duration::from_millis(200);
/// What came back until then is told.
const DEADLINE: Duration = Duration::from_millis(500);
/// Errands under way at once; more are not begun.
const ERRANDS_MAX: usize = 64;

/// A datagram, and where to.
pub type Outgoing = (SocketAddr, Vec<u8>);

/// The state of an agent.
#[derive(Debug)]
pub struct Agent {
    keys: KeyPair,
    counter: u64,
    replicas: Vec<Known>,
    errands: Vec<Errands>,
    /// Its neighbours; at first those that an earlier process knew, under that one's key.
    peers: Peers,
    /// Whether a replica has introduced them to this process.
    is_introduced: bool,
}

#[derive(Debug)]
struct Known {
    replica: Replica,
    id: KeyId,
    pair: PairKey,
    /// The highest counter of an Ask or an Introduce.
    counter: u64,
}

/// What a replica asked for.
#[derive(Debug)]
struct Errands {
    replica: KeyId,
    round: u64,
    target: Sent,
    witness: Sent,
    asked: Instant,
    repeated: bool,
}

#[derive(Debug)]
struct Sent {
    errand: Errand,
    nonce: Nonce,
    echo: Option<Carried>,
}

impl Agent {
    /// An agent that knows no replica yet.
    pub fn new(keys: KeyPair) -> Self {
        let peers = Peers::new(keys.clone());
        Self { keys, counter: 0, replicas: Vec::new(), errands: Vec::new(), peers, is_introduced: false }
    }

    /// An agent that asks those first that an earlier process on its node knew.
    pub fn after(keys: KeyPair, earlier: &Acquaintance) -> Self {
        Self { peers: Peers::of(earlier), ..Self::new(keys) }
    }

    /// From now on these are the replicas. What is known of one that stays is kept.
    pub fn set_replicas(&mut self, replicas: &[Replica]) {
        let mut before = std::mem::take(&mut self.replicas);
        for replica in replicas {
            let id = replica.key.id();
            let known = before.iter().position(|known| known.id == id).map(|place| before.swap_remove(place));
            let known = known.map(|known| Known { replica: *replica, ..known }).or_else(|| {
                let pair = self.keys.with_replica(replica.key)?;
                Some(Known { replica: *replica, id, pair, counter: 0 })
            });
            self.replicas.extend(known);
        }
    }

    /// One beat for every replica.
    pub fn beat(&mut self) -> Vec<Outgoing> {
        self.for_all(&Message::Heartbeat)
    }

    /// The last words.
    pub fn leave(&mut self) -> Vec<Outgoing> {
        let mut out = self.for_all(&Message::Leaving);
        out.extend(self.peers.leave());
        out
    }

    /// A question for each neighbour. `fresh` gives nonces that nobody can guess.
    pub fn ask_neighbours(&mut self, fresh: impl FnMut() -> io::Result<Nonce>) -> io::Result<Vec<Outgoing>> {
        self.peers.ask(fresh)
    }

    /// What is heard of the neighbours.
    pub fn heard(&self) -> Heard {
        self.peers.heard()
    }

    /// What a later process needs to ask them.
    pub fn acquaintance(&self) -> Acquaintance {
        self.peers.acquaintance()
    }

    fn for_all(&mut self, message: &Message) -> Vec<Outgoing> {
        self.counter += 1;
        let (sender, counter) = (self.keys.public().id(), self.counter);
        let sealed = |known: &Known| (known.replica.at, wire::seal(&known.pair, sender, counter, message));
        self.replicas.iter().map(sealed).collect()
    }

    /// Takes a datagram in. What is not for us, or not of whom it should be, is not answered.
    pub fn receive(&mut self, from: SocketAddr, bytes: &[u8], now: Instant) -> Vec<Outgoing> {
        let Some(datagram) = wire::parse(bytes) else { return Vec::new() };
        match &datagram.message {
            Message::Probe(nonce) => match self.echo(from, &datagram, *nonce) {
                Some(echo) => vec![echo],
                None => self.peers.receive(from, &datagram, now).into_iter().collect(),
            },
            Message::Echo(nonce) => {
                self.peers.receive(from, &datagram, now);
                self.brought(*nonce, bytes)
            }
            Message::Ask { round, target, witness } => self.ask(&datagram, *round, *target, *witness, now),
            Message::Introduce(neighbours) => self.introduced(&datagram, neighbours),
            Message::Leaving => self.peers.receive(from, &datagram, now).into_iter().collect(),
            Message::Heartbeat | Message::Answer { .. } => Vec::new(),
        }
    }

    fn introduced(&mut self, datagram: &Datagram, neighbours: &[Neighbour]) -> Vec<Outgoing> {
        if !self.is_next_of_replica(datagram) {
            return Vec::new();
        }
        if !std::mem::replace(&mut self.is_introduced, true) {
            self.peers = Peers::new(self.keys.clone());
        }
        self.peers.introduced(neighbours);
        Vec::new()
    }

    /// Whether it is of a replica, and newer than all before of it.
    fn is_next_of_replica(&mut self, datagram: &Datagram) -> bool {
        let known = self.replicas.iter_mut().find(|known| known.id == datagram.sender);
        let known = known.filter(|known| datagram.is_of(&known.pair) && known.counter < datagram.counter);
        known.map(|known| known.counter = datagram.counter).is_some()
    }

    /// Only a replica can make a probe, and its nonce is good for one answer: who sends it again learns nothing.
    fn echo(&mut self, from: SocketAddr, datagram: &Datagram, nonce: Nonce) -> Option<Outgoing> {
        let known = self.replicas.iter().find(|known| known.id == datagram.sender)?;
        if !datagram.is_of(&known.pair) {
            return None;
        }
        self.counter += 1;
        Some((from, wire::seal(&known.pair, self.keys.public().id(), self.counter, &Message::Echo(nonce))))
    }

    fn ask(&mut self, datagram: &Datagram, round: u64, target: Errand, witness: Errand, now: Instant) -> Vec<Outgoing> {
        if !self.is_next_of_replica(datagram) {
            return Vec::new();
        }
        let (Some(target), Some(witness)) = (Sent::new(target), Sent::new(witness)) else { return Vec::new() };
        if self.errands.len() >= ERRANDS_MAX {
            return Vec::new();
        }
        let errands = Errands { replica: datagram.sender, round, target, witness, asked: now, repeated: false };
        let sent = errands.unanswered();
        self.errands.push(errands);
        sent
    }

    /// An echo came back. Whether it is one only the replica can tell.
    fn brought(&mut self, nonce: Nonce, bytes: &[u8]) -> Vec<Outgoing> {
        let carried = wire::carried(bytes);
        let found = |errands: &mut Errands| {
            let sent = [&mut errands.target, &mut errands.witness].into_iter().find(|sent| sent.nonce == nonce);
            sent.is_some_and(|sent| {
                sent.echo = carried;
                true
            })
        };
        // An echo of the target is news; the witness alone is not.
        match self.errands.iter_mut().position(found) {
            Some(place) if self.errands.get(place).is_some_and(Errands::is_done) => self.finish(place),
            _ => Vec::new(),
        }
    }

    /// What is due: probes to repeat, answers to give.
    pub fn due(&mut self, now: Instant) -> Vec<Outgoing> {
        let mut out = Vec::new();
        while let Some(place) = self.errands.iter().position(|errands| now >= errands.asked + DEADLINE) {
            out.extend(self.finish(place));
        }
        for errands in self.errands.iter_mut().filter(|errands| !errands.repeated && now >= errands.asked + REPEAT) {
            errands.repeated = true;
            out.extend(errands.unanswered());
        }
        out
    }

    /// When something is due next.
    pub fn next_due(&self) -> Option<Instant> {
        let due = |errands: &Errands| errands.asked + if errands.repeated { DEADLINE } else { REPEAT };
        self.errands.iter().map(due).min()
    }

    /// Tells the replica.
    fn finish(&mut self, place: usize) -> Vec<Outgoing> {
        let Errands { replica, round, target, witness, .. } = self.errands.swap_remove(place);
        let Some(known) = self.replicas.iter().find(|known| known.id == replica) else { return Vec::new() };
        self.counter += 1;
        let answer = Message::Answer { round, target: target.echo, witness: witness.echo };
        vec![(known.replica.at, wire::seal(&known.pair, self.keys.public().id(), self.counter, &answer))]
    }
}

impl Errands {
    fn is_done(&self) -> bool {
        // One echo of the target decides the round, whoever else answers.
        self.target.echo.is_some()
    }

    fn unanswered(&self) -> Vec<Outgoing> {
        let both = [&self.target, &self.witness].into_iter().filter(|sent| sent.echo.is_none());
        both.map(|sent| (sent.errand.to, sent.errand.probe.to_vec())).collect()
    }
}

impl Sent {
    /// `None` for what is no probe: we carry nothing else for anybody.
    fn new(errand: Errand) -> Option<Self> {
        match wire::parse(&errand.probe)?.message {
            Message::Probe(nonce) => Some(Self { errand, nonce, echo: None }),
            _ => None,
        }
    }
}
