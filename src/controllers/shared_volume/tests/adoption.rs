//! Services, slices and Endpoints of others, and addresses that must not change.

use serde_json::{Value, json};

use crate::api::shared_volume::{EndpointObjects, SharedVolumePhase};
use crate::api::shared_volume_provider::SharedVolumeProviderSpec;
use crate::api::slim::network::{Endpoints, Service};
use crate::controllers::shared_volume::observe::intervals;
use crate::storageos::providers;

use super::world::{World, shared_volume};

fn service(changes: &Value) -> Service {
    let mut whole = json!({
        "metadata": { "name": "media", "uid": "uid-old", "resourceVersion": "1", "labels": { "app": "x" } },
        "spec": { "type": "ClusterIP", "clusterIPs": ["10.96.0.99"], "ports": [{ "port": 2049, "protocol": "TCP" }, { "name": "x", "port": 1 }] },
    });
    json_patch::merge(&mut whole, changes);
    serde_json::from_value(whole).unwrap()
}

#[test]
fn a_service_of_others_is_taken_only_if_that_is_allowed() {
    let adopt = json!({ "bulkhead.dev/adopt": "true" });
    for (changes, conflict) in [
        (json!({}), Some("made by somebody else")),
        (json!({ "metadata": { "annotations": adopt }, "spec": { "selector": { "app": "x" } } }), Some("selector")),
        (json!({ "metadata": { "annotations": adopt }, "spec": { "type": "NodePort" } }), Some("NodePort")),
        (json!({ "metadata": { "annotations": adopt }, "spec": { "clusterIPs": ["None"] } }), Some("headless")),
        (
            json!({ "metadata": { "annotations": adopt, "labels": { "bulkhead.dev/shared-volume": "y" } } }),
            Some("belongs to"),
        ),
        (json!({ "metadata": { "annotations": adopt } }), None),
    ] {
        let mut world = World::of(&json!({}));
        world.service = Some(service(&changes));
        world.converge();
        let message = world.status().conditions.iter().find(|it| it.type_ == "ServiceReady").unwrap().message.clone();
        match conflict {
            Some(words) => {
                assert_eq!(
                    (world.reason("ServiceReady"), world.reason("Stalled")),
                    ("ServiceConflict".into(), "ServiceConflict".into())
                );
                assert!(message.contains(words), "{message}");
                assert_eq!(world.writes, ["finalizer", "status"]);
            }
            None => {
                let service = world.service.clone().unwrap();
                assert_eq!((world.phase(), world.ip()), (SharedVolumePhase::Ready, "10.96.0.99".into()));
                assert_eq!(service.metadata.owner_references.as_ref().unwrap()[0].uid, "uid-claim");
                assert_eq!(service.metadata.labels.as_ref().unwrap()["app"], "x");
                assert_eq!(service.spec.ports.len(), 1);
                assert!(world.notes.contains(&"Adopted"));
            }
        }
    }
}

#[test]
fn a_selector_that_somebody_sets_is_taken_away() {
    let mut world = World::serving(&json!({}));
    world.service.as_mut().unwrap().spec.selector.insert("app".into(), "x".into());
    world.converge();
    assert_eq!(world.writes, ["service"]);
    assert!(world.service.unwrap().spec.selector.is_empty());
}

#[test]
fn endpoints_of_others_withdraw_ours() {
    let mut world = World::serving(&json!({}));
    world.intrudes("media-x7k2p");
    world.settle();
    assert_eq!(world.leads_to(), ["10.9.9.9"]);
    assert_eq!(
        (world.reason("ServiceReady"), world.reason("Stalled")),
        ("ForeignEndpoints".into(), "ForeignEndpoints".into())
    );
    assert_eq!(world.condition("Ready").unwrap().0, "False");
    let writes = world.writes.len();
    world.converge();
    assert_eq!(world.writes.len(), writes);
    world.slices.remove("media-x7k2p");
    world.converge();
    assert_eq!((world.leads_to(), world.phase()), (vec!["10.0.0.1".to_owned()], SharedVolumePhase::Ready));
}

#[test]
fn endpoints_of_old_are_deleted_or_taken_over_before_ours_are_written() {
    for endpoints in [EndpointObjects::EndpointSlice, EndpointObjects::EndpointSliceAndEndpoints] {
        let mut world = World::of(&json!({}));
        world.spec().service.endpoints = endpoints;
        let annotations = json!({ "bulkhead.dev/adopt": "true" });
        world.service = Some(service(&json!({ "metadata": { "annotations": annotations } })));
        let old = json!({
            "metadata": { "name": "media", "uid": "e", "resourceVersion": "1", "annotations": annotations },
            "subsets": [{ "addresses": [{ "ip": "10.9.9.9" }], "ports": [{ "port": 2049 }] }],
        });
        world.endpoints = Some(serde_json::from_value::<Endpoints>(old).unwrap());
        world.intrudes("media-mirrored");
        world.settle();
        // With Endpoints of ours the copies go because these are not copied any more.
        world.slices.remove("media-mirrored");
        world.converge();
        assert_eq!((world.leads_to(), world.phase()), (vec!["10.0.0.1".to_owned()], SharedVolumePhase::Ready));
        let kept = world.endpoints.as_ref().map(|it| it.subsets[0].addresses[0].ip.clone());
        let wanted = (endpoints == EndpointObjects::EndpointSliceAndEndpoints).then(|| "10.0.0.1".to_owned());
        assert_eq!(kept, wanted);
    }
}

#[test]
fn a_deleted_service_comes_back_with_its_address() {
    let mut world = World::serving(&json!({}));
    let ip = world.ip();
    world.service = None;
    world.slices.clear();
    world.settle();
    assert_eq!((world.ip(), world.leads_to()), (ip, vec!["10.0.0.1".to_owned()]));
    assert_eq!(world.writes, ["service", "slice", "status"]);
}

#[test]
fn an_address_that_is_taken_is_lost_only_where_that_is_accepted() {
    for policy in ["Pinned", "Any"] {
        let mut world = World::serving(&json!({ "spec": { "service": { "clusterIPPolicy": policy } } }));
        let ip = world.ip();
        world.service = None;
        world.slices.clear();
        world.taken = Some(ip.clone());
        for _ in 0..6 {
            world.pass(usize::MAX);
        }
        if policy == "Any" {
            assert_ne!(world.ip(), ip);
            assert_eq!(world.status().mount_endpoint, Some(format!("{}:2049", world.ip())));
            continue;
        }
        assert_eq!((world.service.is_none(), world.reason("Stalled").as_str()), (true, "ClusterIPLost"));
        assert!(world.notes.contains(&"ClusterIPLost"));
        world.taken = None;
        world.wait(11.0);
        world.converge();
        assert_eq!((world.ip(), world.phase()), (ip, SharedVolumePhase::Ready));
    }
}

#[test]
fn a_service_with_another_address_is_not_taken_for_ours() {
    let mut world = World::serving(&json!({}));
    world.service.as_mut().unwrap().spec.cluster_ips = vec!["10.96.0.200".into()];
    world.settle();
    assert_eq!((world.reason("ServiceReady"), world.writes.clone()), ("ClusterIPLost".into(), vec!["status"]));
}

#[test]
fn a_service_that_is_not_shown_is_looked_for_and_told_of() {
    use super::super::decide::Effect;
    let mut world = World::of(&json!({}));
    world.shows_services = false;
    world.pass(9);
    world.pass(9);
    assert!(world.decide().effects.is_empty());
    world.wait(1.1);
    assert_eq!(world.decide().effects, [Effect::Verify]);
    world.wait(20.0);
    world.pass(9);
    assert_eq!((world.reason("Ready"), world.notes.last()), ("ServiceNotSeen".into(), Some(&"ServiceNotSeen")));
    world.shows_services = true;
    world.converge();
    assert_eq!(world.phase(), SharedVolumePhase::Ready);
}

/// Through all of a provider's spec that has a flag too; `pollInterval` is its poll's own.
#[test]
fn a_providers_own_times_go_before_those_of_the_flags() {
    use super::super::decide::{Effect, Intervals};
    let mut spec = json!({
        "endpoints": ["https://storageos:5705"], "credentialsRef": { "namespace": "bulkhead-system", "name": "api" },
    });
    let read = |spec: &Value| {
        let spec: SharedVolumeProviderSpec = serde_json::from_value(spec.clone()).unwrap();
        intervals(Intervals::default(), providers::Intervals::from(&spec))
    };
    let seconds = |it: Intervals| [it.cache_expiry, it.create_poll, it.create_wait].map(|it| it.as_secs_f64());
    assert_eq!(seconds(read(&spec)), [60.0, 1.0, 20.0]);
    let own = json!({ "cacheExpiryInterval": "3s", "createPollInterval": "200ms", "createWaitDuration": "5s" });
    json_patch::merge(&mut spec, &own);
    assert_eq!(seconds(read(&spec)), [3.0, 0.2, 5.0]);

    let mut world = World::of(&json!({}));
    world.intervals = read(&spec);
    world.shows_services = false;
    world.pass(9);
    world.pass(9);
    world.wait(0.3);
    assert_eq!(world.decide().effects, [Effect::Verify], "looked for after createPollInterval");
    world.wait(4.0);
    world.pass(9);
    assert_ne!(world.notes.last(), Some(&"ServiceNotSeen"));
    world.wait(1.0);
    world.pass(9);
    assert_eq!(world.notes.last(), Some(&"ServiceNotSeen"), "told after createWaitDuration");
}

#[test]
fn the_older_of_two_wins() {
    for (changes, wanted) in [
        (
            json!({ "metadata": { "name": "old", "uid": "z", "creationTimestamp": "2025-01-01T00:00:00Z" } }),
            Some("DuplicateClaim"),
        ),
        (json!({ "metadata": { "name": "old", "uid": "a" } }), Some("DuplicateClaim")),
        (json!({ "metadata": { "name": "new", "uid": "z" } }), None),
        (
            json!({ "metadata": { "name": "old", "uid": "a" }, "spec": { "claimName": "other", "service": { "name": "media" } } }),
            Some("ServiceConflict"),
        ),
    ] {
        let mut world = World::of(&json!({}));
        world.rivals = vec![shared_volume(&changes)];
        world.converge();
        let stalled = world.condition("Stalled").map(|(_, reason)| reason);
        assert_eq!(stalled.as_deref(), wanted, "{changes}");
        assert_eq!(world.service.is_some(), wanted.is_none());
    }
}
