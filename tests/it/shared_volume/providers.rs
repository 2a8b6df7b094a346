//! A StorageOS control plane that reports where its volumes are served and is told what clients mount. Driver, kubelet and
//! failing nodes are played on its side, over real HTTP.

use std::time::Duration;

use bulkhead::api::endpoint::Endpoint;
use bulkhead::api::shared_volume::{SKIP_UNPUBLISH_ANNOTATION, SharedVolume, SharedVolumePhase};
use bulkhead::api::{conditions, names};
use bulkhead_testbed::nfs_server::Mode;
use bulkhead_testbed::storageos::{AccessMode, Effect, Fault, Method, NewVolume};
use k8s_openapi::api::core::v1::{Endpoints, PersistentVolumeClaim, Secret, Service};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use super::control_plane::ControlPlane;
use super::lane::{Lane, cluster_ips, is, uid};
use super::world::{AT_ONCE, SOON};

/// Lines 15 to 96: created, attached, mounted, with a pod that waits until then.
pub async fn volumes_are_published(lane: &Lane<'_>) -> Result<(), Failed> {
    let stos =
        ControlPlane::start(lane, json!({ "discovery": { "template": { "labels": { "team": "storage" } } } })).await?;
    let server = lane.server(Mode::Serves).await?;
    lane.claim("media").await?;
    let id = stos.volume("media");
    // Neither detached nor attached to one node is it shared.
    stos.status("it polls", |status| conditions::is_true(&status.conditions, "Ready")).await?;
    for mode in [None, Some(AccessMode::SingleNodeWriter)] {
        if let Some(mode) = mode {
            stos.server.volumes().controller_publish(&id, mode, "node-a", "")?;
        }
        stos.polled(2).await?;
        assert!(lane.all::<SharedVolume>().get_opt("media").await?.is_none(), "{mode:?}");
    }
    stos.server.volumes().controller_unpublish(&id)?;
    stos.attach(&id, &server.address.to_string())?;
    assert!(stos.server.volumes().node_publish(&id).is_err(), "NodePublishVolume waits");
    let mounted = stos.server.volumes().node_publish_soon(&id, SOON).await?;

    let volume = lane.ready("media").await?;
    assert_eq!(volume.labels().get("team").map(String::as_str), Some("storage"));
    let claim = lane.all::<PersistentVolumeClaim>().get("media").await?;
    assert_eq!(volume.owner_references()[0].uid, uid(&claim));
    let (service, endpoints) = (lane.service("media").await?, lane.endpoints("media").await?);
    let endpoint: Endpoint = mounted.parse()?;
    assert_eq!((endpoint.address.to_string(), endpoint.port), (cluster_ips(&service)[0].clone(), 2049));
    assert_eq!(service.owner_references()[0].uid, uid(&claim));
    let subset = endpoints.subsets.clone().unwrap_or_default();
    let address = subset[0].addresses.as_ref().map(|addresses| addresses[0].ip.clone());
    assert_eq!(address, Some(server.address.ip().to_string()));
    let status = volume.status.unwrap_or_default();
    assert_eq!(status.published_endpoint.as_deref(), Some(mounted.as_str()));
    assert_eq!(status.observed.and_then(|observed| observed.endpoint), Some(server.address.to_string()));
    lane.condition("media", "Published", "True", "Acknowledged").await?;
    // Once, and not again while nothing changes.
    stos.polled(3).await?;
    assert_eq!(stos.told(), 1);
    stos.status("one is fed", |status| (status.volumes, status.shared_volumes) == (Some(1), Some(1))).await?;
    // What was published is put right when the control plane lost it.
    stos.server.volumes().label(&id, "storageos.com/nfs/mount-endpoint", None)?;
    stos.mounts_at(&id, &mounted).await?;
    stos.end().await
}

/// Lines 103 to 117: the endpoint follows, the address stays, and nobody has to be told anything.
pub async fn a_failover_is_followed(lane: &Lane<'_>) -> Result<(), Failed> {
    let stos = ControlPlane::start(lane, json!({})).await?;
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    let id = stos.served("media", &a).await?;
    let mounted = stos.server.volumes().node_publish_soon(&id, SOON).await?;
    lane.active("media", &a).await?;
    let service = lane.service("media").await?;
    // Between two servers there is none.
    stos.server.volumes().lose_server(&id)?;
    a.set(Mode::Refuses);
    lane.status("media", "failing over", |status| status.phase == Some(SharedVolumePhase::FailingOver)).await?;
    lane.sent_to("media", &[]).await?;
    assert_eq!(stos.mounts(&id), mounted, "what clients have mounted stays");
    stos.server.volumes().serve(&id, "node-b", &b.address.to_string())?;
    let volume = lane.active("media", &b).await?;
    let status = volume.status.unwrap_or_default();
    assert_eq!((status.failovers, status.mount_endpoint.as_deref()), (Some(1), Some(mounted.as_str())));
    assert_eq!(cluster_ips(&lane.service("media").await?), cluster_ips(&service));
    let port = i32::from(b.port());
    lane.wait_for("media", "Endpoints follow", SOON, |endpoints: &Endpoints| {
        endpoints.subsets.iter().flatten().flat_map(|subset| subset.ports.iter().flatten()).any(|it| it.port == port)
    })
    .await?;
    // At once from one to the other.
    stos.server.volumes().serve(&id, "node-a", &a.address.to_string())?;
    a.set(Mode::Serves);
    lane.active("media", &a).await?;
    assert_eq!((stos.told(), stos.mounts(&id)), (1, mounted));
    stos.end().await
}

/// Line 107: with `Keep` a lost endpoint changes nothing.
pub async fn a_lost_endpoint_may_change_nothing(lane: &Lane<'_>) -> Result<(), Failed> {
    let template = json!({ "failover": { "onBackendLost": "Keep" } });
    let stos = ControlPlane::start(lane, json!({ "discovery": { "template": template } })).await?;
    let server = lane.server(Mode::Serves).await?;
    let id = stos.served("media", &server).await?;
    lane.active("media", &server).await?;
    let (service, mounted) = (lane.service("media").await?, stos.mounts(&id));
    stos.server.volumes().lose_server(&id)?;
    lane.status("media", "it is told", |status| !is(status, "BackendAvailable", "True", "ProviderEndpoint")).await?;
    stos.polled(2).await?;
    lane.sent_to("media", &[server.port()]).await?;
    assert_eq!(lane.service("media").await?.resource_version(), service.resource_version());
    assert_eq!((stos.mounts(&id), stos.told()), (mounted, 1));
    assert_eq!(lane.history("media"), [[server.port()]]);
    stos.end().await
}

/// Lines 33 to 44: no object, no Event; one by one they become served when what lacked comes.
pub async fn incomplete_volumes_are_ignored_silently(lane: &Lane<'_>) -> Result<(), Failed> {
    let stos = ControlPlane::start(lane, json!({})).await?;
    let server = lane.server(Mode::Serves).await?;
    let good = server.address.to_string();
    let mut ids = Vec::new();
    for (claim, endpoint) in [
        ("host-name", "nfs.example.com:2049"),
        ("no-port", "198.51.100.7"),
        ("port-0", "198.51.100.7:0"),
        ("port-99999", "198.51.100.7:99999"),
        ("loopback", "127.0.0.1:2049"),
        ("link-local", "[fe80::1]:2049"),
        ("bare-v6", "fd00::b:2049"),
        ("zone", "[fe80::1%eth0]:2049"),
        ("nothing", ""),
    ] {
        lane.claim(claim).await?;
        let id = stos.volume(claim);
        stos.attach(&id, endpoint)?;
        ids.push((claim, id));
    }
    // All is well with these but one label each, or the claim.
    for (number, label) in ["pv/name", "pvc/name", "pvc/namespace"].into_iter().enumerate() {
        let claim = format!("label-{number}");
        let id = stos.served(&claim, &server).await?;
        stos.server.volumes().label(&id, &format!("csi.storage.k8s.io/{label}"), None)?;
    }
    let claimless = stos.volume("claimless");
    stos.attach(&claimless, &good)?;
    let other = "bound-to-another";
    lane.claim(other).await?;
    let id = stos.volume(other);
    stos.server.volumes().label(&id, "csi.storage.k8s.io/pv/name", Some("a-volume-of-before"))?;
    stos.attach(&id, &good)?;
    stos.status("all are counted", |status| (status.volumes, status.unmanaged) == (Some(14), Some(14))).await?;
    stos.polled(2).await?;
    let params = kube::api::ListParams::default();
    assert_eq!(lane.all::<SharedVolume>().list(&params).await?.items.len(), 0);
    assert_eq!(lane.all::<Service>().list(&params).await?.items.len(), 0);
    for (claim, _) in &ids {
        assert_eq!(lane.events("PersistentVolumeClaim", claim).await?, [], "{claim}");
    }
    // What lacked comes.
    stos.server.volumes().serve(&ids[0].1, "node-a", &good)?;
    lane.ready("host-name").await?;
    lane.claim("claimless").await?;
    lane.ready("claimless").await?;
    // One that is served, and then reports nonsense, is told: clients depend on it.
    stos.server.volumes().serve(&ids[0].1, "node-a", "127.0.0.1:2049")?;
    lane.condition("host-name", "BackendAvailable", "False", "BackendInvalid").await?;
    lane.sent_to("host-name", &[]).await?;
    stos.end().await
}

/// Row 17: the mount endpoint is taken back; one that is gone does not hold up the deletion.
pub async fn what_is_deleted_is_taken_back(lane: &Lane<'_>) -> Result<(), Failed> {
    let stos = ControlPlane::start(lane, json!({ "discovery": { "mode": "Adopt" } })).await?;
    let server = lane.server(Mode::Serves).await?;
    let mut ids = Vec::new();
    for claim in ["first", "second", "third"] {
        let id = stos.served(claim, &server).await?;
        let backend = json!({ "provider": { "name": lane.name, "volumeID": id, "volumeNamespace": stos.namespace } });
        lane.volume(claim, json!({ "backend": backend })).await?;
        lane.active(claim, &server).await?;
        stos.server.volumes().node_publish_soon(&id, SOON).await?;
        ids.push(id);
    }
    lane.delete::<SharedVolume>("first").await?;
    lane.gone::<SharedVolume>("first").await?;
    assert_eq!(stos.mounts(&ids[0]), "");
    assert!(lane.all::<Service>().get_opt("first").await?.is_none());
    // Nobody answers any more: a person gives up, or the time does.
    stos.server.stop().await;
    for claim in ["second", "third"] {
        lane.delete::<SharedVolume>(claim).await?;
    }
    let waits = |volume: &SharedVolume| {
        volume.status.as_ref().is_some_and(|status| status.phase == Some(SharedVolumePhase::Terminating))
    };
    lane.wait_for("second", "waiting to un-publish", SOON, waits).await?;
    let skip = json!({ "metadata": { "annotations": { SKIP_UNPUBLISH_ANNOTATION: "true" } } });
    lane.patch::<SharedVolume>("second", skip).await?;
    lane.gone::<SharedVolume>("second").await?;
    lane.gone::<SharedVolume>("third").await?;
    stos.server.restart().await?;
    stos.end().await
}

/// Row 25: the address is kept until the claim or the SharedVolume goes.
pub async fn a_volume_that_is_gone_keeps_its_address(lane: &Lane<'_>) -> Result<(), Failed> {
    let stos = ControlPlane::start(lane, json!({})).await?;
    let server = lane.server(Mode::Serves).await?;
    let id = stos.served("media", &server).await?;
    lane.active("media", &server).await?;
    let service = lane.service("media").await?;
    stos.server.volumes().delete(&id);
    let volume = lane.condition("media", "BackendAvailable", "False", "ProviderVolumeGone").await?;
    assert!(volume.status.is_some_and(|status| status.phase != Some(SharedVolumePhase::Ready)));
    stos.polled(2).await?;
    assert_eq!(lane.service("media").await?.uid(), service.uid());
    lane.delete::<PersistentVolumeClaim>("media").await?;
    lane.gone::<SharedVolume>("media").await?;
    lane.gone::<Service>("media").await?;
    stos.end().await
}

/// Rows 7 and 8: one namespace that fails holds up no other; 401, 412 and lost answers are dealt with.
pub async fn failures_are_told_apart(lane: &Lane<'_>) -> Result<(), Failed> {
    let stos = ControlPlane::start(lane, json!({})).await?;
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    let id = stos.served("media", &a).await?;
    lane.active("media", &a).await?;
    // Another namespace cannot be listed.
    let broken = stos.server.volumes().create_namespace("broken");
    let fault = stos.server.faults().add(Fault::to(&format!("/namespaces/{broken}/volumes"), Effect::Status(500)));
    stos.status("it is named", |status| status.failing_namespaces.iter().any(|it| it.name == "broken")).await?;
    stos.server.volumes().serve(&id, "node-b", &b.address.to_string())?;
    lane.active("media", &b).await?;
    stos.server.faults().remove(fault);
    stos.status("it is well", |status| status.failing_namespaces.is_empty()).await?;
    // All tokens end.
    stos.server.expire_tokens();
    stos.server.volumes().serve(&id, "node-a", &a.address.to_string())?;
    lane.active("media", &a).await?;
    // Somebody else writes to the volume at that moment; the next one's answer is lost.
    let put = |effect| Fault::to("/nfs/mount-endpoint", effect).with(Method::PUT).times(1);
    for (claim, effect) in
        [("overtaken", Effect::Overtaken), ("lost", Effect::LostAnswer), ("failed", Effect::Status(503))]
    {
        stos.server.faults().add(put(effect));
        let id = stos.served(claim, &a).await?;
        let mounted = stos.server.volumes().node_publish_soon(&id, SOON).await?;
        let volume = lane.condition(claim, "Published", "True", "Acknowledged").await?;
        assert_eq!(volume.status.and_then(|status| status.published_endpoint), Some(mounted));
    }
    // While it is down clients go on; it is told, and forgotten when it is back.
    stos.server.stop().await;
    stos.status("unreachable", |status| !conditions::is_true(&status.conditions, "Ready")).await?;
    lane.sent_to("media", &[a.port()]).await?;
    stos.server.restart().await?;
    stos.status("polled again", |status| conditions::is_true(&status.conditions, "Ready")).await?;
    lane.active("media", &a).await?;
    // Another password, known to both sides at last.
    stos.server.set_password("storageos", "changed");
    stos.server.expire_tokens();
    stos.status("refused", |status| conditions::is_true(&status.conditions, "Stalled")).await?;
    let secrets: Api<Secret> = Api::namespaced(lane.client(), names::OPERATOR_NAMESPACE);
    let changed = Patch::Merge(json!({ "stringData": { "password": "changed" } }));
    secrets.patch(&lane.name, &PatchParams::default(), &changed).await?;
    stos.status("logged in", |status| conditions::is_true(&status.conditions, "Ready")).await?;
    stos.end().await
}

/// The endpoint of a volume is its owner's secret, and its mount endpoint their clients' address.
pub async fn nobody_gets_at_the_volume_of_another(lane: &Lane<'_>) -> Result<(), Failed> {
    let stos = ControlPlane::start(lane, json!({ "discovery": { "mode": "Adopt" } })).await?;
    let server = lane.server(Mode::Serves).await?;
    let elsewhere = stos.server.volumes().create_namespace("elsewhere");
    let new = NewVolume { volume_name: "pv-of-another", claim_name: "theirs", claim_namespace: "elsewhere" };
    let theirs = stos.server.volumes().create(&elsewhere, &new);
    stos.attach(&theirs, &server.address.to_string())?;
    lane.claim("mine").await?;
    let backend = json!({ "provider": { "name": lane.name, "volumeID": theirs, "volumeNamespace": elsewhere } });
    lane.volume("mine", json!({ "backend": backend.clone() })).await?;
    // A volume of a namespace that the provider does not serve is none for us.
    let volume = lane
        .status("mine", "refused", |status| {
            is(status, "ClaimBound", "False", "VolumeMismatch")
                || is(status, "BackendAvailable", "False", "ProviderVolumeGone")
        })
        .await?;
    // Nor by a claim that names their volume, which will never be bound.
    lane.unbound_claim("guess", "pv-of-another").await?;
    lane.volume("guess", json!({ "backend": backend })).await?;
    lane.condition("guess", "ClaimBound", "False", "ClaimPending").await?;
    assert!(lane.all::<Service>().get_opt("guess").await?.is_none());
    stos.polled(2).await?;
    assert_eq!((stos.mounts(&theirs), stos.told()), (String::new(), 0));
    assert!(lane.all::<Service>().get_opt("mine").await?.is_none());
    // Nor when it goes.
    assert!(volume.status.is_some_and(|status| status.published_endpoint.is_none()));
    lane.delete::<SharedVolume>("mine").await?;
    lane.gone::<SharedVolume>("mine").await?;
    assert_eq!(stos.told(), 0);
    stos.end().await
}

/// What was created once belongs to the namespace.
pub async fn what_was_discovered_belongs_to_the_namespace(lane: &Lane<'_>) -> Result<(), Failed> {
    let stos = ControlPlane::start(lane, json!({ "discovery": { "nameFrom": "PersistentVolume" } })).await?;
    let server = lane.server(Mode::Serves).await?;
    let id = stos.served("media", &server).await?;
    let name = lane.volume_name("media");
    lane.active(&name, &server).await?;
    assert_eq!(lane.service(&name).await?.owner_references()[0].name, "media");
    let edit =
        json!({ "metadata": { "labels": { "tier": "1" } }, "spec": { "failover": { "onBackendLost": "Keep" } } });
    let edited = lane.patch::<SharedVolume>(&name, edit).await?;
    stos.polled(3).await?;
    let found = lane.all::<SharedVolume>().get(&name).await?;
    assert_eq!((&found.spec, &found.metadata.labels), (&edited.spec, &edited.metadata.labels));
    // One that a person deletes comes back: the volume is still attached as shared.
    lane.delete::<SharedVolume>(&name).await?;
    lane.wait_for(&name, "made anew", SOON, |volume: &SharedVolume| volume.uid() != found.uid()).await?;
    stos.server.volumes().node_publish_soon(&id, SOON).await?;
    // Detached, it is left as it is until the claim goes.
    stos.server.volumes().controller_unpublish(&id)?;
    stos.polled(2).await?;
    lane.service(&name).await?;
    stos.end().await
}

/// The flags' effects, each seen: the pace of polls, and that all of a volume is read again in time; unless the provider has
/// times of its own.
pub async fn the_seeds_flags_have_their_effect() -> Result<(), Failed> {
    let arguments = [
        "-api-poll-interval=500ms",
        "-cache-expiry-interval",
        "3s",
        "--k8s-create-poll-interval=200ms",
        "-k8s-create-wait-duration=0m5s",
    ];
    let mut world = super::world::World::start(&arguments).await?;
    world.cluster.start_controller().await?;
    let lane = Lane::new(&world, "flags").await?;
    let stos = ControlPlane::start(&lane, json!({ "pollInterval": null })).await?;
    let server = lane.server(Mode::Serves).await?;
    stos.served("media", &server).await?;
    lane.active("media", &server).await?;
    let own = Lane::new(&world, "own-times").await?;
    let slow = ControlPlane::start(&own, json!({ "cacheExpiryInterval": "1h" })).await?;
    slow.served("media", &server).await?;
    own.active("media", &server).await?;
    let from = std::time::Instant::now();
    stos.polled(6).await?;
    let took = from.elapsed();
    assert!(took >= Duration::from_millis(2000) && took < AT_ONCE, "six polls in {took:?}");
    // Again and again, without any change.
    let end = world.cluster.testbed.audit().end()?;
    let us = bulkhead_testbed::Identity::OperatorController.user();
    lane.eventually("it is verified anew", async || {
        let records = world.cluster.testbed.audit().records_since(end).map_err(kube_io)?;
        let read = records.filter(|it| it.user == us && it.verb == "get" && it.resource == "services");
        let read: Vec<_> = read.map(|it| it.namespace).collect();
        let often = read.iter().filter(|namespace| **namespace == lane.name).count() >= 2;
        assert!(!read.contains(&own.name), "its provider says 1h: {read:?}");
        Ok(if often { Ok(()) } else { Err(format!("{read:?}")) })
    })
    .await?;
    lane.judge()?;
    own.judge()
}

fn kube_io(error: std::io::Error) -> bulkhead_testbed::cluster::ClusterError {
    bulkhead_testbed::cluster::ClusterError::Proxy(error)
}
