//! A node comes back: before the first fence call it is undone in full; after it the pods go, and the taint stays until
//! a new boot id proves that no old writer lives.

use bulkhead::api::fence_request::FenceOutcome;
use bulkhead::api::names;
use bulkhead::api::node_fence::{PodStatusState, VolumeStatusState};
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, Workload};
use kube::ResourceExt;
use libtest_mimic::Failed;

use super::fleet::{Lane, LaneOptions};
use super::look::{answer, condition, event, is_released, pod_row, volume_row};

pub async fn a_node_back_before_the_first_call_is_undone(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "undone", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let uid = lane.pod(&set, 0).await?.uid();
    let attachments = lane.attachments().await?;
    // Without the read before it the sidecar begins nothing.
    lane.array().faults().add(Fault::on(Method::ListVolumes, Effect::Hang));
    let victim = lane.victim()?;
    victim.kill().await;
    lane.request("asked", |request| request.spec.volumes.len() == 1).await?;
    let tainted = lane.taints().await?.into_iter().any(|taint| taint.key == names::FENCED_TAINT);
    assert!(tainted, "a fence is asked for on an untainted node");
    victim.revive().await?;
    let fence = lane.recovered().await?;
    let row = pod_row(&fence, &format!("{}-0", set.name)).ok_or("no pod row")?;
    assert_eq!((row.state, row.reason.as_deref()), (PodStatusState::Undone, Some("NodeReturned")));
    let volume = volume_row(&fence, &set.volume_name(0, 0)).ok_or("no volume row")?;
    assert_eq!((volume.state, volume.committed_at), (VolumeStatusState::Undone, None));
    lane.ready_on(&set, &[victim.name()]).await?;
    assert_eq!(lane.pod(&set, 0).await?.uid(), uid, "the pod is another one");
    assert_eq!(lane.attachments().await?, attachments);
    assert_eq!(lane.deletions(&attachments)?, []);
    assert_eq!(lane.array().calls().count(Method::ControllerUnpublishVolume), 0);
    lane.array().faults().clear();
    lane.end().await
}

pub async fn a_node_back_after_the_release_must_reboot(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "reboot", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let victim = lane.victim()?;
    victim.kill().await;
    lane.moved(&set).await?;
    lane.detached().await?;
    victim.revive().await?;
    reboot(&lane).await?;
    // A pod can be scheduled there again.
    let next = Workload { nodes: vec![victim.name().to_owned()], ..lane.workload("next") };
    lane.run(&next).await?;
    lane.end().await
}

pub async fn a_node_back_during_the_fence_loses_its_pods_gracefully(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "during", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let fault = lane.array().faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::Hang));
    let victim = lane.victim()?;
    victim.kill().await;
    let volume = set.volume_name(0, 0);
    lane.request("begun", |request| {
        answer(request, &volume).is_some_and(|row| row.result == FenceOutcome::Started && row.started_at.is_some())
    })
    .await?;
    victim.revive().await?;
    let pod = format!("{}-0", set.name);
    lane.fence("the pod is released", |fence| is_released(fence, &pod)).await?;
    let deleted = lane.deletions(&[])?;
    let grace = deleted.iter().filter_map(|record| record.body.as_ref()).map(|body| &body["gracePeriodSeconds"]);
    assert!(grace.clone().count() > 0, "nothing was deleted");
    assert!(grace.clone().all(serde_json::Value::is_null), "a running pod was not asked to stop: {deleted:?}");
    lane.array().faults().remove(fault);
    lane.moved(&set).await?;
    reboot(&lane).await?;
    lane.end().await
}

/// The victim is back with its old boot id, which is not enough; with a new one the incident ends.
async fn reboot(lane: &Lane<'_>) -> Result<(), Failed> {
    lane.fence("back, not clean", |fence| condition(fence, "NodeClean") == Some(("False", "AgentMissing"))).await?;
    let victim = lane.victim()?.name();
    for kind in ["NodeFence", "Node"] {
        event(lane.cluster, kind, victim, "NodeReturned", "back").await?;
    }
    let tainted = lane.taints().await?.into_iter().any(|taint| taint.key == names::FENCED_TAINT);
    assert!(tainted, "a node with its old boot id was untainted");
    lane.victim()?.reboot().await?;
    let fence = lane.recovered().await?;
    assert_eq!(condition(&fence, "NodeClean"), Some(("True", "Rebooted")));
    for kind in ["NodeFence", "Node"] {
        event(lane.cluster, kind, victim, "NodeRecovered", "").await?;
    }
    Ok(())
}
