//! What a sweep asks the driver about each volume, and what the answers are worth. By capability, never by version.
//! Nothing here calls anybody.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::api::hysteresis::{Sample, Trouble};
use crate::api::volume::VolumeState;
use crate::api::volume_health_policy::Thresholds;

use super::super::decide::Failure;

/// What a driver offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Offer {
    /// ListVolumes.
    ListVolumes,
    /// ControllerGetVolume.
    GetVolume,
    /// Both tell the nodes a volume is published to.
    PublishedNodes,
    /// Both tell whether a volume is abnormal (CSI 1.3 to 1.12).
    Condition,
    /// ControllerGetVolumeHealth (CSI 1.13).
    GetHealth,
    /// ControllerListVolumeHealth (CSI 1.13); comes with GetHealth.
    ListHealth,
}

/// All that a driver offers.
pub type Offers = BTreeSet<Offer>;

/// Why something is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    /// In CamelCase.
    pub reason: String,
    /// The CSI enum value, where we do not know it.
    pub raw_status: Option<i32>,
}

impl From<&str> for Cause {
    fn from(reason: &str) -> Self {
        Self { reason: reason.to_owned(), raw_status: None }
    }
}

/// Something that is wrong with a volume.
pub type Problem = Trouble<Cause>;

/// What is counted by itself: health, and the publication to each node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Check ControllerHealth.
    Health,
    /// Check PublishedNodes, for the node of that name.
    Published(String),
}

/// A volume that a policy selects.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    /// Time between two samples.
    pub interval: Duration,
    /// When samples settle.
    pub thresholds: Thresholds,
    /// Check ControllerHealth is on.
    pub health: bool,
    /// Where it is attached, by node name; empty while check PublishedNodes is off.
    pub attached: BTreeMap<String, Attachment>,
    /// As a raw block volume.
    pub block: bool,
    /// Its access modes.
    pub access_modes: Vec<String>,
}

/// A VolumeAttachment that says `attached: true` and is not being deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The CSI node id that was published.
    pub node_id: String,
}

/// What the driver told of one volume in one call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// What is wrong with it; an empty list: nothing; absent: not told.
    pub health: Option<Vec<Problem>>,
    /// CSI ids of the nodes it is published to; absent: not told.
    pub nodes: Option<BTreeSet<String>>,
}

/// A whole list, by volume handle.
pub type List = Result<BTreeMap<String, Said>, Failure>;

/// The driver's lists; absent where it offers none.
#[derive(Clone, Debug, Default)]
pub struct Lists {
    /// ListVolumes.
    pub volumes: Option<List>,
    /// ControllerListVolumeHealth: only volumes with which something is wrong.
    pub health: Option<List>,
}

/// Calls for one volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    /// ControllerGetVolumeHealth.
    pub health: bool,
    /// ControllerGetVolume.
    pub volume: bool,
    /// ValidateVolumeCapabilities, which every driver must have and which tells whether a volume exists.
    pub validate: bool,
}

/// What the calls for one volume gave, those that were made.
pub type Answers = Vec<Result<Said, Failure>>;

/// Whether ControllerListVolumeHealth is of use: it never shows that a volume is gone, ListVolumes does.
pub fn lists_health(offers: &Offers) -> bool {
    offers.contains(&Offer::ListHealth) && offers.contains(&Offer::ListVolumes)
}

/// Whether the driver can be asked anything about volumes.
pub fn is_any(offers: &Offers) -> bool {
    [Offer::ListVolumes, Offer::GetVolume, Offer::GetHealth].iter().any(|offer| offers.contains(offer))
}

/// What to ask about a volume by itself, once the lists are read. `suspected`: something was wrong with it before, so
/// that its absence from a list of what is wrong needs a second word.
pub fn asks(offers: &Offers, lists: &Lists, handle: &str, watched: &Watched, suspected: bool) -> Asks {
    let has = |offer| offers.contains(&offer);
    let listed = |list: &Option<List>| match list {
        Some(Ok(list)) => Some(list.contains_key(handle)),
        _ => None,
    };
    let absent = listed(&lists.volumes) == Some(false);
    let cleared = suspected && listed(&lists.health) == Some(false);
    let singly = !has(Offer::ListVolumes);
    let health = watched.health && has(Offer::GetHealth) && (!lists_health(offers) || cleared || absent);
    let exists = watched.health && !has(Offer::GetHealth) && (singly || absent);
    let nodes = !watched.attached.is_empty() && has(Offer::PublishedNodes) && singly;
    Asks {
        health,
        volume: has(Offer::GetVolume) && (exists || nodes),
        validate: absent && exists && !has(Offer::GetVolume),
    }
}

/// What all that was told of a volume is worth. `attached` are the attachments that held before and after it was asked.
pub fn samples(
    lists: &Lists,
    answers: &Answers,
    handle: &str,
    watched: &Watched,
    attached: &BTreeMap<String, Attachment>,
) -> Vec<(Subject, Sample<Cause>)> {
    let listed = |list: &'_ Option<List>| match list {
        Some(Ok(list)) => list.get(handle).cloned(),
        _ => None,
    };
    let told: Vec<Said> = [listed(&lists.volumes), listed(&lists.health)]
        .into_iter()
        .flatten()
        .chain(answers.iter().flatten().cloned())
        .collect();
    let mut samples = Vec::new();
    if watched.health {
        let gone = answers.iter().any(|answer| answer.as_ref().is_err_and(|failure| failure.code == "NotFound"));
        let silent = [&lists.volumes, &lists.health].into_iter().flatten().filter_map(|list| list.as_ref().err());
        let failures: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).chain(silent).collect();
        samples.push((Subject::Health, if gone { Sample::Bad(deleted()) } else { health(&told, &failures) }));
    }
    let nodes = told.iter().find_map(|said| said.nodes.as_ref());
    for (node, attachment) in attached {
        let sample = match nodes {
            None => Sample::Unknown,
            Some(nodes) if nodes.contains(&attachment.node_id) => Sample::Good,
            Some(nodes) => Sample::Bad(mismatch(attachment, nodes)),
        };
        samples.push((Subject::Published(node.clone()), sample));
    }
    samples
}

fn health(told: &[Said], failures: &[&Failure]) -> Sample<Cause> {
    if let Some(worst) =
        told.iter().filter_map(|said| said.health.as_ref()).flatten().max_by(|a, b| order(a).cmp(&order(b)))
    {
        return Sample::Bad(worst.clone());
    }
    // A call that is not there after all says nothing, and nothing is said when a call is refused for its arguments.
    let silent = failures.iter().find(|failure| !matches!(failure.code, "Unimplemented" | "InvalidArgument"));
    match silent {
        Some(failure) => Sample::NoAnswer(unreachable(failure)),
        None if told.is_empty() => Sample::Unknown,
        None => Sample::Good,
    }
}

/// The worst of several problems counts; among equals always the same one.
fn order(problem: &Problem) -> (VolumeState, std::cmp::Reverse<&Cause>) {
    (problem.state, std::cmp::Reverse(&problem.reason))
}

/// Reason of a volume that the driver does not find.
pub const BACKEND_DELETED: &str = "BackendDeleted";

fn deleted() -> Problem {
    let message = "the driver does not find the volume: it was deleted in the backend".to_owned();
    Trouble { state: VolumeState::Inaccessible, reason: BACKEND_DELETED.into(), message }
}

fn unreachable(failure: &Failure) -> Problem {
    let message = super::clean::message(&format!("{}: {}", failure.code, failure.message));
    Trouble { state: VolumeState::Inaccessible, reason: "BackendUnreachable".into(), message }
}

fn mismatch(attachment: &Attachment, nodes: &BTreeSet<String>) -> Problem {
    let node = super::clean::message(&attachment.node_id);
    let message = match nodes.len() {
        0 => format!("attached, but the driver lists it as published to no node, not to {node}"),
        _ => format!("attached, but the driver does not list {node} among the nodes it is published to"),
    };
    Trouble { state: VolumeState::Inaccessible, reason: "PublishedNodeMismatch".into(), message }
}
