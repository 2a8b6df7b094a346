//! Waits until the controller has assigned a Mountpoint Pod, and until that runs. When it takes too long, whoever is at
//! fault has the word: the scheduler, the kubelet, the container.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tonic::Status;

use crate::runtime::clock::monotonic;
use crate::runtime::store::ObjectKey;

use super::decide::{Assigned, Standing, standing};
use super::publication::Publication;
use super::{BY_WORKLOAD, Node};

/// Where it stands now.
pub fn now(node: &Node, publication: &Publication) -> Standing {
    let attachments = node.stores.attachments.by_index(BY_WORKLOAD, &publication.pod_uid);
    let pod = |name: &str| node.mountpoint_pod(name);
    standing(publication, attachments.iter().map(Arc::as_ref), &node.settings.node_name, pod)
}

/// Waits for a Mountpoint Pod that runs.
pub async fn ready(node: &Node, publication: &Publication, patience: Duration) -> Result<Assigned, Status> {
    let mut changes = node.changes.subscribe();
    let end = monotonic() + patience;
    loop {
        changes.mark_unchanged();
        let standing = now(node, publication);
        if let Standing::Ready(assigned) = standing {
            return Ok(assigned);
        }
        if tokio::time::timeout_at(end.into(), changes.changed()).await.is_err() {
            return Err(Status::unavailable(why(node, publication, &standing).await));
        }
    }
}

async fn why(node: &Node, publication: &Publication, standing: &Standing) -> String {
    let pod = publication.pod();
    if !node.stores.attachments.synced() || !node.stores.pods.synced() {
        return format!(
            "{pod}: the API server has not told yet which Mountpoint Pods there are; it is asked again and again"
        );
    }
    match standing {
        Standing::NotAttached => format!(
            "no MountpointS3PodAttachment names {pod} (uid {}) with volume {} on node {}: does bulkhead-controller run? \
             See kubectl get s3pa -o wide",
            publication.pod_uid, publication.volume, node.settings.node_name
        ),
        Standing::Waiting(assigned) | Standing::Ready(assigned) => {
            let (namespace, name) = (&node.settings.mountpoint_namespace, &assigned.pod.name);
            let pods: Api<Pod> = Api::namespaced(node.clients.reads.clone(), namespace);
            let words = match pods.get_opt(name).await {
                Ok(Some(pod)) => words(&pod),
                Ok(None) => "does not exist yet, or any more".to_owned(),
                Err(error) => format!("cannot be read: {error}"),
            };
            format!("Mountpoint Pod {namespace}/{name} of s3pa {} {words}", assigned.attachment)
        }
    }
}

/// What a pod that does not run says of itself.
fn words(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or("Pending");
    let own = [status.reason, status.message].into_iter().flatten().collect::<Vec<_>>().join(": ");
    if pod.metadata.deletion_timestamp.is_some() {
        return format!("is being deleted ({phase}) {own}").trim_end().to_owned();
    }
    if phase == "Failed" || phase == "Succeeded" {
        return format!("has ended ({phase}) {own}").trim_end().to_owned();
    }
    let conditions = status.conditions.unwrap_or_default();
    let unscheduled =
        conditions.iter().find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(condition) = unscheduled {
        let reason = condition.reason.as_deref().unwrap_or("Unschedulable");
        return format!("is not scheduled: {reason}: {}", condition.message.as_deref().unwrap_or("no reason is given"));
    }
    let containers = status.init_container_statuses.into_iter().chain(status.container_statuses).flatten();
    let waiting = containers.filter_map(|container| container.state?.waiting).find_map(|waiting| {
        let message = waiting.message.map(|message| format!(": {message}")).unwrap_or_default();
        Some(format!("{}{message}", waiting.reason?))
    });
    match (phase, waiting) {
        ("Running", None) => "runs on another node, or is to unmount".to_owned(),
        (_, Some(waiting)) => format!("has not started: {waiting}"),
        (phase, None) => format!("has not started yet ({phase})"),
    }
}

impl Node {
    /// A Mountpoint Pod of this node.
    pub fn mountpoint_pod(&self, name: &str) -> Option<Arc<crate::api::slim::Pod>> {
        self.stores.pods.get(&ObjectKey::namespaced(&self.settings.mountpoint_namespace, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whoever_is_at_fault_has_the_word() {
        for (status, expected) in [
            (
                json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False",
                    "reason": "Unschedulable", "message": "0/1 nodes are available: 1 Too many pods." }] }),
                "is not scheduled: Unschedulable: 0/1 nodes are available: 1 Too many pods.",
            ),
            (
                json!({ "phase": "Pending", "containerStatuses": [{ "name": "mountpoint", "ready": false, "restartCount": 0,
                    "image": "i", "imageID": "", "state": { "waiting": { "reason": "ErrImagePull", "message": "no such image" } } }] }),
                "has not started: ErrImagePull: no such image",
            ),
            (
                json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" }),
                "has ended (Failed) Evicted: low on memory",
            ),
            (json!({}), "has not started yet (Pending)"),
        ] {
            let pod: Pod = serde_json::from_value(json!({ "metadata": {}, "status": status })).unwrap();
            assert_eq!(words(&pod), expected);
        }
    }
}
