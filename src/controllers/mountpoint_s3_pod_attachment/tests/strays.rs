//! When a Mountpoint Pod of upstream's is looked at, which says nothing of what it mounts.

use serde_json::json;

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::s3::{DRIVER_VERSION_LABEL, MOUNT_ANNOTATION, MOUNTPOINT_NAMESPACE};
use crate::controllers::feed_tests::{Queued, s3_stores};
use crate::runtime::store::ObjectKey;

use super::super::strays::Strays;
use super::world::World;

fn ended(name: &str) -> MountpointPod {
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": MOUNTPOINT_NAMESPACE, "uid": name,
            "labels": { DRIVER_VERSION_LABEL: "2.1.1" },
        },
        "status": { "phase": "Succeeded" },
    }))
    .unwrap()
}

fn naming(pods: &[&str]) -> MountpointS3PodAttachment {
    let entries: serde_json::Map<_, _> = pods.iter().map(|pod| ((*pod).to_owned(), json!([]))).collect();
    serde_json::from_value(json!({
        "apiVersion": "s3.csi.scality.com/v2", "kind": "MountpointS3PodAttachment",
        "metadata": { "name": "upstreams", "uid": "upstreams" },
        "spec": {
            "nodeName": "node", "persistentVolumeName": "pv", "volumeID": "handle", "mountOptions": "",
            "workloadFSGroup": "", "mountpointS3PodAttachments": entries,
        },
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn one_that_changes_is_looked_at_if_it_does_not_say_what_it_mounts() {
    let (s3, (queue, queued)) = (s3_stores(), Queued::queue());
    Strays::feed(&s3, &queue);
    let mut ours = ended("ours");
    let mount = serde_json::to_string(&World::new().mount).unwrap();
    ours.metadata.annotations.get_or_insert_default().insert(MOUNT_ANNOTATION.to_owned(), mount);
    s3.mountpoint_pods.insert(ours);
    s3.mountpoint_pods.insert(ended("upstreams"));
    assert_eq!(queued.taken().await, ["upstreams"]);
}

/// The watch of pods may be ahead of that of attachments: one that has ended and is still named changes no more.
#[tokio::test(start_paused = true)]
async fn one_that_an_attachment_names_no_more_is_looked_at() {
    let (s3, (queue, queued)) = (s3_stores(), Queued::queue());
    s3.mountpoint_pods.insert(ended("a"));
    s3.attachments.insert(naming(&["a", "b", "c"]));
    Strays::feed(&s3, &queue);
    queued.taken().await;
    s3.attachments.insert(naming(&["b", "c"]));
    assert_eq!(queued.taken().await, ["a"]);
    s3.attachments.insert(naming(&["b", "c", "d"]));
    assert!(queued.taken().await.is_empty());
    s3.attachments.remove(&ObjectKey::cluster("upstreams"));
    assert_eq!(queued.taken().await, ["b", "c", "d"]);
}
