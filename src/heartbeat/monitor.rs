//! The controller's side: who is heard, and what the peers of those say that are not. No socket, no clock: what comes in
//! is given, what goes out is returned.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use super::agent::Outgoing;
use super::keys::{KeyId, KeyPair, PublicKey};
use super::neighbours::Introductions;
use super::tracker::{Agent, Known, Refusal, Tracker};
use super::verdict::{self, Round, Sealer, Verdict};
use super::wire::{self, Message, Nonce};

/// How long a verdict counts.
const FRESH: Duration = Duration::from_secs(5);
/// How soon the peers are asked again.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Rounds under way at once: of more nodes nothing would be believed anyhow.
const ROUNDS_MAX: usize = 32;

/// What is known of one node's agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Time since it was heard last; none for one that was never heard, or that said good-bye.
    pub silent_for: Option<Duration>,
    /// What its peers said of it since.
    pub verdict: Option<Verdict>,
    /// Time since it was heard last, by us or by a peer that we asked: from then on it may know that it is alone.
    pub out_of_reach_for: Option<Duration>,
}

/// How many agents there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Heard.
    pub heard: usize,
    /// Heard once, and not any more.
    pub silent: usize,
    /// Not heard, or not any more, though they say that they send and their nodes are Ready: what they send does not arrive.
    pub missing: usize,
}

/// What came of a look.
#[derive(Debug, Default)]
pub struct Look {
    /// To be sent.
    pub send: Vec<Outgoing>,
    /// Verdicts that were reached.
    pub verdicts: Vec<Verdict>,
    /// Whether there is something new to decide on.
    pub changed: bool,
}

/// The state of a replica.
#[derive(Debug)]
pub struct Monitor {
    tracker: Tracker,
    counter: u64,
    rounds: BTreeMap<u64, Round>,
    verdicts: BTreeMap<String, Reached>,
    /// When peers reached the agents last that we do not hear.
    echoed: BTreeMap<String, Instant>,
    lost: BTreeSet<String>,
    rounds_begun: u64,
    introductions: Introductions,
}

#[derive(Clone, Copy, Debug)]
struct Reached {
    target: KeyId,
    verdict: Verdict,
    began: Instant,
    at: Instant,
}

impl Monitor {
    /// Knows nobody yet.
    pub fn new(keys: KeyPair, now: Instant) -> Self {
        Self {
            tracker: Tracker::new(keys, now),
            counter: 0,
            rounds: BTreeMap::new(),
            verdicts: BTreeMap::new(),
            echoed: BTreeMap::new(),
            lost: BTreeSet::new(),
            rounds_begun: 0,
            introductions: Introductions::default(),
        }
    }

    /// Whether agents are introduced to each other.
    pub fn introduce(&mut self, is_on: bool) {
        self.introductions.set(is_on);
    }

    /// Our own key.
    pub fn key(&self) -> PublicKey {
        self.tracker.key()
    }

    /// What is known of a node's agent now.
    pub fn know(&mut self, node: &str, known: Option<Known>) {
        self.tracker.know(node, known);
    }

    /// Takes a datagram in.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) -> Result<(), Refusal> {
        let received = self.tracker.receive(bytes, now)?;
        self.introductions.heard(received.sender, now);
        let Message::Answer { round, target, witness } = received.message else { return Ok(()) };
        self.rounds.get_mut(&round).ok_or(Refusal::Unexpected)?.take(received.sender, target, witness)
    }

    /// Looks who is silent. With `ask` the peers are asked about those that are silent for longer than that. `fresh` gives
    /// nonces that nobody can guess.
    pub fn look(
        &mut self,
        ask: Option<Duration>,
        now: Instant,
        mut fresh: impl FnMut() -> io::Result<Nonce>,
    ) -> io::Result<Look> {
        let mut look = Look::default();
        if self.tracker.is_behind(now) {
            self.rounds.clear();
            self.verdicts.clear();
        }
        self.tracker.tick(now);
        self.finish(&mut look, now);
        self.tell_neighbours(&mut look, now);
        let Some(after) = ask else { return Ok(look) };
        let is_lost = |agent: &&Agent| agent.silent_for(now).is_some_and(|silent| silent >= after);
        let lost: BTreeSet<_> = self.tracker.agents().filter(is_lost).map(|agent| agent.node.clone()).collect();
        for node in &lost {
            let is_due = self.verdicts.get(node).is_none_or(|reached| now >= reached.at + ASK_EVERY);
            let is_asked = self.rounds.values().any(|round| round.node == *node);
            if is_due && !is_asked && self.rounds.len() < ROUNDS_MAX {
                self.begin(node, &mut look, now, &mut fresh)?;
            }
        }
        look.changed |= lost != self.lost;
        self.lost = lost;
        Ok(look)
    }

    fn begin(
        &mut self,
        node: &str,
        look: &mut Look,
        now: Instant,
        fresh: &mut impl FnMut() -> io::Result<Nonce>,
    ) -> io::Result<()> {
        let Some(target) = self.tracker.of(node) else { return Ok(()) };
        let [seed, _] = halves(fresh()?);
        let Some(peers) = verdict::peers(&self.tracker, target, seed, now) else {
            let reached = Reached { target: target.id, verdict: Verdict::TooFewPeers, began: now, at: now };
            look.verdicts.push(reached.verdict);
            self.verdicts.insert(node.to_owned(), reached);
            return Ok(());
        };
        self.rounds_begun += 1;
        let sealer = Sealer { sender: self.tracker.key().id(), counter: &mut self.counter, fresh };
        let (round, send) = Round::begin(self.rounds_begun, target, &peers, sealer, now)?;
        self.rounds.insert(self.rounds_begun, round);
        look.send.extend(send);
        Ok(())
    }

    fn tell_neighbours(&mut self, look: &mut Look, now: Instant) {
        for (id, message) in self.introductions.due(&self.tracker, now) {
            let Some(agent) = self.tracker.by_key(id) else { continue };
            self.counter += 1;
            let sealed = wire::seal(&agent.pair, self.tracker.key().id(), self.counter, &message);
            look.send.push((agent.known.at, sealed));
        }
    }

    fn finish(&mut self, look: &mut Look, now: Instant) {
        self.rounds.retain(|_, round| {
            let Some(verdict) = round.verdict(now) else { return true };
            let reached = Reached { target: round.target, verdict, began: round.began, at: now };
            if verdict == Verdict::Reachable {
                self.echoed.insert(round.node.clone(), now);
            }
            self.verdicts.insert(round.node.clone(), reached);
            look.verdicts.push(verdict);
            look.changed = true;
            false
        });
        let tracker = &self.tracker;
        // Of a node that is heard again nothing of before counts.
        self.verdicts.retain(|node, reached| tracker.of(node).is_some_and(|agent| reached.is_of(agent, now)));
        let is_newer = |node: &str, at: &Instant| {
            let silent = tracker.of(node).and_then(|agent| agent.silent_for(now));
            silent.is_some_and(|silent| now.saturating_duration_since(*at) < silent)
        };
        self.echoed.retain(|node, at| is_newer(node, at));
    }

    /// What is known of a node's agent; nothing while nobody listened.
    pub fn of(&self, node: &str, now: Instant) -> Sight {
        let Some(agent) = self.tracker.of(node).filter(|_| !self.tracker.is_behind(now)) else {
            return Sight::default();
        };
        let verdict = self.verdicts.get(node).filter(|reached| reached.is_of(agent, now));
        let silent_for = agent.silent_for(now);
        let echoed_for = self.echoed.get(node).map(|at| now.saturating_duration_since(*at));
        let out_of_reach_for = silent_for.map(|silent| silent.min(echoed_for.unwrap_or(silent)));
        Sight { silent_for, verdict: verdict.map(|reached| reached.verdict), out_of_reach_for }
    }

    /// How many agents are heard, and how many are not.
    pub fn count(&self, silent_after: Duration, now: Instant) -> Counts {
        let mut counts = Counts::default();
        for agent in self.tracker.agents() {
            let is_silent = agent.silent_for(now).map(|silent| silent >= silent_after);
            counts.heard += usize::from(is_silent == Some(false));
            counts.silent += usize::from(is_silent == Some(true));
            counts.missing += usize::from(is_silent != Some(false) && agent.known.is_ready);
        }
        counts
    }
}

impl Reached {
    /// Whether it is of this very process, of a round since it was heard last, and not too old.
    fn is_of(&self, agent: &Agent, now: Instant) -> bool {
        let passed = |since: Instant| now.saturating_duration_since(since);
        let since_heard = agent.silent_for(now).is_some_and(|silent| passed(self.began) < silent);
        self.target == agent.id && since_heard && passed(self.at) <= FRESH
    }
}

fn halves(nonce: Nonce) -> [u64; 2] {
    let number = u128::from_be_bytes(nonce);
    [(number >> 64) as u64, number as u64]
}
