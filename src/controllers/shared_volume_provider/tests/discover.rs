//! Who gets a SharedVolume, and what it is like.

use std::sync::Arc;

use serde_json::json;

use super::world::{candidate, claim, link, provider, seen, volume};
use crate::api::provider_volume::ProviderVolume;
use crate::api::shared_volume::SharedVolume;
use crate::controllers::shared_volume_provider::decide::{Effect, decide};
use crate::controllers::shared_volume_provider::discovery::{Candidate, draft};
use crate::controllers::testing::now;

fn gets_one(candidate: &Candidate) -> bool {
    draft(&provider(&json!({})), candidate).is_some()
}

fn without(change: impl FnOnce(&mut ProviderVolume)) -> Candidate {
    let mut candidate = candidate(volume());
    change(Arc::make_mut(&mut candidate.volume));
    candidate
}

#[test]
fn a_volume_with_everything_gets_one() {
    assert!(gets_one(&candidate(volume())));
}

#[test]
fn a_volume_without_any_one_thing_gets_none() {
    for (what, candidate) in [
        ("label pv/name", without(|volume| volume.volume_name.clear())),
        ("label pvc/name", without(|volume| volume.claim_name.clear())),
        ("label pvc/namespace", without(|volume| volume.claim_namespace.clear())),
        ("endpoint", without(|volume| volume.endpoint = None)),
        ("valid endpoint", without(|volume| volume.endpoint = Some("nfs.example.com:2049".into()))),
        ("address that others reach", without(|volume| volume.endpoint = Some("127.0.0.1:2049".into()))),
        ("claim", Candidate { claim: None, ..candidate(volume()) }),
        ("bound claim", Candidate { claim: Some(Arc::new(claim("media", "pvc-other"))), ..candidate(volume()) }),
        ("served namespace", Candidate { is_served: false, ..candidate(volume()) }),
        ("free name", Candidate { is_name_taken: true, ..candidate(volume()) }),
        ("lack of one", Candidate { is_managed: true, ..candidate(volume()) }),
    ] {
        assert!(!gets_one(&candidate), "without {what}");
    }
    let mut going = candidate(volume());
    let claim = going.claim.as_mut().map(Arc::make_mut).unwrap();
    claim.metadata.deletion_timestamp = Some(crate::api::time::to_k8s(crate::controllers::testing::at(1)));
    assert!(!gets_one(&going), "its claim is being deleted");
}

#[test]
fn only_mode_create_writes() {
    for mode in ["Adopt", "Disabled"] {
        let provider = provider(&json!({ "discovery": { "mode": mode } }));
        assert!(draft(&provider, &candidate(volume())).is_none(), "{mode}");
    }
}

#[test]
fn it_says_what_discovery_knows_and_nothing_else() {
    let draft = draft(&provider(&json!({})), &candidate(volume())).unwrap();
    let expected = json!({
        "metadata": {
            "name": "media", "namespace": "web", "finalizers": ["bulkhead.dev/unpublish"],
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "media", "uid": "uid-media" },
            ],
        },
        "spec": {
            "claimName": "media", "service": { "endpoints": "EndpointSliceAndEndpoints" },
            "backend": { "provider": { "name": "stos", "volumeID": "v1", "volumeNamespace": "ns1" } },
        },
    });
    assert_eq!(serde_json::to_value(&draft).unwrap(), expected);
    let whole: SharedVolume = serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "SharedVolume", "metadata": draft.metadata, "spec": draft.spec,
    }))
    .unwrap();
    assert_eq!(whole.spec.backend.provider.unwrap().volume_id, "v1");
}

#[test]
fn the_template_is_where_it_begins() {
    let template = json!({
        "labels": { "team": "storage" },
        "service": { "type": "LoadBalancer", "ipFamilyPolicy": "SingleStack", "endpoints": "EndpointSlice" },
        "failover": { "onBackendLost": "Keep", "holdDown": "15s" },
        "probe": { "type": "TCP", "gate": "Never" },
    });
    let provider = provider(&json!({ "discovery": { "template": template } }));
    let draft = draft(&provider, &candidate(volume())).unwrap();
    assert_eq!(json!(draft.metadata.labels), template["labels"]);
    for part in ["service", "failover", "probe"] {
        assert_eq!(draft.spec[part], template[part], "{part}");
    }
}

#[test]
fn a_claim_whose_name_no_service_may_have_gives_a_shorter_one() {
    let mut volume = volume();
    volume.claim_name = "media.v2".into();
    let draft = draft(&provider(&json!({})), &candidate(volume)).unwrap();
    let name = draft.metadata.name.unwrap();
    assert!(name.starts_with("media-v2-") && name.len() == "media-v2-".len() + 8, "{name}");
    assert_eq!((&draft.spec["claimName"], draft.spec["service"].get("name")), (&json!("media.v2"), None));
}

#[test]
fn names_may_be_those_of_volumes() {
    let provider = provider(&json!({ "discovery": { "nameFrom": "PersistentVolume" } }));
    let draft = draft(&provider, &candidate(volume())).unwrap();
    assert_eq!(draft.metadata.name.as_deref(), Some("pvc-1f0e"));
    assert_eq!(draft.spec["service"]["name"], "pvc-1f0e");
}

#[test]
fn what_is_new_is_written_once_and_counted() {
    let mut seen = seen(provider(&json!({})), link(&["v1", "v2"]));
    let mut second = volume();
    (second.id, second.claim_name) = ("v2".into(), "logs".into());
    let managed = Candidate { is_managed: true, ..candidate(second) };
    (seen.candidates, seen.fed) = (vec![candidate(volume()), managed], 1);
    let decision = decide(&seen, now());
    let [Effect::Create { volume_id, .. }, Effect::Record { status, .. }] = decision.effects.as_slice() else {
        panic!("{decision:?}");
    };
    assert_eq!(volume_id, "v1");
    assert_eq!((status.volumes, status.shared_volumes, status.unmanaged), (Some(2), Some(2), Some(0)));
}
