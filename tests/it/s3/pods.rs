//! The Mountpoint Pod itself, as the API server took it: Pod Security `restricted` is enforced where it lives, and a
//! ResourceQuota asks what it needs.

use bulkhead::api::s3;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::lane::Lane;
use super::world::World;

pub async fn the_mountpoint_pod_is_as_recorded(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "recorded", 1).await?;
    lane.bound("data", json!({ "mountOptions": ["allow-delete"] })).await?;
    let workload = lane.pod("user", 1, &["data"], json!({})).await?;
    let pods = lane.shared("data", &[&["user"]]).await?;
    let pod = lane.mountpoint_pods().get(&pods[0]).await?;
    let volume: k8s_openapi::api::core::v1::PersistentVolume =
        Api::all(lane.client()).get(&lane.volume_name("data")).await?;
    let mut shown = serde_json::to_string_pretty(&json!({
        "labels": pod.labels(), "annotations": pod.annotations(), "ownerReferences": pod.owner_references(),
        "finalizers": pod.finalizers(), "spec": pod.spec,
    }))?;
    for (what, found) in [("WORKLOAD", workload.uid()), ("VOLUME", volume.uid())] {
        shown = shown.replace(&found.unwrap_or_default(), what);
    }
    insta::assert_snapshot!(shown.replace(env!("CARGO_PKG_VERSION"), "VERSION"));

    let namespace: Namespace = Api::all(lane.client()).get(s3::MOUNTPOINT_NAMESPACE).await?;
    assert_eq!(namespace.labels()["pod-security.kubernetes.io/enforce"], "restricted");
    let privileged = json!({
        "metadata": { "name": "privileged" },
        "spec": { "containers": [{ "name": "main", "image": "app", "securityContext": { "privileged": true } }] },
    });
    let refused = lane.create::<Pod>(Some(s3::MOUNTPOINT_NAMESPACE), privileged).await;
    let refused = refused.err().and_then(|error| error.message().map(str::to_owned)).unwrap_or_default();
    assert!(refused.contains("violates PodSecurity"), "{refused}");
    lane.delete(&["user"]).await?;
    lane.clean("data").await
}

/// Resources, account and cache that a volume asks for.
pub async fn attributes_shape_the_pod(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "attributes", 1).await?;
    lane.create::<ServiceAccount>(Some(s3::MOUNTPOINT_NAMESPACE), json!({ "metadata": { "name": "s3-reader" } }))
        .await?;
    let cases = [
        (
            "requests",
            json!({ "mountpointContainerResourcesRequestsCpu": "250m" }),
            "/containers/0/resources/requests/cpu",
            json!("250m"),
        ),
        (
            "memory",
            json!({ "mountpointContainerResourcesRequestsMemory": "32Mi", "mountpointContainerResourcesLimitsMemory": "1Gi" }),
            "/containers/0/resources/limits/memory",
            json!("1Gi"),
        ),
        (
            "limits",
            json!({ "mountpointContainerResourcesLimitsCpu": "2" }),
            "/containers/0/resources/limits/cpu",
            json!("2"),
        ),
        (
            "account",
            json!({ "mountpointPodServiceAccountName": "s3-reader" }),
            "/serviceAccountName",
            json!("s3-reader"),
        ),
        (
            "cache",
            json!({ "cache": "emptyDir", "cacheEmptyDirSizeLimit": "2Gi" }),
            "/cache/emptyDir",
            json!({ "sizeLimit": "2Gi" }),
        ),
        (
            "memory-cache",
            json!({ "cache": "emptyDir", "cacheEmptyDirMedium": "Memory" }),
            "/cache/emptyDir",
            json!({ "medium": "Memory" }),
        ),
        (
            "claim-cache",
            json!({ "cache": "ephemeral", "cacheEphemeralStorageClassName": "fast", "cacheEphemeralStorageResourceRequest": "3Gi" }),
            "/cache/ephemeral/volumeClaimTemplate/spec/storageClassName",
            json!("fast"),
        ),
    ];
    for (claim, attributes, pointer, expected) in cases {
        lane.bound(claim, json!({ "csi": { "volumeAttributes": attributes } })).await?;
        lane.pod(claim, 1, &[claim], json!({})).await?;
        let pod = made(&lane, claim).await?;
        let mut spec = serde_json::to_value(&pod.spec)?;
        spec["cache"] = volume(&spec, s3::CACHE_VOLUME);
        assert_eq!(spec.pointer(pointer), Some(&expected), "{claim}: {spec:#}");
        let has_cache = spec["cache"] != Value::Null;
        let mounts = serde_json::to_string(&spec["containers"][0]["volumeMounts"])?;
        assert_eq!(has_cache, mounts.contains(s3::CACHE_FOLDER), "{claim}: {mounts}");
        lane.delete(&[claim]).await?;
    }
    Ok(())
}

fn volume(spec: &Value, name: &str) -> Value {
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    volumes.into_iter().find(|volume| volume["name"] == name).cloned().unwrap_or_default()
}

/// The Mountpoint Pod of a volume, as soon as it is made: one with a claim of its own is never scheduled here.
async fn made(lane: &Lane<'_>, claim: &str) -> Result<Pod, Failed> {
    let look = async || {
        let pods = lane.mountpoint_pods_of(claim).await?;
        Ok(pods.into_iter().next().ok_or_else(|| "none".to_owned()))
    };
    let what = format!("a Mountpoint Pod of {claim}");
    Ok(lane.world.cluster.wait(&what, super::world::SOON, look).await?)
}

/// Those who wait are told which attribute to correct. When it is right, they are served.
pub async fn invalid_attributes_are_told(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "invalid", 1).await?;
    let cases = [
        (
            "cpu",
            json!({ "mountpointContainerResourcesRequestsCpu": "much" }),
            "mountpointContainerResourcesRequestsCpu",
        ),
        (
            "memory",
            json!({ "mountpointContainerResourcesLimitsMemory": "-1Gi" }),
            "mountpointContainerResourcesLimitsMemory",
        ),
        ("kind", json!({ "cache": "disk" }), "cache"),
        ("limit", json!({ "cache": "emptyDir", "cacheEmptyDirSizeLimit": "2Gb" }), "cacheEmptyDirSizeLimit"),
        ("medium", json!({ "cache": "emptyDir", "cacheEmptyDirMedium": "HugePages" }), "cacheEmptyDirMedium"),
        (
            "class",
            json!({ "cache": "ephemeral", "cacheEphemeralStorageResourceRequest": "1Gi" }),
            "cacheEphemeralStorageClassName",
        ),
        (
            "size",
            json!({ "cache": "ephemeral", "cacheEphemeralStorageClassName": "fast" }),
            "cacheEphemeralStorageResourceRequest",
        ),
    ];
    for (claim, attributes, _) in &cases {
        lane.bound(claim, json!({ "csi": { "volumeAttributes": attributes } })).await?;
        lane.pod(claim, 1, &[claim], json!({})).await?;
    }
    for (claim, _, attribute) in &cases {
        let note = lane.told(claim, "MountpointPodInvalid").await?;
        assert!(note.contains(attribute) && note.contains(&lane.volume_name(claim)), "{attribute}: {note}");
        assert_eq!(lane.mountpoint_pods_of(claim).await?.len(), 0, "{claim}");
    }
    lane.bound(
        "option",
        json!({ "mountOptions": ["cache=/tmp"], "csi": { "volumeAttributes": { "cache": "emptyDir" } } }),
    )
    .await?;
    lane.pod("option", 1, &["option"], json!({})).await?;
    let note = lane.told("option", "MountpointPodInvalid").await?;
    assert!(note.contains("mount option cache"), "{note}");
    lane.barrier("others", 1).await?;

    // Attributes of a volume cannot be changed, but its options can.
    let without = kube::api::Patch::Merge(json!({ "spec": { "mountOptions": null } }));
    let volumes: Api<k8s_openapi::api::core::v1::PersistentVolume> = Api::all(lane.client());
    volumes.patch(&lane.volume_name("option"), &kube::api::PatchParams::default(), &without).await?;
    lane.shared("option", &[&["option"]]).await?;
    lane.delete(&["option"]).await?;
    lane.clean("option").await
}

/// More than the quota of the namespace has.
pub async fn a_refusal_is_told_to_the_workload(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "refused", 1).await?;
    let huge = json!({ "csi": { "volumeAttributes": { "mountpointContainerResourcesLimitsMemory": "2Ti" } } });
    lane.bound("data", huge).await?;
    lane.pod("user", 1, &["data"], json!({})).await?;
    let note = lane.told("user", "MountpointPodNotCreated").await?;
    assert!(note.contains("exceeded quota"), "{note}");
    lane.barrier("others", 1).await?;
    lane.delete(&["user"]).await?;
    lane.clean("data").await
}

/// The node is full: the workload is told in the scheduler's words, and so is who asks for the attachment.
pub async fn no_room_is_told_to_the_workload(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "no-room", 0).await?;
    world.nodes.add(&lane.node(1), 1).await?;
    lane.bound("data", json!({})).await?;
    lane.pod("user", 1, &["data"], json!({})).await?;
    let note = lane.told("user", "MountpointPodUnschedulable").await?;
    assert!(note.contains("Too many pods"), "{note}");
    let name = lane.attachment("data").await?.name_any();
    lane.wait_for(&lane.attachments(), &name, "told", |attachment| {
        let status = attachment.and_then(|attachment| attachment.status.as_ref());
        let ready = status.and_then(|status| status.conditions.iter().find(|condition| condition.type_ == "Ready"));
        ready.is_some_and(|ready| {
            ready.reason == "MountpointPodUnschedulable" && ready.message.contains("Too many pods")
        })
    })
    .await?;
    // A Mountpoint Pod that has no node is deleted at once.
    lane.delete(&["user"]).await?;
    lane.clean("data").await
}
