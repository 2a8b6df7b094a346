//! Definitions of s3pa that are not ours: upstream's of before Kubernetes could select by fields of custom resources.

use std::sync::Arc;
use std::time::Instant;

use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use libtest_mimic::Trial;
use serde_json::json;

use super::publishing::read;
use super::world::{PATIENCE, Shared, World, alone};

const NAME: &str = "mountpoints3podattachments.s3.csi.scality.com";

pub fn trials(shared: &Arc<Shared>) -> Vec<Trial> {
    vec![alone(shared, "definitions::without_selectable_fields", without_selectable_fields)]
}

/// Taken away while the plugin runs, as by an older release's manifests, and not there when it starts.
async fn without_selectable_fields(world: World, definitions: Api<CustomResourceDefinition>) {
    let plugin = world.plugin().await;
    let pod = world.running_pod().await;
    let workload = world.workload(&pod).await;
    plugin.publish(&workload).call().await.unwrap();
    assert!(!plugin.log().contains("cannot select"), "with our definition it can");

    forget_selectable_fields(&world, &definitions).await;
    let moved = world.workload(&pod).await;
    plugin.publish(&moved).call().await.unwrap();
    std::fs::write(world.target(&moved).join("a"), "text").unwrap();
    drop(plugin);

    let plugin = world.plugin().await;
    let told = || plugin.log().matches("cannot select").count();
    world.until("the log says so", || told() > 0).await;
    let later = world.workload(&pod).await;
    plugin.publish(&later).call().await.unwrap();
    assert_eq!(read(&world.target(&later), "a"), "text");
}

async fn forget_selectable_fields(world: &World, definitions: &Api<CustomResourceDefinition>) {
    let patch: json_patch::Patch =
        serde_json::from_value(json!([{ "op": "remove", "path": "/spec/versions/0/selectableFields" }])).unwrap();
    definitions.patch(NAME, &PatchParams::default(), &Patch::<()>::Json(patch)).await.unwrap();
    let attachments: Api<MountpointS3PodAttachment> = Api::all(world.admin.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={}", world.node));
    let end = Instant::now() + PATIENCE;
    loop {
        match attachments.list(&of_node).await {
            Err(kube::Error::Api(refused)) if refused.code == 400 => return,
            other => assert!(Instant::now() < end, "the server still selects: {other:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
