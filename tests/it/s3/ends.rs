//! How workloads end, and what becomes of their mounts.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::{Lane, needs_unmount, phase, take_away};
use super::world::World;

/// Until its containers have ended it may write.
pub async fn a_terminating_workload_keeps_its_mount(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "terminating", 2).await?;
    lane.bound("data", json!({})).await?;
    lane.pod("user", 1, &["data"], json!({ "terminationGracePeriodSeconds": 300 })).await?;
    let pods = lane.shared("data", &[&["user"]]).await?;
    world.nodes.hold(&lane.node(1));
    lane.delete(&["user"]).await?;
    lane.barrier("seen", 2).await?;
    assert!(lane.pods().get("user").await?.metadata.deletion_timestamp.is_some());
    lane.shared("data", &[&["user"]]).await?;
    assert!(!needs_unmount(&lane.mountpoint_pods().get(&pods[0]).await?), "its user still runs");
    world.nodes.release(&lane.node(1));
    lane.clean("data").await
}

/// Deleted before its volume was there.
pub async fn one_that_never_started_gets_none(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "never-started", 2).await?;
    world.nodes.hold(&lane.node(1));
    lane.claim("data").await?;
    lane.pod("late", 1, &["data"], json!({ "terminationGracePeriodSeconds": 300 })).await?;
    lane.delete(&["late"]).await?;
    lane.volume("data", json!({})).await?;
    lane.binds("data").await?;
    lane.barrier("seen", 2).await?;
    assert!(lane.pods().get("late").await?.metadata.deletion_timestamp.is_some());
    assert_eq!(lane.attachments_of("data").await?, []);
    assert_eq!(lane.mountpoint_pods_of("data").await?.len(), 0);
    world.nodes.release(&lane.node(1));
    Ok(())
}

/// A Job's pod stays when it is done; its mount does not.
pub async fn finished_workloads_are_removed(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "finished", 1).await?;
    for (claim, end) in [("done", "Succeeded"), ("failed", "Failed")] {
        lane.bound(claim, json!({})).await?;
        lane.pod(claim, 1, &[claim], json!({})).await?;
        lane.shared(claim, &[&[claim]]).await?;
        lane.status(&lane.pods(), claim, json!({ "phase": end })).await?;
        lane.clean(claim).await?;
        assert_eq!(phase(&lane.pods().get(claim).await?), end);
    }
    Ok(())
}

/// Its node is silent: nobody knows that it ended.
pub async fn an_unknown_phase_keeps_its_mount(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "unknown", 2).await?;
    lane.bound("data", json!({})).await?;
    lane.pod("user", 1, &["data"], json!({})).await?;
    let pods = lane.shared("data", &[&["user"]]).await?;
    let uid = lane.pods().get("user").await?.uid().unwrap_or_default();
    lane.status(&lane.pods(), "user", json!({ "phase": "Unknown" })).await?;
    lane.barrier("seen", 2).await?;
    assert_eq!(lane.attachment("data").await?.spec.mountpoint_pod_of(&uid), Some(pods[0].as_str()));
    assert!(!needs_unmount(&lane.mountpoint_pods().get(&pods[0]).await?));
    lane.delete(&["user"]).await?;
    lane.clean("data").await
}

/// Nothing is seen of them but that they are gone.
pub async fn force_deleted_workloads_are_removed(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "forced", 1).await?;
    lane.bound("data", json!({})).await?;
    lane.pod("a", 1, &["data"], json!({})).await?;
    lane.pod("b", 1, &["data"], json!({})).await?;
    lane.shared("data", &[&["a", "b"]]).await?;
    let at_once = DeleteParams::default().grace_period(0);
    lane.pods().delete("a", &at_once).await?;
    lane.shared("data", &[&["b"]]).await?;
    lane.pods().delete("b", &at_once).await?;
    lane.clean("data").await?;

    // The same names at once again are other pods.
    lane.pod("a", 1, &["data"], json!({})).await?;
    lane.shared("data", &[&["a"]]).await?;
    lane.pods().delete("a", &at_once).await?;
    lane.pod("a", 1, &["data"], json!({})).await?;
    lane.shared("data", &[&["a"]]).await?;
    lane.delete(&["a"]).await?;
    lane.clean("data").await
}

pub async fn never_mounted_is_deleted_without_running(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "never-mounted", 1).await?;
    world.nodes.hold(&lane.node(1));
    lane.bound("data", json!({})).await?;
    let workload = lane.pod("user", 1, &["data"], json!({})).await?;
    let uid = workload.uid().unwrap_or_default();
    let look = async || {
        let pods = lane.mountpoint_pods_of("data").await?;
        Ok(pods.into_iter().next().ok_or_else(|| "none".to_owned()))
    };
    let pod = world.cluster.wait("its Mountpoint Pod is made", super::world::SOON, look).await?;
    assert_eq!(lane.attachment("data").await?.spec.mountpoint_pod_of(&uid), Some(pod.name_any().as_str()));
    lane.pods().delete("user", &DeleteParams::default().grace_period(0)).await?;
    let deleted = lane
        .wait_for(&lane.mountpoint_pods(), &pod.name_any(), "deleted", |pod| {
            pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
        })
        .await?;
    assert!(deleted.is_none_or(|pod| phase(&pod) == "Pending"));
    world.nodes.release(&lane.node(1));
    lane.clean("data").await
}

/// A person takes them away under the workload. Its end is found by its uid alone.
pub async fn volume_and_claim_may_go_first(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "gone-first", 2).await?;
    for claim in ["claim", "volume", "both"] {
        lane.bound(claim, json!({})).await?;
        lane.pod(claim, 1, &[claim], json!({})).await?;
        let pods = lane.shared(claim, &[&[claim]]).await?;
        if claim != "volume" {
            take_away(&Api::<PersistentVolumeClaim>::namespaced(lane.client(), &lane.name), claim).await?;
        }
        if claim != "claim" {
            take_away(&Api::<PersistentVolume>::all(lane.client()), &lane.volume_name(claim)).await?;
        }
        lane.barrier(&format!("{claim}-seen"), 2).await?;
        assert_eq!(lane.shared(claim, &[&[claim]]).await?, pods, "its mount is left");
        assert!(!needs_unmount(&lane.mountpoint_pods().get(&pods[0]).await?));
        lane.delete(&[claim]).await?;
        lane.clean(claim).await?;
    }
    Ok(())
}
