//! The node behind a name: it returns at the wrong moment, its object is deleted or made anew, its CSINode says less or
//! something else.

use bulkhead::api::fencing::Proof;
use bulkhead::api::names;
use bulkhead::api::node_fence::{Phase, PodStatusState, VolumeStatusState};
use bulkhead_testbed::Identity;
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::cluster::Cluster;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::fleet::{Lane, LaneOptions, SOON};
use super::look::{condition, is_released, operator_records, phase, pod_row, volume_row};
use super::neighbours::lonely_attachment;
use super::order::taintings;
use super::restarts::Gate;

/// Refuses us every write of the victim's Node.
const NO_TAINTS: Gate = Gate {
    name: "no-taints",
    resources: ["nodes", "nodes/status"],
    group: "",
    operation: "UPDATE",
    node: "object.metadata.name",
};
/// Refuses us to delete the victim's attachments.
const NO_DETACH: Gate = Gate {
    name: "no-detach",
    resources: ["volumeattachments", "volumeattachments/status"],
    group: "storage.k8s.io",
    operation: "DELETE",
    node: "oldObject.spec.nodeName",
};

/// What of the victim's we tried and were refused.
async fn refused(lane: &Lane<'_>, verb: &str, names: &[String]) -> Result<(), Failed> {
    let look = async || {
        let tried = operator_records(lane.cluster, |record| {
            record.verb == verb && names.contains(&record.name) && !record.succeeded()
        });
        Ok(match tried.map_err(|error| format!("{error:?}")) {
            Ok(tried) if tried.is_empty() => Err("not tried".to_owned()),
            other => other.map(drop),
        })
    };
    Ok(lane.cluster.wait(&format!("{verb} of {names:?} is tried and refused"), SOON, look).await?)
}

pub async fn a_node_that_is_ready_again_between_delete_and_key_gets_no_key(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "between", LaneOptions::default()).await?;
    let lonely = lonely_attachment(&lane).await?;
    let victim = lane.victim()?;
    NO_DETACH.shut(cluster, victim.name()).await?;
    // It waits for the key, which the lonely attachment forbids, or for the deletion, which the gate does.
    victim.kill().await;
    let pod = format!("{}-0", set.name);
    refused(&lane, "delete", &before.attachments).await?;
    lane.fence("the pod is released", |fence| is_released(fence, &pod)).await?;
    victim.revive().await?;
    lane.fence("back", |fence| condition(fence, "NodeClean") == Some(("False", "AgentMissing"))).await?;
    let api: Api<VolumeAttachment> = Api::all(lane.client());
    api.delete(&lonely, &DeleteParams::default()).await?;
    NO_DETACH.open(cluster, victim.name()).await?;
    lane.moved(&set).await?;
    victim.reboot().await?;
    lane.recovered().await?;
    assert_eq!(taintings(&lane, names::OUT_OF_SERVICE_TAINT)?, [], "the node was back");
    let detached = lane.deletions(&before.attachments)?;
    assert!(detached.iter().all(|record| record.resource == "pods" || !record.succeeded()), "{detached:?}");
    lane.end().await
}

pub async fn a_key_that_the_cluster_refuses_gives_way_to_single_detaches(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "nokey", LaneOptions::default()).await?;
    let hang = lane.array().faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::Hang));
    let victim = lane.victim()?;
    victim.kill().await;
    lane.begun(&set.volume_name(0, 0)).await?;
    NO_TAINTS.shut(cluster, victim.name()).await?;
    let client = cluster.testbed.client(&Identity::OperatorController).await?;
    let nodes: Api<Node> = Api::all(client);
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    // Changes nothing: whatever else it changed would be refused with the gate open, too (controller-nodes).
    let patch = Patch::Merge(json!({}));
    let shut = async || {
        let tried = nodes.patch(victim.name(), &params, &patch).await;
        Ok(tried.err().map(drop).ok_or_else(|| "open".to_owned()))
    };
    cluster.wait("the gate is shut", SOON, shut).await?;
    lane.array().faults().remove(hang);
    refused(&lane, "patch", &[victim.name().to_owned()]).await?;
    lane.moved(&set).await?;
    assert_eq!(taintings(&lane, names::OUT_OF_SERVICE_TAINT)?, []);
    let detached = lane.deletions(&before.attachments)?;
    assert!(detached.iter().any(|record| record.resource == "volumeattachments" && record.succeeded()), "{detached:?}");
    NO_TAINTS.open(cluster, victim.name()).await?;
    lane.end().await
}

/// A person deletes the Node of a machine that they hold for dead; podGC then removes its pods, with nothing proved.
pub async fn pods_of_a_deleted_node_are_released_by_others(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "deleted", LaneOptions::default()).await?;
    let hang = lane.array().faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::Hang));
    let victim = lane.victim()?;
    victim.kill().await;
    lane.begun(&set.volume_name(0, 0)).await?;
    let nodes: Api<Node> = Api::all(lane.client());
    nodes.delete(victim.name(), &DeleteParams::default()).await?;
    let pods: Api<Pod> = Api::default_namespaced(lane.client());
    let pod = format!("{}-0", set.name);
    if !super::is_wide() {
        // podGC does this a minute later.
        pods.delete(&pod, &DeleteParams::default().grace_period(0)).await?;
    }
    let fence =
        lane.cluster.fence(victim.name(), "released by others", SOON * 3, |fence| is_released(fence, &pod)).await?;
    let row = pod_row(&fence, &pod).ok_or("no row")?;
    assert_eq!(row.reason.as_deref(), Some("ReleasedByOthers"), "{row:?}");
    assert!(volume_row(&fence, &set.volume_name(0, 0)).is_none_or(|row| row.proved_at.is_none()), "it was proved");
    assert_eq!(lane.deletions(&before.attachments)?, [], "the operator deleted something");
    lane.array().faults().remove(hang);
    lane.moved(&set).await?;
    let fence = lane.fence("over", |fence| phase(fence) == Some(Phase::Recovered)).await?;
    assert_eq!(condition(&fence, "NodeClean"), Some(("True", "NodeDeleted")));
    assert_eq!(lane.deletions(&[])?, [], "the operator deleted a pod");
    lane.end().await
}

/// The same, with a fence that comes through: what is proved after the Node is gone is released by us, long before podGC would.
pub async fn pods_of_a_deleted_node_are_released_by_us_once_proved(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "fencedgone", LaneOptions::default()).await?;
    let hang = lane.array().faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::Hang));
    let victim = lane.victim()?;
    victim.kill().await;
    let (pod, volume) = (format!("{}-0", set.name), set.volume_name(0, 0));
    lane.begun(&volume).await?;
    let nodes: Api<Node> = Api::all(lane.client());
    nodes.delete(victim.name(), &DeleteParams::default()).await?;
    let gone = async || {
        let found = nodes.get_opt(victim.name()).await?;
        Ok(if found.is_none() { Ok(()) } else { Err("the Node is there".to_owned()) })
    };
    cluster.wait("the Node is gone", SOON, gone).await?;
    // The unpublish hangs as yet, so all that follows was done without a Node.
    lane.assert_untouched(&set, &before).await?;
    lane.array().faults().remove(hang);
    let fence = lane.fence("released", |fence| is_released(fence, &pod)).await?;
    let row = pod_row(&fence, &pod).ok_or("no row")?;
    assert_ne!(row.reason.as_deref(), Some("ReleasedByOthers"), "{row:?}");
    let row = volume_row(&fence, &volume).ok_or("no row")?;
    assert_eq!((row.proof, row.proved_at.is_some()), (Proof::Verified, true), "{row:?}");
    let ours = lane.deletions(&[])?;
    assert!(ours.iter().any(|record| record.name == pod && record.succeeded()), "somebody else deleted it: {ours:?}");
    lane.moved(&set).await?;
    let fence = lane.fence("over", |fence| phase(fence) == Some(Phase::Recovered)).await?;
    assert_eq!(condition(&fence, "NodeClean"), Some(("True", "NodeDeleted")));
    lane.end().await
}

/// The incident is over with its Node; the machine was only cut off, and registers again: its old processes run.
pub async fn a_node_anew_with_the_same_boot_id_is_tainted_again(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, _) = Lane::open(cluster, "sameboot", LaneOptions::default()).await?;
    let victim = lane.victim()?;
    let uid = delete_node_when_detached(&lane, &set).await?;
    victim.register().await?;
    victim.revive().await?;
    let tainted = async || {
        let node = Api::<Node>::all(lane.client()).get(victim.name()).await?;
        let is_new = node.uid() != uid;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let ours = taints.iter().any(|taint| taint.key == names::FENCED_TAINT);
        Ok(if is_new && ours { Ok(()) } else { Err(format!("{taints:?}")) })
    };
    cluster.wait("the new Node is tainted", SOON, tainted).await?;
    let fence =
        lane.fence("back, not clean", |fence| condition(fence, "NodeClean") == Some(("False", "AgentMissing"))).await?;
    let row = volume_row(&fence, &set.volume_name(0, 0)).ok_or("no row")?;
    assert_eq!(row.state, VolumeStatusState::Detached);
    victim.reboot().await?;
    let fence = lane.recovered().await?;
    assert_eq!(condition(&fence, "NodeClean"), Some(("True", "Rebooted")));
    lane.end().await
}

pub async fn a_node_anew_with_a_new_boot_id_is_clean(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, _) = Lane::open(cluster, "newboot", LaneOptions::default()).await?;
    let victim = lane.victim()?;
    let uid = delete_node_when_detached(&lane, &set).await?;
    victim.reboot().await?;
    let name = victim.name().to_owned();
    cluster.nodes_usable(&[name]).await?;
    let node = Api::<Node>::all(lane.client()).get(victim.name()).await?;
    assert_ne!(node.uid(), uid, "it is the old Node");
    let fence = lane.recovered().await?;
    assert!(fence.status.iter().flat_map(|status| &status.pods).all(|row| row.state == PodStatusState::Released));
    assert_eq!(taintings(&lane, names::FENCED_TAINT)?.len(), 1, "the new machine was tainted");
    lane.end().await
}

/// Kills the victim and deletes its Node when all is detached; returns that Node's uid when the incident is over.
async fn delete_node_when_detached(
    lane: &Lane<'_>,
    set: &bulkhead_testbed::cluster::Workload,
) -> Result<Option<String>, Failed> {
    let victim = lane.victim()?;
    victim.kill().await;
    lane.moved(set).await?;
    lane.detached().await?;
    let nodes: Api<Node> = Api::all(lane.client());
    let uid = nodes.get(victim.name()).await?.uid();
    nodes.delete(victim.name(), &DeleteParams::default()).await?;
    let fence = lane.fence("over", |fence| phase(fence) == Some(Phase::Recovered)).await?;
    assert_eq!(condition(&fence, "NodeClean"), Some(("True", "NodeDeleted")));
    Ok(uid)
}

async fn set_drivers(lane: &Lane<'_>, drivers: serde_json::Value) -> Result<(), Failed> {
    let api: Api<CSINode> = Api::all(lane.client());
    let patch = Patch::Merge(json!({ "spec": { "drivers": drivers } }));
    api.patch(lane.victim()?.name(), &PatchParams::default(), &patch).await?;
    Ok(())
}

/// A driver that is unregistered says nothing: what was published stands on the attachment.
pub async fn an_emptied_csi_node_does_not_hide_whom_to_cut_off(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, _) = Lane::open(cluster, "emptied", LaneOptions::default()).await?;
    set_drivers(&lane, json!([])).await?;
    let victim = lane.victim()?;
    victim.kill().await;
    lane.moved(&set).await?;
    let fence = lane.detached().await?;
    let planned = fence.spec.plan.volumes.first().ok_or("no volume")?;
    assert_eq!(planned.node_id.as_deref(), Some(victim.csi_node_id()));
    lane.end().await
}

/// A driver that is registered under another node id: nobody knows whom the array would cut off.
pub async fn a_csi_node_that_contradicts_holds_the_incident(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "doubt", LaneOptions::default()).await?;
    set_drivers(&lane, json!([])).await?;
    let another = json!([{ "name": lane.array().driver_name(), "nodeID": "csi-another", "topologyKeys": null }]);
    set_drivers(&lane, another).await?;
    lane.victim()?.kill().await;
    let held = lane.fence("held", |fence| condition(fence, "Held") == Some(("True", "IdentityAmbiguous"))).await?;
    assert_eq!(phase(&held), Some(Phase::Planned));
    assert!(!held.labels().contains_key(names::ACTIVE_LABEL));
    lane.event("FenceHeld", &set.volume_name(0, 0)).await?;
    assert_eq!(lane.array().calls().count(Method::ControllerUnpublishVolume), 0);
    lane.assert_untouched(&set, &before).await?;
    // A person makes sure that the machine is off, and says so.
    lane.victim()?.reboot().await?;
    lane.recovered().await?;
    lane.ready_on(&set, &[lane.victim()?.name()]).await?;
    lane.end().await
}
