//! `simulate node`: what it prints is what the controller does.

use bulkhead::api::node_fence::NodeFence;
use bulkhead_testbed::cluster::{Cluster, Workload};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::plugin;
use crate::failover::fleet::{Lane, LaneOptions, SOON};

/// The rows of a plan as the API has them.
fn rows(fence: &NodeFence) -> Result<(Value, Value), Failed> {
    let plan = serde_json::to_value(&fence.spec.plan)?;
    Ok((plan["pods"].clone(), plan["volumes"].clone()))
}

/// The rows that were printed, without what the plan does not have.
fn printed(simulation: &Value, list: &str, more: &[&str]) -> Value {
    let rows = simulation[list].as_array().cloned().unwrap_or_default();
    let bare = rows.into_iter().map(|mut row| {
        if let Some(fields) = row.as_object_mut() {
            fields.retain(|name, _| !more.contains(&name.as_str()));
        }
        row
    });
    bare.collect()
}

async fn fences(client: &Client) -> Result<Vec<String>, Failed> {
    let api: Api<NodeFence> = Api::all(client.clone());
    Ok(api.list(&ListParams::default()).await?.items.into_iter().filter_map(|fence| fence.metadata.name).collect())
}

pub async fn what_was_simulated_is_what_is_carried_out(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "foreseen", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    // One that is left alone is in the plan too.
    let stays = Workload { labels: [].into(), ..lane.workload("stays") };
    lane.run(&stays).await?;
    let victim = lane.victim()?.name().to_owned();
    let simulation = plugin::json(cluster, &["simulate", "node", &victim]).await?;
    assert_eq!(simulation["outcome"], "Opens", "{simulation}");
    assert_eq!(simulation["episode"], 1);
    let best: Vec<_> =
        simulation["volumes"].as_array().ok_or("no volumes")?.iter().map(|it| &it["bestProof"]).collect();
    assert!(best.contains(&&json!("Verified")), "{simulation}");
    assert!(!fences(&lane.client()).await?.contains(&victim), "a simulation wrote something");
    let text = plugin::done(cluster, &["simulate", "node", &victim]).await?;
    assert!(
        text.contains("would be opened") && text.contains(simulation["digest"].as_str().ok_or("no digest")?),
        "{text}"
    );
    let yaml = plugin::done(cluster, &["simulate", "node", &victim, "-o", "yaml"]).await?;
    assert!(yaml.contains("outcome: Opens"), "{yaml}");
    lane.victim()?.kill().await;
    let fence = lane.fence("planned", |_| true).await?;
    let (pods, volumes) = rows(&fence)?;
    assert_eq!(printed(&simulation, "pods", &["waits"]), pods);
    assert_eq!(printed(&simulation, "volumes", &["needed", "bestProof", "method", "waits"]), volumes);
    assert_eq!(simulation["digest"], json!(fence.spec.plan.digest));
    lane.moved(&set).await?;
    // Nothing more would come of another failure of the same node.
    let again = plugin::json(cluster, &["simulate", "node", &victim]).await?;
    assert_eq!(again["outcome"], "IsOpen", "{again}");
    lane.end().await
}

pub async fn a_brake_that_would_hold_is_foreseen(cluster: &Cluster) -> Result<(), Failed> {
    let policy = json!({ "limits": { "maxNodes": 1, "window": "10m" } });
    let lane = Lane::new(cluster, "braked", LaneOptions { nodes: 3, policy, ..LaneOptions::default() }).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let victim = lane.victim()?.name().to_owned();
    let other = lane.nodes.last().ok_or("no node")?;
    let second = Workload { node: Some(other.name().to_owned()), ..lane.workload("other") };
    cluster.stateful_set_on(&[lane.array()], &second).await?;
    lane.ready_on(&second, &[other.name()]).await?;
    assert_eq!(plugin::json(cluster, &["simulate", "node", &victim]).await?["outcome"], "Opens");
    other.kill().await;
    cluster.fence(other.name(), "the budget is used up", SOON, |_| true).await?;
    let simulation = plugin::json(cluster, &["simulate", "node", &victim]).await?;
    assert_eq!(simulation["outcome"], "Restrained", "{simulation}");
    assert_eq!(simulation["brakes"][0]["type"], "BudgetExhausted", "{simulation}");
    assert_eq!(simulation["brakes"][0]["holds"], true);
    assert_eq!(simulation["digest"], Value::Null, "nothing is planned");
    assert_ne!(simulation["pods"], json!([]), "what would come is shown: {simulation}");
    let explained = plugin::json(cluster, &["explain", "pod", &format!("{}-0", set.name)]).await?;
    assert!(explained["verdict"].as_str().is_some_and(|it| it.contains("BudgetExhausted")), "{explained}");
    lane.end().await
}

/// What the program said instead, for who waits.
pub fn told(error: Failed) -> bulkhead_testbed::cluster::ClusterError {
    let last = error.message().unwrap_or_default().to_owned();
    bulkhead_testbed::cluster::ClusterError::Timeout {
        what: "kubectl-bulkhead".into(),
        limit: std::time::Duration::ZERO,
        last,
    }
}

pub async fn a_pod_that_cannot_move_is_foreseen_by_name(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "fixed", LaneOptions::default()).await?;
    let host = json!({ "name": "host", "hostPath": { "path": "/var/lib/x" } });
    let set = Workload { more_volumes: vec![host], ..lane.workload("db") };
    lane.run(&set).await?;
    let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(lane.client(), "default");
    let bare = json!({
        "metadata": { "name": "fixed-bare", "labels": { "lane": "fixed" } },
        "spec": { "nodeName": lane.victim()?.name(), "containers": [{ "name": "main", "image": "app" }] },
    });
    api.create(&PostParams::default(), &serde_json::from_value(bare)?).await?;
    let victim = lane.victim()?.name();
    let simulation = plugin::json(cluster, &["simulate", "node", victim]).await?;
    let row = |name: &str| {
        let rows = simulation["pods"].as_array().cloned().unwrap_or_default();
        rows.into_iter().find(|row| row["name"] == name).unwrap_or_default()
    };
    let waits = row(&format!("{}-0", set.name));
    assert_eq!(
        (&waits["action"], &waits["waits"]["reason"]),
        (&json!("Release"), &json!("LocalVolume")),
        "{simulation}"
    );
    assert_eq!(row("fixed-bare")["reason"], "BarePod", "{simulation}");
    let missing = plugin::run(cluster, &plugin::ADMIN, &["simulate", "node", "no-such-node"]).await?;
    assert_eq!(missing.code, 2);
    assert!(missing.error.contains("node no-such-node is not there"), "{}", missing.error);
    lane.end().await
}
