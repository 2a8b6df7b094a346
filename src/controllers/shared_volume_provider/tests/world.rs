//! Small builders of what a pass sees.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::provider_volume::ProviderVolume;
use crate::api::shared_volume_provider::SharedVolumeProvider;
use crate::api::slim::PersistentVolumeClaim;

use crate::controllers::shared_volume_provider::decide::{Poll, Secret, Seen};
use crate::controllers::shared_volume_provider::discovery::Candidate;
use crate::controllers::shared_volume_provider::link::{Link, State};

/// A provider with that spec merged in.
pub fn provider(spec: &Value) -> SharedVolumeProvider {
    let mut whole = json!({
        "endpoints": ["https://storageos:5705"], "credentialsRef": { "namespace": "bulkhead-system", "name": "api" },
    });
    json_patch::merge(&mut whole, spec);
    serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "SharedVolumeProvider",
        "metadata": { "name": "stos", "uid": "uid-stos", "generation": 3 }, "spec": whole,
    }))
    .unwrap()
}

/// A volume that the CSI driver labelled and attached as shared.
pub fn volume() -> ProviderVolume {
    ProviderVolume {
        id: "v1".into(),
        namespace_id: "ns1".into(),
        version: "Mg".into(),
        endpoint: Some("10.0.0.1:4711".into()),
        mount_endpoint: String::new(),
        health: "online".into(),
        volume_name: "pvc-1f0e".into(),
        claim_name: "media".into(),
        claim_namespace: "web".into(),
    }
}

/// A claim that is bound to that volume.
pub fn claim(name: &str, volume: &str) -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": { "namespace": "web", "name": name, "uid": format!("uid-{name}") },
        "spec": { "volumeName": volume },
    }))
    .unwrap()
}

/// A volume that nothing is missing of.
pub fn candidate(volume: ProviderVolume) -> Candidate {
    Candidate {
        claim: Some(Arc::new(claim(&volume.claim_name, &volume.volume_name))),
        volume: Arc::new(volume),
        is_served: true,
        is_managed: false,
        is_name_taken: false,
    }
}

/// A provider that is polled.
pub fn seen(provider: SharedVolumeProvider, link: Link) -> Seen {
    let poll = Poll { generation: 3, uid: "uid-stos".into(), secret: "s1".into(), link };
    Seen {
        provider: Some(Arc::new(provider)),
        secret: Secret::Usable("s1".into()),
        poll: Some(poll),
        ..Seen::default()
    }
}

/// A poll that brought one namespace with these shared volumes.
pub fn link(volumes: &[&str]) -> Link {
    let shared = volumes.iter().map(|id| (*id).to_owned()).collect();
    Link {
        state: State::Up,
        is_done: true,
        endpoint: Some("https://storageos:5705".into()),
        namespaces: 1,
        shared: [("ns1".to_owned(), shared)].into(),
        ..Link::default()
    }
}
