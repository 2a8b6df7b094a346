//! The Service and its slices: their shape, and that the address stays whatever somebody does to them.

use std::time::Instant;

use bulkhead::api::shared_volume::{SHARED_VOLUME_LABEL, SLICE_MANAGER, SharedVolume};
use bulkhead_testbed::nfs_server::Mode;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::{Lane, cluster_ips, is, uid};
use super::world::AT_ONCE;

/// Lines 62 to 75 and 120, rows 10 and 11.
pub async fn are_as_specified(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    let ports = json!([{ "name": "nfs", "port": server.port() }, { "name": "rpcbind", "port": 111 }]);
    let both = json!([{ "name": "nfs", "port": 2049 }, { "name": "rpcbind", "port": 111, "protocol": "UDP" }]);
    let here = lane.world.here;
    let candidate = json!({ "name": "a", "nodeName": "node-a", "addresses": [here, "fd00::b"], "ports": ports });
    lane.claim("media").await?;
    let labels = json!({ "labels": { "team": "print" }, "annotations": { "example.com/note": "x" }, "ports": both });
    lane.volume("media", json!({ "backend": { "static": { "candidates": [candidate] } }, "service": labels })).await?;
    let volume = lane.ready("media").await?;
    let status = volume.status.clone().unwrap_or_default();

    let (claim, service) = (lane.all::<PersistentVolumeClaim>().get("media").await?, lane.service("media").await?);
    assert_eq!(service.labels().get(SHARED_VOLUME_LABEL).map(String::as_str), Some("media"));
    assert_eq!(service.labels().get("team").map(String::as_str), Some("print"));
    assert_eq!(service.annotations().get("example.com/note").map(String::as_str), Some("x"));
    let owners: Vec<_> = service.owner_references().iter().map(|it| (it.kind.as_str(), it.uid.clone())).collect();
    assert_eq!(owners, [("PersistentVolumeClaim", uid(&claim))]);
    let spec = service.spec.clone().unwrap_or_default();
    assert_eq!(spec.type_.as_deref(), Some("ClusterIP"));
    assert_eq!(spec.selector, None);
    let ports = spec.ports.unwrap_or_default();
    let ports: Vec<_> = ports.iter().map(|it| (it.name.as_deref(), it.port, it.protocol.as_deref())).collect();
    assert_eq!(ports, [(Some("nfs"), 2049, Some("TCP")), (Some("rpcbind"), 111, Some("UDP"))]);

    // Both families of the cluster, and a mount endpoint that reads back.
    let ips = cluster_ips(&service);
    assert_eq!(ips.len(), 2, "{ips:?}");
    assert_eq!(status.mount_endpoint, Some(format!("{}:2049", ips[0])));
    assert_eq!(status.mount_endpoints, [format!("{}:2049", ips[0]), format!("[{}]:2049", ips[1])]);
    for endpoint in &status.mount_endpoints {
        let address: std::net::SocketAddr = endpoint.parse()?;
        assert!(ips.contains(&address.ip().to_string()), "{endpoint}");
    }
    let recorded = status.service.ok_or("no Service in status")?;
    assert_eq!((recorded.name.as_str(), recorded.uid, recorded.cluster_ips), ("media", uid(&service), ips));

    let mut slices = lane.slices("media").await?;
    slices.sort_by_key(ResourceExt::name_any);
    let names: Vec<_> = slices.iter().map(|slice| (slice.name_any(), slice.address_type.clone())).collect();
    assert_eq!(names, [("media-ipv4".into(), "IPv4".to_owned()), ("media-ipv6".into(), "IPv6".to_owned())]);
    for (slice, address) in slices.iter().zip([here.to_string(), "fd00::b".into()]) {
        check_slice(slice, &service, &address, i32::from(server.port()))?;
    }
    let active = status.active.ok_or("nothing active")?;
    assert_eq!((active.name.as_str(), active.port, active.node_name.as_deref()), ("a", server.port(), Some("node-a")));
    lane.told("SharedVolume", "media", "ServiceCreated").await?;
    lane.told("PersistentVolumeClaim", "media", "ServiceCreated").await?;
    Ok(())
}

fn check_slice(slice: &EndpointSlice, service: &Service, address: &str, port: i32) -> Result<(), Failed> {
    let label = |key: &str| slice.labels().get(key).map(String::as_str);
    assert_eq!(label("endpointslice.kubernetes.io/managed-by"), Some(SLICE_MANAGER));
    assert_eq!(label(SHARED_VOLUME_LABEL), Some("media"));
    let owners: Vec<_> = slice.owner_references().iter().map(|it| (it.kind.as_str(), it.uid.clone())).collect();
    assert_eq!(owners, [("Service", uid(service))]);
    // kube-proxy joins them by name: the number is the server's.
    let ports: Vec<_> = slice.ports.iter().flatten().map(|it| (it.name.as_deref(), it.port)).collect();
    assert_eq!(ports, [(Some("nfs"), Some(port)), (Some("rpcbind"), Some(111))]);
    let [endpoint] = slice.endpoints.as_slice() else { return Err(format!("{:?}", slice.endpoints).into()) };
    assert_eq!(endpoint.addresses, [address]);
    assert_eq!(endpoint.node_name.as_deref(), Some("node-a"));
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    let conditions = (conditions.ready, conditions.serving, conditions.terminating);
    assert_eq!(conditions, (Some(true), Some(true), Some(false)));
    Ok(())
}

/// Line 119: Kubernetes' garbage collector takes all of it with the claim.
pub async fn go_with_the_claim(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    lane.serving("data", &[&server], json!({ "service": { "endpoints": "EndpointSliceAndEndpoints" } })).await?;
    lane.delete::<PersistentVolumeClaim>("data").await?;
    lane.gone::<Service>("data").await?;
    lane.gone::<EndpointSlice>("data-ipv4").await?;
    lane.gone::<k8s_openapi::api::core::v1::Endpoints>("data").await?;
    lane.condition("data", "ClaimBound", "False", "ClaimNotFound").await?;
    // Nobody makes it anew while there is no claim to own it.
    lane.barrier("after").await?;
    assert!(lane.all::<Service>().get_opt("data").await?.is_none());
    Ok(())
}

/// Line 90, row 5.
pub async fn come_back_with_their_address(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    lane.serving("data", &[&server], json!({})).await?;
    let mut before = lane.service("data").await?;
    for _ in 0..3 {
        let deleted = Instant::now();
        lane.delete::<Service>("data").await?;
        let anew = |service: &Service| service.uid() != before.uid();
        let after: Service = lane.wait_for("data", "made anew", AT_ONCE, anew).await?;
        println!("back after {:?}", deleted.elapsed());
        assert_eq!(cluster_ips(&after), cluster_ips(&before));
        lane.sent_to("data", &[server.port()]).await?;
        // What was owned by the one that is gone would go with it.
        let wanted = uid(&after);
        lane.wait_for("data-ipv4", "of the new Service", AT_ONCE, |slice: &EndpointSlice| {
            slice.owner_references().iter().all(|owner| owner.uid == wanted)
        })
        .await?;
        lane.status("data", "the new Service is recorded", |status| {
            status.service.as_ref().is_some_and(|service| service.uid == wanted)
        })
        .await?;
        before = after;
    }
    Ok(())
}

/// Somebody else was quicker: that is never silent.
pub async fn whose_address_is_taken_is_told(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    lane.serving("data", &[&server], json!({})).await?;
    let ips = cluster_ips(&lane.service("data").await?);
    lane.patch::<SharedVolume>("data", json!({ "spec": { "mode": "Suspended" } })).await?;
    lane.condition("data", "Ready", "True", "Suspended").await?;
    lane.delete::<Service>("data").await?;
    let thief = json!({
        "metadata": { "name": "thief" },
        "spec": { "clusterIP": ips[0], "ipFamilyPolicy": "SingleStack", "ports": [{ "name": "nfs", "port": 2049 }] },
    });
    lane.here::<Service>(thief.clone()).await?;
    lane.patch::<SharedVolume>("data", json!({ "spec": { "mode": "Active" } })).await?;
    lane.condition("data", "ServiceReady", "False", "ClusterIPLost").await?;
    let volume = lane.condition("data", "Stalled", "True", "ClusterIPLost").await?;
    assert!(volume.status.is_some_and(|status| status.service.is_some_and(|service| service.cluster_ips == ips)));
    lane.told("SharedVolume", "data", "ClusterIPLost").await?;
    assert!(lane.all::<Service>().get_opt("data").await?.is_none(), "no other address is taken");
    // It is free again.
    lane.delete::<Service>("thief").await?;
    lane.ready("data").await?;
    assert_eq!(cluster_ips(&lane.service("data").await?), ips);
    // Or a person accepts another one.
    lane.patch::<SharedVolume>("data", json!({ "spec": { "mode": "Suspended" } })).await?;
    lane.condition("data", "Ready", "True", "Suspended").await?;
    lane.delete::<Service>("data").await?;
    lane.here::<Service>(thief).await?;
    let any = json!({ "spec": { "mode": "Active", "service": { "clusterIPPolicy": "Any" } } });
    lane.patch::<SharedVolume>("data", any).await?;
    let volume = lane.ready("data").await?;
    let service = lane.service("data").await?;
    assert_ne!(cluster_ips(&service)[0], ips[0]);
    let endpoint = volume.status.and_then(|status| status.mount_endpoint);
    assert_eq!(endpoint, Some(format!("{}:2049", cluster_ips(&service)[0])));
    Ok(())
}

/// Row 6.
pub async fn edited_slices_are_repaired(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    let other = lane.server(Mode::Serves).await?;
    lane.serving("data", &[&server], json!({})).await?;
    let wanted = lane.all::<EndpointSlice>().get("data-ipv4").await?;
    let endpoint = serde_json::to_value(&wanted.endpoints[0])?;
    let mut elsewhere = endpoint.clone();
    elsewhere["addresses"] = json!(["198.51.100.7"]);
    let mut unready = endpoint.clone();
    unready["conditions"]["ready"] = json!(false);
    for edit in [
        json!({ "ports": [{ "name": "nfs", "port": other.port() }] }),
        json!({ "ports": [{ "name": "other", "port": server.port() }] }),
        json!({ "endpoints": [elsewhere] }),
        json!({ "endpoints": [unready] }),
        json!({ "endpoints": [] }),
        json!({ "metadata": { "labels": { SHARED_VOLUME_LABEL: null } } }),
        json!({ "metadata": { "labels": { SHARED_VOLUME_LABEL: null } } }),
        json!({ "metadata": { "ownerReferences": null } }),
    ] {
        lane.patch::<EndpointSlice>("data-ipv4", edit.clone()).await?;
        let as_it_was = |slice: &EndpointSlice| {
            slice.endpoints == wanted.endpoints
                && slice.ports == wanted.ports
                && slice.labels() == wanted.labels()
                && slice.owner_references() == wanted.owner_references()
        };
        lane.wait_for("data-ipv4", &format!("as before {edit}"), AT_ONCE, as_it_was).await?;
    }
    for _ in 0..2 {
        let before = lane.all::<EndpointSlice>().get("data-ipv4").await?;
        lane.delete::<EndpointSlice>("data-ipv4").await?;
        lane.wait_for("data-ipv4", "made anew", AT_ONCE, |slice: &EndpointSlice| {
            slice.uid() != before.uid() && slice.endpoints == wanted.endpoints
        })
        .await?;
    }
    Ok(())
}

/// With a selector Kubernetes would write slices of its own; without its label it would be taken for a stranger.
pub async fn edited_services_are_repaired(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    lane.serving("data", &[&server], json!({})).await?;
    let before = lane.service("data").await?;
    for edit in [
        json!({ "spec": { "selector": { "app": "other" } } }),
        json!({ "spec": { "ports": [{ "name": "nfs", "port": 2050, "protocol": "TCP" }] } }),
        json!({ "metadata": { "ownerReferences": null } }),
    ] {
        lane.patch::<Service>("data", edit.clone()).await?;
        let as_it_was = |service: &Service| {
            let ports = |service: &Service| {
                let ports = service.spec.as_ref().and_then(|spec| spec.ports.clone()).unwrap_or_default();
                ports.iter().map(|port| (port.name.clone(), port.port)).collect::<Vec<_>>()
            };
            service.uid() == before.uid()
                && service.spec.as_ref().is_some_and(|spec| spec.selector.is_none())
                && ports(service) == ports(&before)
                && service.labels().contains_key(SHARED_VOLUME_LABEL)
                && service.owner_references() == before.owner_references()
        };
        lane.wait_for("data", &format!("as before {edit}"), AT_ONCE, as_it_was).await?;
        lane.ready("data").await?;
    }
    // Clients were told nothing else in between.
    assert_eq!(cluster_ips(&lane.service("data").await?), cluster_ips(&before));
    Ok(())
}

/// Line 75: names of claims that are none of Services.
pub async fn have_names_where_claims_have_odd_ones(lane: &Lane<'_>) -> Result<(), Failed> {
    let long = "a-claim-whose-name-is-longer-than-the-name-of-a-service-may-ever-be-in-kubernetes";
    for (name, claim) in [("dotted", "logs.v2"), ("digit", "2fast"), ("long", long)] {
        let server = lane.server(Mode::Serves).await?;
        lane.claim(claim).await?;
        let mut spec = super::lane::candidates(&[&server]);
        spec["claimName"] = json!(claim);
        lane.volume(name, spec).await?;
        let volume = lane.ready(name).await?;
        let service = super::lane::service_of(&volume);
        assert!(service.len() <= 63 && service.starts_with(|c: char| c.is_ascii_lowercase()), "{service}");
        assert!(service.rsplit_once('-').is_some_and(|(_, hash)| hash.len() == 8), "{service}");
        let told = lane.told("SharedVolume", name, "ServiceNameHashed").await?;
        assert!(told.contains(&service), "{told}");
        // The same name again when everything is made anew.
        lane.delete::<SharedVolume>(name).await?;
        lane.gone::<Service>(&service).await?;
    }
    // Or one says how it is called.
    let server = lane.server(Mode::Serves).await?;
    lane.claim("logs.v3").await?;
    let mut spec = super::lane::candidates(&[&server]);
    spec["claimName"] = json!("logs.v3");
    spec["service"] = json!({ "name": "logs" });
    lane.volume("named", spec).await?;
    assert_eq!(super::lane::service_of(&lane.ready("named").await?), "logs");
    Ok(())
}

/// Row 12: what is not ours is taken over only where that was allowed.
pub async fn of_others_are_adopted_where_allowed(lane: &Lane<'_>) -> Result<(), Failed> {
    let server = lane.server(Mode::Serves).await?;
    let port = json!([{ "name": "nfs", "port": 2049 }]);
    let adopt = json!({ "bulkhead.dev/adopt": "true" });
    for (name, annotations, spec, adopted) in [
        ("strange", json!({}), json!({ "ports": port }), false),
        ("selects", adopt.clone(), json!({ "ports": port, "selector": { "app": "other" } }), false),
        ("headless", adopt.clone(), json!({ "ports": port, "clusterIP": "None" }), false),
        ("external", adopt.clone(), json!({ "type": "NodePort", "ports": port }), false),
        ("given", adopt.clone(), json!({ "ports": port, "ipFamilyPolicy": "PreferDualStack" }), true),
    ] {
        lane.here::<Service>(json!({ "metadata": { "name": name, "annotations": annotations }, "spec": spec })).await?;
        let before = lane.service(name).await?;
        lane.served_by(name, &[&server], json!({})).await?;
        if adopted {
            lane.ready(name).await?;
            let after = lane.service(name).await?;
            assert_eq!((after.uid(), cluster_ips(&after)), (before.uid(), cluster_ips(&before)));
            assert!(after.labels().contains_key(SHARED_VOLUME_LABEL));
            assert_eq!(after.owner_references().len(), 1);
            lane.told("SharedVolume", name, "Adopted").await?;
            continue;
        }
        lane.condition(name, "ServiceReady", "False", "ServiceConflict").await?;
        lane.condition(name, "Stalled", "True", "ServiceConflict").await?;
        lane.told("SharedVolume", name, "ServiceConflict").await?;
        assert_eq!(lane.service(name).await?.resource_version(), before.resource_version(), "{name} was touched");
        assert!(lane.slices(name).await?.iter().all(|slice| !slice.labels().contains_key(SHARED_VOLUME_LABEL)));
    }
    // The permission comes later.
    lane.patch::<Service>("strange", json!({ "metadata": { "annotations": adopt } })).await?;
    lane.ready("strange").await?;
    Ok(())
}

/// Row 10: a server that clients could not reach through the Service is told, not published.
pub async fn have_the_servers_family(lane: &Lane<'_>) -> Result<(), Failed> {
    let of = |families: serde_json::Value, address: &str| {
        let port = json!([{ "name": "nfs", "port": 2049 }]);
        let candidate = json!({ "name": "a", "addresses": [address], "ports": port });
        json!({
            "service": { "ipFamilyPolicy": "SingleStack", "ipFamilies": families }, "probe": { "type": "None" },
            "backend": { "static": { "candidates": [candidate] } },
        })
    };
    lane.claim("six").await?;
    lane.volume("six", of(json!(["IPv6"]), "fd00::b")).await?;
    let six = lane.condition("six", "Ready", "True", "Serving").await?;
    let endpoint = six.status.and_then(|status| status.mount_endpoint).unwrap_or_default();
    assert!(endpoint.starts_with("[fd00:96::") && endpoint.ends_with("]:2049"), "{endpoint}");
    assert_eq!(lane.slices("six").await?.len(), 1);
    lane.claim("neither").await?;
    lane.volume("neither", of(json!(["IPv6"]), "198.51.100.7")).await?;
    lane.status("neither", "a family that fits not", |status| {
        is(status, "ServiceReady", "False", "FamilyUnavailable")
            || is(status, "BackendAvailable", "False", "BackendInvalid")
    })
    .await?;
    lane.sent_to("neither", &[]).await?;
    Ok(())
}
