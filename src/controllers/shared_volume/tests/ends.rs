//! Claims that are not there or not the same, and the end of a SharedVolume.

use serde_json::json;

use crate::api::shared_volume::{DeletionPolicy, SharedVolumePhase};

use super::world::{World, of_provider};

#[test]
fn the_claim_must_be_there_and_bound_and_the_same() {
    let mut world = World::of(&json!({}));
    let claim = world.claim.take();
    world.converge();
    assert_eq!((world.reason("ClaimBound"), world.phase()), ("ClaimNotFound".into(), SharedVolumePhase::Pending));
    world.claim = claim;
    world.claim.as_mut().unwrap().spec.volume_name = None;
    world.converge();
    assert_eq!(world.reason("ClaimBound"), "ClaimPending");
    world.claim.as_mut().unwrap().spec.volume_name = Some("pv-1".into());
    world.converge();
    assert_eq!(world.phase(), SharedVolumePhase::Ready);
    world.claim.as_mut().unwrap().metadata.uid = Some("another".into());
    world.converge();
    assert_eq!((world.reason("ClaimBound"), world.reason("Stalled")), ("ClaimReplaced".into(), "ClaimReplaced".into()));
    assert_eq!(world.status().claim.unwrap().uid, "uid-claim");
    assert!(world.notes.contains(&"ClaimReplaced"));
}

/// The process died before the status was written: the Service tells whose it is.
#[test]
fn a_claim_that_is_replaced_before_the_first_status_is_noticed() {
    let mut world = World::of(&json!({}));
    world.pass(9);
    world.pass(9);
    assert!(world.service.is_some() && world.status().claim.is_none());
    world.claim.as_mut().unwrap().metadata.uid = Some("another".into());
    world.restart();
    world.converge();
    assert_eq!(world.reason("ClaimBound"), "ClaimReplaced");
}

#[test]
fn another_volume_is_not_served_under_the_claims_address() {
    let mut world = of_provider(&json!({}));
    world.volume.as_mut().unwrap().volume_name = "pv-2".into();
    world.converge();
    assert_eq!((world.reason("ClaimBound"), world.service.is_some()), ("VolumeMismatch".into(), false));
}

#[test]
fn everything_of_ours_goes_and_nothing_else() {
    let mut world = of_provider(&json!({ "spec": { "service": { "endpoints": "EndpointSliceAndEndpoints" } } }));
    world.converge();
    world.deleted();
    world.settle();
    assert!(world.shared_volume.is_none() && world.service.is_none() && world.slices.is_empty());
    assert!(world.endpoints.is_none() && world.volume.unwrap().mount_endpoint.is_empty());
}

#[test]
fn a_service_whose_label_was_taken_off_goes_too() {
    let mut world = of_provider(&json!({}));
    world.converge();
    world.service.as_mut().unwrap().metadata.labels = None;
    world.deleted();
    world.settle();
    assert!(world.shared_volume.is_none() && world.service.is_none());
}

#[test]
fn what_others_published_stays() {
    let mut world = of_provider(&json!({}));
    world.converge();
    let volume = world.volume.as_mut().unwrap();
    (volume.mount_endpoint, volume.version) = ("10.1.1.1:2049".into(), "v77".into());
    world.deleted();
    world.settle();
    assert!(world.shared_volume.is_none());
    assert_eq!(world.volume.unwrap().mount_endpoint, "10.1.1.1:2049");
}

#[test]
fn a_provider_that_is_gone_holds_nothing_for_long() {
    let mut world = of_provider(&json!({}));
    world.converge();
    world.is_reachable = false;
    world.deleted();
    world.settle();
    assert_eq!((world.phase(), world.reason("Published")), (SharedVolumePhase::Terminating, "ProviderError".into()));
    world.wait(29.0);
    world.settle();
    assert!(world.shared_volume.is_some() && world.service.is_some());
    let mut impatient = world.clone();
    let annotations = [("bulkhead.dev/skip-unpublish".to_owned(), "true".to_owned())];
    impatient.shared_volume.as_mut().unwrap().metadata.annotations = Some(annotations.into());
    impatient.settle();
    assert!(impatient.shared_volume.is_none() && impatient.service.is_none());
    world.wait(2.0);
    world.settle();
    assert!(world.shared_volume.is_none() && world.service.is_none());
}

#[test]
fn what_is_retained_serves_on_and_can_be_taken_over() {
    let mut world = World::serving(&json!({ "spec": { "service": { "endpoints": "EndpointSliceAndEndpoints" } } }));
    let (ip, fresh) = (world.ip(), World::of(&json!({})).shared_volume);
    world.spec().deletion_policy = DeletionPolicy::Retain;
    world.deleted();
    world.settle();
    assert!(world.shared_volume.is_none());
    assert_eq!(world.leads_to(), ["10.0.0.1"]);
    let label = |labels: Option<&std::collections::BTreeMap<String, String>>| {
        labels.is_some_and(|labels| labels.contains_key("bulkhead.dev/shared-volume"))
    };
    assert!(!label(world.service.as_ref().unwrap().metadata.labels.as_ref()));
    assert!(world.slices.values().all(|slice| !label(slice.metadata.labels.as_ref())));
    world.shared_volume = fresh;
    world.restart();
    let annotations = [("bulkhead.dev/adopt".to_owned(), "true".to_owned())];
    world.service.as_mut().unwrap().metadata.annotations = Some(annotations.into());
    world.converge();
    assert_eq!((world.phase(), world.ip()), (SharedVolumePhase::Ready, ip));
}
