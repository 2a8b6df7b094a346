//! When clients are sent to which server: the gate before the first answer, loss, switches by itself and by a person.

use std::time::Instant;

use bulkhead::api::shared_volume::{MOUNT_ENDPOINT_ANNOTATION, SharedVolume, SharedVolumePhase};
use bulkhead_testbed::nfs_server::Mode;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Resource, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use crate::printed::Printed;

use super::lane::{Lane, cluster_ips, is};
use super::world::SOON;

/// Lines 86 and 96, row 14: TCP alone is no answer.
pub async fn nothing_is_published_before_the_first_answer(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Hangs).await?;
    let told = json!({ "publish": { "targets": ["ClaimAnnotation"] } });
    lane.served_by("data", &[&server], told.clone()).await?;
    let volume = lane.condition("data", "Published", "False", "GateClosed").await?;
    assert!(volume.status.as_ref().is_none_or(|status| status.phase != Some(SharedVolumePhase::Ready)));
    // It has an address already, which clients are not told, and nobody is behind it.
    lane.sent_to("data", &[]).await?;
    let calls = server.calls();
    lane.eventually("it is called again and again", async || {
        Ok(if server.calls() > calls + 1 { Ok(()) } else { Err(server.calls().to_string()) })
    })
    .await?;
    let claim = lane.all::<PersistentVolumeClaim>().get("data").await?;
    assert_eq!(claim.annotations().get(MOUNT_ENDPOINT_ANNOTATION), None);
    server.set(Mode::Serves);
    let volume = lane.active("data", &server).await?;
    let wanted = volume.status.and_then(|status| status.mount_endpoint).ok_or("no mount endpoint")?;
    lane.wait_for("data", "annotated", SOON, |claim: &PersistentVolumeClaim| {
        claim.annotations().get(MOUNT_ENDPOINT_ANNOTATION) == Some(&wanted)
    })
    .await?;

    // Who asks for no gate gets it at once.
    let server = lane.server(Mode::Hangs).await?;
    let mut open = told;
    open["probe"] = json!({ "gate": "Never" });
    lane.served_by("open", &[&server], open).await?;
    lane.sent_to("open", &[server.port()]).await?;
    lane.wait_for("open", "annotated", SOON, |claim: &PersistentVolumeClaim| {
        claim.annotations().contains_key(MOUNT_ENDPOINT_ANNOTATION)
    })
    .await?;
    Ok(())
}

/// By name, for who cannot do without one.
pub async fn the_name_is_published_where_wanted(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    let by_name = json!({ "publish": { "targets": ["ClaimAnnotation"], "host": "DNS" } });
    lane.serving("data", &[&server], by_name).await?;
    let name = format!("data.{}.svc", lane.name);
    let annotated = |claim: &PersistentVolumeClaim| {
        claim
            .annotations()
            .get(MOUNT_ENDPOINT_ANNOTATION)
            .is_some_and(|it| it.starts_with(&name) && it.ends_with(":2049"))
    };
    lane.wait_for("data", "annotated by name", SOON, annotated).await?;
    // Nobody else's annotation, and none when it is not wanted any more.
    lane.patch::<SharedVolume>("data", json!({ "spec": { "publish": { "targets": [] } } })).await?;
    lane.condition("data", "Published", "True", "NoTarget").await?;
    Ok(())
}

/// Rows 14 and 16: the next candidate that answers, in order of preference, and no way back while it serves.
pub async fn a_lost_server_is_replaced(lane: &Lane<'_>) -> Result<(), Failed> {
    let (a, b, c) =
        (lane.server(Mode::Serves).await?, lane.server(Mode::Hangs).await?, lane.server(Mode::Serves).await?);
    lane.serving("data", &[&a, &b, &c], json!({})).await?;
    let before = lane.active("data", &a).await?;
    let ips = cluster_ips(&lane.service("data").await?);
    a.set(Mode::Refuses);
    // b does not answer.
    let after = lane.active("data", &c).await?;
    let status = after.status.unwrap_or_default();
    assert_eq!(status.failovers, Some(1));
    let last = status.last_failover.ok_or("no lastFailover")?;
    assert_eq!((last.from.as_deref(), last.to.as_deref()), (Some("a"), Some("c")));
    let (switched, serving) = (last.switched_at.ok_or("not switched")?, last.serving_at.ok_or("not serving")?);
    assert!(last.detected_at <= switched && switched <= serving, "{last:?}");
    assert_eq!(status.mount_endpoint, before.status.and_then(|status| status.mount_endpoint));
    assert_eq!(cluster_ips(&lane.service("data").await?), ips);
    is_printed(lane, status.mount_endpoint.as_deref().unwrap_or_default()).await?;
    lane.told("SharedVolume", "data", "FailoverStarted").await?;
    lane.told("SharedVolume", "data", "FailoverCompleted").await?;
    lane.told("PersistentVolumeClaim", "data", "FailoverCompleted").await?;
    // One that is back is no reason to disturb anybody.
    a.set(Mode::Serves);
    lane.barrier("later").await?;
    lane.active("data", &c).await?;
    c.set(Mode::Hangs);
    lane.active("data", &a).await?;
    assert!(lane.history("data").iter().all(|serving| serving.len() <= 1));
    Ok(())
}

/// What a person on call sees: who serves, where, under which address, and that it was another before.
async fn is_printed(lane: &Lane<'_>, mount: &str) -> Result<(), Failed> {
    let path = format!("{}/data", SharedVolume::url_path(&(), Some(&lane.name)));
    let printed = Printed::of(&lane.client(), &path).await?;
    assert_eq!(printed.columns, ["Name", "PVC", "READY", "PHASE", "MOUNT", "BACKEND", "NODE", "FAILOVERS", "AGE"]);
    assert_eq!(printed.wide, ["REASON", "PROVIDER"]);
    for (column, cell) in [
        ("PVC", json!("data")),
        ("READY", json!("True")),
        ("PHASE", json!("Ready")),
        ("MOUNT", json!(mount)),
        ("BACKEND", json!("c")),
        ("NODE", json!("node-c")),
        ("FAILOVERS", json!(1)),
        ("REASON", json!("Serving")),
    ] {
        assert_eq!(*printed.cell(column), cell, "{column}: {printed:?}");
    }
    Ok(())
}

/// Row 15: refused quickly, or (`Keep`) left as it is, as StorageOS leaves it.
pub async fn a_lost_server_without_another(lane: &Lane<'_>) -> Result<(), Failed> {
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    lane.serving("withdrawn", &[&a], json!({})).await?;
    lane.serving("kept", &[&b], json!({ "failover": { "onBackendLost": "Keep" } })).await?;
    for server in [&a, &b] {
        server.set(Mode::Refuses);
    }
    let withdrawn = lane
        .status("withdrawn", "failing over", |status| {
            status.phase == Some(SharedVolumePhase::FailingOver) && status.active.is_none()
        })
        .await?;
    lane.sent_to("withdrawn", &[]).await?;
    lane.told("SharedVolume", "withdrawn", "BackendLost").await?;
    let address = |volume: &SharedVolume| volume.status.as_ref().and_then(|status| status.mount_endpoint.clone());
    assert!(address(&withdrawn).is_some(), "the address stays");
    lane.condition("kept", "Serving", "False", "ProbeFailed").await?;
    lane.sent_to("kept", &[b.port()]).await?;
    // Both come back by themselves.
    for server in [&a, &b] {
        server.set(Mode::Serves);
    }
    assert_eq!(address(&lane.active("withdrawn", &a).await?), address(&withdrawn));
    lane.active("kept", &b).await?;
    assert_eq!(lane.history("kept"), [[b.port()]], "nothing was rewritten");
    Ok(())
}

/// Row 23: a flapping server is not followed.
pub async fn switches_hold_down(lane: &Lane<'_>) -> Result<(), Failed> {
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    lane.serving("data", &[&a, &b], json!({ "failover": { "holdDown": "8s" } })).await?;
    a.set(Mode::Refuses);
    lane.active("data", &b).await?;
    let first = Instant::now();
    a.set(Mode::Serves);
    b.set(Mode::Refuses);
    // Clients are not left with one that does not answer meanwhile.
    lane.sent_to("data", &[]).await?;
    let volume = lane.active("data", &a).await?;
    assert!(first.elapsed().as_secs() >= 6, "switched again after {:?}", first.elapsed());
    assert_eq!(volume.status.and_then(|status| status.failovers), Some(2));
    Ok(())
}

/// Rows 3 and 16: editing one field is the planned switch, and nothing else switches.
pub async fn a_person_switches(lane: &Lane<'_>) -> Result<(), Failed> {
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    let manual = json!({ "failover": { "mode": "Manual", "activeCandidate": "b" } });
    lane.serving("data", &[&a, &b], manual).await?;
    lane.active("data", &b).await?;
    let before = lane.all::<EndpointSlice>().get("data-ipv4").await?;
    let end = lane.world.cluster.testbed.audit().end()?;
    let to = |name: &str| json!({ "spec": { "failover": { "activeCandidate": name } } });
    lane.patch::<SharedVolume>("data", to("a")).await?;
    let volume = lane.active("data", &a).await?;
    let last = volume.status.and_then(|status| status.last_failover).ok_or("no lastFailover")?;
    assert_eq!(
        (last.from.as_deref(), last.to.as_deref(), last.reason.as_str()),
        (Some("b"), Some("a"), "UserRequested")
    );
    // It answered at once, so the slice went from one to the other in one write; and nothing but it was written.
    assert_eq!(lane.history("data"), [[b.port()], [a.port()]]);
    let written: Vec<_> =
        lane.writes_since(end)?.iter().map(|it| (it.resource.clone(), it.subresource.clone())).collect();
    let slices = written.iter().filter(|(resource, _)| resource == "endpointslices").count();
    assert_eq!(slices, 1, "{written:?}");
    assert!(written.iter().all(|(resource, _)| resource != "services"), "{written:?}");
    assert_eq!(lane.all::<EndpointSlice>().get("data-ipv4").await?.uid(), before.uid());
    // One that does not answer gets nobody; and without a person the other does not either.
    b.set(Mode::Hangs);
    lane.patch::<SharedVolume>("data", to("b")).await?;
    lane.status("data", "not serving", |status| !is(status, "Ready", "True", "Serving")).await?;
    lane.sent_to("data", &[]).await?;
    b.set(Mode::Serves);
    lane.active("data", &b).await?;
    b.set(Mode::Refuses);
    lane.sent_to("data", &[]).await?;
    lane.patch::<SharedVolume>("data", to("a")).await?;
    lane.active("data", &a).await?;
    Ok(())
}

/// Lines 70 and 113: the same in v1 Endpoints, right after the slice, and the Service's targetPort with it.
pub async fn endpoints_follow(lane: &Lane<'_>) -> Result<(), Failed> {
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    lane.serving("data", &[&a, &b], json!({ "service": { "endpoints": "EndpointSliceAndEndpoints" } })).await?;
    let ips = cluster_ips(&lane.service("data").await?);
    for (server, next) in [(&a, Some(&b)), (&b, None)] {
        lane.active("data", server).await?;
        follows(lane, server.port()).await?;
        if let Some(next) = next {
            server.set(Mode::Refuses);
            lane.active("data", next).await?;
        }
    }
    assert_eq!(cluster_ips(&lane.service("data").await?), ips);
    // Kubernetes makes no slice of it: that would be a second way to a server.
    let slices = lane.slices("data").await?;
    assert!(slices.iter().all(|slice| slice.name_any().starts_with("data-ipv")), "{slices:?}");
    b.set(Mode::Refuses);
    lane.sent_to("data", &[]).await?;
    lane.wait_for("data", "empty", SOON, |endpoints: &k8s_openapi::api::core::v1::Endpoints| {
        endpoints.subsets.iter().flatten().all(|subset| subset.addresses.iter().flatten().next().is_none())
    })
    .await?;
    Ok(())
}

async fn follows(lane: &Lane<'_>, port: u16) -> Result<(), Failed> {
    let port = i32::from(port);
    let same = |endpoints: &k8s_openapi::api::core::v1::Endpoints| {
        let subsets = endpoints.subsets.iter().flatten();
        let found: Vec<_> = subsets
            .flat_map(|subset| {
                let ports = subset.ports.iter().flatten().map(|port| (port.name.clone(), port.port));
                let addresses: Vec<_> = subset.addresses.iter().flatten().map(|it| it.ip.clone()).collect();
                ports.map(move |port| (addresses.clone(), port)).collect::<Vec<_>>()
            })
            .collect();
        found == [(vec![lane.world.here.to_string()], (Some("nfs".to_owned()), port))]
    };
    let endpoints = lane.wait_for("data", &format!("leads to {port}"), SOON, same).await?;
    let skip = endpoints.labels().get("endpointslice.kubernetes.io/skip-mirror").map(String::as_str);
    assert_eq!(skip, Some("true"));
    lane.wait_for("data", &format!("has targetPort {port}"), SOON, |service: &k8s_openapi::api::core::v1::Service| {
        let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
        let target = ports.and_then(|ports| ports.first()).and_then(|it| it.target_port.clone());
        target == Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(port))
    })
    .await?;
    Ok(())
}
