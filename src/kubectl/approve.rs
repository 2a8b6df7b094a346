//! `kubectl bulkhead approve`, `hold`, `unhold`: a person's word in the spec of a NodeFence. Each is a JSON patch that tests
//! what the person has read, so a plan that changed meanwhile is not approved unseen.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::{Args, Subcommand};
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation, RemoveOperation, TestOperation};
use kube::Api;
use kube::ResourceExt;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::node_fence::{NodeFence, Phase};
use crate::api::time;
use crate::controllers::resiliency_policy::brakes;
use crate::runtime::clock::Clock;

use super::error::{Error, Result};
use super::gather::Cluster;
use super::incident::IncidentReport;
use super::print::{Output, Page, Report};
use super::write;

/// What is approved.
#[derive(Debug, Subcommand)]
pub enum Approve {
    /// The plan of this node's incident.
    Node(ApproveNode),
}

/// The approval of a plan.
#[derive(Debug, Args)]
pub struct ApproveNode {
    /// The node.
    name: String,
    /// Digest of the plan that was read; another plan is not approved.
    #[arg(long)]
    digest: Option<String>,
    /// Why; shown in status and Events.
    #[arg(long)]
    reason: Option<String>,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

/// What is held.
#[derive(Debug, Subcommand)]
pub enum Hold {
    /// This node's incident.
    Node {
        /// The node.
        name: String,
        /// Why; shown in status and Events.
        #[arg(long)]
        reason: String,
    },
}

/// What may go on.
#[derive(Debug, Subcommand)]
pub enum Unhold {
    /// This node's incident.
    Node {
        /// The node.
        name: String,
    },
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Written {
    /// Kind of the object.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Whether it was changed; false: it was so already.
    pub changed: bool,
    /// What was done, in words.
    pub message: String,
}

impl Report for Written {
    fn text(&self) -> String {
        self.message.clone()
    }
}

impl Approve {
    /// Approves.
    pub async fn run(self, cluster: &Cluster, output: Output) -> Result<String> {
        let Self::Node(ApproveNode { name, digest, reason, yes }) = self;
        let fence = open_fence(cluster, &name).await?;
        let plan = fence.spec.plan.digest.clone();
        if let Some(read) = digest.filter(|read| *read != plan) {
            return Err(outdated(&name, &read, &plan));
        }
        let approval = json!({ "planDigest": plan, "reason": reason });
        let approval = without_null(approval);
        if fence.spec.approval.as_ref().is_some_and(|known| known.plan_digest == plan) {
            return output.render(&written(&name, false, format!("plan {plan} of node {name} was approved already")));
        }
        if !yes {
            confirm(&fence)?;
        }
        let operations = vec![test("/spec/plan/digest", json!(plan)), add("/spec/approval", approval)];
        match patch(cluster, &name, operations).await {
            Err(Error::Other(error)) if error.is_conflict() => {
                let now = open_fence(cluster, &name).await?;
                Err(outdated(&name, &plan, &now.spec.plan.digest))
            }
            other => {
                let kept = other?.spec.approval.is_some_and(|approval| approval.plan_digest == plan);
                is_kept(kept, "spec.approval")?;
                output.render(&written(&name, true, format!("plan {plan} of node {name} is approved")))
            }
        }
    }
}

impl Hold {
    /// Holds.
    pub async fn run(self, cluster: &Cluster, output: Output) -> Result<String> {
        let Self::Node { name, reason } = self;
        let fence = open_fence(cluster, &name).await?;
        if fence.spec.hold.as_ref().is_some_and(|hold| hold.reason == reason) {
            return output.render(&written(
                &name,
                false,
                format!("the incident of node {name} is held already: {reason}"),
            ));
        }
        let after = patch(cluster, &name, vec![add("/spec/hold", json!({ "reason": reason }))]).await?;
        is_kept(after.spec.hold.is_some_and(|hold| hold.reason == reason), "spec.hold")?;
        let message = format!(
            "the incident of node {name} stops before its next destructive step; what was begun is not undone. \
             kubectl bulkhead unhold node {name} lets it go on"
        );
        output.render(&written(&name, true, message))
    }
}

impl Unhold {
    /// Lets it go on.
    pub async fn run(self, cluster: &Cluster, output: Output) -> Result<String> {
        let Self::Node { name } = self;
        let fence = fence(cluster, &name).await?;
        let Some(hold) = &fence.spec.hold else {
            return output.render(&written(&name, false, format!("the incident of node {name} is not held")));
        };
        let known = serde_json::to_value(hold).map_err(|error| Error::Unwritable(error.to_string()))?;
        let operations =
            vec![test("/spec/hold", known), PatchOperation::Remove(RemoveOperation { path: pointer("/spec/hold") })];
        patch(cluster, &name, operations).await?;
        output.render(&written(&name, true, format!("the incident of node {name} goes on")))
    }
}

fn written(name: &str, changed: bool, message: String) -> Written {
    Written { kind: "NodeFence", name: name.to_owned(), changed, message }
}

/// An API server drops fields that its definition does not have, and says nothing.
fn is_kept(kept: bool, field: &str) -> Result<()> {
    if kept {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "nothing was written: the cluster's definition of NodeFence does not have {field}; apply crds/ of this version"
    )))
}

fn outdated(name: &str, read: &str, plan: &str) -> Error {
    Error::Refused(format!(
        "plan {read} of node {name} is outdated, it is {plan} now: read it with kubectl bulkhead explain node {name}, and \
         approve it with --digest {plan}"
    ))
}

async fn fence(cluster: &Cluster, name: &str) -> Result<NodeFence> {
    let api: Api<NodeFence> = Api::all(cluster.clients.reads.clone());
    let found = api.get_opt(name).await.map_err(Error::of_write("get", "nodefences.bulkhead.dev"))?;
    let remedy =
        format!("node {name} has no incident; kubectl bulkhead simulate node {name} shows what would be planned");
    found.ok_or_else(|| Error::NotFound { kind: "nodefence", name: name.to_owned(), remedy })
}

async fn open_fence(cluster: &Cluster, name: &str) -> Result<NodeFence> {
    let fence = fence(cluster, name).await?;
    if brakes::phase(&fence) == Phase::Recovered {
        return Err(Error::Refused(format!(
            "the incident of node {name} is over: there is nothing to approve or to hold"
        )));
    }
    Ok(fence)
}

/// Shows the plan and asks. Without somebody to ask nothing is approved.
fn confirm(fence: &NodeFence) -> Result<()> {
    let name = fence.name_any();
    let refused = |why: &str| {
        Error::Refused(format!("{why}: nothing is approved; give --yes and --digest {}", fence.spec.plan.digest))
    };
    if !io::stdin().is_terminal() {
        return Err(refused("nobody can be asked here"));
    }
    let now = time::stamp(Clock::system().now().wall);
    eprint!("{}", IncidentReport::new(fence).page(Page::default(), now).end());
    eprint!("Carry this plan out for node {name}? Type the node's name: ");
    let mut line = String::new();
    let answered = io::stderr().flush().and_then(|()| io::stdin().lock().read_line(&mut line));
    match answered {
        Ok(_) if line.trim() == name => Ok(()),
        _ => Err(refused("not confirmed")),
    }
}

async fn patch(cluster: &Cluster, name: &str, operations: Vec<PatchOperation>) -> Result<NodeFence> {
    write::patch(cluster, name, JsonPatch(operations), "nodefences.bulkhead.dev").await
}

fn without_null(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
    }
    value
}

fn pointer(path: &'static str) -> PointerBuf {
    json_patch::jsonptr::Pointer::from_static(path).to_buf()
}

fn test(path: &'static str, value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation { path: pointer(path), value })
}

fn add(path: &'static str, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: pointer(path), value })
}
