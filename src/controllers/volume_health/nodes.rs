//! What the life of nodes means for the volumes on them. Pure, and a function of the objects alone: a restart changes
//! nothing.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::api::slim::Node;
use crate::api::time;

/// Nodes that must fail together before they are taken for a partition.
const STORM_MIN: usize = 3;
/// And the share of all nodes, in percent, that must be exceeded.
const STORM_SHARE: usize = 30;
/// How much later nodes then count as failed.
pub const STORM_HOLD: TimeDelta = TimeDelta::minutes(5);

/// How a node is, as far as its volumes are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ready.
    Up,
    /// Not ready, but not for long enough.
    Failing {
        /// When it counts as failed.
        due: DateTime<Utc>,
    },
    /// Not ready for longer than the threshold.
    Down {
        /// Since when.
        since: DateTime<Utc>,
    },
    /// There is no such Node.
    Gone,
}

/// How a node is. `storm` is when so many nodes failed together that the observer is rather wrong than they.
pub fn verdict(node: Option<&Node>, after: Duration, storm: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Verdict {
    let Some(node) = node else { return Verdict::Gone };
    let Some(since) = failing_since(node) else { return Verdict::Up };
    let counted_from = storm.map_or(since, |storm| since.max(storm + STORM_HOLD));
    let due = TimeDelta::from_std(after).ok().and_then(|after| counted_from.checked_add_signed(after));
    match due {
        Some(due) if due <= now => Verdict::Down { since },
        due => Verdict::Failing { due: due.unwrap_or(DateTime::<Utc>::MAX_UTC) },
    }
}

/// Since when a node is not Ready; nothing while it is.
pub fn failing_since(node: &Node) -> Option<DateTime<Utc>> {
    if node.ready() == "True" {
        return None;
    }
    node.ready_since().or_else(|| node.metadata.creation_timestamp.as_ref().map(time::from_k8s))
}

/// When so many nodes had failed together that it looks like a partition: more than 30 % of all, three at least. That
/// it still does is part of it.
pub fn storm_since<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Option<DateTime<Utc>> {
    let (mut all, mut failing) = (0, Vec::new());
    for node in nodes {
        all += 1;
        failing.extend(failing_since(node));
    }
    failing.sort_unstable();
    let allowed = (all * STORM_SHARE / 100).max(STORM_MIN - 1);
    failing.get(allowed).copied()
}
