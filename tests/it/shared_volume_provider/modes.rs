//! Who writes SharedVolumes.

use bulkhead::api::shared_volume::SharedVolume;
use http::Method;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::{ENDPOINT, Lane};
use super::world::{SOON, eventually};

fn shared_volume(lane: &Lane<'_>, name: &str, volume_id: &str) -> Result<SharedVolume, Failed> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "SharedVolume", "metadata": { "name": name },
        "spec": { "claimName": "media", "backend": { "provider": { "name": lane.name, "volumeID": volume_id } } },
    }))?)
}

pub async fn adopt_feeds_and_writes_nothing(lane: &Lane<'_>) -> Result<(), Failed> {
    for claim in ["media", "logs"] {
        lane.claim(claim).await?;
    }
    let id = lane.volume("media");
    lane.volume("logs");
    lane.provider(json!({ "discovery": { "mode": "Adopt" } })).await?;
    lane.reports("nothing is fed", |it| (it.volumes, it.shared_volumes, it.unmanaged) == (Some(2), Some(0), Some(2)))
        .await?;
    let wanted = shared_volume(lane, "written-by-people", &id)?;
    lane.shared_volumes().create(&PostParams::default(), &wanted).await?;
    lane.reports("one is fed", |it| (it.volumes, it.shared_volumes, it.unmanaged) == (Some(2), Some(1), Some(1)))
        .await?;
    lane.polled(2).await?;
    assert_eq!(lane.all().await?, ["written-by-people"]);
    Ok(())
}

pub async fn disabled_lists_nothing(lane: &Lane<'_>) -> Result<(), Failed> {
    lane.claim("media").await?;
    let id = lane.volume("media");
    lane.shared_volumes().create(&PostParams::default(), &shared_volume(lane, "written-by-people", &id)?).await?;
    lane.provider(json!({ "discovery": { "mode": "Disabled" } })).await?;
    lane.says("Discovering=False/Disabled").await?;
    lane.says("Ready=True/Polling").await?;
    lane.polled(2).await?;
    assert_eq!(lane.server.count(&Method::GET, "/volumes"), 0);
    lane.reports("nothing is fed", |status| status.shared_volumes == Some(0)).await?;
    Ok(())
}

/// A SharedVolume, with its claim, that has all that can be read without a list, and asks for no probe: nobody serves here.
async fn named(lane: &Lane<'_>, name: &str, volume_id: &str) -> Result<(), Failed> {
    lane.claim(name).await?;
    bind(lane, name).await?;
    let mut it = json!(shared_volume(lane, name, volume_id)?);
    it["spec"]["claimName"] = json!(name);
    it["spec"]["backend"]["provider"]["volumeNamespace"] = json!(lane.namespace);
    it["spec"]["probe"] = json!({ "gate": "Never", "type": "None" });
    it["spec"]["failover"] = json!({ "holdDown": "0s" });
    lane.shared_volumes().create(&PostParams::default(), &serde_json::from_value(it)?).await?;
    Ok(())
}

/// There is no controller of volumes here that would bind it.
async fn bind(lane: &Lane<'_>, claim: &str) -> Result<(), Failed> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(lane.world.admin.clone(), &lane.name);
    let bound = json!({ "status": { "phase": "Bound" } });
    claims.patch_status(claim, &PatchParams::default(), &Patch::Merge(bound)).await?;
    Ok(())
}

async fn is_available(lane: &Lane<'_>, name: &str, wanted: &str) -> Result<(), Failed> {
    let look = async || {
        let status = lane.shared_volumes().get(name).await?.status.unwrap_or_default();
        Ok(status.conditions.iter().any(|it| is_of(it, wanted)).then_some(()))
    };
    eventually(&format!("{name} says {wanted}"), look).await
}

fn is_of(it: &Condition, wanted: &str) -> bool {
    it.type_ == "BackendAvailable" && format!("{}/{}", it.status, it.reason) == wanted
}

async fn reported(lane: &Lane<'_>, name: &str, endpoint: &str) -> Result<(), Failed> {
    let look = async || {
        let status = json!(lane.shared_volumes().get(name).await?.status);
        Ok((status["observed"]["endpoint"] == json!(endpoint)).then_some(()))
    };
    eventually(&format!("{name} is at {endpoint}"), look).await
}

pub async fn disabled_serves_what_is_named(lane: &Lane<'_>) -> Result<(), Failed> {
    let id = lane.volume("media");
    let unnamed = lane.volume("logs");
    named(lane, "media", &id).await?;
    lane.provider(json!({ "discovery": { "mode": "Disabled" } })).await?;
    lane.server.volumes().node_publish_soon(&id, SOON).await?;
    reported(lane, "media", ENDPOINT).await?;
    // A failover is followed, and what is published stays.
    lane.server.volumes().serve(&id, "n2", "10.0.0.2:4711")?;
    reported(lane, "media", "10.0.0.2:4711").await?;
    // One that the control plane never had, and one that it has no more.
    named(lane, "nowhere", "vol-9999").await?;
    lane.server.volumes().delete(&id);
    for name in ["media", "nowhere"] {
        is_available(lane, name, "False/ProviderVolumeGone").await?;
    }
    lane.says("Discovering=False/Disabled").await?;
    lane.says("Ready=True/Polling").await?;
    let asked = |path_end: &str| lane.server.count(&Method::GET, path_end);
    assert!(asked(&format!("/volumes/{id}")) > 0);
    assert_eq!((asked("/volumes"), asked(&format!("/volumes/{unnamed}"))), (0, 0));
    assert_eq!(lane.all().await?, ["media", "nowhere"], "nothing is written");
    Ok(())
}
