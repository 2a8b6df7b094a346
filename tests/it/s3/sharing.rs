//! Who shares a Mountpoint Pod, and who does not.

use bulkhead::api::s3;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::lane::{Lane, needs_unmount};
use super::world::World;

pub async fn one_node_and_group_shares(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "sharing", 2).await?;
    lane.bound("data", json!({})).await?;
    let group = |group: i64| json!({ "securityContext": { "fsGroup": group } });
    for (pod, node, spec) in [
        ("a", 1, json!({})),
        ("b", 1, json!({})),
        ("far", 2, json!({})),
        ("thousand-a", 1, group(1000)),
        ("thousand-b", 1, group(1000)),
        ("two-thousand", 1, group(2000)),
        ("zero", 1, group(0)),
    ] {
        lane.pod(pod, node, &["data"], spec).await?;
    }
    let groups: [&[&str]; 5] = [&["a", "b"], &["far"], &["thousand-a", "thousand-b"], &["two-thousand"], &["zero"]];
    lane.shared("data", &groups).await?;
    assert_eq!(lane.attachments_of("data").await?.len(), 5);
    assert_eq!(lane.mountpoint_pods_of("data").await?.len(), 5);
    for pod in lane.mountpoint_pods_of("data").await? {
        let mount: s3::Mount = serde_json::from_str(&pod.annotations()[s3::MOUNT_ANNOTATION])?;
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        assert_eq!(node.as_ref(), Some(&mount.node_name), "it runs beside its workloads");
    }

    // One goes, the other stays as it is.
    lane.delete(&["a", "far", "thousand-b"]).await?;
    lane.shared("data", &[&["b"], &["thousand-a"], &["two-thousand"], &["zero"]]).await?;
    lane.delete(&["b", "thousand-a", "two-thousand", "zero"]).await?;
    lane.clean("data").await
}

pub async fn changed_options_are_another_mount(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "options", 1).await?;
    lane.bound("data", json!({ "mountOptions": ["allow-delete", "region=us-east-1"] })).await?;
    lane.pod("old", 1, &["data"], json!({})).await?;
    lane.shared("data", &[&["old"]]).await?;
    assert_eq!(lane.attachment("data").await?.spec.mount_options, "allow-delete,region=us-east-1");
    let volumes: Api<PersistentVolume> = Api::all(lane.client());
    let changed = Patch::Merge(json!({ "spec": { "mountOptions": ["region=us-east-1"] } }));
    volumes.patch(&lane.volume_name("data"), &PatchParams::default(), &changed).await?;
    lane.barrier("seen", 1).await?;
    lane.pod("new", 1, &["data"], json!({})).await?;
    lane.shared("data", &[&["old"], &["new"]]).await?;
    assert_eq!(lane.attachments_of("data").await?.len(), 2);

    // What it was attached with is not what the volume says now.
    lane.delete(&["old"]).await?;
    lane.shared("data", &[&["new"]]).await?;
    assert_eq!(lane.attachment("data").await?.spec.mount_options, "region=us-east-1");
    lane.delete(&["new"]).await?;
    lane.clean("data").await
}

/// What a person or another version said of a Mountpoint Pod: new workloads get another one.
pub async fn marked_pods_get_no_new_workload(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "marked", 1).await?;
    let marks: [(&str, Value); 4] = [
        ("closed", json!({ "annotations": { s3::NO_NEW_WORKLOAD: "true" } })),
        ("leaving", json!({ "annotations": { s3::NEEDS_UNMOUNT: "true" } })),
        ("other-version", json!({ "labels": { s3::DRIVER_VERSION_LABEL: "0.0.1" } })),
        ("no-version", json!({ "labels": { s3::DRIVER_VERSION_LABEL: null } })),
    ];
    for (claim, mark) in &marks {
        let (old, new) = (format!("{claim}-old"), format!("{claim}-new"));
        lane.bound(claim, json!({})).await?;
        lane.pod(&old, 1, &[claim], json!({})).await?;
        let pods = lane.shared(claim, &[&[&old]]).await?;
        let mark = Patch::Merge(json!({ "metadata": mark }));
        lane.mountpoint_pods().patch(&pods[0], &PatchParams::default(), &mark).await?;
        lane.barrier(&format!("{claim}-seen"), 1).await?;
        lane.pod(&new, 1, &[claim], json!({})).await?;
        lane.shared(claim, &[&[&old], &[&new]]).await?;
        assert_eq!(lane.attachments_of(claim).await?.len(), 1, "one attachment names both");
        lane.delete(&[&old]).await?;
        lane.shared(claim, &[&[&new]]).await?;
        lane.delete(&[&new]).await?;
    }
    for (claim, _) in &marks {
        lane.clean(claim).await?;
    }
    Ok(())
}

/// A PersistentVolume may have a longer name than a label holds, and a handle of any characters.
pub async fn long_and_odd_names_are_served(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "odd-names", 1).await?;
    let claim = format!("long.{}", "x".repeat(200));
    let handle = "s3://bucket/a?b=c&d=\"é\"\n,";
    let options = json!(["prefix=a,b/", "metadata-ttl 300", "--allow-other"]);
    lane.bound(&claim, json!({ "csi": { "volumeHandle": handle }, "mountOptions": options })).await?;
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
    lane.pod("user", 1, &[], json!({ "volumes": volumes })).await?;
    let pods = lane.shared(&claim, &[&["user"]]).await?;
    let pod = lane.mountpoint_pods().get(&pods[0]).await?;
    assert!(!pod.labels().contains_key(s3::VOLUME_NAME));
    assert_eq!(pod.annotations()[s3::VOLUME_NAME], lane.volume_name(&claim));
    assert_eq!(pod.annotations()[s3::VOLUME_ID], handle);
    let spec = lane.attachment(&claim).await?.spec;
    assert_eq!(
        (spec.volume_id.as_str(), spec.mount_options.as_str()),
        (handle, "prefix=a,b/,metadata-ttl 300,--allow-other")
    );
    assert!(!needs_unmount(&pod));
    lane.delete(&["user"]).await?;
    lane.clean(&claim).await
}
