//! Tells a workload that its mount is dead or has moved, and which of its containers see the new one.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, Pod};
use kube::Api;

use crate::runtime::events::EventType;

use super::Node;
use super::decide::Verdict;
use super::publication::Publication;

const DEAD: &str = "MountDead";
const MOVED: &str = "MountMoved";

/// There is nothing yet to mount it from.
pub async fn dead(node: Arc<Node>, publication: Publication) {
    let by = publication.served_by.as_ref().map(|pod| pod.name.clone()).unwrap_or_default();
    let note = format!(
        "The mount of volume {} is dead: mount-s3 in Mountpoint Pod {}/{by} ended. It is mounted again as soon as a Mountpoint Pod runs.",
        publication.volume, node.settings.mountpoint_namespace
    );
    publish(&node, &publication, EventType::Warning, DEAD, note);
}

/// It is mounted again. Containers that do not follow the mounts of their node keep the one before. A move that all follow,
/// as when a node is drained, is no reason to be warned.
pub async fn mounted_again(node: Arc<Node>, publication: Publication, found: Verdict) {
    let seen = workload(&node, &publication).await.map(|(pod, claim)| Visibility::of(&pod, &claim));
    let all_follow = seen.as_ref().is_some_and(|seen| seen.keep.is_empty());
    let (kind, reason, what) = match found {
        Verdict::Moved if all_follow => (EventType::Normal, MOVED, "is served by another Mountpoint Pod now"),
        Verdict::Moved => (EventType::Warning, MOVED, "is served by another Mountpoint Pod now"),
        _ => (EventType::Warning, DEAD, "was dead and is mounted again"),
    };
    let seen = match seen {
        Some(seen) => seen.to_string(),
        None => "Containers see it only if they mount it with mountPropagation: HostToContainer; restart the others."
            .to_owned(),
    };
    publish(&node, &publication, kind, reason, format!("The mount of volume {} {what}. {seen}", publication.volume));
}

fn publish(node: &Node, publication: &Publication, kind: EventType, reason: &'static str, note: String) {
    let workload = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(publication.pod_namespace.clone()),
        name: Some(publication.pod_name.clone()),
        uid: Some(publication.pod_uid.clone()),
        ..ObjectReference::default()
    };
    if publication.pod_name.is_empty() {
        tracing::warn!(
            pod = publication.pod_uid,
            note,
            "no Event: the kubelet does not tell the pod's name (podInfoOnMount)"
        );
        return;
    }
    node.events.publish(workload, kind, reason, "Mount", note);
}

/// The workload, and the claim by which it has the volume.
async fn workload(node: &Node, publication: &Publication) -> Option<(Pod, String)> {
    let pods: Api<Pod> = Api::namespaced(node.clients.reads.clone(), &publication.pod_namespace);
    let volumes: Api<PersistentVolume> = Api::all(node.clients.reads.clone());
    let (pod, volume) = tokio::join!(pods.get_opt(&publication.pod_name), volumes.get_opt(&publication.volume));
    let pod = pod.ok()??;
    let claim = volume.ok()??.spec?.claim_ref?.name?;
    (pod.metadata.uid.as_deref() == Some(&publication.pod_uid)).then_some((pod, claim))
}

/// Which containers see a mount that is made now, and which keep the one they started with.
#[derive(Default)]
struct Visibility {
    see: Vec<String>,
    keep: Vec<String>,
}

impl Visibility {
    fn of(pod: &Pod, claim: &str) -> Self {
        let mut seen = Self::default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let spec = pod.spec.clone().unwrap_or_default();
        let volumes = spec.volumes.unwrap_or_default();
        let is_its = |volume: &str| {
            volumes.iter().filter(|one| one.name == volume).any(|one| {
                let claimed = one.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == claim);
                claimed || one.ephemeral.is_some() && format!("{name}-{volume}") == claim
            })
        };
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            let mut mounts = container.volume_mounts.iter().flatten().filter(|mount| is_its(&mount.name)).peekable();
            if mounts.peek().is_none() {
                continue;
            }
            // A sub-path is a mount of its own, over which nothing is mounted.
            let follows = mounts.all(|mount| {
                let follows = matches!(mount.mount_propagation.as_deref(), Some("HostToContainer" | "Bidirectional"));
                follows && mount.sub_path.is_none() && mount.sub_path_expr.is_none()
            });
            if follows { &mut seen.see } else { &mut seen.keep }.push(container.name.clone());
        }
        seen
    }
}

impl fmt::Display for Visibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { see, keep } = self;
        let mut said = Vec::new();
        if !see.is_empty() {
            said.push(format!("Seen by {} (mountPropagation: HostToContainer).", see.join(", ")));
        }
        if !keep.is_empty() {
            said.push(format!(
            "Not seen by {} before a restart: without mountPropagation: HostToContainer a container keeps the mount it started with.",
            keep.join(", ")
        ));
        }
        f.write_str(&said.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_container_is_told_what_it_sees() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": { "name": "web" },
            "spec": {
                "volumes": [
                    { "name": "data", "persistentVolumeClaim": { "claimName": "claim" } },
                    { "name": "other", "persistentVolumeClaim": { "claimName": "another" } },
                ],
                "containers": [
                    { "name": "a", "volumeMounts": [{ "name": "data", "mountPath": "/d", "mountPropagation": "HostToContainer" }] },
                    { "name": "b", "volumeMounts": [{ "name": "data", "mountPath": "/d" }] },
                    { "name": "c", "volumeMounts": [{ "name": "other", "mountPath": "/d" }] },
                    { "name": "d", "volumeMounts": [{ "name": "data", "mountPath": "/d", "subPath": "x", "mountPropagation": "HostToContainer" }] },
                ],
            },
        }))
        .unwrap();
        let said = Visibility::of(&pod, "claim").to_string();
        assert!(said.starts_with("Seen by a (mountPropagation: HostToContainer). Not seen by b, d before"), "{said}");
        assert_eq!(Visibility::of(&pod, "none").to_string(), "");
    }
}
