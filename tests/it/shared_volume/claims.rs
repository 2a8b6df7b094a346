//! Whose address it is: claims that are not there, not bound, replaced, or claimed twice.

use bulkhead::api::shared_volume::SharedVolume;
use bulkhead_testbed::nfs_server::Mode;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Service};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::lane::{Lane, candidates, is, uid};

/// Line 43: without a claim there is no Service; one that comes later is served.
pub async fn are_waited_for(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    lane.volume("data", candidates(&[&server])).await?;
    lane.condition("data", "ClaimBound", "False", "ClaimNotFound").await?;
    assert!(lane.all::<Service>().get_opt("data").await?.is_none());
    // It names a volume, as anybody may; it is not bound before there is one.
    lane.unbound_claim("data", &lane.volume_name("data")).await?;
    lane.condition("data", "ClaimBound", "False", "ClaimPending").await?;
    assert!(lane.all::<Service>().get_opt("data").await?.is_none());
    lane.volume_of("data").await?;
    let volume = lane.ready("data").await?;
    let claim = volume.status.and_then(|status| status.claim).ok_or("no claim in status")?;
    assert_eq!(claim.volume_name, Some(lane.volume_name("data")));
    Ok(())
}

/// Row 13: a claim of the same name is another claim.
pub async fn that_are_replaced_are_not_served(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    lane.serving("data", &[&server], json!({})).await?;
    let (claim, service) = (lane.all::<PersistentVolumeClaim>().get("data").await?, lane.service("data").await?);
    lane.delete::<PersistentVolumeClaim>("data").await?;
    lane.gone::<Service>("data").await?;
    let volumes: Api<PersistentVolume> = Api::all(lane.client());
    volumes.delete(&lane.volume_name("data"), &DeleteParams::default()).await?;
    lane.eventually("the volume is gone", async || {
        let found = volumes.get_metadata_opt(&lane.volume_name("data")).await?;
        Ok(if found.is_none() { Ok(()) } else { Err("there".into()) })
    })
    .await?;
    let other = lane.claim("data").await?;
    assert_ne!(other.uid(), claim.uid());
    lane.condition("data", "ClaimBound", "False", "ClaimReplaced").await?;
    let volume = lane.condition("data", "Stalled", "True", "ClaimReplaced").await?;
    let status = volume.status.unwrap_or_default();
    assert_eq!(status.claim.map(|claim| claim.uid), Some(uid(&claim)));
    assert_eq!(status.service.map(|service| service.uid), Some(uid(&service)));
    assert!(lane.all::<Service>().get_opt("data").await?.is_none(), "nobody serves the new claim unasked");
    lane.told("SharedVolume", "data", "ClaimReplaced").await?;
    // Made anew for it, it is served; nothing of the old one comes back.
    lane.delete::<SharedVolume>("data").await?;
    lane.gone::<SharedVolume>("data").await?;
    lane.volume("data", candidates(&[&server])).await?;
    lane.ready("data").await?;
    assert_eq!(lane.service("data").await?.owner_references()[0].uid, uid(&other));
    Ok(())
}

/// Of two for one claim the older wins; when it goes, the other takes over.
pub async fn belong_to_the_older_of_two(lane: &Lane<'_>) -> Result<(), Failed> {
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    lane.serving("data", &[&a], json!({})).await?;
    lane.next_second().await;
    let mut second = candidates(&[&b]);
    second["claimName"] = json!("data");
    second["service"] = json!({ "name": "another" });
    lane.volume("second", second).await?;
    lane.condition("second", "Stalled", "True", "DuplicateClaim").await?;
    assert!(lane.all::<Service>().get_opt("another").await?.is_none());
    lane.active("data", &a).await?;
    lane.delete::<SharedVolume>("data").await?;
    lane.gone::<Service>("data").await?;
    lane.active("second", &b).await?;
    lane.service("another").await?;
    Ok(())
}

/// Two for one Service name are a conflict too, told at the younger.
pub async fn of_two_may_want_one_service(lane: &Lane<'_>) -> Result<(), Failed> {
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    lane.serving("data", &[&a], json!({})).await?;
    let before = lane.service("data").await?;
    lane.next_second().await;
    lane.served_by("other", &[&b], json!({ "service": { "name": "data" } })).await?;
    lane.condition("other", "Stalled", "True", "ServiceConflict").await?;
    lane.told("SharedVolume", "other", "ServiceConflict").await?;
    lane.sent_to("data", &[a.port()]).await?;
    assert_eq!(lane.service("data").await?.owner_references(), before.owner_references());
    lane.delete::<SharedVolume>("other").await?;
    lane.gone::<SharedVolume>("other").await?;
    // What went was not its.
    lane.barrier("after").await?;
    assert_eq!(lane.service("data").await?.uid(), before.uid());
    lane.active("data", &a).await?;
    Ok(())
}

/// The definition cannot know all of it: what it lets pass and is no server is told, and gets no Service.
pub async fn with_no_valid_server_get_no_service(lane: &Lane<'_>) -> Result<(), Failed> {
    lane.claim("data").await?;
    let port = json!([{ "name": "nfs", "port": 2049 }]);
    let candidate = json!({ "name": "a", "addresses": ["239.1.2.3"], "ports": port });
    lane.volume("data", json!({ "backend": { "static": { "candidates": [candidate] } } })).await?;
    lane.condition("data", "BackendAvailable", "False", "BackendInvalid").await?;
    lane.told("SharedVolume", "data", "BackendInvalid").await?;
    assert!(lane.all::<Service>().get_opt("data").await?.is_none());
    let server = lane.server(Mode::Serves).await?;
    lane.patch::<SharedVolume>("data", json!({ "spec": candidates(&[&server]) })).await?;
    let volume = lane.ready("data").await?;
    assert!(!volume.status.is_some_and(|status| is(&status, "Stalled", "True", "BackendInvalid")));
    Ok(())
}

/// A claim is annotated where that is asked for, and nothing else of it is touched.
pub async fn keep_what_others_wrote(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    lane.claim("data").await?;
    let theirs = json!({ "metadata": { "annotations": { "team": "print" }, "labels": { "tier": "1" } } });
    lane.patch::<PersistentVolumeClaim>("data", theirs).await?;
    let mut spec = candidates(&[&server]);
    spec["publish"] = json!({ "targets": ["ClaimAnnotation"] });
    lane.volume("data", spec).await?;
    let volume = lane.ready("data").await?;
    let endpoint = volume.status.and_then(|status| status.mount_endpoint).ok_or("no mount endpoint")?;
    let annotation = |claim: &PersistentVolumeClaim| claim.annotations().get("bulkhead.dev/mount-endpoint").cloned();
    let wanted = Some(endpoint);
    lane.wait_for("data", "annotated", super::world::SOON, |claim| annotation(claim) == wanted).await?;
    // Somebody edits it: it is put right.
    for value in [json!("10.9.9.9:2049"), Value::Null] {
        let edit = Patch::Merge(json!({ "metadata": { "annotations": { "bulkhead.dev/mount-endpoint": value } } }));
        lane.all::<PersistentVolumeClaim>().patch("data", &PatchParams::default(), &edit).await?;
        lane.wait_for("data", "annotated again", super::world::SOON, |claim| annotation(claim) == wanted).await?;
    }
    let claim = lane.all::<PersistentVolumeClaim>().get("data").await?;
    assert_eq!(claim.annotations().get("team").map(String::as_str), Some("print"));
    assert_eq!(claim.labels().get("tier").map(String::as_str), Some("1"));
    lane.delete::<SharedVolume>("data").await?;
    lane.gone::<SharedVolume>("data").await?;
    lane.wait_for("data", "without annotation", super::world::SOON, |claim| annotation(claim).is_none()).await?;
    Ok(())
}
