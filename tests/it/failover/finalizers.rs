//! Finalizers: of pods, of the attacher, and ours.

use bulkhead::api::names;
use bulkhead::api::node_fence::{NodeFence, PodStatusState};
use bulkhead_testbed::audit::Record;
use bulkhead_testbed::cluster::{Cluster, Workload};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::fleet::{Lane, LaneOptions, SOON};
use super::look::{operator_records, pod_row};

/// Somebody's finalizer that nobody takes off for a while: the pod is Failed and Terminating, and not released before it
/// is gone; its volume is detached meanwhile.
pub async fn a_pod_that_a_finalizer_holds_is_released_when_it_is_gone(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "heldpod", LaneOptions::default()).await?;
    let template = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
    let set = Workload { template, ..lane.workload("db") };
    lane.run(&set).await?;
    let before = lane.before(&set).await?;
    lane.victim()?.kill().await;
    let detached = async || {
        let left = lane.attachments().await.map_err(|error| format!("{error:?}"));
        Ok(left.and_then(|left| if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }))
    };
    cluster.wait("its attachment is gone", SOON, detached).await?;
    let name = format!("{}-0", set.name);
    let fence = lane.fence("planned", |_| true).await?;
    assert_eq!(pod_row(&fence, &name).map(|row| row.state), Some(PodStatusState::Releasing));
    let held = lane.pod(&set, 0).await?;
    assert_eq!(held.uid(), before.uid);
    let status = held.status.as_ref().ok_or("no status")?;
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert!(status.conditions.iter().flatten().any(|condition| condition.type_ == "DisruptionTarget"), "{status:?}");
    let ours =
        operator_records(cluster, |record| record.resource == "pods" && record.name == name && record.is_write())?;
    let steps: Vec<_> = ours.iter().map(|record| (record.verb.as_str(), record.subresource.as_str())).collect();
    // A StatefulSet deletes its failed pods itself, and is as fast as we are.
    assert_eq!(steps.first(), Some(&("patch", "status")), "{steps:?}");
    assert!(steps.iter().skip(1).all(|step| *step == ("delete", "")) && steps.len() <= 2, "{steps:?}");
    assert!(held.metadata.deletion_timestamp.is_some(), "nobody deleted it");
    let pods: Api<Pod> = Api::default_namespaced(lane.client());
    let off = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    pods.patch(&name, &PatchParams::default(), &off).await?;
    lane.fence("released", |fence| pod_row(fence, &name).is_some_and(|row| row.state == PodStatusState::Released))
        .await?;
    lane.moved(&set).await?;
    // The replacement has the finalizer too, and nobody to take it off at the end.
    pods.patch(&name, &PatchParams::default(), &off).await?;
    lane.end().await
}

/// The literal that method Detach looks for is what the real attacher writes, for every form of name that a driver has.
pub async fn the_attachers_finalizer_is_the_one_that_is_looked_for(cluster: &Cluster) -> Result<(), Failed> {
    for name in ["finalizer", "finalizer-9-with-dashes"] {
        let lane = Lane::new(cluster, name, LaneOptions { nodes: 1, sidecar: false, ..LaneOptions::default() }).await?;
        let set = lane.workload("db");
        lane.run(&set).await?;
        let api: Api<VolumeAttachment> = Api::all(lane.client());
        let attachments = lane.attachments().await?;
        let attachment = api.get(attachments.first().ok_or("no attachment")?).await?;
        let wanted = names::attacher_finalizer(lane.array().driver_name());
        assert_eq!(attachment.finalizers(), [wanted], "{}", lane.array().driver_name());
        lane.end().await?;
    }
    Ok(())
}

/// Whether a JSON patch tests this path before it changes anything.
fn tests(record: &Record, path: &str) -> bool {
    let operations = record.body.as_ref().and_then(Value::as_array);
    operations.is_some_and(|operations| operations.iter().any(|it| it["op"] == "test" && it["path"] == path))
}

/// What others added to the list meanwhile must not be taken off with ours.
pub async fn our_finalizer_goes_only_from_the_list_that_was_read(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, _) = Lane::open(cluster, "unguard", LaneOptions::default()).await?;
    let victim = lane.victim()?;
    victim.kill().await;
    lane.moved(&set).await?;
    victim.reboot().await?;
    lane.recovered().await?;
    let api: Api<NodeFence> = Api::all(lane.client());
    let more = json!({ "metadata": { "finalizers": [names::NODE_CLEAN_FINALIZER, "example.com/archive"] } });
    api.patch(victim.name(), &PatchParams::default(), &Patch::Merge(more)).await?;
    api.delete(victim.name(), &DeleteParams::default()).await?;
    let fence =
        lane.fence("unguarded", |fence| fence.finalizers().iter().all(|it| it == "example.com/archive")).await?;
    assert_eq!(fence.finalizers(), ["example.com/archive"], "somebody else's finalizer went too");
    let unguards = operator_records(cluster, |record| {
        record.resource == "nodefences"
            && record.name == victim.name()
            && record.subresource.is_empty()
            && record.verb == "patch"
            && record.body.as_ref().is_some_and(|body| body.to_string().contains("finalizers"))
    })?;
    assert!(!unguards.is_empty(), "the finalizer went without a patch of ours");
    for record in &unguards {
        assert!(tests(record, "/metadata/uid") && tests(record, "/metadata/finalizers"), "{:?}", record.body);
    }
    let off = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    api.patch(victim.name(), &PatchParams::default(), &off).await?;
    lane.end().await
}
