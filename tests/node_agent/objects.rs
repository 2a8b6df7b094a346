//! Objects of the API, as a test says them.

use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use serde_json::{Value, json};

use super::plugin::DRIVER;
use super::world::{NODE, Volume};

/// A NodeFence, with these volumes cut off and proved, and these pods of the node left alone.
pub fn fence_of(episode: i64, volumes: &[Volume], kept_pods: &[&str]) -> NodeFence {
    let plan = |volume: &Volume| {
        json!({ "episode": episode, "name": volume.name, "driver": DRIVER, "volumeHandle": volume.handle,
                "minimumProof": "Verified" })
    };
    let row = |volume: &Volume| {
        json!({ "episode": episode, "name": volume.name, "state": "Detached", "proof": "Verified", "method": "Unpublish",
                "committedAt": "2026-11-21T02:40:00Z", "provedAt": "2026-11-21T02:40:01Z" })
    };
    let pod = |volume: &Volume| {
        json!({ "episode": episode, "uid": volume.pod, "namespace": "shop", "name": volume.name, "action": "Release",
                "reason": "NodeFailure", "volumes": [volume.name] })
    };
    let kept = |uid: &&str| {
        json!({ "episode": episode, "uid": uid, "namespace": "shop", "name": uid, "action": "Keep",
                "reason": "NoPolicy", "volumes": [] })
    };
    let pods: Vec<_> = volumes.iter().map(pod).chain(kept_pods.iter().map(kept)).collect();
    let mut fence: NodeFence = from(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeFence",
        "metadata": { "name": NODE, "uid": "fence-uid", "resourceVersion": episode.to_string() },
        "spec": {
            "episode": episode, "node": { "uid": "node-uid" },
            "policies": [{ "name": "p", "uid": "u", "generation": 1, "mode": "Enforce" }],
            "plan": {
                "decidedAt": "2026-11-21T02:39:00Z", "digest": "sha256:00000000", "evidence": [],
                "pods": pods,
                "volumes": volumes.iter().map(plan).collect::<Vec<_>>(),
            },
        },
        "status": { "volumes": volumes.iter().map(row).collect::<Vec<_>>() },
    }));
    fence.metadata.labels = Some([(names::ACTIVE_LABEL.to_owned(), "true".to_owned())].into());
    fence
}

/// A pod that runs, and has a claim.
pub fn running(uid: &str) -> Value {
    json!({
        "metadata": { "name": uid, "namespace": "shop", "uid": uid },
        "spec": { "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }] },
        "status": { "phase": "Running" },
    })
}

/// The same as what it is.
pub fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}
