//! Channel Power: what external fencers see of the nodes' power before anybody asks them for a fence (docs/adr/0028). Their word
//! comes by another way than the node's own, so beside its silence it makes a failure certain within seconds. It is
//! evidence and never a proof: what releases a pod is the fencer's answer to a FenceRequest. A machine that is heard has
//! power, whatever is said of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::driver_report::PoweredOffNode;
use crate::api::node_fence::{Channel, Evidence, EvidenceState};
use crate::api::slim::Node;
use crate::api::time;
use crate::mutants::{self, Mutant};

use super::decide::{Seen, live_policies};
use super::evidence::Silence;
use super::heartbeat::{self, Heartbeat, TWO_RENEWALS};
use super::select::Effective;
use super::storage::Reports;

/// How long after the end of a machine something that it had sent before may still arrive.
const IN_FLIGHT: Duration = Duration::from_secs(2);

/// That a Lease contradicts a word: one that was only found does too, though nobody saw the kubelet renew it.
const RENEWED: &str = "its kubelet has renewed its Lease since";

/// What a fencer says of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The fencer.
    pub fencer: String,
    /// What it says.
    pub row: PoweredOffNode,
    /// Time since this process first knew that it says so of this boot of the node, by its own clock.
    pub known_for: Duration,
    /// The agent was heard after that: it is not true of this boot, however silent the agent is now.
    pub is_denied: bool,
    /// It was said already when this process began to look: what denied it before that is not known.
    pub was_there: bool,
}

/// What all fencers say, by node.
pub type AllTold = BTreeMap<String, Vec<Told>>;

/// What is heard of nodes that have no power by a fencer's word, by node and fencer.
pub type Contradicted = BTreeMap<(String, String), &'static str>;

/// Since when this process knows what fencers say. A word that was taken back and is said again of the same boot is as old as
/// the first: a node that was heard in between was not off, and a fencer that was wrong about a boot is not believed about it.
#[derive(Clone, Debug, Default)]
pub struct PowerTracker {
    known: BTreeMap<Word, Known>,
    /// Fencers whose report was read in the last look of this leadership term.
    read: BTreeSet<String>,
    term: Option<u64>,
}

/// That a boot of a Node has ended, by a fencer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Word {
    fencer: String,
    node: String,
    uid: String,
    boot_id: String,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    since: Instant,
    is_denied: bool,
    was_there: bool,
}

impl Word {
    fn of(fencer: &str, row: &PoweredOffNode) -> Self {
        let (node, uid, boot_id) = (row.node.clone(), row.node_uid.clone(), row.boot_id.clone());
        Self { fencer: fencer.to_owned(), node, uid, boot_id }
    }

    /// Whether it is said of the boot that the Node is in.
    fn is_of_now(&self, node: &Node) -> bool {
        node.metadata.uid.as_ref() == Some(&self.uid) && node.status.node_info.boot_id == self.boot_id
    }
}

impl PowerTracker {
    /// Takes in what the stores hold, and what is heard, believed or not. Only of Nodes that are there: the names in a report
    /// are its writer's, and what is remembered of them must have an end.
    pub fn update(
        &mut self,
        reports: &Reports,
        nodes: &[(Arc<Node>, Silence)],
        heartbeats: &BTreeMap<String, Heartbeat>,
        term: u64,
        now: Instant,
    ) -> AllTold {
        if self.term.replace(term) != Some(term) {
            self.read.clear();
        }
        let named = nodes.iter().filter_map(|(node, _)| Some((node.metadata.name.as_deref()?, node.as_ref())));
        let nodes: BTreeMap<&str, &Node> = named.collect();
        let mut said: BTreeMap<Word, &PoweredOffNode> = BTreeMap::new();
        for (fencer, report) in reports {
            let is_there = |row: &&PoweredOffNode| nodes.get(row.node.as_str()).is_some_and(|node| is_of(row, node));
            said.extend(report.powered_off().filter(is_there).map(|row| (Word::of(fencer, row), row)));
        }
        for word in said.keys() {
            let was_there = !self.read.contains(&word.fencer);
            self.known.entry(word.clone()).or_insert(Known { since: now, is_denied: false, was_there });
        }
        self.read = reports.iter().filter(|(_, report)| report.is_ready()).map(|(fencer, _)| fencer.clone()).collect();
        let is_of_now = |word: &Word| nodes.get(word.node.as_str()).is_some_and(|node| word.is_of_now(node));
        self.known.retain(|word, _| said.contains_key(word) || reports.contains_key(&word.fencer) && is_of_now(word));
        for (word, known) in &mut self.known {
            let heard = heartbeats.get(&word.node).and_then(|heartbeat| heartbeat.out_of_reach_for);
            known.is_denied |= heard.is_some_and(|heard| is_after(heard, now.saturating_duration_since(known.since)));
        }
        let mut all = AllTold::new();
        for (word, row) in said {
            let Some(Known { since, is_denied, was_there }) = self.known.get(&word).copied() else { continue };
            let known_for = now.saturating_duration_since(since);
            let told = Told { fencer: word.fencer, row: row.clone(), known_for, is_denied, was_there };
            all.entry(word.node).or_default().push(told);
        }
        all
    }

    /// Of how many words something is remembered.
    #[cfg(test)]
    pub fn remembered(&self) -> usize {
        self.known.len()
    }
}

/// What the fencers that these policies name say of a node, by these reports: that it has no power. Nothing while one of them
/// is not heard of, or the node is.
pub fn evidence(
    seen: &Seen,
    node: &Node,
    silence: Silence,
    reports: &Reports,
    policies: &Effective,
) -> Option<Evidence> {
    let told = seen.off.get(node.metadata.name.as_deref()?)?;
    let is_denied = |told: &Told| {
        let denied = contradiction(told, node, silence, policies.agent_suspect_after()).is_some();
        denied && !mutants::is_on(Mutant::ContradictionIgnored)
    };
    let counts = |told: &&Told| {
        policies.names_fencer(&told.fencer)
            && is_believed(seen, &told.fencer)
            && is_said(reports, told)
            && is_of(&told.row, node)
            && !is_denied(told)
            && (is_news(told, silence) || is_kubelet_silent(node, silence))
    };
    let told = told.iter().find(counts).filter(|_| is_silent_as_one(silence))?;
    let why = told.row.reason.as_deref().unwrap_or("PoweredOff");
    Some(Evidence {
        channel: Channel::Power,
        state: EvidenceState::Failed,
        backend: None,
        since: time::stamp(told.row.since),
        reason: "PoweredOff".into(),
        message: Some(format!("fencer {} says that the node has no power ({why})", told.fencer)),
    })
}

/// Nodes that have no power by a fencer's word and that are heard all the same: it counts for nothing, and somebody has to
/// look after that fencer.
pub(super) fn contradicted(seen: &Seen) -> Contradicted {
    let mut found = Contradicted::new();
    let Some(after) = heartbeat::suspect_after(live_policies(seen)).filter(|_| !seen.off.is_empty()) else {
        return found;
    };
    let is_named = |fencer: &str| {
        let mut named = live_policies(seen).flat_map(|policy| policy.spec.fencing.external_fencers());
        named.any(|it| it == fencer)
    };
    for (node, silence) in seen.nodes.iter().filter(|(node, _)| node.ready() == "True") {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let told = seen.off.get(name).into_iter().flatten().filter(|told| {
            // What is heard of a machine that has just lost its power is of before.
            let is_old = told.known_for >= after.saturating_add(IN_FLIGHT);
            is_old && is_named(&told.fencer) && is_believed(seen, &told.fencer) && is_of(&told.row, node)
        });
        for told in told {
            let heard = contradiction(told, node, *silence, after);
            // After a relist or a takeover it only may be wrong: nobody is accused of that.
            if let Some(heard) = heard.filter(|heard| *heard != RENEWED || silence.has_moved) {
                found.insert((name.to_owned(), told.fencer.clone()), heard);
            }
        }
    }
    found
}

/// Whether what the fencer says is of now.
fn is_believed(seen: &Seen, fencer: &str) -> bool {
    let unknown = [&seen.silent_fencers, &seen.missing_fencers, &seen.unproved_fencers];
    unknown.iter().all(|fencers| !fencers.contains(fencer))
}

/// Whether the word came while we looked, at the node too: what was said before may have been denied before, and of a node
/// without a Lease nobody knows what its kubelet says to it.
fn is_news(told: &Told, silence: Silence) -> bool {
    !told.was_there && silence.still_for.is_some()
}

/// Whether the node's kubelet has missed two renewals, or Kubernetes gave it up: what other words have to wait for.
fn is_kubelet_silent(node: &Node, silence: Silence) -> bool {
    node.is_unreachable() || silence.lease_age.is_some_and(|age| age >= TWO_RENEWALS)
}

/// Whether the reports say so too: those that were read from the API, before anything is begun.
fn is_said(reports: &Reports, told: &Told) -> bool {
    let same = |row: &PoweredOffNode| {
        (&row.node, &row.node_uid, &row.boot_id) == (&told.row.node, &told.row.node_uid, &told.row.boot_id)
    };
    reports.get(&told.fencer).is_some_and(|report| report.powered_off().any(same))
}

/// Whether it is said of this Node, and of none that had its name before.
fn is_of(row: &PoweredOffNode, node: &Node) -> bool {
    node.metadata.uid.as_ref() == Some(&row.node_uid)
}

/// Whether what was heard so long ago was sent after a word came that has been known for so long.
fn is_after(heard: Duration, known_for: Duration) -> bool {
    heard.saturating_add(IN_FLIGHT) < known_for
}

/// What is known of the node that a machine without power does not say. An agent that was heard once since the word came, or a
/// Lease that has moved, makes it wrong for good: a machine that has its power again boots anew.
fn contradiction(told: &Told, node: &Node, silence: Silence, suspect_after: Duration) -> Option<&'static str> {
    let Heartbeat { against, out_of_reach_for, .. } = silence.heartbeat;
    // Its peers are asked when it falls silent to us, and again and again; until they answer it may be that they hear it.
    let asking = if against.is_none() { IN_FLIGHT } else { Duration::ZERO };
    let suspect_after = suspect_after.saturating_add(asking);
    if node.status.node_info.boot_id != told.row.boot_id {
        Some("it has booted since")
    } else if out_of_reach_for.is_some_and(|it| it < suspect_after) {
        Some("its agent is heard")
    } else if told.is_denied {
        Some("its agent was heard since")
    } else if silence.still_for.is_some_and(|still| is_after(still, told.known_for)) {
        Some(RENEWED)
    } else {
        None
    }
}

/// Whether all that was heard of the node has ended at once. A kubelet that was heard after its agent fell silent runs on
/// without it, until it misses two renewals.
fn is_silent_as_one(silence: Silence) -> bool {
    let agent = silence.heartbeat.out_of_reach_for.unwrap_or_default();
    silence.still_for.is_none_or(|still| still.saturating_add(IN_FLIGHT) >= agent.min(TWO_RENEWALS))
}
