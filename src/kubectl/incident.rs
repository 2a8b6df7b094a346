//! A NodeFence in words: where each of its rows stands, what it waits for, and what a person can do.

use chrono::{DateTime, Utc};
use kube::ResourceExt;
use serde::Serialize;

use crate::api::conditions;
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::names;
use crate::api::node_fence::{
    Approval, Evidence, Hold, NodeFence, PastEpisode, Phase, PlannedPolicy, PodAction, PodStatusState, Timeline,
    VolumeStatusState,
};
use crate::controllers::resiliency_policy::brakes;

use super::print::{Page, ago, names as joined, or_dash};
use super::words;

/// An incident.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IncidentReport {
    /// Its node.
    pub node: String,
    /// It is not Recovered.
    pub open: bool,
    /// How far it got.
    pub phase: Phase,
    /// Its number.
    pub episode: i64,
    /// The active label is on it: new attachments to the node are denied.
    pub active: bool,
    /// When the node was declared failed.
    pub decided_at: DateTime<Utc>,
    /// Digest of the plan.
    pub digest: String,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
    /// Policies of the plan.
    pub policies: Vec<PlannedPolicy>,
    /// A person's word that the plan may be carried out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// A person's word that nothing more may be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// What it waits for: the reason of its condition Ready.
    pub reason: String,
    /// What that means, and the controller's own words.
    pub means: String,
    /// What to do.
    pub next: String,
    /// Its pods.
    pub pods: Vec<PodStands>,
    /// Its volumes.
    pub volumes: Vec<VolumeStands>,
    /// When each step was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// Episodes that are over, newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<PastEpisode>,
}

/// Where a pod stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStands {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Release it or keep it.
    pub action: PodAction,
    /// Where it stands.
    pub state: PodStatusState,
    /// Why, as the API spells it.
    pub reason: String,
    /// The same in words.
    pub means: String,
    /// Its volumes.
    pub volumes: Vec<String>,
}

/// Where a volume stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStands {
    /// Its name.
    pub name: String,
    /// Episode of its row.
    pub episode: i64,
    /// Its CSI driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Where it stands.
    pub state: VolumeStatusState,
    /// The proof that was reached.
    pub proof: Proof,
    /// The proof that is required.
    pub minimum_proof: Proof,
    /// The method that gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<FenceMethodType>,
    /// The point of no return is passed: a fence call may have been sent.
    pub committed: bool,
    /// Where it stands in words, with the driver's answer.
    pub means: String,
}

impl IncidentReport {
    /// Tells of a NodeFence.
    pub fn new(fence: &NodeFence) -> Self {
        let spec = &fence.spec;
        let status = fence.status.clone().unwrap_or_default();
        let phase = brakes::phase(fence);
        let ready = conditions::find(&status.conditions, "Ready");
        let reason = ready.map_or_else(|| "Tainting".to_owned(), |ready| ready.reason.clone());
        let message = ready.map(|ready| ready.message.clone()).unwrap_or_default();
        let words = words::of_incident(&reason);
        let means = words.as_ref().map(|words| words.means).unwrap_or_default();
        Self {
            node: fence.name_any(),
            open: phase != Phase::Recovered,
            phase,
            episode: spec.episode,
            active: fence.labels().contains_key(names::ACTIVE_LABEL),
            decided_at: spec.plan.decided_at,
            digest: spec.plan.digest.clone(),
            evidence: spec.plan.evidence.clone(),
            policies: spec.policies.clone(),
            approval: spec.approval.clone(),
            hold: spec.hold.clone(),
            means: [means, &message].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": "),
            next: words.map_or("see the conditions: kubectl describe nodefence", |words| words.next).to_owned(),
            reason,
            pods: pods(fence),
            volumes: volumes(fence),
            timeline: status.timeline,
            history: status.history,
        }
    }

    /// The paragraphs and tables of it.
    pub fn page(&self, page: Page, now: DateTime<Utc>) -> Page {
        let active = if self.active { ", active" } else { "" };
        let page = page.line("").line(format!(
            "INCIDENT {} episode {}: {:?}{active}, decided {} ago, plan {}",
            self.node,
            self.episode,
            self.phase,
            ago(self.decided_at, now),
            self.digest
        ));
        let page = self.evidence.iter().fold(page, |page, evidence| {
            let message = evidence.message.as_deref().unwrap_or_default();
            page.line(format!("Evidence: {:?} {}: {message}", evidence.channel, evidence.reason))
        });
        let page = match &self.approval {
            Some(approval) if approval.plan_digest != self.digest => {
                page.line(format!("Approved: plan {}, which is not this one", approval.plan_digest))
            }
            Some(approval) => {
                page.line(format!("Approved: {}", approval.reason.as_deref().unwrap_or("no reason given")))
            }
            None => page,
        };
        let page = match &self.hold {
            Some(hold) => page.line(format!("Held by a person: {}", hold.reason)),
            None => page,
        };
        page.line(format!("It waits for: {}: {}", self.reason, self.means))
            .line(format!("What to do: {}", self.next))
            .table("", ["POD", "ACTION", "STATE", "WHY"], self.pods.iter().map(pod_columns).collect())
            .table(
                "",
                ["VOLUME", "DRIVER", "STATE", "PROOF", "REQUIRED", "WHY"],
                self.volumes.iter().map(volume_columns).collect(),
            )
            .table(
                "EARLIER EPISODES",
                ["EPISODE", "DECIDED", "RECOVERED", "REASON", "PODS", "VOLUMES", "PROOF"],
                self.history.iter().map(|past| past_columns(past, now)).collect(),
            )
    }
}

fn pods(fence: &NodeFence) -> Vec<PodStands> {
    let rows = fence.status.as_ref().map(|status| status.pods.as_slice()).unwrap_or_default();
    let pod = |plan: &crate::api::node_fence::PlannedPod| {
        let row = rows.iter().find(|row| row.episode == plan.episode && row.uid == plan.uid);
        let kept = plan.action == PodAction::Keep;
        let state = row.map_or(if kept { PodStatusState::Kept } else { PodStatusState::Pending }, |row| row.state);
        let own = row.and_then(|row| row.reason.clone());
        let reason = own.unwrap_or_else(|| plan.reason.clone());
        let detail = row.and_then(|row| row.message.as_deref()).unwrap_or_default();
        let means = words::of_pod(&reason).unwrap_or_default();
        PodStands {
            namespace: plan.namespace.clone(),
            name: plan.name.clone(),
            uid: plan.uid.clone(),
            action: plan.action,
            state,
            means: [means, detail].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": "),
            reason,
            volumes: plan.volumes.clone(),
        }
    };
    fence.spec.plan.pods.iter().map(pod).collect()
}

fn volumes(fence: &NodeFence) -> Vec<VolumeStands> {
    let rows = fence.status.as_ref().map(|status| status.volumes.as_slice()).unwrap_or_default();
    let volume = |plan: &crate::api::node_fence::PlannedVolume| {
        let row = rows.iter().find(|row| row.episode == plan.episode && row.name == plan.name);
        let state = row.map_or(VolumeStatusState::Pending, |row| row.state);
        let answer =
            row.map(|row| (row.reason.as_deref().unwrap_or_default(), row.message.as_deref().unwrap_or_default()));
        let (reason, message) = answer.unwrap_or_default();
        let parts = [stands(state, plan.methods.is_empty()), reason, message];
        VolumeStands {
            name: plan.name.clone(),
            episode: plan.episode,
            driver: plan.driver.clone(),
            state,
            proof: row.map_or(Proof::None, |row| row.proof),
            minimum_proof: plan.minimum_proof,
            method: row.and_then(|row| row.method),
            committed: row.is_some_and(|row| row.committed_at.is_some()),
            means: parts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": "),
        }
    };
    fence.spec.plan.volumes.iter().map(volume).collect()
}

fn stands(state: VolumeStatusState, has_no_method: bool) -> &'static str {
    match state {
        VolumeStatusState::Pending if has_no_method => {
            "recorded only: no pod to release uses it, or no method covers it"
        }
        VolumeStatusState::Pending => "nothing was sent for it yet",
        VolumeStatusState::Fencing => "being cut off",
        VolumeStatusState::Fenced => "the node is cut off",
        VolumeStatusState::Detached => "the node is cut off, and its attachment is gone",
        VolumeStatusState::Clean => "nothing of it is left on the node, which has its access back",
        VolumeStatusState::Undone => "the node came back before anything was sent",
        VolumeStatusState::Failed => "not cut off; it is tried again",
    }
}

fn pod_columns(row: &PodStands) -> [String; 4] {
    let why = if row.means.is_empty() { row.reason.clone() } else { format!("{}: {}", row.reason, row.means) };
    [format!("{}/{}", row.namespace, row.name), format!("{:?}", row.action), format!("{:?}", row.state), why]
}

fn volume_columns(row: &VolumeStands) -> [String; 6] {
    [
        row.name.clone(),
        or_dash(row.driver.as_ref()),
        format!("{:?}", row.state),
        format!("{:?}", row.proof),
        format!("{:?}", row.minimum_proof),
        row.means.clone(),
    ]
}

fn past_columns(past: &PastEpisode, now: DateTime<Utc>) -> [String; 7] {
    [
        past.episode.to_string(),
        format!("{} ago", ago(past.decided_at, now)),
        past.recovered_at.map_or_else(|| joined(&[]), |at| format!("{} ago", ago(at, now))),
        past.reason.clone(),
        or_dash(past.pods.as_ref()),
        or_dash(past.volumes.as_ref()),
        past.weakest_proof.map_or_else(|| "-".to_owned(), |proof| format!("{proof:?}")),
    ]
}
