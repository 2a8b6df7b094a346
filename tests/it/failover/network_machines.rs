//! Method NetworkFence, and who has the name of the node: nobody any more, or another machine than the one that failed.

use bulkhead::api::names;
use bulkhead::api::node_fence::{NodeFence, Phase};
use bulkhead_testbed::cluster::Cluster;
use bulkhead_testbed::csi_addons::Faults;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::fleet::SOON;
use super::look::{condition, phase};
use super::network_fences::{Scene, clients_out};

/// Deleting the Node lets nobody in: its machine was only cut off from the API, and would write on.
pub async fn a_deleted_node_stays_shut_out(cluster: &Cluster) -> Result<(), Failed> {
    let scene = Scene::new(cluster, "netgone", 9).await?;
    let victim = scene.lane.victim()?.name().to_owned();
    scene.lane.victim()?.kill().await;
    scene.lane.moved(&scene.set).await?;
    scene.lane.detached().await?;
    Api::<Node>::all(scene.lane.client()).delete(&victim, &DeleteParams::default()).await?;
    let told = |fence: &NodeFence| condition(fence, "NodeClean") == Some(("Unknown", "MachineMayRun"));
    let fence = scene.lane.fence("its machine may write on", told).await?;
    assert_eq!(condition(&fence, "Stalled"), Some(("True", "MachineMayRun")));
    assert_eq!(clients_out(scene.lane.array()), ["10.77.9.1/32"]);
    assert!(scene.csi_addons.operations().iter().all(|operation| operation.fenced));
    scene.lane.victim()?.power_off().await;
    let said = json!({ names::MACHINE_OFF_ANNOTATION: fence.machine_off_word() });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": said } }));
    let fences: Api<NodeFence> = Api::all(scene.lane.client());
    fences.patch(&victim, &PatchParams::default(), &patch).await?;
    scene.lane.fence("over", |fence| phase(fence) == Some(Phase::Recovered)).await?;
    assert_eq!(scene.lane.array().shut_out(), [] as [String; 0]);
    scene.lane.end().await
}

/// Another machine takes the name of the one that is being shut out, and fails too: the pods run there by other addresses.
pub async fn a_fence_proves_nothing_of_another_machine(cluster: &Cluster) -> Result<(), Failed> {
    let scene = Scene::new(cluster, "netother", 13).await?;
    let nodes: Api<Node> = Api::all(scene.lane.client());
    let victim = scene.lane.victim()?.name().to_owned();
    let addresses = nodes.get(&victim).await?.status.and_then(|status| status.addresses);
    let becomes = async |boot_id: &str, addresses: Value| {
        let patch = Patch::Merge(json!({ "status": { "nodeInfo": { "bootID": boot_id }, "addresses": addresses } }));
        nodes.patch_status(&victim, &PatchParams::default(), &patch).await
    };
    scene.csi_addons.set_faults(Faults { hangs: true, ..Faults::default() });
    scene.lane.victim()?.kill().await;
    scene.lane.begun(&scene.volume()).await?;
    // For addresses that are not those of the plan none would be made.
    scene.is_made().await?;
    becomes("another", json!([{ "type": "InternalIP", "address": "10.77.13.99" }])).await?;
    scene.csi_addons.set_faults(Faults::default());
    let shut_out = async || {
        let out = clients_out(scene.lane.array());
        Ok(if out == ["10.77.13.1/32"] { Ok(()) } else { Err(format!("{out:?}")) })
    };
    cluster.wait("the first one is shut out", SOON, shut_out).await?;
    let told = |fence: &NodeFence| condition(fence, "Stalled") == Some(("True", "AnotherMachine"));
    scene.lane.fence("the pods wait for the other one", told).await?;
    scene.lane.assert_untouched(&scene.set, &scene.before).await?;
    becomes(&scene.lane.victim()?.boot_id(), json!(addresses)).await?;
    scene.lane.moved(&scene.set).await?;
    scene.comes_back().await?;
    scene.lane.end().await
}
