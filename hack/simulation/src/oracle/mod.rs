//! What must hold after every step, whatever happened: `I1` to `I8` and `I11` to `I17`. It looks at the machines, the array and the API
//! server themselves, never at what a program under test believes, but for what that program could know.

mod effects;
mod given_up;
mod heartbeats;
mod holds;
mod incidents;
mod io;
mod knowledge;
mod network;
mod paths;
mod power;
pub(crate) mod programs;
mod proofs;
mod records;
mod recovery;
mod volumes;
mod words;
mod writers;

use std::collections::{BTreeMap, BTreeSet};

use bulkhead::api::fence_request::FenceResult;
use bulkhead::api::fencing::Proof;

use crate::process::Pid;
use crate::time::Millis;

/// An invariant that is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which: `I1`, …
    pub invariant: &'static str,
    /// When.
    pub at: Millis,
    /// What happened.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} broken at {:.3} s: {}", self.invariant, self.at as f64 / 1000.0, self.what)
    }
}

/// What the oracle knows.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// What is broken.
    pub violations: Vec<Violation>,
    dirty: bool,
    /// The newest incarnation whose write was accepted, by single-writer volume, with its node.
    newest: BTreeMap<String, (u64, String)>,
    /// When an answer with enough proof landed, and which, by volume and node id.
    proved: BTreeMap<(String, String), ((Millis, Millis), Proof)>,
    /// The last answer of each row, by uid of the request, episode and volume.
    answers: BTreeMap<(String, i64, String), FenceResult>,
    /// When the attacher gave access anew, by volume and node id.
    published: BTreeMap<(String, String), Millis>,
    /// Uids of pods that somebody else removed by force.
    by_others: BTreeSet<String>,
    /// Boots that were cut off: those that fences were for, and those in which pods went by force since. By node name.
    cut: BTreeMap<String, BTreeSet<String>>,
    /// Until when a volume was in trouble on a node, and not everywhere, by volume and node; `None` while it is.
    troubles: BTreeMap<(String, String), Option<Millis>>,
    /// Since when incidents are held, by node.
    held_since: BTreeMap<String, Millis>,
    /// Until when an array called the path of a node lost, by driver and node; `None` while it does.
    lost_paths: BTreeMap<(String, String), Option<Millis>>,
    /// Since when a node writes to a volume without a pause, by volume and node.
    writing: BTreeMap<(String, String), Millis>,
    /// From when until when a machine with power had a volume, and the array let it write, by volume and node; the last time.
    held: BTreeMap<(String, String), (Millis, Option<Millis>)>,
    /// Rows of which an unpublish was sent: uid of the request, episode and volume.
    begun: BTreeSet<(String, i64, String)>,
    /// When an array last did not say whether there was I/O, by driver.
    pub(crate) unsaid: BTreeMap<String, Millis>,
    /// Until when a program failed, by workload; `None` while it does.
    failed: BTreeMap<String, Option<Millis>>,
    /// When pods were moved since their program failed, by uid of the owner.
    moved: BTreeMap<String, Vec<Millis>>,
    /// Somebody has set a clock.
    pub(crate) are_clocks_set: bool,
    /// Somebody has edited or deleted a policy.
    are_policies_edited: bool,
    /// Rows recorded as Clean: uid of the NodeFence, episode and volume.
    cleaned: BTreeSet<(String, i64, String)>,
    /// What processes were shown of what fencers report.
    shown: BTreeMap<Pid, words::Shown>,
}

impl Oracle {
    /// Whether nothing is broken.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Something that writers depend on changed.
    pub(crate) fn touch(&mut self) {
        self.dirty = true;
    }

    /// A fencer has proved that a node is cut off: then, by what was so at the second moment.
    pub(crate) fn prove(&mut self, volume: &str, node_id: &str, at: (Millis, Millis), proof: Proof) {
        self.proved.insert((volume.to_owned(), node_id.to_owned()), (at, proof));
    }

    pub(crate) fn published(&mut self, volume: &str, node_id: &str, at: Millis, anew: bool) {
        if anew {
            self.published.insert((volume.to_owned(), node_id.to_owned()), at);
        }
    }

    /// Whether the attacher gave access anew at that time or since.
    pub(crate) fn is_published_since(&self, volume: &str, node_id: &str, since: Millis) -> bool {
        self.published.get(&(volume.to_owned(), node_id.to_owned())).is_some_and(|at| *at >= since)
    }

    /// What the policies say is not what they said at the beginning.
    pub(crate) fn policies_edited(&mut self) {
        self.are_policies_edited = true;
    }

    pub(crate) fn released_by_a_person(&mut self, uid: &str) {
        self.by_others.insert(uid.to_owned());
    }

    pub(crate) fn break_(&mut self, invariant: &'static str, at: Millis, what: String) {
        self.violations.push(Violation { invariant, at, what });
    }
}
