//! Servers that a provider or pods name.

use serde_json::json;

use crate::api::shared_volume::SharedVolumePhase;

use super::world::{World, of_provider, pod};

const BOTH: &str = "EndpointSliceAndEndpoints";

fn provided() -> World {
    let mut world = of_provider(&json!({ "spec": { "service": { "endpoints": BOTH } } }));
    world.converge();
    world
}

#[test]
fn it_is_published_last_and_once() {
    let world = provided();
    assert_eq!(world.volume.as_ref().unwrap().mount_endpoint, format!("{}:2049", world.ip()));
    assert_eq!(world.status().published_endpoint, world.status().mount_endpoint);
    let publish = world.writes.iter().position(|write| *write == "publish").unwrap();
    assert_eq!(world.writes[..publish], ["finalizer", "service", "status", "slice", "endpoints", "status"]);
    assert_eq!(world.writes[publish + 1..], ["status"]);
    assert_eq!((world.reason("Published"), world.phase()), ("Acknowledged".into(), SharedVolumePhase::Ready));
}

#[test]
fn a_server_that_moves_costs_a_slice_and_endpoints_and_the_target_port() {
    let mut world = provided();
    let ip = world.ip();
    world.writes.clear();
    world.volume.as_mut().unwrap().endpoint = Some("10.0.0.2:20499".into());
    world.settle();
    assert!(world.writes.is_empty(), "it is asked first: {:?}", world.writes);
    world.probe();
    world.settle();
    assert_eq!(world.writes, ["slice", "endpoints", "service", "status"]);
    assert_eq!((world.leads_to(), world.ip()), (vec!["10.0.0.2".to_owned()], ip));
    let target = world.service.as_ref().unwrap().spec.ports[0].target_port.clone();
    assert_eq!(serde_json::json!(target), json!(20499));
    assert_eq!(world.endpoints.as_ref().unwrap().subsets[0].addresses[0].ip, "10.0.0.2");
    let last = world.status().last_failover.unwrap();
    assert_eq!((last.from.as_deref(), last.reason.as_str()), (Some("10.0.0.1:20490"), "EndpointChanged"));
}

#[test]
fn one_that_does_not_answer_yet_withdraws_the_old_one() {
    let mut world = provided();
    world.dies("10.0.0.2");
    world.volume.as_mut().unwrap().endpoint = Some("10.0.0.2:20490".into());
    world.settle();
    world.wait(0.05);
    world.settle();
    assert_eq!(world.leads_to(), ["10.0.0.1"]);
    world.wait(0.06);
    world.settle();
    assert!(world.leads_to().is_empty());
    assert!(world.endpoints.as_ref().unwrap().subsets.is_empty());
    assert_eq!((world.phase(), world.reason("Ready")), (SharedVolumePhase::FailingOver, "FailingOver".into()));
    world.lives("10.0.0.2");
    world.probe();
    world.settle();
    assert_eq!((world.leads_to(), world.phase()), (vec!["10.0.0.2".to_owned()], SharedVolumePhase::Ready));
}

#[test]
fn without_an_endpoint_it_is_withdrawn_or_left_alone() {
    for (policy, count) in [("Withdraw", 0), ("Keep", 1)] {
        for endpoint in [None, Some("nfs.example.com:2049".to_owned())] {
            let mut world = of_provider(&json!({ "spec": { "failover": { "onBackendLost": policy } } }));
            world.converge();
            let told = world.volume.as_ref().unwrap().mount_endpoint.clone();
            let wanted = if endpoint.is_some() { "BackendInvalid" } else { "NoCandidateServes" };
            world.volume.as_mut().unwrap().endpoint = endpoint;
            world.converge();
            assert_eq!(
                (world.leads_to().len(), world.reason("BackendAvailable").as_str()),
                (count, wanted),
                "{policy}"
            );
            assert_eq!(world.volume.as_ref().unwrap().mount_endpoint, told);
            assert!(world.service.is_some());
        }
    }
}

/// Silent but for the status of the object itself: no Service.
#[test]
fn nothing_is_made_for_a_backend_that_cannot_be_served() {
    for endpoint in [None, Some("127.0.0.1:2049"), Some("10.0.0.1:0"), Some("fd00::1:2049")] {
        let mut world = of_provider(&json!({}));
        world.volume.as_mut().unwrap().endpoint = endpoint.map(str::to_owned);
        world.converge();
        assert_eq!(world.writes, ["finalizer", "status"], "{endpoint:?}");
        assert_eq!(world.phase(), SharedVolumePhase::Pending);
    }
}

#[test]
fn a_provider_that_is_away_changes_nothing_but_the_word() {
    let mut world = provided();
    world.is_reachable = false;
    world.converge();
    assert_eq!(world.condition("BackendAvailable"), Some(("Unknown".into(), "ProviderUnreachable".into())));
    assert_eq!((world.leads_to().len(), world.phase()), (1, SharedVolumePhase::Degraded));
    assert_eq!(world.condition("Ready").unwrap().0, "True");
    world.volume = None;
    world.converge();
    assert_eq!((world.leads_to().len(), world.reason("BackendAvailable")), (0, "ProviderVolumeGone".into()));
    assert!(world.service.is_some());
}

/// The version at the provider moves with every write there.
#[test]
fn a_version_alone_is_no_reason_to_write() {
    let mut world = provided();
    world.writes.clear();
    world.volume.as_mut().unwrap().version = "v99".into();
    world.converge();
    assert_eq!(world.writes, [""; 0]);
    world.volume.as_mut().unwrap().health = "offline".into();
    world.converge();
    assert_eq!(world.writes, ["status"]);
    assert_eq!(world.status().observed.unwrap().volume_version.as_deref(), Some("v99"));
}

#[test]
fn a_provider_that_lost_the_address_is_told_again() {
    let mut world = provided();
    world.writes.clear();
    let volume = world.volume.as_mut().unwrap();
    (volume.mount_endpoint, volume.version) = (String::new(), "v100".into());
    world.settle();
    assert_eq!(world.writes, ["publish"]);
    assert_eq!(world.volume.as_ref().unwrap().mount_endpoint, format!("{}:2049", world.ip()));
}

#[test]
fn nothing_is_told_before_somebody_answers() {
    let mut world = of_provider(&json!({}));
    world.alive.clear();
    world.converge();
    assert_eq!((world.reason("Published"), world.phase()), ("GateClosed".into(), SharedVolumePhase::Publishing));
    assert!(world.volume.as_ref().unwrap().mount_endpoint.is_empty());
    world.spec().probe.gate = crate::api::shared_volume::ProbeGate::Never;
    world.settle();
    assert!(!world.volume.as_ref().unwrap().mount_endpoint.is_empty());
}

#[test]
fn the_claim_is_told_if_that_is_wanted() {
    let mut world = World::of(&json!({ "spec": { "publish": { "targets": ["ClaimAnnotation"], "host": "DNS" } } }));
    world.converge();
    let annotation = world.claim.as_ref().unwrap().metadata.annotations.as_ref().unwrap();
    assert_eq!(annotation["bulkhead.dev/mount-endpoint"], "media.web.svc.cluster.local:2049");
    assert_eq!(world.phase(), SharedVolumePhase::Ready);
    world.deleted();
    world.settle();
    assert!(world.claim.as_ref().unwrap().metadata.annotations.as_ref().unwrap().is_empty());
    assert!(world.shared_volume.is_none());
}

#[test]
fn an_ipv6_server_needs_an_ipv6_service() {
    let mut world = of_provider(&json!({}));
    world.volume.as_mut().unwrap().endpoint = Some("[fd00::1]:20490".into());
    world.converge();
    assert_eq!((world.reason("ServiceReady"), world.leads_to().len()), ("FamilyUnavailable".into(), 0));
    assert!(world.volume.as_ref().unwrap().mount_endpoint.is_empty());
}

#[test]
fn the_state_of_a_volume_is_verified_after_its_time() {
    let mut world = provided();
    world.wait(100.0);
    world.settle();
    world.settle();
    world.wait(59.0);
    assert!(world.decide().effects.is_empty());
    world.wait(2.0);
    assert_eq!(world.decide().effects, [super::super::decide::Effect::Verify]);
    assert!(world.decide().is_settled);

    let mut world = provided();
    world.intervals.cache_expiry = std::time::Duration::from_secs(3);
    world.settle();
    world.settle();
    world.wait(2.0);
    assert!(world.decide().effects.is_empty());
    world.wait(2.0);
    assert_eq!(world.decide().effects, [super::super::decide::Effect::Verify]);
}

fn of_pods() -> World {
    let mut world = World::of(&json!({ "spec": { "backend": {
        "static": null,
        "pods": { "matchLabels": { "app": "nfs" }, "ports": [{ "name": "nfs", "targetPort": "nfs-port" }] },
    } } }));
    world.pods = vec![pod("b", "10.0.0.2", "03"), pod("a", "10.0.0.1", "02")];
    world
}

#[test]
fn the_oldest_pod_serves_and_stays() {
    let mut world = of_pods();
    world.converge();
    assert_eq!((world.leads_to(), world.reason("BackendAvailable")), (vec!["10.0.0.1".to_owned()], "PodActive".into()));
    assert_eq!(world.status().active.unwrap().port, 20490);
    world.pods.insert(0, pod("c", "10.0.0.3", "01"));
    world.converge();
    assert_eq!(world.leads_to(), ["10.0.0.1"]);
    world.pods.retain(|pod| pod.metadata.name.as_deref() != Some("a"));
    world.settle();
    assert!(world.leads_to().is_empty());
    world.probe();
    world.settle();
    assert_eq!(world.leads_to(), ["10.0.0.3"]);
    assert_eq!(world.status().last_failover.unwrap().reason, "PodLost");
    world.pods.clear();
    world.converge();
    assert_eq!((world.leads_to().len(), world.reason("BackendAvailable")), (0, "NoPodReady".into()));
}

#[test]
fn a_pod_without_the_port_is_no_server() {
    let mut world = of_pods();
    world.pods.iter_mut().for_each(|pod| pod.spec.containers.clear());
    world.converge();
    let message = world.status().conditions.iter().find(|it| it.type_ == "BackendAvailable").unwrap().message.clone();
    assert!(message.contains("nfs-port"), "{message}");
}
