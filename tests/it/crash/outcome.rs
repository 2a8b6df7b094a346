//! What an incident leaves behind, without times, uids and the name of its node: comparable between incidents.

use std::collections::BTreeMap;

use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::cluster::Cluster;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::victim::Victim;
use crate::failover::look::operator_records;

/// What is left of the victim's incident.
pub async fn outcome(cluster: &Cluster, victim: &Victim) -> Result<Value, Failed> {
    let client = || cluster.client.clone();
    let (name, everything) = (victim.name(), ListParams::default());
    let fence = Api::<NodeFence>::all(client()).get(name).await?;
    let node = Api::<Node>::all(client()).get(name).await?;
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let taints: Vec<_> = taints.into_iter().map(|taint| taint.key).collect();
    let requests = Api::<FenceRequest>::all(client()).list(&everything).await?;
    let requests = requests.iter().filter(|request| request.spec.node_name == name).count();
    let attachments = Api::<VolumeAttachment>::all(client()).list(&everything).await?;
    let attachments = attachments.iter().filter(|attachment| attachment.spec.node_name == name).count();
    let policy = Api::<ResiliencyPolicy>::all(client()).get_opt(name).await?;
    // Its counts are of the whole cluster.
    let policy = policy.map(|policy| {
        let status = policy.status.clone().unwrap_or_default();
        json!([policy.finalizers(), status.conditions, status.active_fences])
    });
    let pod = Api::<Pod>::default_namespaced(client()).get(&victim.pod()).await?;
    let on_victim = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(name);
    let mut outcome = json!({
        "status": fence.status, "labels": fence.labels(), "finalizers": fence.finalizers(),
        "taints": taints, "requests": requests, "attachments": attachments, "policy": policy,
        "firstPod": pod.uid().as_deref() == Some(victim.first_pod()), "onVictim": on_victim,
        "deletions": deletions(cluster, &victim.pod())?,
    });
    normalise(&mut outcome, name);
    Ok(outcome)
}

/// How often each incarnation of a pod was deleted by the operator, in no order.
fn deletions(cluster: &Cluster, pod: &str) -> Result<Vec<usize>, Failed> {
    let records = operator_records(cluster, |record| {
        record.verb == "delete" && record.resource == "pods" && record.name == pod && record.succeeded()
    })?;
    let mut counts = BTreeMap::<String, usize>::new();
    for record in records {
        let body = record.body.unwrap_or_default();
        *counts.entry(body["preconditions"]["uid"].to_string()).or_default() += 1;
    }
    Ok(counts.into_values().collect())
}

/// Times become "then", uids go, what is written for people goes, and so does the name of the node.
pub fn normalise(value: &mut Value, node: &str) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !["uid", "message", "observedGeneration"].contains(&name.as_str()));
            for (name, field) in fields {
                match field {
                    Value::String(text) if name.ends_with("At") || name.ends_with("Time") => "then".clone_into(text),
                    field => normalise(field, node),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| normalise(item, node)),
        Value::String(text) => *text = text.replace(node, "victim"),
        _ => {}
    }
}
