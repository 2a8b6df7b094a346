//! What `kubectl bulkhead simulate node` says, and how it looks.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::node_fence::{PlannedPod, PlannedPolicy, PlannedVolume};

use super::super::print::{Page, Report, names, or_dash};
use super::super::words;

/// What would be done if a node failed now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Simulation {
    /// The node.
    pub node: String,
    /// What would come of it.
    pub outcome: Outcome,
    /// The same in a sentence.
    pub message: String,
    /// Episode of the NodeFence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episode: Option<i64>,
    /// Digest of the plan, as an approval names it; absent where a brake holds, since nothing is planned then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The writes of the plan: more than one where policies wait differently long.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// Why nothing would be done with the plan at first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Said>,
    /// Brakes that hold the node, and those that policies of its pods report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub brakes: Vec<Brake>,
    /// Other nodes that could not be read: they take no place in the budgets.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub unread: BTreeSet<String>,
    /// Policies of the plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PlannedPolicy>,
    /// Every pod of the node that was looked at.
    pub pods: Vec<PodRow>,
    /// Every volume of those pods, and every attachment of the node.
    pub volumes: Vec<VolumeForeseen>,
}

/// What would come of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Outcome {
    /// A NodeFence would be opened.
    Opens,
    /// The NodeFence of an earlier incident would begin its next episode.
    NextEpisode,
    /// The plan of the open incident would grow.
    Grows,
    /// An incident is open already, and its plan lacks nothing.
    IsOpen,
    /// A brake holds: nothing would be begun. The plan is what would come when it lets go.
    Restrained,
    /// Nothing: no pod there is protected.
    Nothing,
}

/// One write of the plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Seconds after Kubernetes calls the node unreachable.
    pub after_seconds: u64,
    /// Digest of the plan then.
    pub digest: String,
}

/// A reason, and what it means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Said {
    /// As the API spells it.
    pub reason: String,
    /// In words.
    pub message: String,
}

/// A brake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Brake {
    /// The policy whose brake it is.
    pub policy: String,
    /// Which brake, as the API spells it.
    #[serde(rename = "type")]
    pub type_: String,
    /// It holds this node, now.
    pub holds: bool,
    /// What it means, and what to do.
    pub message: String,
}

/// A pod of the plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRow {
    /// As in `spec.plan.pods`.
    #[serde(flatten)]
    pub plan: PlannedPod,
    /// Why it would not go though it is to be released, as far as can be seen before anything is fenced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Said>,
}

/// A volume of the plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeForeseen {
    /// As in `spec.plan.volumes`.
    #[serde(flatten)]
    pub plan: PlannedVolume,
    /// A pod to release waits for it.
    pub needed: bool,
    /// The strongest proof that its methods can give today.
    pub best_proof: Proof,
    /// The method that gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<FenceMethodType>,
    /// Why that is not enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Said>,
}

impl Report for Simulation {
    fn text(&self) -> String {
        let mut page = Page::default().line(&self.message);
        if let (Some(episode), Some(digest)) = (self.episode, &self.digest) {
            page = page.line(format!("Episode {episode}, plan {digest}"));
        }
        if self.steps.len() > 1 {
            page = page.list(self.steps.iter().map(|it| format!("after {} s: plan {}", it.after_seconds, it.digest)));
        }
        if let Some(held) = &self.held {
            page = page.line(format!("Held at first: {}: {}", held.reason, held.message));
        }
        page = words::unread(&self.unread).iter().fold(page, Page::line);
        page.table("PODS", POD_COLUMNS, self.pods.iter().map(pod_columns).collect())
            .table("VOLUMES", VOLUME_COLUMNS, self.volumes.iter().map(volume_columns).collect())
            .table("BRAKES", BRAKE_COLUMNS, self.brakes.iter().map(brake_columns).collect())
            .end()
    }
}

const POD_COLUMNS: [&str; 7] = ["NAMESPACE", "NAME", "ACTION", "REASON", "POLICY", "VOLUMES", "WAITS"];

fn pod_columns(row: &PodRow) -> [String; 7] {
    let plan = &row.plan;
    [
        plan.namespace.clone(),
        plan.name.clone(),
        format!("{:?}", plan.action),
        plan.reason.clone(),
        or_dash(plan.policy.as_ref()),
        names(&plan.volumes),
        or_dash(row.waits.as_ref().map(said)),
    ]
}

const VOLUME_COLUMNS: [&str; 7] = ["NAME", "DRIVER", "NODEID", "MINIMUM", "BEST", "METHODS", "WAITS"];

fn volume_columns(row: &VolumeForeseen) -> [String; 7] {
    let plan = &row.plan;
    let methods: Vec<_> = plan.methods.iter().map(|method| format!("{:?}", method.type_)).collect();
    [
        plan.name.clone(),
        or_dash(plan.driver.as_ref()),
        or_dash(plan.node_id.as_ref()),
        format!("{:?}", plan.minimum_proof),
        format!("{:?}", row.best_proof),
        names(&methods),
        or_dash(row.waits.as_ref().map(said)),
    ]
}

/// Columns of brakes.
pub const BRAKE_COLUMNS: [&str; 4] = ["POLICY", "BRAKE", "HOLDS", "MEANS"];

/// A row of brakes.
pub fn brake_columns(brake: &Brake) -> [String; 4] {
    let holds = if brake.holds { "yes" } else { "no" };
    [brake.policy.clone(), brake.type_.clone(), holds.to_owned(), brake.message.clone()]
}

fn said(said: &Said) -> String {
    if said.message.is_empty() { said.reason.clone() } else { format!("{}: {}", said.reason, said.message) }
}
