//! How much is acted on at once, when nothing is done at all, and how a policy goes.

use std::time::Duration;

use bulkhead::api::conditions;
use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::TestbedOptions;
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, ClusterOptions, Workload};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::fleet::{Lane, LaneOptions, SOON, create_policy, options};
use super::look::{event, is_released, operator_records};

/// Waits until a condition of a policy has this status and reason.
pub async fn policy_says(cluster: &Cluster, name: &str, type_: &str, status: &str, reason: &str) -> Result<(), Failed> {
    let api: Api<ResiliencyPolicy> = Api::all(cluster.client.clone());
    let look = async || {
        let policy = api.get_opt(name).await?;
        let conditions = policy.and_then(|policy| policy.status).map(|status| status.conditions).unwrap_or_default();
        let found = conditions::find(&conditions, type_);
        let holds = found.is_some_and(|found| found.status == status && found.reason == reason);
        Ok(if holds { Ok(()) } else { Err(format!("{conditions:?}")) })
    };
    Ok(cluster.wait(&format!("policy {name}: {type_}={status} {reason}"), SOON, look).await?)
}

pub async fn no_more_nodes_than_the_budget_are_acted_on(cluster: &Cluster) -> Result<(), Failed> {
    let options = LaneOptions { nodes: 4, policy: json!({ "limits": { "maxNodes": 1 } }), ..LaneOptions::default() };
    let lane = Lane::new(cluster, "budget", options).await?;
    let spare = lane.nodes.last().ok_or("no node")?.name().to_owned();
    let failing: Vec<_> = lane.nodes.iter().take(3).collect();
    for (number, node) in failing.iter().enumerate() {
        let nodes = vec![node.name().to_owned(), spare.clone()];
        let set = Workload { nodes, node: Some(node.name().to_owned()), ..lane.workload(&format!("db{number}")) };
        cluster.stateful_set_on(&[lane.array()], &set).await?;
        lane.ready_on(&set, &[node.name()]).await?;
    }
    futures::future::join_all(failing.iter().map(|node| node.kill())).await;
    policy_says(cluster, "budget", "Restrained", "True", "BudgetExhausted").await?;
    let api: Api<NodeFence> = Api::all(lane.client());
    let fences = api.list(&ListParams::default()).await?.items;
    let acted_on: Vec<_> =
        fences.iter().map(|fence| fence.name_any()).filter(|name| name.starts_with("budget")).collect();
    assert_eq!(acted_on.len(), 1, "{acted_on:?}");
    for node in failing.iter().filter(|node| !acted_on.contains(&node.name().to_owned())) {
        event(cluster, "Node", node.name(), "FenceHeld", "BudgetExhausted").await?;
    }
    let first = acted_on.first().ok_or("no NodeFence")?;
    let released = |fence: &NodeFence| fence.spec.plan.pods.iter().all(|pod| is_released(fence, &pod.name));
    cluster.fence(first, "released", SOON, released).await?;
    assert_eq!(lane.deletions(&[])?.iter().filter(|record| record.succeeded()).count(), 1);
    // It is over for the first: the next may be acted on.
    let node = failing.iter().find(|node| node.name() == first).ok_or("no such node")?;
    node.reboot().await?;
    cluster
        .wait("the next node is acted on", SOON, async || {
            let fences = api.list(&ListParams::default()).await?.items;
            let count = fences.iter().filter(|fence| fence.name_any().starts_with("budget")).count();
            Ok(if count == 2 { Ok(()) } else { Err(format!("{count} are")) })
        })
        .await?;
    lane.end().await
}

pub async fn a_policy_with_an_open_fence_goes_when_it_is_finished(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "leaving", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let fault = lane.array().faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::Hang));
    lane.victim()?.kill().await;
    lane.request("begun", |request| request.status.as_ref().is_some_and(|status| !status.volumes.is_empty())).await?;
    let api: Api<ResiliencyPolicy> = Api::all(lane.client());
    api.delete("leaving", &DeleteParams::default()).await?;
    policy_says(cluster, "leaving", "Ready", "False", "FencesOpen").await?;
    lane.array().faults().remove(fault);
    lane.moved(&set).await?;
    cluster
        .wait("the policy is gone", SOON, async || {
            let policy = api.get_opt("leaving").await?;
            Ok(if policy.is_none() { Ok(()) } else { Err(format!("{policy:?}")) })
        })
        .await?;
    lane.end().await
}

/// Three of four nodes at once are not three failures, and all four are not four.
pub async fn most_nodes_at_once_and_then_all_are_an_outage() -> Result<(), Failed> {
    // As by default, a Lease that stands still is suspected well before Kubernetes gives the node up: Kubernetes does so
    // with one node after the other, and the first must not be acted on before the last is counted.
    let testbed = TestbedOptions { node_monitor_grace_period: Duration::from_secs(18), ..options().testbed };
    let cluster = Cluster::start(ClusterOptions { nodes: 4, testbed, ..options() }).await?;
    let limits = json!({
        "detection": { "kubelet": { "suspectAfter": "11s" } },
        "limits": { "maxNodes": "100%", "maxUnhealthy": "50%", "cooldown": "10m" },
    });
    create_policy(&cluster.client, "outage", "outage", &limits).await?;
    let set = Workload {
        replicas: 8,
        labels: [("lane".to_owned(), "outage".to_owned())].into(),
        ..Workload::new("outage-db")
    };
    cluster.stateful_set(&set).await?;
    let before = cluster.pods_ready(&set, SOON).await?;
    for name in ["node-1", "node-2", "node-3"] {
        // Together: the last is silent before the first is noticed.
        cluster.node(name)?.kill().await;
    }
    policy_says(&cluster, "outage", "Restrained", "True", "CorrelatedOutage").await?;
    let failed = before.values().find(|node| *node != "node-4").ok_or("no pod on a failed node")?;
    event(&cluster, "Node", failed, "FenceHeld", "CorrelatedOutage").await?;
    cluster.node("node-4")?.kill().await;
    event(&cluster, "Node", "node-4", "FenceHeld", "CorrelatedOutage").await?;
    let acted = operator_records(&cluster, |record| {
        record.is_write()
            && (["pods", "volumeattachments", "nodes", "nodefences", "fencerequests"]
                .contains(&record.resource.as_str()))
    })?;
    assert_eq!(acted, [], "something was done in an outage");
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(cluster.client.clone());
    let tainted = nodes.list(&ListParams::default()).await?.items.into_iter().any(|node| {
        node.spec.and_then(|spec| spec.taints).into_iter().flatten().any(|taint| taint.key == names::FENCED_TAINT)
    });
    assert!(!tainted, "a node was tainted");
    cluster.judge()?;
    Ok(())
}
