//! Volumes and claims that are not what they seem.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::{FOREIGN, Lane, take_away};
use super::world::World;

/// Name and handle of one that is deleted while it is used, but perhaps another bucket.
pub async fn one_made_anew_shares_nothing(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "anew", 1).await?;
    lane.bound("data", json!({})).await?;
    lane.pod("old", 1, &["data"], json!({})).await?;
    lane.shared("data", &[&["old"]]).await?;
    take_away(&Api::<PersistentVolumeClaim>::namespaced(lane.client(), &lane.name), "data").await?;
    take_away(&Api::<PersistentVolume>::all(lane.client()), &lane.volume_name("data")).await?;
    lane.bound("data", json!({ "csi": { "volumeAttributes": { "bucketName": "another" } } })).await?;
    lane.pod("new", 1, &["data"], json!({})).await?;
    let pods = lane.shared("data", &[&["old"], &["new"]]).await?;
    // Nor when its own ends: what is in the other bucket may be another's.
    lane.status(&lane.mountpoint_pods(), &pods[0], json!({ "phase": "Failed" })).await?;
    lane.barrier("after", 1).await?;
    let old = lane.pods().get("old").await?.uid().unwrap_or_default();
    assert_eq!(lane.attachment("data").await?.spec.mountpoint_pod_of(&old), Some(pods[0].as_str()));
    assert_eq!(lane.mountpoint_pods_of("data").await?.len(), 2, "none is made for it");
    lane.delete(&["old"]).await?;
    lane.shared("data", &[&["new"]]).await?;
    lane.delete(&["new"]).await?;
    lane.clean("data").await
}

/// The volume belongs to a claim that was deleted; one of its name says that it is bound to it.
pub async fn a_claim_of_another_uid_is_not_bound(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "another-uid", 1).await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(lane.client(), &lane.name);
    lane.bound("data", json!({})).await?;
    let old = claims.get("data").await?.uid();
    take_away(&claims, "data").await?;
    let new = lane.claim("data").await?;
    assert_ne!(new.uid(), old);
    let says = kube::api::Patch::Merge(json!({ "status": { "phase": "Bound" } }));
    claims.patch_status("data", &kube::api::PatchParams::default(), &says).await?;
    lane.pod("user", 1, &["data"], json!({})).await?;
    lane.barrier("after", 1).await?;
    assert_eq!(lane.attachments_of("data").await?, []);
    assert_eq!(lane.mountpoint_pods_of("data").await?.len(), 0);
    Ok(())
}

/// Inline volumes, and two volumes of one handle in one pod.
pub async fn what_cannot_be_served_is_told(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "not-served", 1).await?;
    let inline = json!([
        { "name": "scratch", "csi": { "driver": "s3.csi.scality.com", "volumeAttributes": { "bucketName": "b" } } },
        { "name": "other", "csi": { "driver": FOREIGN } },
    ]);
    lane.pod("inline", 1, &[], json!({ "volumes": inline })).await?;
    let note = lane.told("inline", "VolumeNotSupported").await?;
    assert!(note.contains("scratch") && note.contains("PersistentVolume"), "{note}");

    let handle = json!({ "csi": { "volumeHandle": "the-same" } });
    lane.bound("one", handle.clone()).await?;
    lane.bound("two", handle).await?;
    lane.pod("both", 1, &["one", "two"], json!({})).await?;
    let note = lane.told("both", "VolumeNotSupported").await?;
    for part in ["the-same", &lane.volume_name("one"), &lane.volume_name("two")] {
        assert!(note.contains(part), "{part}: {note}");
    }
    lane.delete(&["inline", "both"]).await?;
    lane.clean("one").await?;
    lane.clean("two").await
}

/// Their claim is made by Kubernetes, of the pod's name and the volume's. One of that name that is another's does not count.
pub async fn ephemeral_claims_are_served(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "ephemeral", 1).await?;
    let claim = json!({ "accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": { "requests": { "storage": "1Gi" } } });
    let template = |volume: &str| {
        let mut spec = claim.clone();
        spec["volumeName"] = json!(volume);
        json!([{ "name": "data", "ephemeral": { "volumeClaimTemplate": { "spec": spec } } }])
    };
    lane.volume("user-data", json!({})).await?;
    lane.pod("user", 1, &[], json!({ "volumes": template(&lane.volume_name("user-data")) })).await?;
    lane.binds("user-data").await?;
    lane.shared("user-data", &[&["user"]]).await?;

    lane.bound("thief-data", json!({})).await?;
    lane.pod("thief", 1, &[], json!({ "volumes": template(&lane.volume_name("thief-data")) })).await?;
    lane.barrier("after", 1).await?;
    assert_eq!(lane.attachments_of("thief-data").await?, []);
    lane.delete(&["user"]).await?;
    lane.clean("user-data").await
}
