//! Controllers that end, by themselves or by `kill -9`, at any moment: what is recorded stays as it is, nobody is told
//! twice, and at rest nothing is written.

use std::time::Duration;

use bulkhead_testbed::Identity;
use bulkhead_testbed::fault_proxy::{Script, Site};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::DeleteParams;
use libtest_mimic::Failed;
use serde_json::json;

use crate::rest::at_rest;

use super::world::{SOON, World, abnormal, bad, good};

pub async fn what_is_recorded_survives_every_restart() -> Result<(), Failed> {
    let mut world = World::start().await?;
    for node in ["stays", "leaves"] {
        world.node(node).await?;
        world.local(&format!("on-{node}"), node).await?;
    }
    world.csi("healthy", json!({})).await?;
    world.report("stays", json!([bad("on-stays", "ReadOnly", "Inaccessible", "ReadOnlyRemount")])).await?;
    world.report("leaves", json!([good("on-leaves")])).await?;
    let before = world.tainted("on-stays", "VolumeNotUsable").await?;
    world.tainted("on-leaves", "").await?;
    world.told("VolumeHealth", "on-stays", &["VolumeTainted"]).await?;
    rests(&world).await?;

    // While nobody looks one node goes, and one volume is repaired and breaks again.
    world.cluster.controllers.remove(0).kill().await;
    Api::<Node>::all(world.admin.clone()).delete("leaves", &DeleteParams::default()).await?;
    world.report("stays", json!([good("on-stays")])).await?;
    world.report("stays", json!([bad("on-stays", "ReadOnly", "Inaccessible", "ReadOnlyRemount")])).await?;
    world.cluster.start_controller().await?;
    let left = world.tainted("on-leaves", "VolumeNotUsable").await?;
    assert_eq!(left.taints()[0].reason, "NodeDown");
    rests(&world).await?;
    let after = world.tainted("on-stays", "VolumeNotUsable").await?;
    assert_eq!(after.taints()[0].time_added, before.taints()[0].time_added);
    world.told("VolumeHealth", "on-stays", &["VolumeTainted"]).await?;
    Ok(())
}

/// Each write of a volume's life, before it is sent and when it is done.
pub async fn killed_at_every_write_it_converges() -> Result<(), Failed> {
    let mut world = World::start().await?;
    world.cluster.controllers.remove(0).kill().await;
    let script = Script::default();
    let sites =
        ["create volumehealths", "update volumehealths/status", "patch volumehealths", "patch persistentvolumes"];
    let sites: Vec<_> = sites.iter().flat_map(|what| [Site::before(what, 1), Site::after(what, 2)]).collect();
    script.begin("crashing", sites);
    let mut number = 0;
    let mut stopped = async |world: &World| -> Result<(), Failed> {
        number += 1;
        let controller = world.cluster.tapped_controller("bulkhead-controller-tapped", &script).await?;
        let site = tokio::time::timeout(SOON, controller.tap.stopped()).await.map_err(|_| "it stopped nowhere")?;
        eprintln!("killed {site}");
        controller.kill().await;
        Ok(())
    };
    for volume in ["crashing-a", "crashing-b"] {
        create_only(&world, volume).await?;
    }
    world.driver("crash", json!([abnormal("crashing-a", "Inaccessible", "BackendDeleted")])).await?;
    while !script.left().is_empty() {
        stopped(&world).await?;
    }
    assert!(number >= 6, "only {number} stops");
    world.cluster.start_controller().await?;
    let tainted = world.tainted("crashing-a", "VolumeNotUsable").await?;
    assert_eq!(tainted.taints().len(), 1);
    world.tainted("crashing-b", "").await?;
    rests(&world).await
}

/// A volume without waiting for its VolumeHealth: nobody makes one now.
async fn create_only(world: &World, name: &str) -> Result<(), Failed> {
    let source = json!({ "driver": super::world::DRIVER, "volumeHandle": super::world::handle(name) });
    let volume = json!({
        "metadata": { "name": name },
        "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "csi": source },
    });
    let volumes: Api<k8s_openapi::api::core::v1::PersistentVolume> = Api::all(world.admin.clone());
    volumes.create(&kube::api::PostParams::default(), &serde_json::from_value(volume)?).await?;
    Ok(())
}

/// Healthy or not, our controller renews its Lease and writes nothing else.
async fn rests(world: &World) -> Result<(), Failed> {
    at_rest(&world.cluster, &[Identity::OperatorController], SOON + Duration::from_secs(30)).await
}
