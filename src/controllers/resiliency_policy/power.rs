//! Channel Power: what external fencers see of the nodes' power before anybody asks them for a fence (docs/adr/0028). Their word
//! comes by another way than the node's own, so beside its silence it makes a failure certain within seconds. It is
//! evidence and never a proof: what releases a pod is the fencer's answer to a FenceRequest. A machine that is heard has
//! power, whatever is said of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::driver_report::{DriverReport, PoweredOffNode};
use crate::api::node_fence::{Channel, Evidence, EvidenceState};
use crate::api::slim::Node;
use crate::api::time;

use super::decide::{Seen, live_policies};
use super::evidence::Silence;
use super::heartbeat::{self, TWO_RENEWALS};
use super::select::Effective;
use super::storage::Reports;

/// How long after the end of a machine something that it had sent before may still arrive.
const IN_FLIGHT: Duration = Duration::from_secs(2);

/// What a fencer says of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The fencer.
    pub fencer: String,
    /// What it says.
    pub row: PoweredOffNode,
    /// Time since this process first knew that it says so of this boot of the node, by its own clock.
    pub known_for: Duration,
}

/// What all fencers say, by node.
pub type AllTold = BTreeMap<String, Vec<Told>>;

/// What is heard of nodes that have no power by a fencer's word, by node and fencer.
pub type Contradicted = BTreeMap<(String, String), &'static str>;

/// Since when this process knows what fencers say. A word that was taken back and is said again of the same boot is as old as
/// the first: a node that was heard in between was not off, and a fencer that was wrong about a boot is not believed about it.
#[derive(Clone, Debug, Default)]
pub struct PowerTracker {
    known: BTreeMap<(String, String), (Boot, Instant)>,
}

/// Uid of a Node, and boot id.
type Boot = (String, String);

impl PowerTracker {
    /// Takes in what the store holds.
    pub fn update(&mut self, reports: &BTreeMap<String, Arc<DriverReport>>, now: Instant) -> AllTold {
        self.known.retain(|(fencer, _), _| reports.contains_key(fencer));
        let mut all = AllTold::new();
        for (fencer, report) in reports {
            for row in report.powered_off() {
                let boot = (row.node_uid.clone(), row.boot_id.clone());
                let known = self.known.entry((fencer.clone(), row.node.clone())).or_insert_with(|| (boot.clone(), now));
                if known.0 != boot {
                    *known = (boot, now);
                }
                let known_for = now.saturating_duration_since(known.1);
                let told = Told { fencer: fencer.clone(), row: row.clone(), known_for };
                all.entry(row.node.clone()).or_default().push(told);
            }
        }
        all
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
    let counts = |told: &&Told| {
        policies.names_fencer(&told.fencer)
            && is_believed(seen, &told.fencer)
            && is_said(reports, told)
            && is_of(told, node)
            && contradiction(told, node, silence, policies.agent_suspect_after()).is_none()
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
            is_old && is_named(&told.fencer) && is_believed(seen, &told.fencer) && is_of(told, node)
        });
        for told in told {
            if let Some(heard) = contradiction(told, node, *silence, after) {
                found.insert((name.to_owned(), told.fencer.clone()), heard);
            }
        }
    }
    found
}

/// Whether what the fencer says is of now.
fn is_believed(seen: &Seen, fencer: &str) -> bool {
    !seen.silent_fencers.contains(fencer) && !seen.missing_fencers.contains(fencer)
}

/// Whether the reports say so too: those that were read from the API, before anything is begun.
fn is_said(reports: &Reports, told: &Told) -> bool {
    let same = |row: &PoweredOffNode| {
        (&row.node, &row.node_uid, &row.boot_id) == (&told.row.node, &told.row.node_uid, &told.row.boot_id)
    };
    reports.get(&told.fencer).is_some_and(|report| report.powered_off().any(same))
}

/// Whether it is said of this Node, and of none that had its name before.
fn is_of(told: &Told, node: &Node) -> bool {
    node.metadata.uid.as_ref() == Some(&told.row.node_uid)
}

/// What is known of the node that a machine without power does not say. A Lease that has moved once since the word came makes
/// it wrong for good: a machine that has its power again boots anew.
fn contradiction(told: &Told, node: &Node, silence: Silence, suspect_after: Duration) -> Option<&'static str> {
    let is_since = |heard: Duration| heard.saturating_add(IN_FLIGHT) < told.known_for;
    if node.status.node_info.boot_id != told.row.boot_id {
        Some("it has booted since")
    } else if silence.heartbeat.out_of_reach_for.is_some_and(|it| it < suspect_after) {
        Some("its agent is heard")
    } else if silence.still_for.is_some_and(is_since) {
        Some("its kubelet has renewed its Lease since")
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
