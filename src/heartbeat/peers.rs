//! The agents next to an agent, which it asks once a second whether they are there: who hears none of them, and not the API
//! either, is alone. Replicas introduce them; from then on no replica and no API is needed. No socket, no clock.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::agent::Outgoing;
use super::keys::{KeyId, KeyPair, PairKey, PublicKey};
use super::wire::{self, Datagram, Message, Neighbour, Nonce};

/// A neighbour that was not heard for this long before the last one was is not one of those that fell silent then.
const TOGETHER: Duration = Duration::from_secs(10);

/// What is heard of the neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// When one of them answered last.
    pub at: Option<Instant>,
    /// How many answered then or shortly before.
    pub neighbours: usize,
}

/// By what neighbours know an agent, and it them: kept on the node's disk, so that a process that starts while the API is
/// away can ask those that its predecessor knew. They know that one's key, and not its own.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquaintance {
    secret: [u8; 32],
    neighbours: Vec<(String, SocketAddr)>,
}

/// The neighbours of an agent.
#[derive(Debug)]
pub struct Peers {
    keys: KeyPair,
    counter: u64,
    known: BTreeMap<KeyId, Known>,
}

#[derive(Debug)]
struct Known {
    neighbour: Neighbour,
    pair: PairKey,
    /// That of the question that it has not answered yet.
    nonce: Option<Nonce>,
    heard: Option<Instant>,
}

impl Peers {
    /// None yet.
    pub fn new(keys: KeyPair) -> Self {
        Self { keys, counter: 0, known: BTreeMap::new() }
    }

    /// Those of an earlier process, under its key.
    pub fn of(acquaintance: &Acquaintance) -> Self {
        let mut peers = Self::new(KeyPair::from_secret(acquaintance.secret));
        let neighbour = |(key, at): &(String, SocketAddr)| Some(Neighbour { key: PublicKey::parse(key)?, at: *at });
        let neighbours: Vec<_> = acquaintance.neighbours.iter().filter_map(neighbour).collect();
        peers.introduced(&neighbours);
        peers
    }

    /// What a later process needs.
    pub fn acquaintance(&self) -> Acquaintance {
        let neighbours =
            self.known.values().map(|known| (known.neighbour.key.to_string(), known.neighbour.at)).collect();
        Acquaintance { secret: self.keys.secret(), neighbours }
    }

    /// From now on these are the neighbours. What was heard of one that stays still counts.
    pub fn introduced(&mut self, neighbours: &[Neighbour]) {
        let mut before = std::mem::take(&mut self.known);
        for neighbour in neighbours {
            let id = neighbour.key.id();
            let known = before.remove(&id).map(|known| Known { neighbour: *neighbour, ..known });
            let known = known.or_else(|| {
                let pair = self.keys.with_peer(neighbour.key)?;
                Some(Known { neighbour: *neighbour, pair, nonce: None, heard: None })
            });
            self.known.extend(known.map(|known| (id, known)));
        }
    }

    /// Asks each of them. `fresh` gives nonces that nobody can guess.
    pub fn ask(&mut self, mut fresh: impl FnMut() -> io::Result<Nonce>) -> io::Result<Vec<Outgoing>> {
        let sender = self.keys.public().id();
        let mut out = Vec::new();
        for known in self.known.values_mut() {
            let nonce = fresh()?;
            known.nonce = Some(nonce);
            self.counter += 1;
            out.push((known.neighbour.at, wire::seal(&known.pair, sender, self.counter, &Message::Probe(nonce))));
        }
        Ok(out)
    }

    /// Takes a datagram of one of them in; nothing to send for what is not.
    pub fn receive(&mut self, from: SocketAddr, datagram: &Datagram, now: Instant) -> Option<Outgoing> {
        let known = self.known.get_mut(&datagram.sender).filter(|known| datagram.is_of(&known.pair))?;
        match &datagram.message {
            Message::Probe(nonce) => {
                self.counter += 1;
                let echo = Message::Echo(*nonce);
                Some((from, wire::seal(&known.pair, self.keys.public().id(), self.counter, &echo)))
            }
            // Each nonce is good for one answer: what is sent again tells nothing.
            Message::Echo(nonce) if known.nonce == Some(*nonce) => {
                known.nonce = None;
                known.heard = Some(now);
                None
            }
            // Its silence from now on says nothing. Said again by somebody, it only makes us wait.
            Message::Leaving => {
                known.heard = None;
                None
            }
            _ => None,
        }
    }

    /// The last words.
    pub fn leave(&mut self) -> Vec<Outgoing> {
        self.counter += 1;
        let (sender, counter) = (self.keys.public().id(), self.counter);
        let sealed = |known: &Known| (known.neighbour.at, wire::seal(&known.pair, sender, counter, &Message::Leaving));
        self.known.values().map(sealed).collect()
    }

    /// What is heard of them.
    pub fn heard(&self) -> Heard {
        let heard = || self.known.values().filter_map(|known| known.heard);
        let at = heard().max();
        Heard { at, neighbours: heard().filter(|one| at.is_some_and(|at| *one + TOGETHER >= at)).count() }
    }
}

impl std::fmt::Debug for Acquaintance {
    /// Never the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acquaintance").field("neighbours", &self.neighbours).finish_non_exhaustive()
    }
}
