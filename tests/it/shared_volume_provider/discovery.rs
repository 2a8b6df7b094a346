//! Which SharedVolumes are written.

use bulkhead::api::shared_volume::{EndpointObjects, OnBackendLost, UNPUBLISH_FINALIZER};
use bulkhead_testbed::storageos::NewVolume;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::Lane;

pub async fn writes_one_for_each_volume_once(lane: &Lane<'_>) -> Result<(), Failed> {
    let claim = lane.claim("media").await?;
    let id = lane.volume("media");
    lane.provider(json!({})).await?;
    let shared_volume = lane.discovered("media").await?;
    let owners = shared_volume.owner_references();
    assert_eq!((owners.len(), owners[0].kind.as_str()), (1, "PersistentVolumeClaim"));
    assert_eq!((Some(owners[0].uid.clone()), owners[0].controller), (claim.uid(), None));
    assert_eq!(shared_volume.finalizers(), [UNPUBLISH_FINALIZER]);
    assert_eq!(shared_volume.spec.claim_name, "media");
    assert_eq!(shared_volume.spec.service.endpoints, EndpointObjects::EndpointSliceAndEndpoints);
    let backend = shared_volume.spec.backend.provider.clone().ok_or("no provider")?;
    assert_eq!(
        (backend.name, backend.volume_id, backend.volume_namespace),
        (lane.name.clone(), id, Some(lane.namespace.clone()))
    );
    let is_manager = |name: &str| shared_volume.managed_fields().iter().any(|it| it.manager.as_deref() == Some(name));
    assert!(is_manager("bulkhead-controller/discovery"));
    let counted = |status: &bulkhead::api::shared_volume_provider::SharedVolumeProviderStatus| {
        (status.volumes, status.shared_volumes, status.unmanaged) == (Some(1), Some(1), Some(0))
    };
    let provider = lane.reports("one volume, one SharedVolume", counted).await?;
    assert_eq!(provider.status.and_then(|it| it.endpoint), Some(lane.server.endpoint()));
    lane.says("Ready=True/Polling").await?;
    assert!(lane.hears("SharedVolumeCreated").await?.contains(&format!("{}/media", lane.name)));
    assert!(lane.hears("LoggedIn").await?.contains(&lane.server.endpoint()));
    assert!(lane.hears("PlaintextCredentials").await?.contains("use transport TLS"));

    // What people change later is theirs.
    let edit = json!({ "spec": { "failover": { "onBackendLost": "Keep" } } });
    lane.shared_volumes().patch("media", &PatchParams::default(), &Patch::Merge(edit)).await?;
    lane.polled(2).await?;
    let edited = lane.shared_volumes().get("media").await?;
    assert_eq!(edited.spec.failover.on_backend_lost, OnBackendLost::Keep);
    assert_eq!(edited.metadata.generation, Some(2));
    Ok(())
}

pub async fn is_at_rest_when_nothing_changes(lane: &Lane<'_>) -> Result<(), Failed> {
    let other = format!("{}-too", lane.name);
    lane.world.namespace(&other, json!({})).await?;
    let namespaces = [lane.namespace.clone(), lane.server.volumes().create_namespace(&other)];
    lane.claim("media").await?;
    lane.volume("media");
    lane.provider(json!({})).await?;
    lane.discovered("media").await?;
    lane.reports("it is counted", |status| status.shared_volumes == Some(1)).await?;
    let state = async || {
        let provider = lane.providers().get(&lane.name).await?;
        let shared_volume = lane.shared_volumes().get("media").await?;
        Ok::<_, Failed>((provider.resource_version(), shared_volume.metadata.generation, lane.told().await?.len()))
    };
    lane.hears("PlaintextCredentials").await?;
    lane.hears("SharedVolumeCreated").await?;
    let before = state().await?;
    let asked = lane.server.requests().len();
    lane.polled(4).await?;
    assert_eq!(state().await?, before);
    // Each poll lists each namespace, once. What was under way at the beginning and is at the end does not count.
    let requests = lane.server.requests();
    let polls: Vec<_> = requests[asked..].split(|it| it.path == "/v2/namespaces").skip(1).collect();
    let whole = &polls[..polls.len() - 1];
    assert!(whole.len() >= 4, "{polls:?}");
    for poll in whole {
        let mut listed: Vec<_> = poll.iter().filter(|it| it.path.ends_with("/volumes")).map(|it| &it.path).collect();
        listed.sort_unstable();
        let mut wanted = namespaces.each_ref().map(|id| format!("/v2/namespaces/{id}/volumes"));
        wanted.sort_unstable();
        assert_eq!(listed, wanted.each_ref(), "{poll:?}");
    }
    Ok(())
}

pub async fn a_name_that_no_service_may_have(lane: &Lane<'_>) -> Result<(), Failed> {
    lane.claim("media.v2").await?;
    lane.volume("media.v2");
    lane.provider(json!({})).await?;
    let note = lane.hears("SharedVolumeCreated").await?;
    let all = lane.all().await?;
    assert!(all.len() == 1 && all[0].starts_with("media-v2-"), "{all:?}");
    assert!(note.contains("shorter name") && note.contains("claim media.v2"), "{note}");
    Ok(())
}

pub async fn names_and_template(lane: &Lane<'_>) -> Result<(), Failed> {
    lane.claim("media").await?;
    lane.volume("media");
    let template = json!({
        "labels": { "team": "storage" }, "service": { "endpoints": "EndpointSlice" },
        "failover": { "onBackendLost": "Keep", "holdDown": "15s" }, "probe": { "type": "None" },
    });
    lane.provider(json!({ "discovery": { "nameFrom": "PersistentVolume", "template": template } })).await?;
    let shared_volume = lane.discovered("pv-media").await?;
    assert_eq!(shared_volume.labels().get("team").map(String::as_str), Some("storage"));
    let spec = json!(shared_volume.spec);
    assert_eq!(
        (&spec["service"]["name"], &spec["service"]["endpoints"]),
        (&json!("pv-media"), &json!("EndpointSlice"))
    );
    assert_eq!((&spec["failover"]["onBackendLost"], &spec["failover"]["holdDown"]), (&json!("Keep"), &json!("15s")));
    assert_eq!(spec["probe"]["type"], "None");
    Ok(())
}

pub async fn a_claim_that_comes_later(lane: &Lane<'_>) -> Result<(), Failed> {
    lane.volume("media");
    lane.provider(json!({ "pollInterval": "1s" })).await?;
    lane.reports("a volume that nobody claims", |status| status.unmanaged == Some(1)).await?;
    assert_eq!(lane.all().await?, [""; 0]);
    lane.claim("media").await?;
    lane.discovered("media").await?;
    // Whoever takes it away gets it again, as a volume is new that has none.
    let unguarded = json!({ "metadata": { "finalizers": null } });
    let first = lane.shared_volumes().patch("media", &PatchParams::default(), &Patch::Merge(unguarded)).await?;
    lane.shared_volumes().delete("media", &DeleteParams::default()).await?;
    let again = super::world::eventually("another SharedVolume", async || {
        let found = lane.shared_volumes().get_opt("media").await?;
        Ok(found.filter(|it| it.uid() != first.uid()))
    });
    again.await?;
    Ok(())
}

pub async fn only_selected_namespaces(lane: &Lane<'_>) -> Result<(), Failed> {
    let other = format!("{}-not", lane.name);
    lane.world.namespace(&other, json!({})).await?;
    let unserved = lane.server.volumes().create_namespace(&other);
    let new = NewVolume { volume_name: "pv-x", claim_name: "x", claim_namespace: &other };
    lane.attached(&unserved, &new);
    // In a namespace that is listed, for a claim in one that is not served.
    lane.attached(&lane.namespace, &new);
    lane.claim("media").await?;
    lane.volume("media");
    lane.provider(json!({ "namespaceSelector": { "matchLabels": { "lane": lane.name } } })).await?;
    lane.discovered("media").await?;
    lane.polled(2).await?;
    assert_eq!(lane.server.count(&http::Method::GET, &format!("/{unserved}/volumes")), 0);
    lane.reports("only what is listed counts", |status| (status.volumes, status.unmanaged) == (Some(2), Some(1)))
        .await?;
    Ok(())
}
