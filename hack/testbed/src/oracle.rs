//! Judges a ledger: did a node write to a single-writer volume after another had taken it over?
//!
//! The rule, per single-writer volume. A node's *grant* is the last publish that gave it access it did not have (repeating
//! one is no grant). A node's *takeover* is its first accepted write under a grant. **An accepted write of node X is a
//! violation if another node took over after X's grant.** So A, B, A is a violation while A was never granted anew, a
//! proper fail-back (unpublish B, publish A) is not, and B is caught if it goes on after that.
//!
//! Two nodes having access at once is reported, not failed: it is a hazard, the write is the harm. Volumes that allow
//! several writers are not judged; a volume whose creation is not in the ledger is taken for a single-writer one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::ledger::{Access, Entry, Event, Ledger, Stamp};

/// A write that must not have been accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The volume written to.
    pub volume: Arc<str>,
    /// The node that wrote.
    pub node: Arc<str>,
    /// The node that had taken the volume over.
    pub owner: Arc<str>,
    /// When the owner took over.
    pub taken_over: Stamp,
    /// When the write was accepted.
    pub wrote: Stamp,
}

/// A time in which several nodes had write access to a single-writer volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The volume.
    pub volume: Arc<str>,
    /// The nodes, one or more of them before `from` already.
    pub nodes: BTreeSet<Arc<str>>,
    /// From when.
    pub from: Stamp,
    /// Until when; `None` if it still lasts.
    pub until: Option<Stamp>,
}

/// What the oracle says about a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Harm done: any is a failure.
    pub violations: Vec<Violation>,
    /// Hazards, for information.
    pub overlaps: Vec<Overlap>,
}

impl Verdict {
    /// No harm was done.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} violations, {} overlaps of access", self.violations.len(), self.overlaps.len())?;
        for violation in &self.violations {
            write!(
                f,
                "\n  violation: {} wrote to {} at {:?}, {:?} after {} had taken it over",
                violation.node,
                violation.volume,
                violation.wrote.since_start(),
                violation.wrote.since(violation.taken_over),
                violation.owner,
            )?;
        }
        for overlap in &self.overlaps {
            let nodes: Vec<&str> = overlap.nodes.iter().map(|node| &**node).collect();
            write!(
                f,
                "\n  overlap: {} for {} from {:?}",
                nodes.join(" and "),
                overlap.volume,
                overlap.from.since_start(),
            )?;
        }
        Ok(())
    }
}

/// Judges everything that is in the ledger now.
pub fn judge(ledger: &Ledger) -> Verdict {
    ledger.read(judge_entries)
}

/// Judges entries, which must be in order.
pub fn judge_entries(entries: &[Entry]) -> Verdict {
    let mut volumes: BTreeMap<&str, Volume> = BTreeMap::new();
    let mut verdict = Verdict::default();
    for (position, entry) in entries.iter().enumerate() {
        let volume = volumes.entry(&entry.volume).or_default();
        match &entry.event {
            Event::Created { access } => {
                *volume = Volume { shared: *access != Access::SingleWriter, ..Volume::default() }
            }
            Event::Published { read_only: false, repeated: false } => volume.grant(position, entry, &mut verdict),
            Event::Unpublished { repeated: false } => volume.revoke(entry, &mut verdict),
            Event::Wrote { .. } => volume.write(position, entry, &mut verdict),
            _ => {}
        }
    }
    let unfinished = volumes.into_values().filter_map(|volume| volume.overlap);
    verdict.overlaps.extend(unfinished);
    verdict
}

/// What the oracle remembers of one volume.
#[derive(Default)]
struct Volume {
    shared: bool,
    nodes: BTreeMap<Arc<str>, Node>,
    overlap: Option<Overlap>,
}

#[derive(Default)]
struct Node {
    has_access: bool,
    /// Position of the last grant; 0 if it never had one, which is before every takeover.
    granted: usize,
    took_over: Option<(usize, Stamp)>,
}

impl Node {
    fn took_over_since(&self, position: usize) -> Option<Stamp> {
        self.took_over.filter(|(taken, _)| *taken >= position).map(|(_, at)| at)
    }
}

impl Volume {
    fn grant(&mut self, position: usize, entry: &Entry, verdict: &mut Verdict) {
        let node = self.nodes.entry(entry.node.clone()).or_default();
        node.has_access = true;
        node.granted = position;
        self.note_overlap(entry.at, verdict, &entry.volume);
    }

    fn revoke(&mut self, entry: &Entry, verdict: &mut Verdict) {
        let node = self.nodes.entry(entry.node.clone()).or_default();
        node.has_access = false;
        self.note_overlap(entry.at, verdict, &entry.volume);
    }

    fn write(&mut self, position: usize, entry: &Entry, verdict: &mut Verdict) {
        if self.shared {
            return;
        }
        let node = self.nodes.entry(entry.node.clone()).or_default();
        let granted = node.granted;
        if node.took_over_since(granted).is_none() {
            node.took_over = Some((position, entry.at));
        }
        let latest = self
            .nodes
            .iter()
            .filter(|(name, _)| **name != entry.node)
            .filter_map(|(name, other)| Some((other.took_over_since(granted)?, name)))
            .max();
        if let Some((taken_over, owner)) = latest {
            verdict.violations.push(Violation {
                volume: entry.volume.clone(),
                node: entry.node.clone(),
                owner: owner.clone(),
                taken_over,
                wrote: entry.at,
            });
        }
    }

    /// Ends the overlap that was, and begins the one that is.
    fn note_overlap(&mut self, at: Stamp, verdict: &mut Verdict, volume: &Arc<str>) {
        if self.shared {
            return;
        }
        if let Some(mut ended) = self.overlap.take() {
            ended.until = Some(at);
            verdict.overlaps.push(ended);
        }
        let holders = self.nodes.iter().filter(|(_, node)| node.has_access);
        let nodes: BTreeSet<Arc<str>> = holders.map(|(name, _)| name.clone()).collect();
        if nodes.len() > 1 {
            self.overlap = Some(Overlap { volume: volume.clone(), nodes, from: at, until: None });
        }
    }
}

#[cfg(test)]
mod tests;
