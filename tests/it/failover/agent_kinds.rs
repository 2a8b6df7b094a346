//! The agent of the DaemonSet and the one beside a driver's node plugin, on one node.

use bulkhead_testbed::audit::Record;
use bulkhead_testbed::cluster::Cluster;
use chrono::Utc;
use kube::api::DynamicObject;
use libtest_mimic::Failed;
use serde_json::json;

use super::agents::{self, Account};
use super::fleet::{Lane, LaneOptions, SOON};
use crate::chart::render::kustomize;

/// The ServiceAccount of a driver's node pods.
const DRIVERS: Account = ("default", "driver-node");

/// What `config/agent-sidecar/rights` gives to a driver's ServiceAccount.
async fn rights() -> Result<Vec<DynamicObject>, Failed> {
    let (namespace, name) = DRIVERS;
    let mut objects = tokio::task::spawn_blocking(|| kustomize("config/agent-sidecar/rights")).await??;
    for binding in &mut objects {
        binding["subjects"][0] = json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
    }
    objects.push(
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": namespace } }),
    );
    Ok(objects.into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?)
}

/// Two of both kinds: one reports, under its own account; the other writes nothing until that one has died.
pub async fn of_two_agents_of_a_node_one_acts(cluster: &Cluster) -> Result<(), Failed> {
    let lane =
        Lane::new(cluster, "twoagents", LaneOptions { nodes: 1, sidecar: false, ..LaneOptions::default() }).await?;
    cluster.testbed.apply(rights().await?).await?;
    let node = lane.victim()?.name().to_owned();
    let first = agents::start(cluster, &node).await?;
    let (second, port) = agents::launch(cluster, &node, DRIVERS).await?;
    let waits = async || {
        let log = std::fs::read_to_string(&second.launch().log).unwrap_or_default();
        Ok(if log.contains("another agent of this node has it") { Ok(()) } else { Err(log) })
    };
    cluster.wait("the second agent waits for its turn", SOON, waits).await?;
    let died = Utc::now();
    first.kill().await;
    agents::reported(cluster, &node, port).await.map_err(|error| format!("{error:?}\n{}", second.log_tail()))?;
    let user = format!("system:serviceaccount:{}:{}", DRIVERS.0, DRIVERS.1);
    let written: Vec<Record> =
        cluster.testbed.audit().records()?.filter(|record| record.user == user && record.is_write()).collect();
    let reports = written.iter().filter(|record| record.resource == "nodevolumereports" && record.succeeded());
    assert!(reports.count() > 0, "it has reported under another account: {written:?}");
    assert!(written.iter().all(|record| record.received > died), "both have acted: {written:?}");
    second.kill().await;
    lane.end().await
}
