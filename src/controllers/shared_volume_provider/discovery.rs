//! Which volumes get a SharedVolume, and what it is like. A volume that gets none causes no object, no Event and no log:
//! StorageOS ignores it silently, and most volumes of a provider are no business of ours.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::endpoint::Endpoint;
use crate::api::names;
use crate::api::provider_volume::ProviderVolume;
use crate::api::shared_volume::{EndpointObjects, SharedVolume, UNPUBLISH_FINALIZER};
use crate::api::shared_volume_provider::{DiscoveryMode, NameFrom, SharedVolumeProvider, Template};
use crate::api::slim::PersistentVolumeClaim;

/// A SharedVolume with the fields that discovery writes, and no others: all else belongs to the namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Resource)]
#[resource(inherit = SharedVolume)]
pub struct Draft {
    /// Name, owner, labels and finalizer.
    pub metadata: ObjectMeta,
    /// What discovery knows, and what the template says.
    pub spec: Value,
}

/// A volume and what there is of it in the cluster.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What the provider reports.
    pub volume: Arc<ProviderVolume>,
    /// The claim that its labels name.
    pub claim: Option<Arc<PersistentVolumeClaim>>,
    /// Whether its Kubernetes namespace is served.
    pub is_served: bool,
    /// Whether a SharedVolume in that namespace is fed by it.
    pub is_managed: bool,
    /// Whether the name that its SharedVolume would have is taken.
    pub is_name_taken: bool,
}

/// The SharedVolume that a volume is to get; `None` if it is to get none, or has one.
pub fn draft(provider: &SharedVolumeProvider, candidate: &Candidate) -> Option<Draft> {
    let Candidate { volume, claim, .. } = candidate;
    let is_wanted = provider.spec.discovery.mode == DiscoveryMode::Create && candidate.is_served;
    if !is_wanted || candidate.is_managed || candidate.is_name_taken || !has_labels(volume) {
        return None;
    }
    volume.endpoint.as_ref()?.parse::<Endpoint>().ok()?;
    let claim = claim.as_deref().filter(|claim| is_bound(claim, volume))?;
    let template = provider.spec.discovery.template.clone().unwrap_or_default();
    let metadata = ObjectMeta {
        name: Some(name(provider, volume)),
        namespace: Some(volume.claim_namespace.clone()),
        labels: Some(template.labels.clone()).filter(|labels| !labels.is_empty()),
        owner_references: Some(vec![owner(claim)]),
        // It is ours from the beginning: a write less for each.
        finalizers: Some(vec![UNPUBLISH_FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    Some(Draft { metadata, spec: spec(provider, volume, &template) })
}

/// Name of the SharedVolume of a volume.
pub fn name(provider: &SharedVolumeProvider, volume: &ProviderVolume) -> String {
    names::service_label(source(provider, volume))
}

/// Whether the name is another one than that of the claim, or of the volume.
pub fn is_hashed(provider: &SharedVolumeProvider, volume: &ProviderVolume) -> bool {
    name(provider, volume) != source(provider, volume)
}

fn source<'a>(provider: &SharedVolumeProvider, volume: &'a ProviderVolume) -> &'a str {
    match provider.spec.discovery.name_from {
        NameFrom::Claim => &volume.claim_name,
        NameFrom::PersistentVolume => &volume.volume_name,
    }
}

/// Whether the CSI driver labelled it.
fn has_labels(volume: &ProviderVolume) -> bool {
    [&volume.volume_name, &volume.claim_name, &volume.claim_namespace].iter().all(|label| !label.is_empty())
}

/// A claim that was made anew under the same name is bound to another volume, or to none yet.
fn is_bound(claim: &PersistentVolumeClaim, volume: &ProviderVolume) -> bool {
    claim.spec.volume_name.as_deref() == Some(&volume.volume_name) && claim.metadata.deletion_timestamp.is_none()
}

/// Garbage collection takes the SharedVolume along with the claim.
fn owner(claim: &PersistentVolumeClaim) -> OwnerReference {
    OwnerReference {
        api_version: PersistentVolumeClaim::api_version(&()).into_owned(),
        kind: PersistentVolumeClaim::kind(&()).into_owned(),
        name: claim.name_any(),
        uid: claim.uid().unwrap_or_default(),
        controller: None,
        block_owner_deletion: None,
    }
}

fn spec(provider: &SharedVolumeProvider, volume: &ProviderVolume, template: &Template) -> Value {
    let mut service = BTreeMap::new();
    let of_template = template.service.clone().unwrap_or_default();
    let endpoints = of_template.endpoints.unwrap_or(EndpointObjects::EndpointSliceAndEndpoints);
    service.insert("endpoints", json!(endpoints));
    if let Some(type_) = of_template.type_ {
        service.insert("type", json!(type_));
    }
    if let Some(policy) = of_template.ip_family_policy {
        service.insert("ipFamilyPolicy", json!(policy));
    }
    if provider.spec.discovery.name_from == NameFrom::PersistentVolume {
        service.insert("name", json!(name(provider, volume)));
    }
    let backend = json!({
        "name": provider.name_any(), "volumeID": volume.id, "volumeNamespace": volume.namespace_id,
    });
    let mut spec = json!({
        "claimName": volume.claim_name, "service": service, "backend": { "provider": backend },
    });
    if let Some(fields) = spec.as_object_mut() {
        if let Some(failover) = &template.failover {
            fields.insert("failover".to_owned(), json!(failover));
        }
        if let Some(probe) = &template.probe {
            fields.insert("probe".to_owned(), json!(probe));
        }
    }
    spec
}
