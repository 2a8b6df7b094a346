//! Who writes SharedVolumes.

use bulkhead::api::shared_volume::SharedVolume;
use kube::api::PostParams;
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::Lane;

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
    assert_eq!(lane.server.count(&http::Method::GET, "/volumes"), 0);
    lane.reports("nothing is fed", |status| status.shared_volumes == Some(0)).await?;
    Ok(())
}
