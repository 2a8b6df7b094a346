//! The out-of-service key acts on the whole node. What else is on the node (a pod of another driver, an attachment that
//! no pod uses, a pod that is going already) is never released by it.

use bulkhead::api::names;
use bulkhead_testbed::array::{ArrayOptions, Claim};
use bulkhead_testbed::cluster::{Cluster, Workload};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::fleet::{Lane, LaneOptions, SOON};
use super::kinds::{pod, volume};
use super::look::{Before, volume_row};
use super::order::{attach, taintings};

/// The key was never set, and what is not proved is as it was: the pod, its attachments, its access.
async fn assert_left(lane: &Lane<'_>, pod: &str, uid: Option<String>, attachments: &[String]) -> Result<(), Failed> {
    let api: Api<Pod> = Api::default_namespaced(lane.client());
    assert_eq!(api.get(pod).await?.uid(), uid, "{pod} is another one");
    assert_eq!(lane.attachments().await?, attachments);
    assert_eq!(taintings(lane, names::OUT_OF_SERVICE_TAINT)?, [], "the key acts on the whole node");
    let deleted = lane.deletions(attachments)?;
    assert!(deleted.iter().all(|record| record.name != pod && !attachments.contains(&record.name)), "{deleted:?}");
    Ok(())
}

/// Kubernetes evicts a pod of another driver once its node is unreachable for five minutes: podGC would remove it under
/// the key, and attach/detach would release its volume, with nothing proved.
pub async fn an_evicted_pod_of_another_driver_is_left_to_its_kubelet(cluster: &Cluster) -> Result<(), Failed> {
    let other = ArrayOptions { driver_name: "evicted-other.csi.test".into(), ..ArrayOptions::default() };
    let other = cluster.add_array(&other).await?;
    let lane = Lane::new(cluster, "evicted", LaneOptions { nodes: 3, ..LaneOptions::default() }).await?;
    let [victim, spare, witness] = lane.nodes.as_slice() else { return Err("three nodes".into()) };
    let stays = Workload { labels: [].into(), ..lane.workload("stays") };
    lane.run_on(&[&other.array], &stays).await?;
    let Before { uid, attachments } = lane.before(&stays).await?;
    let set = Workload { nodes: vec![victim.name().into(), spare.name().into()], ..lane.workload("db") };
    lane.run(&set).await?;
    let shown = on_witness(&lane, witness.name());
    cluster.stateful_set_on(&[], &shown).await?;
    lane.ready_on(&shown, &[witness.name()]).await?;
    tokio::join!(victim.kill(), witness.kill());
    lane.moved(&set).await?;
    lane.detached().await?;
    let api: Api<Pod> = Api::default_namespaced(lane.client());
    let evicted = format!("{}-0", stays.name);
    api.delete(&evicted, &DeleteParams::default()).await?;
    let pod_gc = pod_gc_has_run(&lane, &shown, witness.name()).await;
    assert_left(&lane, &evicted, uid, &attachments).await?;
    pod_gc?;
    assert!(lane.pod(&stays, 0).await?.metadata.deletion_timestamp.is_some(), "the pod was not evicted");
    let published = other.array.published_nodes(&stays.handle(0, 0));
    assert_eq!(published, [victim.csi_node_id()], "it was cut off, or somebody else has it");
    lane.end().await
}

/// A workload that podGC releases: a pod without volumes on a dead node with somebody's out-of-service key.
fn on_witness(lane: &Lane<'_>, node: &str) -> Workload {
    Workload {
        volumes: Vec::new(),
        labels: [].into(),
        nodes: vec![node.to_owned()],
        node: None,
        ..lane.workload("witness")
    }
}

/// Returns when podGC has looked at the nodes with an out-of-service key, from now on: it looks every 20 s.
async fn pod_gc_has_run(lane: &Lane<'_>, shown: &Workload, node: &str) -> Result<(), Failed> {
    let uid = lane.pod(shown, 0).await?.uid();
    let nodes: Api<Node> = Api::all(lane.client());
    let taint = json!({ "key": names::OUT_OF_SERVICE_TAINT, "value": "nodeshutdown", "effect": "NoSchedule" });
    let patch = json!({ "spec": { "taints": [taint] } });
    nodes.patch(node, &PatchParams::default(), &Patch::Strategic(patch)).await?;
    let api: Api<Pod> = Api::default_namespaced(lane.client());
    let name = format!("{}-0", shown.name);
    api.delete(&name, &DeleteParams::default()).await?;
    let look = async || {
        let pod = api.get_opt(&name).await?;
        Ok(if pod.as_ref().and_then(ResourceExt::uid) == uid { Err(format!("{uid:?}")) } else { Ok(()) })
    };
    Ok(lane.cluster.wait("podGC releases what it may", SOON, look).await?)
}

/// The name of an attachment of the victim that no pod uses.
pub async fn lonely_attachment(lane: &Lane<'_>) -> Result<String, Failed> {
    let claim = lonely(lane);
    lane.array().claim(&lane.client(), &claim).await?;
    let api: Api<VolumeAttachment> = Api::all(lane.client());
    let name = attach(lane, &claim.volume_name()).await?.name_any();
    let attached = async || {
        let status = api.get(&name).await?.status;
        Ok(if status.as_ref().is_some_and(|status| status.attached) { Ok(()) } else { Err(format!("{status:?}")) })
    };
    lane.cluster.wait("attached", SOON, attached).await?;
    Ok(name)
}

fn lonely(lane: &Lane<'_>) -> Claim {
    Claim::new("default", &format!("{}-lonely", lane.name))
}

pub async fn an_attachment_without_a_pod_is_kept(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "lonely", LaneOptions::default()).await?;
    let name = lonely_attachment(&lane).await?;
    let volume = lonely(&lane).volume_name();
    let set = lane.workload("db");
    lane.run(&set).await?;
    lane.victim()?.kill().await;
    lane.moved(&set).await?;
    let fence = lane.detached().await?;
    let planned = fence.spec.plan.volumes.iter().find(|row| row.name == volume);
    assert!(planned.is_some_and(|row| row.methods.is_empty()), "{planned:?}");
    assert!(volume_row(&fence, &volume).is_none_or(|row| row.committed_at.is_none()));
    assert_eq!(lane.attachments().await?, std::slice::from_ref(&name));
    assert_eq!(taintings(&lane, names::OUT_OF_SERVICE_TAINT)?, [], "the key acts on the whole node");
    assert_eq!(lane.deletions(&[name])?.iter().filter(|record| record.resource != "pods").count(), 0);
    assert_eq!(lane.array().published_nodes(&format!("vol-{volume}")), [lane.victim()?.csi_node_id()]);
    lane.end().await
}

pub async fn a_terminating_pod_without_an_owner_is_kept(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "ownerless", LaneOptions::default()).await?;
    let claim = Claim::new("default", "ownerless-bare");
    let handle = lane.array().claim(&lane.client(), &claim).await?;
    let bare = pod(&lane, "bare", &json!({}), json!({ "volumes": volume("ownerless-bare") }))?;
    cluster.testbed.apply(vec![bare]).await?;
    let api: Api<Pod> = Api::default_namespaced(lane.client());
    let runs = async || {
        let pod = api.get("ownerless-bare").await?;
        let running = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        Ok(if running { Ok(pod.uid()) } else { Err(format!("{:?}", pod.status)) })
    };
    let uid = cluster.wait("the bare pod runs", SOON, runs).await?;
    let attachments = lane.attachments().await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let victim = lane.victim()?;
    victim.kill().await;
    api.delete("ownerless-bare", &DeleteParams::default()).await?;
    lane.moved(&set).await?;
    lane.detached().await?;
    assert_left(&lane, "ownerless-bare", uid, &attachments).await?;
    assert_eq!(lane.array().published_nodes(&handle), [victim.csi_node_id()]);
    lane.end().await
}
