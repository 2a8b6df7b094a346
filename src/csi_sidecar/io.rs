//! I/O in progress: a fence is not begun while the driver says that the node is at work on the volumes (docs/adr/0026). It is
//! asked in the very pass that would begin, and nothing of the answer is kept: what was true before is no answer.
//!
//! Drivers count per volume, from whichever node (podmon's contract). Of a volume that only this node has, that is the
//! node's own I/O. Of one that others have too it is only where the driver, asked about a node that does not have it, says
//! no: else nobody knows whose I/O it is, and what is not known vetoes nothing. Of one that is mounted without being attached
//! no driver lists who has it, so nobody is asked about it: readers on other nodes would veto for as long as they read.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::fence_request::RequestedVolume;
use crate::api::resiliency_policy::CheckSwitch;
use crate::mutants::{self, Mutant};

use super::decide::Seen;

/// What is asked about one node, by its CSI node id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
    /// Handles of volumes that only this node has.
    pub own: BTreeSet<String>,
    /// Handles of volumes that other nodes have too.
    pub shared: BTreeSet<String>,
    /// A node that has none of the shared ones; without it nobody is asked about those.
    pub control: Option<String>,
}

/// What is asked, by CSI node id: one in nearly every request.
pub type Questions = BTreeMap<String, Question>;

/// The nodes that are doing I/O, by CSI node id. Of one that is not here it is not known that it is.
pub type Busy = BTreeSet<String>;

/// Whether a fence may be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The driver is to be asked first.
    Ask,
    /// Not while the I/O lasts.
    Veto,
    /// It may.
    Begin,
}

/// Whether the fence of a volume may be begun, by what was answered in this pass.
pub fn verdict(seen: &Seen, volume: &RequestedVolume) -> Verdict {
    if !is_wanted(seen) || mutants::is_on(Mutant::IoIgnored) {
        return Verdict::Begin;
    }
    match &seen.busy {
        None => Verdict::Ask,
        Some(busy) if busy.contains(&volume.node_id) => Verdict::Veto,
        Some(_) => Verdict::Begin,
    }
}

/// Whether the request asks for it.
pub fn is_wanted(seen: &Seen) -> bool {
    seen.request.spec.io_in_progress_check == CheckSwitch::Enabled
}

/// What is asked about these volumes: of each node once, however many volumes there are.
pub fn questions<'a>(seen: &Seen, volumes: impl IntoIterator<Item = &'a RequestedVolume>) -> Questions {
    let mut questions = Questions::new();
    for volume in volumes {
        let question = questions.entry(volume.node_id.clone()).or_default();
        if volume.demanded_cluster().is_some() {
            continue;
        }
        let others = published(seen, &volume.volume_handle).any(|node| *node != volume.node_id);
        let kind = if others { &mut question.shared } else { &mut question.own };
        kind.insert(volume.volume_handle.clone());
    }
    let known = seen.reading.iter().flat_map(|reading| &reading.published).flat_map(BTreeMap::values);
    let nodes: BTreeSet<_> = known.flatten().flatten().collect();
    for (node_id, question) in &mut questions {
        let has = |node: &str| question.shared.iter().any(|handle| published(seen, handle).any(|it| it == node));
        let mut others = nodes.iter().filter(|node| ***node != *node_id && !node.is_empty() && !has(node));
        question.control = others.next().filter(|_| !question.shared.is_empty()).map(|node| (*node).clone());
    }
    questions
}

/// The nodes that a volume is published to, as far as this pass has read them.
fn published<'a>(seen: &'a Seen, handle: &str) -> impl Iterator<Item = &'a String> {
    let read = seen.reading.as_ref().and_then(|reading| reading.published.as_ref().ok());
    let nodes = read.and_then(|published| published.get(handle)).and_then(|nodes| nodes.as_ref().ok());
    nodes.into_iter().flatten()
}
