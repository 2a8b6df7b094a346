//! Nodes that fail, go and return, with the local volumes on them.

use std::time::{Duration, Instant};

use bulkhead::api::conditions;
use bulkhead::api::volume_health::VolumeHealthStatus;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use libtest_mimic::Failed;
use serde_json::json;

use super::world::{World, bad, good};

pub async fn a_failed_node_taints_its_local_volumes(world: &World) -> Result<(), Failed> {
    world.node("failing-1").await?;
    world.local("on-failing", "failing-1").await?;
    world.claim("on-failing").await?;
    world.csi("beside-failing", json!({})).await?;
    world.user("beside-failing", "failing-1", "beside-failing").await?;
    world.report("failing-1", json!([good("on-failing"), good("beside-failing")])).await?;
    world.tainted("on-failing", "").await?;
    // The default threshold is two minutes.
    world.ready("failing-1", "Unknown", 115).await?;
    let health = world.tainted("on-failing", "VolumeNotUsable").await?;
    let taint = &health.taints()[0];
    assert_eq!((taint.reason.as_str(), format!("{:?}", taint.source).as_str()), ("NodeDown", "NodeLifecycle"));
    let ready_since = health.status.as_ref().ok_or("no status")?.observations[0].first_seen;
    let after = (taint.time_added - ready_since).num_milliseconds();
    assert!((120_000..125_000).contains(&after), "after {after} ms: {taint:?}");
    world.tainted("beside-failing", "").await?;
    world.told("PersistentVolumeClaim", "on-failing", &["NodeFailed"]).await?;
    world.ready("failing-1", "True", 0).await?;
    world.tainted("on-failing", "").await?;
    world.told("PersistentVolumeClaim", "on-failing", &["NodeFailed", "NodeRecovered"]).await
}

/// What it said stays, good or bad, and that nobody looks any more is told: silence is no word.
pub async fn a_silent_agent_is_told_and_changes_no_taint(world: &World) -> Result<(), Failed> {
    world.node("silent-1").await?;
    let volumes = [("silent-bad", "VolumeNotUsable"), ("silent-good", "")];
    for (volume, _) in volumes {
        world.local(volume, "silent-1").await?;
    }
    let broken = bad("silent-bad", "ReadOnly", "Inaccessible", "ReadOnlyRemount");
    world.report("silent-1", json!([broken, good("silent-good")])).await?;
    let mut times = Vec::new();
    for (volume, taint) in volumes {
        world.tainted(volume, taint).await?;
        let health = world.health(volume, "Fresh", |status| observed(status) == Some("Fresh")).await?;
        times.push(health.taints().first().map(|taint| taint.time_added));
    }
    for (ready, reason) in [("False", "AgentSilent"), ("True", "Fresh")] {
        world.agent_ready("silent-1", ready).await?;
        for ((volume, taint), added) in volumes.iter().zip(&times) {
            let health = world.health(volume, reason, |status| observed(status) == Some(reason)).await?;
            let status = health.status.as_ref().ok_or("no status")?;
            assert_eq!(status.taint_summary.as_deref().unwrap_or_default(), *taint, "{volume}");
            assert_eq!(health.taints().first().map(|taint| taint.time_added), *added, "{volume}: the same taint");
        }
    }
    Ok(())
}

fn observed(status: &VolumeHealthStatus) -> Option<&str> {
    conditions::find(&status.conditions, "Observed").map(|observed| observed.reason.as_str())
}

/// Before local-static-provisioner's 60 s are over, and long before: it is told within 5 s.
pub async fn a_deleted_node_taints_them_at_once(world: &World) -> Result<(), Failed> {
    world.node("deleted-1").await?;
    world.local("on-deleted", "deleted-1").await?;
    world.report("deleted-1", json!([good("on-deleted")])).await?;
    world.tainted("on-deleted", "").await?;
    let nodes: Api<Node> = Api::all(world.admin.clone());
    nodes.delete("deleted-1", &DeleteParams::default()).await?;
    let begun = Instant::now();
    let health = world.tainted("on-deleted", "VolumeNotUsable").await?;
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    assert_eq!(health.taints()[0].reason, "NodeDown");
    assert_eq!(health.taints()[0].nodes, ["deleted-1"]);
    // It registers again: tainted until it is Ready.
    let labels = json!({ "kubernetes.io/hostname": "deleted-1" });
    let node = serde_json::from_value(json!({ "metadata": { "name": "deleted-1", "labels": labels } }))?;
    nodes.create(&PostParams::default(), &node).await?;
    world.tainted("on-deleted", "VolumeNotUsable").await?;
    world.ready("deleted-1", "True", 0).await?;
    world.tainted("on-deleted", "").await?;
    Ok(())
}

/// Every node that goes taints its volume, and nothing is lost on the way.
pub async fn a_thousand_nodes_come_and_go() -> Result<(), Failed> {
    const NODES: usize = 1000;
    let world = World::start().await?;
    let nodes: Api<Node> = Api::all(world.admin.clone());
    for number in 0..NODES {
        let name = format!("churn-{number}");
        let labels = json!({ "kubernetes.io/hostname": name });
        let node = serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } }))?;
        nodes.create(&PostParams::default(), &node).await?;
        world.ready(&name, "True", 0).await?;
        world.local(&format!("churn-volume-{number}"), &name).await?;
    }
    for number in 0..NODES {
        nodes.delete(&format!("churn-{number}"), &DeleteParams::default()).await?;
    }
    for number in 0..NODES {
        let health = world.tainted(&format!("churn-volume-{number}"), "VolumeNotUsable").await?;
        assert_eq!(health.taints()[0].reason, "NodeDown");
    }
    Ok(())
}
