//! What the Service, its EndpointSlices and its Endpoints have in common: names, labels and owners. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;

use crate::api::names;
use crate::api::shared_volume::{ADOPT_ANNOTATION, SHARED_VOLUME_LABEL, SharedVolume};
use crate::api::slim::network::Service;

/// Name of the Service. The recorded one stays whatever the spec says later: another Service would have another address.
pub fn service_name(shared_volume: &SharedVolume) -> String {
    let recorded = shared_volume.status.as_ref().and_then(|status| status.service.as_ref()).map(|it| it.name.clone());
    let wanted = recorded.or_else(|| shared_volume.spec.service.name.clone());
    wanted.unwrap_or_else(|| names::service_label(&shared_volume.spec.claim_name))
}

/// Whether the Service cannot have the claim's name.
pub fn is_hashed(shared_volume: &SharedVolume) -> bool {
    let claim = &shared_volume.spec.claim_name;
    shared_volume.spec.service.name.is_none() && names::service_label(claim) != *claim
}

/// Whether an object carries our label with the name of this SharedVolume.
pub fn is_ours(meta: &ObjectMeta, shared_volume: &SharedVolume) -> bool {
    owner_label(meta) == shared_volume.metadata.name.as_deref()
}

/// Whether it is our Service: also the recorded one whose label somebody took off.
pub fn is_our_service(meta: &ObjectMeta, shared_volume: &SharedVolume) -> bool {
    let recorded = shared_volume.status.as_ref().and_then(|status| status.service.as_ref());
    let is_recorded = recorded.is_some_and(|service| Some(&service.uid) == meta.uid.as_ref());
    is_ours(meta, shared_volume) || owner_label(meta).is_none() && is_recorded
}

/// The SharedVolume that an object says it belongs to.
pub fn owner_label(meta: &ObjectMeta) -> Option<&str> {
    meta.labels.as_ref()?.get(SHARED_VOLUME_LABEL).map(String::as_str)
}

/// Whether a person allows us to take an object over.
pub fn may_be_adopted(meta: &ObjectMeta) -> bool {
    let annotation = meta.annotations.as_ref().and_then(|annotations| annotations.get(ADOPT_ANNOTATION));
    owner_label(meta).is_none() && annotation.is_some_and(|value| value == "true")
}

/// Our label.
pub fn label_of(shared_volume: &SharedVolume) -> (String, String) {
    (SHARED_VOLUME_LABEL.to_owned(), shared_volume.name_any())
}

/// An owner of what goes with it. Nobody's controller: claims and Services have none of ours.
pub fn owner(kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
        ..OwnerReference::default()
    }
}

/// The Service as owner of its slices and Endpoints.
pub fn owned_by(service: &Service) -> OwnerReference {
    owner("Service", &service.name_any(), &service.uid().unwrap_or_default())
}

/// Whether an object has this owner.
pub fn has_owner(meta: &ObjectMeta, owner: &OwnerReference) -> bool {
    meta.owner_references.iter().flatten().any(|it| it.kind == owner.kind && it.uid == owner.uid)
}

/// Whether a map has these entries, whatever else it has.
pub fn has_all(present: Option<&BTreeMap<String, String>>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| present.and_then(|present| present.get(key)) == Some(value))
}
