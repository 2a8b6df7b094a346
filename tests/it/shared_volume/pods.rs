//! Servers in pods: the one that is Ready and answers, the oldest if there are several, and no other while it does. Kubelets
//! are played: what they would say of a pod is written into its status.

use bulkhead::api::shared_volume::SharedVolume;
use bulkhead_testbed::nfs_server::{Mode, Server};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::lane::Lane;
use super::world::SOON;

/// A node, so that nobody collects the pods on it.
pub async fn node(lane: &Lane<'_>, name: &str) -> Result<(), Failed> {
    lane.create::<Node>(None, json!({ "metadata": { "name": name } })).await?;
    Ok(())
}

/// A pod that is this server, not Ready yet.
async fn pod(lane: &Lane<'_>, name: &str, server: &Server, spec: Value) -> Result<(), Failed> {
    let port = json!({ "name": "nfs", "containerPort": server.port() });
    let mut whole = json!({
        "nodeName": format!("{}-node", lane.name), "automountServiceAccountToken": false,
        "containers": [{ "name": "ganesha", "image": "none", "ports": [port] }], "terminationGracePeriodSeconds": 600,
    });
    bulkhead_testbed::cluster::merge(&mut whole, &spec);
    let pod = json!({ "metadata": { "name": name, "labels": { "app": "nfs" } }, "spec": whole });
    // The ServiceAccount of a new namespace comes a moment later.
    lane.eventually(&format!("pod {name} is taken"), async || {
        Ok(lane
            .here::<Pod>(pod.clone())
            .await
            .map(drop)
            .map_err(|error| error.message().unwrap_or_default().to_owned()))
    })
    .await?;
    ready(lane, name, false).await
}

async fn ready(lane: &Lane<'_>, name: &str, ready: bool) -> Result<(), Failed> {
    let here = lane.world.here.to_string();
    let ready = if ready { "True" } else { "False" };
    let status = json!({ "status": {
        "phase": "Running", "podIP": here, "podIPs": [{ "ip": here }], "conditions": [{ "type": "Ready", "status": ready }],
    }});
    lane.all::<Pod>().patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await?;
    Ok(())
}

/// Which pod serves.
async fn served_by(lane: &Lane<'_>, name: &str, pod: &str) -> Result<SharedVolume, Failed> {
    lane.status(name, &format!("served by {pod}"), |status| {
        status.active.as_ref().is_some_and(|active| active.name == pod)
            && super::lane::is(status, "Ready", "True", "Serving")
    })
    .await
}

pub async fn the_ready_one_serves(lane: &Lane<'_>) -> Result<(), Failed> {
    let node_name = format!("{}-node", lane.name);
    node(lane, &node_name).await?;
    let (a, b, c) =
        (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    lane.claim("builds").await?;
    let backend =
        json!({ "pods": { "matchLabels": { "app": "nfs" }, "ports": [{ "name": "nfs", "targetPort": "nfs" }] } });
    lane.volume("builds", json!({ "backend": backend })).await?;
    lane.condition("builds", "BackendAvailable", "False", "NoPodReady").await?;
    pod(lane, "nfs-a", &a, json!({})).await?;
    lane.sent_to("builds", &[]).await?;
    ready(lane, "nfs-a", true).await?;
    let volume = served_by(lane, "builds", "nfs-a").await?;
    let active = volume.status.and_then(|status| status.active).ok_or("nothing active")?;
    // Its name in the container is its number.
    assert_eq!((active.port, active.node_name), (a.port(), Some(node_name)));
    lane.condition("builds", "BackendAvailable", "True", "PodActive").await?;
    // Others that come do not matter, however Ready.
    for (name, server) in [("nfs-b", &b), ("nfs-c", &c)] {
        pod(lane, name, server, json!({})).await?;
        ready(lane, name, true).await?;
    }
    lane.barrier("after").await?;
    served_by(lane, "builds", "nfs-a").await?;
    // The oldest of the others.
    ready(lane, "nfs-a", false).await?;
    served_by(lane, "builds", "nfs-b").await?;
    // One that is asked to go does not serve, though it answers until the end.
    lane.all::<Pod>().delete("nfs-b", &DeleteParams::default()).await?;
    served_by(lane, "builds", "nfs-c").await?;
    ready(lane, "nfs-a", true).await?;
    c.set(Mode::Hangs);
    served_by(lane, "builds", "nfs-a").await?;
    let now = DeleteParams::default().grace_period(0);
    lane.all::<Pod>().delete("nfs-a", &now).await?;
    lane.sent_to("builds", &[]).await?;
    for name in ["nfs-b", "nfs-c"] {
        lane.all::<Pod>().delete(name, &now).await?;
    }
    // Replaced under another name and address: the one that clients mount stays.
    let d = lane.server(Mode::Serves).await?;
    pod(lane, "nfs-d", &d, json!({})).await?;
    ready(lane, "nfs-d", true).await?;
    served_by(lane, "builds", "nfs-d").await?;
    Api::<Node>::all(lane.client()).delete(&format!("{}-node", lane.name), &DeleteParams::default()).await?;
    Ok(())
}

/// Labels of another volume's pods change nothing here; those of the spec may change.
pub async fn only_selected_ones_serve(lane: &Lane<'_>) -> Result<(), Failed> {
    node(lane, &format!("{}-node", lane.name)).await?;
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    for (name, server) in [("nfs-a", &a), ("nfs-b", &b)] {
        pod(lane, name, server, json!({})).await?;
        lane.patch::<Pod>(name, json!({ "metadata": { "labels": { "app": name } } })).await?;
        ready(lane, name, true).await?;
    }
    let backend = |app: &str| {
        let ports = json!([{ "name": "nfs", "targetPort": if app == "nfs-a" { a.port() } else { b.port() } }]);
        json!({ "backend": { "pods": { "matchLabels": { "app": app }, "ports": ports } } })
    };
    lane.claim("builds").await?;
    lane.volume("builds", backend("nfs-a")).await?;
    served_by(lane, "builds", "nfs-a").await?;
    lane.patch::<SharedVolume>("builds", json!({ "spec": backend("nfs-b") })).await?;
    served_by(lane, "builds", "nfs-b").await?;
    // A pod that loses the label serves no more.
    lane.patch::<Pod>("nfs-b", json!({ "metadata": { "labels": { "app": "other" } } })).await?;
    lane.condition("builds", "BackendAvailable", "False", "NoPodReady").await?;
    lane.wait_for("builds", "nobody serves", SOON, |volume: &SharedVolume| {
        volume.status.as_ref().is_some_and(|status| status.active.is_none())
    })
    .await?;
    lane.sent_to("builds", &[]).await?;
    Ok(())
}
