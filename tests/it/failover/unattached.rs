//! Volumes that are mounted without being attached: the driver has `attachRequired: false`, and no VolumeAttachment tells of them.

use bulkhead::api::fencing::{FenceMethodType, Proof};
use bulkhead::api::network_fence::NetworkFenceClass;
use bulkhead_testbed::array::ArrayOptions;
use bulkhead_testbed::cluster::Cluster;
use kube::Api;
use kube::api::{Patch, PatchParams};
use libtest_mimic::Failed;
use serde_json::json;

use super::external::{Played, is_asked, only_power_off_frees, row_of};
use super::fleet::{Lane, LaneOptions};
use super::look::volume_row;
use super::network_fences::{Scene, by, clients_out};

/// An array whose volumes nobody attaches.
fn array(cluster_id: Option<&str>) -> ArrayOptions {
    ArrayOptions { attaches: false, cluster_id: cluster_id.map(str::to_owned), ..ArrayOptions::default() }
}

pub async fn a_network_fence_of_its_own_cluster_frees_its_pods(cluster: &Cluster) -> Result<(), Failed> {
    let class = "netshare";
    let options = LaneOptions { array: array(Some("east")), policy: by(class), ..LaneOptions::default() };
    let scene = Scene::on(cluster, class, 31, options).await?;
    assert_eq!(scene.before.attachments, [] as [String; 0], "nothing is attached");
    // Cut off from the API, and still writing.
    scene.lane.victim()?.kill().await;
    // Which cluster the class is of nobody has said.
    let is_other = |reason: Option<&str>| reason == Some("ClassOfAnotherCluster");
    let volume = scene.volume();
    let fence = scene.lane.fence("another cluster", |fence| {
        volume_row(fence, &volume).is_some_and(|row| is_other(row.reason.as_deref()))
    });
    let told = fence.await?;
    let message = volume_row(&told, &volume).and_then(|row| row.message.clone()).unwrap_or_default();
    assert!(message.contains(class) && message.contains("east"), "{message}");
    scene.assert_held().await?;
    let classes: Api<NetworkFenceClass> = Api::all(scene.lane.client());
    let of_cluster = json!({ "spec": { "parameters": { "clusterID": "east" } } });
    classes.patch(class, &PatchParams::default(), &Patch::Merge(&of_cluster)).await?;
    scene.lane.moved(&scene.set).await?;
    let fence = scene.lane.detached().await?;
    assert_eq!(row_of(&fence, &volume)?, (Some(FenceMethodType::NetworkFence), Proof::Acknowledged));
    assert_eq!(clients_out(scene.lane.array()), ["10.77.31.1/32"]);
    scene.comes_back().await?;
    scene.lane.end().await
}

pub async fn only_the_end_of_power_frees_its_pods_without_one(cluster: &Cluster) -> Result<(), Failed> {
    let fencer = Played::new(cluster, "power.share.test").await?;
    let external = json!({ "type": "External", "external": { "fencerName": fencer.name } });
    let policy = json!({
        "fencing": { "methods": [{ "type": "Unpublish" }, external], "callTimeout": "2s", "giveUpAfter": "10s" },
    });
    let options = LaneOptions { sidecar: false, array: array(None), policy, ..LaneOptions::default() };
    let (lane, set, before) = Lane::open(cluster, "powershare", options).await?;
    lane.victim()?.kill().await;
    let request = lane.request_of(&fencer.name, "asked", is_asked).await?;
    let asked = request.spec.volumes.first().ok_or("no volume")?;
    assert_eq!((asked.minimum_proof, asked.methods.len()), (Proof::PowerOff, 1));
    // As strong as the policy demands of others, and it says nothing of who may still write.
    only_power_off_frees(lane, &set, &before, &fencer, &request, Proof::Verified).await
}
