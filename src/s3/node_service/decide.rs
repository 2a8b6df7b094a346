//! Which Mountpoint Pod serves a volume of a pod, and whether what is mounted is what should be. Pure.

use std::collections::BTreeSet;

use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::s3::NEEDS_UNMOUNT;
use crate::api::slim::Pod;

use super::publication::{MountpointPod, Publication};

/// What the s3pa assigns to a volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The Mountpoint Pod. Its uid is empty while it is not known on this node.
    pub pod: MountpointPod,
    /// fsGroup of all workloads that share it.
    pub group: String,
    /// The s3pa.
    pub attachment: String,
}

/// Where a volume of a pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No s3pa names the pod.
    NotAttached,
    /// One does, but nothing can be mounted yet.
    Waiting(Assigned),
    /// Its Mountpoint Pod runs.
    Ready(Assigned),
}

/// Looks it up. `attachments` are those that name the pod; `pod` finds Mountpoint Pods of this node.
pub fn standing<'a, P: AsRef<Pod>>(
    publication: &Publication,
    attachments: impl IntoIterator<Item = &'a MountpointS3PodAttachment>,
    node: &str,
    pod: impl Fn(&str) -> Option<P>,
) -> Standing {
    let mut best = Standing::NotAttached;
    for attachment in attachments {
        let spec = &attachment.spec;
        let is_its = spec.node_name == node
            && spec.persistent_volume_name == publication.volume
            && spec.volume_id == publication.volume_id;
        let entries = spec.mountpoint_s3_pod_attachments.iter().filter(|_| is_its);
        for (name, workloads) in entries {
            if !workloads.iter().any(|workload| workload.workload_pod_uid == publication.pod_uid) {
                continue;
            }
            let known = pod(name);
            let uid = known.as_ref().and_then(|pod| pod.as_ref().metadata.uid.clone()).unwrap_or_default();
            let assigned = Assigned {
                pod: MountpointPod { name: name.clone(), uid },
                group: spec.workload_fs_group.clone(),
                attachment: attachment.metadata.name.clone().unwrap_or_default(),
            };
            if known.is_some_and(|pod| takes_mounts(pod.as_ref(), node)) {
                return Standing::Ready(assigned);
            }
            if best == Standing::NotAttached {
                best = Standing::Waiting(assigned);
            }
        }
    }
    best
}

fn takes_mounts(pod: &Pod, node: &str) -> bool {
    pod.status.phase.as_deref() == Some("Running")
        && pod.spec.node_name.as_deref() == Some(node)
        && !pod.is_terminating()
        && !needs_unmount(pod)
}

/// Whether no workload uses a Mountpoint Pod any more.
pub fn needs_unmount(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().and_then(|all| all.get(NEEDS_UNMOUNT)).is_some_and(|value| value == "true")
}

/// What is to be done about a volume that was mounted in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: it is what it should be, or the kubelet's to mount.
    Right,
    /// The server of what is mounted is gone.
    Dead,
    /// Another Mountpoint Pod is to serve it.
    Moved,
}

/// Compares what is mounted on top at the target with the source of the Mountpoint Pod that is assigned now. File systems
/// are told apart by their device.
pub fn verdict<D: Copy + Ord>(
    publication: &Publication,
    assigned: &Assigned,
    on_top: Option<D>,
    source: Option<D>,
    dead: &BTreeSet<D>,
) -> Verdict {
    let Some(on_top) = on_top else { return Verdict::Right };
    if dead.contains(&on_top) {
        return Verdict::Dead;
    }
    let moved = publication.served_by.as_ref().is_some_and(|before| before.name != assigned.pod.name);
    match source {
        Some(source) if source != on_top => Verdict::Moved,
        None if moved => Verdict::Moved,
        _ => Verdict::Right,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn attachment(name: &str, entries: serde_json::Value) -> MountpointS3PodAttachment {
        serde_json::from_value(json!({
            "apiVersion": "s3.csi.scality.com/v2", "kind": "MountpointS3PodAttachment", "metadata": { "name": name },
            "spec": {
                "nodeName": "n", "persistentVolumeName": "pv", "volumeID": "id", "mountOptions": "",
                "workloadFSGroup": "1000", "mountpointS3PodAttachments": entries,
            },
        }))
        .unwrap()
    }

    fn workload(uid: &str) -> serde_json::Value {
        json!([{ "workloadPodUID": uid, "attachmentTime": "2026-11-21T02:00:01Z" }])
    }

    fn pod(phase: &str, metadata: serde_json::Value) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": metadata, "spec": { "nodeName": "n" }, "status": { "phase": phase },
            }))
            .unwrap(),
        )
    }

    fn publication() -> Publication {
        Publication { volume: "pv".into(), volume_id: "id".into(), pod_uid: "u".into(), ..Publication::default() }
    }

    #[test]
    fn only_a_pod_that_runs_and_stays_takes_mounts() {
        let all = [attachment("a", json!({ "mp-1": workload("u") }))];
        for (found, ready) in [
            (Some(pod("Running", json!({ "uid": "x" }))), true),
            (Some(pod("Pending", json!({ "uid": "x" }))), false),
            (Some(pod("Failed", json!({ "uid": "x" }))), false),
            (Some(pod("Running", json!({ "uid": "x", "deletionTimestamp": "2026-11-21T02:00:01Z" }))), false),
            (Some(pod("Running", json!({ "uid": "x", "annotations": { NEEDS_UNMOUNT: "true" } }))), false),
            (None, false),
        ] {
            let standing = standing(&publication(), &all, "n", |_| found.clone());
            assert_eq!(matches!(standing, Standing::Ready(_)), ready, "{found:?}");
            let (Standing::Ready(assigned) | Standing::Waiting(assigned)) = standing else { panic!("not attached") };
            assert_eq!((assigned.pod.name.as_str(), assigned.group.as_str()), ("mp-1", "1000"));
        }
    }

    #[test]
    fn of_several_entries_the_one_that_can_be_used_counts() {
        let entries = json!({ "mp-1": workload("u"), "mp-2": workload("u"), "mp-3": workload("other") });
        let all = [attachment("a", json!({})), attachment("b", entries)];
        let runs = |name: &str| (name == "mp-2").then(|| pod("Running", json!({ "uid": "x" })));
        let Standing::Ready(assigned) = standing(&publication(), &all, "n", runs) else { panic!("not ready") };
        assert_eq!((assigned.pod.name.as_str(), assigned.attachment.as_str()), ("mp-2", "b"));
    }

    #[test]
    fn another_node_volume_or_pod_is_not_ours() {
        let all = [attachment("a", json!({ "mp-1": workload("u") }))];
        let runs = |_: &str| Some(pod("Running", json!({ "uid": "x" })));
        for (publication, node) in [
            (publication(), "m"),
            (Publication { volume: "other".into(), ..publication() }, "n"),
            (Publication { volume_id: "other".into(), ..publication() }, "n"),
            (Publication { pod_uid: "other".into(), ..publication() }, "n"),
        ] {
            assert_eq!(standing(&publication, &all, node, runs), Standing::NotAttached);
        }
    }

    #[test]
    fn what_is_dead_or_of_another_pod_is_mounted_again() {
        let served = |name: &str| Publication {
            served_by: Some(MountpointPod { name: name.into(), uid: "x".into() }),
            ..publication()
        };
        let assigned = Assigned {
            pod: MountpointPod { name: "mp-1".into(), uid: "x".into() },
            group: String::new(),
            attachment: "a".into(),
        };
        for (before, on_top, source, expected) in [
            ("mp-1", Some(1), Some(1), Verdict::Right),
            ("mp-1", None, Some(1), Verdict::Right),
            ("mp-1", Some(1), None, Verdict::Right),
            ("mp-1", Some(9), Some(9), Verdict::Dead),
            ("mp-1", Some(9), None, Verdict::Dead),
            ("mp-1", Some(1), Some(2), Verdict::Moved),
            ("mp-0", Some(1), None, Verdict::Moved),
            ("mp-0", Some(1), Some(1), Verdict::Right),
        ] {
            let found = verdict(&served(before), &assigned, on_top, source, &BTreeSet::from([9]));
            assert_eq!(found, expected, "{before} {on_top:?} {source:?}");
        }
    }
}
