//! What the peers of a silent node say. They carry probes of ours to it, each with a nonce of its own, and bring back what
//! they got. An echo that only the node itself can have made vetoes; nobody else's word does. That a node is out of reach is
//! said by peers alone that proved in the same round that they reach somebody.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use super::agent::Outgoing;
use super::keys::{KeyId, PairKey};
use super::tracker::{Agent, Refusal, Tracker};
use super::wire::{self, Carried, Errand, Message, Nonce};

/// A peer is asked only if it was heard within this time.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// Fewer peers are not asked.
pub const PEERS_MIN: usize = 3;
/// More peers are not asked.
const PEERS_MAX: usize = 5;
/// Of them, outside the topology domain of the node.
const OUTSIDE_MIN: usize = 2;
/// Of them, preferred outside: those inside are the ones most likely to reach the node.
const OUTSIDE_WANTED: usize = 3;
/// Explicit answers without which nothing is out of reach.
const AGAINST_MIN: usize = 2;
/// How often is looked who is silent.
pub(super) const LOOK: Duration = Duration::from_millis(200);
/// How long a round lasts at most: longer than a peer takes.
const PATIENCE: Duration = Duration::from_millis(1200);

/// What a round came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The node answered.
    Reachable,
    /// It did not, and most of the asked say so.
    Unreachable {
        /// How many say so.
        against: usize,
        /// How many were asked.
        asked: usize,
    },
    /// Neither.
    Inconclusive,
    /// Nobody could be asked.
    TooFewPeers,
}

/// When at the latest the peers have been heard of an agent that is asked about after so long a silence: a look finds it silent,
/// and another that the round is over.
pub fn reached_after(silence: Duration) -> Duration {
    silence + LOOK + PATIENCE + LOOK
}

/// The peers to ask about a node; none while there are too few. `seed` makes rounds differ.
pub fn peers<'a>(tracker: &'a Tracker, target: &Agent, seed: u64, now: Instant) -> Option<Vec<&'a Agent>> {
    let other = |agent: &&Agent| agent.id != target.id;
    let is_heard = |agent: &&Agent| agent.silent_for(now).is_some_and(|silent| silent <= HEARD_WITHIN);
    let mut eligible: Vec<_> = tracker.agents().filter(other).filter(is_heard).collect();
    eligible.sort_by_cached_key(|agent| shuffled(agent.id, seed));
    let is_outside = |agent: &&Agent| agent.known.zone != target.known.zone;
    // Where all nodes are of one domain, domains tell nothing.
    let has_domains = target.known.zone.is_some() && tracker.agents().any(|agent| is_outside(&agent));
    let mut chosen: Vec<_> = match has_domains {
        true => {
            let (outside, inside): (Vec<_>, Vec<_>) = eligible.into_iter().partition(is_outside);
            if outside.len() < OUTSIDE_MIN {
                return None;
            }
            let (first, rest) = outside.split_at(OUTSIDE_WANTED.min(outside.len()));
            first.iter().copied().chain(inside).chain(rest.iter().copied()).collect()
        }
        false => eligible,
    };
    chosen.truncate(PEERS_MAX);
    (chosen.len() >= PEERS_MIN).then_some(chosen)
}

/// An order of keys that nobody can choose (the constant is that of Fibonacci hashing).
fn shuffled(id: KeyId, seed: u64) -> u64 {
    (u64::from_be_bytes(id.0) ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32) ^ seed
}

/// One round of questions about one node.
#[derive(Debug)]
pub struct Round {
    /// The node.
    pub node: String,
    /// Its agent's key.
    pub target: KeyId,
    /// When it began.
    pub began: Instant,
    pair: PairKey,
    asked: BTreeMap<KeyId, Asked>,
}

#[derive(Debug)]
struct Asked {
    nonce: Nonce,
    witness: KeyId,
    witness_pair: PairKey,
    witness_nonce: Nonce,
    vote: Option<Vote>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vote {
    /// It brought the node's echo.
    Reaches,
    /// It reaches somebody, but not the node.
    Against,
    /// It reaches nobody, or brought what nobody can have sent.
    None,
}

/// What makes and numbers our datagrams.
pub struct Sealer<'a, F> {
    /// Our key.
    pub sender: KeyId,
    /// Our counter.
    pub counter: &'a mut u64,
    /// Gives nonces that nobody can guess.
    pub fresh: F,
}

impl<F: FnMut() -> io::Result<Nonce>> Sealer<'_, F> {
    fn seal(&mut self, pair: &PairKey, message: &Message) -> Vec<u8> {
        *self.counter += 1;
        wire::seal(pair, self.sender, *self.counter, message)
    }

    fn errand(&mut self, agent: &Agent) -> io::Result<(Errand, Nonce)> {
        let nonce = (self.fresh)()?;
        let sealed = self.seal(&agent.pair, &Message::Probe(nonce));
        let probe = wire::carried(&sealed).ok_or(io::ErrorKind::InvalidData)?;
        Ok((Errand { to: agent.known.at, probe }, nonce))
    }
}

impl Round {
    /// Asks these peers about a node; the next of them is each one's witness.
    pub fn begin<F: FnMut() -> io::Result<Nonce>>(
        round: u64,
        target: &Agent,
        peers: &[&Agent],
        mut sealer: Sealer<F>,
        now: Instant,
    ) -> io::Result<(Self, Vec<Outgoing>)> {
        let (mut asked, mut out) = (BTreeMap::new(), Vec::new());
        for (peer, next) in peers.iter().zip(peers.iter().cycle().skip(1)) {
            let (target, nonce) = sealer.errand(target)?;
            let (witness, witness_nonce) = sealer.errand(next)?;
            out.push((peer.known.at, sealer.seal(&peer.pair, &Message::Ask { round, target, witness })));
            let row = Asked { nonce, witness: next.id, witness_pair: next.pair.clone(), witness_nonce, vote: None };
            asked.insert(peer.id, row);
        }
        let (node, pair) = (target.node.clone(), target.pair.clone());
        Ok((Self { node, target: target.id, began: now, pair, asked }, out))
    }

    /// Takes a peer's answer in: one of each.
    pub fn take(&mut self, peer: KeyId, target: Option<Carried>, witness: Option<Carried>) -> Result<(), Refusal> {
        let asked = self.asked.get_mut(&peer).filter(|asked| asked.vote.is_none()).ok_or(Refusal::Unexpected)?;
        let echoes = |echo: &Carried| is_echo(echo, self.target, &self.pair, asked.nonce);
        let witnesses = |echo: &Carried| is_echo(echo, asked.witness, &asked.witness_pair, asked.witness_nonce);
        let vote = match (target, witness) {
            (Some(echo), _) if echoes(&echo) => Vote::Reaches,
            (None, Some(echo)) if witnesses(&echo) => Vote::Against,
            _ => Vote::None,
        };
        asked.vote = Some(vote);
        Ok(())
    }

    /// What it comes to, once that can be told.
    pub fn verdict(&self, now: Instant) -> Option<Verdict> {
        let votes = |wanted| self.asked.values().filter(|asked| asked.vote == Some(wanted)).count();
        if votes(Vote::Reaches) > 0 {
            return Some(Verdict::Reachable);
        }
        let is_over = now >= self.began + PATIENCE || self.asked.values().all(|asked| asked.vote.is_some());
        if !is_over {
            return None;
        }
        let (against, asked) = (votes(Vote::Against), self.asked.len());
        match against >= AGAINST_MIN && against * 2 > asked {
            true => Some(Verdict::Unreachable { against, asked }),
            false => Some(Verdict::Inconclusive),
        }
    }
}

fn is_echo(echo: &Carried, of: KeyId, pair: &PairKey, nonce: Nonce) -> bool {
    let parsed = wire::parse(echo);
    parsed.is_some_and(|echo| echo.sender == of && echo.message == Message::Echo(nonce) && echo.is_of(pair))
}
