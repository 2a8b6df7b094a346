//! Who says what of a volume: each source speaks for itself. One that is silent says nothing, so what it said last
//! stays; only its own word ends it, or that the volume has left its node. Pure.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use kube::ResourceExt;

use crate::api::affinity;
use crate::api::conditions;
use crate::api::driver_report::{Coverage, DriverReport};
use crate::api::node_volume_report::{NodeVolumeReport, ReportedVolume};
use crate::api::text::printable;
use crate::api::time;
use crate::api::volume::{Check, Finding, Source, VolumeState};
use crate::api::volume_health::Observation;
use crate::api::volume_health_policy::VolumeHealthPolicySpec;

use super::decide::{Place, Seen};
use super::loss;
use super::nodes::{self, Verdict};

/// Observations that a status may list.
const OBSERVATIONS: usize = 64;
/// The reason that a node gives.
pub const NODE_DOWN: &str = "NodeDown";

/// All that is said.
#[derive(Clone, Debug, Default)]
pub struct Voices {
    /// What is wrong, the worst first.
    pub observations: Vec<Observation>,
    /// Somebody knows the state now.
    pub is_known: bool,
    /// Nodes whose agent says something of the volume.
    pub observers: BTreeSet<String>,
    /// Nodes where the volume is used, or lives, and no agent runs.
    pub silent_agents: BTreeSet<String>,
    /// The driver's sidecar is there but cannot tell.
    pub driver_silent: bool,
    /// When a node on which the volume lives will count as failed.
    pub node_due: Option<DateTime<Utc>>,
}

/// Gathers what every source says under the ruling policy.
pub fn gather(seen: &Seen, policy: &VolumeHealthPolicySpec, now: DateTime<Utc>) -> Voices {
    let mut voices = Voices::default();
    for (name, place) in &seen.places {
        agent(seen, policy, name, place, &mut voices);
    }
    driver(seen, policy, &mut voices);
    lifecycle(seen, policy.thresholds.unreachable_after.get(), now, &mut voices);
    keep_losses(seen, &mut voices);
    let rank = |it: &Observation| (std::cmp::Reverse(it.state), it.source, it.node.clone(), it.check);
    voices.observations.sort_by_key(rank);
    voices.observations.truncate(OBSERVATIONS);
    voices
}

fn recorded(seen: &Seen) -> &[Observation] {
    seen.status().map(|status| status.observations.as_slice()).unwrap_or_default()
}

fn is_of_agent(source: Source) -> bool {
    matches!(source, Source::NodeAgent | Source::CSINode)
}

/// The agent of one node, for itself and for the node plugin of the driver.
fn agent(seen: &Seen, policy: &VolumeHealthPolicySpec, name: &str, place: &Place, voices: &mut Voices) {
    let is_mine = |it: &&Observation| is_of_agent(it.source) && it.node == name;
    let before = || recorded(seen).iter().filter(is_mine);
    let here = is_here(seen, name, place);
    // A volume that can move has left this node: what was seen here holds for nobody, and must not keep off whoever is to
    // take over from a node that was fenced while it saw errors. What was lost stays, see `keep_losses`.
    if !here && !seen.is_local() {
        return;
    }
    if here && (seen.is_local() || place.node.is_some()) && !place.agent_ready {
        voices.silent_agents.insert(name.to_owned());
    }
    let Some(report) = place.believed_report() else {
        // Of a volume that can move, a node that is no more says nothing more. A local one is still there.
        if place.node.is_some() || seen.is_local() {
            voices.observations.extend(before().cloned());
        }
        return;
    };
    let Some(entry) = entry(report, &seen.name) else { return };
    let judge = |finding| judged(seen, policy, observation(finding, name));
    let findings: Vec<_> = entry.findings.iter().map(judge).collect();
    if here {
        voices.observers.insert(name.to_owned());
        voices.is_known |= entry.state != VolumeState::Unknown;
        return voices.observations.extend(findings);
    }
    // The node has other labels than the local volume asks for: its agent may end its word, but neither give nor raise one.
    let is_said = |was: &&Observation| findings.iter().any(|it| (it.source, it.check) == (was.source, was.check));
    voices.observations.extend(before().filter(is_said).cloned());
}

/// Whether this node can have the volume: it is local here, or attached, or a pod here uses it and has not ended.
fn is_here(seen: &Seen, name: &str, place: &Place) -> bool {
    if seen.is_local() {
        let allows = |volume| place.node.as_deref().map_or(place.is_host, |node| affinity::allows(volume, node));
        return seen.volume.as_deref().is_some_and(allows);
    }
    let attached = seen.attachments.iter().any(|attachment| attachment.spec.node_name == name);
    attached || seen.pods.iter().any(|pod| pod.spec.node_name.as_deref() == Some(name) && !pod.is_finished())
}

fn entry<'a>(report: &'a NodeVolumeReport, volume: &str) -> Option<&'a ReportedVolume> {
    report.status.as_ref()?.volumes.iter().find(|entry| entry.name == volume)
}

fn observation(finding: &Finding, node: &str) -> Observation {
    let source = if finding.check == Check::ControllerHealth { Source::CSINode } else { Source::NodeAgent };
    Observation {
        source,
        node: node.to_owned(),
        check: finding.check,
        state: finding.state,
        reason: finding.reason.clone(),
        message: finding.message.as_deref().map(printable),
        raw_status: None,
        first_seen: time::stamp(finding.since),
    }
}

/// What the driver says has the state that the policy gives its reason; the driver's own is in the message. Asked as it
/// is said, so that what is recorded of one that is silent now stays as it was judged.
fn judged(seen: &Seen, policy: &VolumeHealthPolicySpec, mut said: Observation) -> Observation {
    let driver = seen.volume.as_ref().and_then(|volume| volume.spec.csi.as_ref()).map(|csi| csi.driver.as_str());
    let speaking = driver.filter(|_| said.check == Check::ControllerHealth);
    let state = speaking.and_then(|driver| policy.state(driver, &said.reason));
    if let Some(state) = state.filter(|state| *state != said.state) {
        let detail = said.message.as_deref().map(|message| format!(": {message}")).unwrap_or_default();
        said.message = Some(format!("{:?} by the driver's word{detail}", said.state));
        said.state = state;
    }
    said
}

/// The controller of the CSI driver, through its sidecar.
fn driver(seen: &Seen, policy: &VolumeHealthPolicySpec, voices: &mut Voices) {
    let before = || recorded(seen).iter().filter(|it| it.source == Source::CSIController).cloned();
    let Some((report, handle)) = seen.driver_report.as_deref().zip(seen.handle()) else {
        return voices.observations.extend(before());
    };
    let judge = |said| judged(seen, policy, said);
    let mut says = if seen.driver_is_heard { abnormal(report, handle, judge) } else { Vec::new() };
    // A group of the report has the time of its first member: it moves when others come and go. Ours began when it did.
    for said in &mut says {
        let is_same = |was: &Observation| {
            (&was.node, was.check, was.state, &was.reason) == (&said.node, said.check, said.state, &said.reason)
        };
        said.first_seen = before().find(is_same).map_or(said.first_seen, |was| was.first_seen);
    }
    let is_complete = report.status.as_ref().and_then(|status| status.coverage) == Some(Coverage::Complete);
    let tells_all = seen.driver_is_heard && report.is_ready() && is_complete;
    voices.driver_silent = !(seen.driver_is_heard && report.is_ready());
    voices.is_known |= tells_all && says.is_empty() || says.iter().any(|it| it.state != VolumeState::Unknown);
    if !tells_all {
        let is_said = |was: &Observation| says.iter().any(|it| (&it.node, it.check) == (&was.node, was.check));
        voices.observations.extend(before().filter(|was| !is_said(was)));
    }
    voices.observations.extend(says);
}

/// What the report has of a volume: of each node and check the worst, as it is judged.
fn abnormal(report: &DriverReport, handle: &str, judge: impl Fn(Observation) -> Observation) -> Vec<Observation> {
    let mut found: Vec<Observation> = Vec::new();
    for group in report.status.iter().flat_map(|status| &status.abnormal) {
        if !group.volume_handles.iter().any(|it| it == handle) {
            continue;
        }
        let check = match group.reason.as_str() {
            "PublishedNodeMismatch" | "NotAttached" => Check::PublishedNodes,
            _ => Check::ControllerHealth,
        };
        let said = judge(Observation {
            source: Source::CSIController,
            node: group.node.clone().unwrap_or_default(),
            check,
            state: group.state,
            reason: group.reason.clone(),
            message: group.message.as_deref().map(printable),
            raw_status: group.raw_status,
            first_seen: time::stamp(group.since),
        });
        match found.iter_mut().find(|it| (&it.node, it.check) == (&said.node, said.check)) {
            Some(known) if known.state >= said.state => {}
            Some(known) => *known = said,
            None => found.push(said),
        }
    }
    found
}

/// Nodes that failed take their local volumes with them, and bring them back.
fn lifecycle(seen: &Seen, after: std::time::Duration, now: DateTime<Utc>, voices: &mut Voices) {
    if !seen.is_local() {
        return;
    }
    let hosts = seen.places.iter().filter(|(_, place)| place.is_host);
    let verdicts: Vec<_> =
        hosts.map(|(name, place)| (name, nodes::verdict(place.node.as_deref(), after, seen.storm, now))).collect();
    if verdicts.iter().any(|(_, verdict)| *verdict == Verdict::Up) {
        return;
    }
    for (name, verdict) in verdicts {
        let before = recorded(seen).iter().find(|it| it.source == Source::NodeLifecycle && it.node == *name);
        let (since, message) = match verdict {
            Verdict::Gone => (now, "there is no such node"),
            Verdict::Down { since } => (since, "the node is not ready"),
            // Not ready in another way than before: it was never good in between.
            Verdict::Failing { .. } if before.is_some() => (now, "the node is not ready"),
            Verdict::Failing { due } => {
                voices.node_due = Some(voices.node_due.map_or(due, |known| known.min(due)));
                continue;
            }
            Verdict::Up => continue,
        };
        voices.observations.push(Observation {
            source: Source::NodeLifecycle,
            node: name.clone(),
            check: Check::PathExists,
            state: VolumeState::Inaccessible,
            reason: NODE_DOWN.to_owned(),
            message: Some(message.to_owned()),
            raw_status: None,
            first_seen: before.map_or(time::stamp(since), |before| before.first_seen),
        });
    }
}

/// What was lost does not come back by itself: such a word stays until a person has acknowledged it.
fn keep_losses(seen: &Seen, voices: &mut Voices) {
    for lost in recorded(seen).iter().filter(|it| it.state == VolumeState::DataLoss) {
        let key = |it: &Observation| (it.source, it.node.clone(), it.check);
        match voices.observations.iter_mut().find(|it| key(it) == key(lost)) {
            Some(said) if said.state == VolumeState::DataLoss => {}
            _ if loss::is_record_acknowledged(seen) => {}
            Some(said) => *said = lost.clone(),
            None => voices.observations.push(lost.clone()),
        }
    }
}

impl Place {
    /// The agent's report, if the agent runs on the Node of that name that there is now.
    pub fn believed_report(&self) -> Option<&NodeVolumeReport> {
        let uid = self.node.as_ref()?.uid()?;
        let says = |report: &&NodeVolumeReport| {
            report.status.as_ref().and_then(|status| status.node_uid.as_deref()) == Some(uid.as_str())
        };
        self.report.as_deref().filter(says)
    }
}

impl Seen {
    fn handle(&self) -> Option<&str> {
        Some(self.volume.as_ref()?.spec.csi.as_ref()?.volume_handle.as_str())
    }

    /// Whether somebody has ever known the state of this volume.
    pub fn was_ever_known(&self) -> bool {
        let observed = self.status().and_then(|status| conditions::find(&status.conditions, "Observed"));
        observed.is_some_and(|observed| observed.reason != "NeverObserved")
    }
}
