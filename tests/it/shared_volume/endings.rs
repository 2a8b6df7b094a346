//! What is left when a SharedVolume goes or pauses: nothing, or all of it, as was asked for.

use bulkhead::api::shared_volume::{SHARED_VOLUME_LABEL, SharedVolume, UNPUBLISH_FINALIZER};
use bulkhead_testbed::nfs_server::Mode;
use k8s_openapi::api::core::v1::{Endpoints, PersistentVolumeClaim, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::{Lane, cluster_ips};

/// Row 17.
pub async fn one_that_is_deleted_leaves_nothing(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    let both = json!({ "service": { "endpoints": "EndpointSliceAndEndpoints" } });
    let volume = lane.serving("data", &[&server], both).await?;
    assert_eq!(volume.finalizers(), [UNPUBLISH_FINALIZER]);
    lane.delete::<SharedVolume>("data").await?;
    lane.gone::<SharedVolume>("data").await?;
    // By itself, not by the garbage collector: the claim is there.
    assert!(lane.all::<Service>().get_opt("data").await?.is_none());
    assert!(lane.slices("data").await?.is_empty());
    assert!(lane.all::<Endpoints>().get_opt("data").await?.is_none());
    lane.all::<PersistentVolumeClaim>().get("data").await?;
    // What others have of that name by then is not touched: nothing of it is ours.
    let port = json!([{ "name": "nfs", "port": 2049 }]);
    let theirs = lane.here::<Service>(json!({ "metadata": { "name": "data" }, "spec": { "ports": port } })).await?;
    lane.barrier("after").await?;
    assert_eq!(lane.service("data").await?.uid(), theirs.uid());
    Ok(())
}

/// For clients that go on: the claim has it from then on.
pub async fn one_that_retains_leaves_all_to_the_claim(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    lane.serving("data", &[&server], json!({ "deletionPolicy": "Retain" })).await?;
    let before = lane.service("data").await?;
    lane.delete::<SharedVolume>("data").await?;
    lane.gone::<SharedVolume>("data").await?;
    lane.barrier("after").await?;
    let service = lane.service("data").await?;
    assert_eq!((service.uid(), cluster_ips(&service)), (before.uid(), cluster_ips(&before)));
    assert_eq!(service.labels().get(SHARED_VOLUME_LABEL), None);
    lane.sent_to("data", &[server.port()]).await?;
    lane.delete::<PersistentVolumeClaim>("data").await?;
    lane.gone::<Service>("data").await?;
    lane.gone::<EndpointSlice>("data-ipv4").await?;
    Ok(())
}

/// Nothing is written while it is suspended, whatever happens; and what was missed is made up for.
pub async fn one_that_is_suspended_writes_nothing(lane: &Lane<'_>) -> Result<(), Failed> {
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    lane.serving("data", &[&a, &b], json!({})).await?;
    lane.patch::<SharedVolume>("data", json!({ "spec": { "mode": "Suspended" } })).await?;
    lane.condition("data", "Ready", "True", "Suspended").await?;
    // The audit log has what was written until then.
    lane.barrier("before").await?;
    let (end, calls) = (lane.world.cluster.testbed.audit().end()?, a.calls());
    a.set(Mode::Refuses);
    lane.delete::<EndpointSlice>("data-ipv4").await?;
    lane.delete::<Service>("data").await?;
    lane.barrier("after").await?;
    let writes: Vec<_> = lane.writes_since(end)?.into_iter().filter(|it| it.name.starts_with("data")).collect();
    assert!(writes.is_empty(), "{writes:?}");
    assert!(a.calls() <= calls + 1, "one that is suspended is not probed: {} after {calls}", a.calls());
    lane.patch::<SharedVolume>("data", json!({ "spec": { "mode": "Active" } })).await?;
    lane.active("data", &b).await?;
    Ok(())
}
