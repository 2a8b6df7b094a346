//! Method NetworkFence, and somebody who writes its objects or lets the addresses in.

use bulkhead::api::names;
use bulkhead::api::network_fence::NetworkFence;
use bulkhead::api::node_fence::{NodeFence, Phase};
use bulkhead_testbed::cluster::Cluster;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::fleet::SOON;
use super::look::{condition, phase};
use super::network_fences::{Scene, clients_out};

/// What it was made with is shut out again, and let in at the end; what somebody wrote into it is theirs.
pub async fn a_fence_that_somebody_edits_is_made_again(cluster: &Cluster) -> Result<(), Failed> {
    const WRITTEN: &str = "192.0.2.21/32";
    let scene = Scene::new(cluster, "netedited", 21).await?;
    scene.lane.victim()?.kill().await;
    scene.lane.moved(&scene.set).await?;
    scene.lane.detached().await?;
    let made = scene.fences().await?.pop().ok_or("no NetworkFence")?;
    let fences: Api<NetworkFence> = Api::all(scene.lane.client());
    let edit = Patch::Merge(json!({ "spec": { "cidrs": [WRITTEN] } }));
    fences.patch(&made.name_any(), &PatchParams::default(), &edit).await?;
    let again = async || {
        let fences = scene.fences().await.map_err(|error| format!("{error:?}"));
        let is_made = |fences: &[NetworkFence]| fences.len() == 2 && fences.iter().all(NetworkFence::is_fenced);
        Ok(fences.and_then(|fences| if is_made(&fences) { Ok(()) } else { Err(format!("{fences:?}")) }))
    };
    cluster.wait("another one is made", SOON, again).await?;
    let out = clients_out(scene.lane.array());
    assert!(out.iter().any(|cidr| cidr == "10.77.21.1/32") && out.iter().any(|cidr| cidr == WRITTEN), "{out:?}");
    scene.lane.victim()?.reboot().await?;
    scene.lane.recovered().await?;
    assert_eq!(scene.lane.array().shut_out(), [WRITTEN]);
    scene.lane.array().fence_network(&[WRITTEN.to_owned()], false)?;
    scene.lane.end().await
}

/// Its Node is deleted, and its machine may write on: whoever lets it in would have two write.
pub async fn a_fence_that_somebody_lifts_while_the_machine_may_run_is_made_again(
    cluster: &Cluster,
) -> Result<(), Failed> {
    let scene = Scene::new(cluster, "netmayrun", 22).await?;
    let victim = scene.lane.victim()?.name().to_owned();
    // Nobody writes there, which nobody knows: what somebody lets in harms nobody here.
    scene.lane.victim()?.power_off().await;
    scene.lane.moved(&scene.set).await?;
    scene.lane.detached().await?;
    Api::<Node>::all(scene.lane.client()).delete(&victim, &DeleteParams::default()).await?;
    let told = |fence: &NodeFence| condition(fence, "NodeClean") == Some(("Unknown", "MachineMayRun"));
    let fence = scene.lane.fence("its machine may write on", told).await?;
    scene.is_made_again("netmayrun", "10.77.22.1/32").await?;
    let said = json!({ names::MACHINE_OFF_ANNOTATION: fence.machine_off_word() });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": said } }));
    let incidents: Api<NodeFence> = Api::all(scene.lane.client());
    incidents.patch(&victim, &PatchParams::default(), &patch).await?;
    scene.lane.fence("over", |fence| phase(fence) == Some(Phase::Recovered)).await?;
    assert_eq!(scene.lane.array().shut_out(), [] as [String; 0]);
    scene.lane.end().await
}
