//! Which pods would stay if their node failed: what `simulate node` says, asked of every node with a protected pod.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use kube::ResourceExt;
use serde::Serialize;

use crate::api::node_fence::PodAction;
use crate::controllers::resiliency_policy::decide::effective;
use crate::kubectl::error::REMEDY_VIEWER;
use crate::kubectl::gather::Gathered;
use crate::kubectl::simulate::report::{PodRow, Said, Simulation};
use crate::kubectl::words;

use super::{Finding, Severity};

const CHECK: &str = "Failure";
/// Nodes that are read from the API at the same time.
const AT_ONCE: usize = 8;
/// Whoever selects such a pod for protection wants to know that it is kept.
const BARE_POD: &str = "BarePod";
/// What a row of a pod says while a row of one of its volumes says more.
const TOO_WEAK: &str = "ProofTooWeak";

/// A pod that a policy selects and that would stay if its node failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StayingPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// The policy whose name its row in a NodeFence would have.
    pub policy: String,
    /// Why it would stay, as the API spells it.
    pub reason: String,
    /// The same in words.
    pub message: String,
}

/// Asks for every node with a protected pod that uses volumes.
pub async fn of(gathered: &Gathered) -> (Vec<StayingPod>, Vec<Finding>) {
    let (mut staying, mut findings, mut asked) = (Vec::new(), Vec::new(), 0);
    for nodes in nodes(gathered).chunks(AT_ONCE) {
        let simulations = join_all(nodes.iter().map(|node| gathered.failure_of_one(node))).await;
        for (node, simulation) in nodes.iter().zip(simulations) {
            match simulation {
                Ok(simulation) => {
                    asked += 1;
                    staying.extend(pods(&simulation));
                    findings.extend(in_doubt(&simulation));
                }
                Err(error) => findings.push(Finding {
                    severity: Severity::Unknown,
                    check: CHECK,
                    about: format!("node {node}"),
                    message: error.to_string(),
                    remedy: REMEDY_VIEWER.into(),
                }),
            }
        }
    }
    staying.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    findings.extend(by_reason(&staying));
    if findings.is_empty() && asked > 0 {
        findings.push(Finding::ok(CHECK, "nodes", format!("{asked} with protected pods: all of those would go")));
    }
    (staying, findings)
}

/// Nodes with a protected pod that uses volumes.
fn nodes(gathered: &Gathered) -> Vec<String> {
    let seen = gathered.seen();
    let is_protected =
        |node: &String| seen.pods.get(node).is_some_and(|pods| pods.iter().any(|pod| effective(&seen, pod).is_some()));
    let mut nodes: Vec<_> = gathered.stores.nodes.list().iter().map(|node| node.name_any()).collect();
    nodes.retain(is_protected);
    nodes.sort_unstable();
    nodes
}

/// The pods of a node that would stay.
fn pods(simulation: &Simulation) -> Vec<StayingPod> {
    let staying = simulation.pods.iter().filter_map(|row| {
        let said = why(row, simulation)?;
        Some(StayingPod {
            namespace: row.plan.namespace.clone(),
            name: row.plan.name.clone(),
            node: simulation.node.clone(),
            policy: row.plan.policy.clone().unwrap_or_default(),
            reason: said.reason,
            message: said.message,
        })
    });
    staying.collect()
}

fn why(row: &PodRow, simulation: &Simulation) -> Option<Said> {
    let plan = &row.plan;
    if plan.action == PodAction::Keep {
        let message = words::of_pod(BARE_POD).unwrap_or_default().to_owned();
        let is_told = plan.reason == BARE_POD && plan.policy.is_some();
        return is_told.then(|| Said { reason: plan.reason.clone(), message });
    }
    let own = row.waits.clone().filter(|said| said.reason != TOO_WEAK);
    let of_volume = || {
        let mut own = simulation.volumes.iter().filter(|volume| plan.volumes.contains(&volume.plan.name));
        own.find_map(|volume| {
            let said = volume.waits.as_ref()?;
            let message = format!("volume {}: {}", volume.plan.name, said.message);
            Some(Said { reason: said.reason.clone(), message })
        })
    };
    own.or_else(of_volume).or_else(|| row.waits.clone())
}

/// A node of which nothing could be moved, since it is not certain whom to cut off. What else holds an incident as a whole, a
/// person wants: dry-run, approval, a pause, a window.
fn in_doubt(simulation: &Simulation) -> Option<Finding> {
    let held = simulation.held.as_ref().filter(|held| held.reason == "IdentityAmbiguous")?;
    let message = format!("all its pods would stay: {}: {}", held.reason, held.message);
    let remedy =
        "drain the node and let it register again, so that its CSINode and its attachments name the same node id";
    Some(Finding::warning(CHECK, format!("node {}", simulation.node), message, remedy))
}

/// One finding for each policy and reason: the pods are listed apart.
fn by_reason(staying: &[StayingPod]) -> Vec<Finding> {
    let mut groups: BTreeMap<(&str, &str), Vec<&StayingPod>> = BTreeMap::new();
    for pod in staying {
        groups.entry((pod.policy.as_str(), pod.reason.as_str())).or_default().push(pod);
    }
    let finding = |((policy, reason), pods): ((&str, &str), Vec<&StayingPod>)| {
        let first = pods.first()?;
        let nodes: BTreeSet<_> = pods.iter().map(|pod| &pod.node).collect();
        let message = format!(
            "pods that would stay if their node failed: {}, on {} of the nodes; {}/{}: {}",
            pods.len(),
            nodes.len(),
            first.namespace,
            first.name,
            first.message
        );
        Some(Finding::warning(CHECK, format!("policy {policy}, {reason}"), message, remedy(reason)))
    };
    groups.into_iter().filter_map(finding).collect()
}

/// What to do about it while the node is well.
fn remedy(reason: &str) -> &'static str {
    match reason {
        "LocalVolume" => {
            "take the volume out of the pod, a hostPath for its convenience above all; or the pod out of the policy's selector"
        }
        "UnknownVolumeKind" => {
            "give the policy a method that covers it, where its message names one; no fence covers inline CSI volumes, in-tree ones but \
             NFS, nor a claim that is not bound: take the volume out of the pod, or the pod out of the policy's selector"
        }
        "SharerHeld" => {
            "see why the pod that the message names would stay: select it too, or, where it shares the volume, let sharers: \
             CleanAll take it along"
        }
        BARE_POD => {
            "let a StatefulSet or another controller own it; or release.barePods: Delete, where nothing creates it again"
        }
        "IdentityAmbiguous" => {
            "see why CSINode, attachment and pod are not of one Node object; to delete the pod has its volumes attached anew"
        }
        TOO_WEAK | "Unimplemented" => {
            "give the policy a method that can prove more for this driver, or a weaker proof: spec.fencing.drivers"
        }
        other => words::of_incident(other).map_or("kubectl bulkhead simulate node shows its row", |words| words.next),
    }
}

#[cfg(test)]
#[path = "failures_tests.rs"]
mod tests;
