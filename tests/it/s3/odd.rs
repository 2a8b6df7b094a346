//! What others put where we work: nothing of it may stop us, and what is not ours stays.

use std::time::Duration;

use bulkhead::api::s3;
use chrono::{SecondsFormat, Utc};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::attachments::write;
use super::lane::{Lane, phase};
use super::world::{SOON, World};

/// The definition allows all of this, so it may be there.
pub async fn attachments_wedge_nothing(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "odd", 1).await?;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("s3.csi.scality.com", "v2", "MountpointS3PodAttachment"));
    let kind = ApiResource { plural: "mountpoints3podattachments".into(), ..kind };
    let api: Api<DynamicObject> = Api::all_with(lane.client(), &kind);
    let empty = json!({
        "nodeName": "", "persistentVolumeName": "", "volumeID": "", "mountOptions": "", "workloadFSGroup": "",
        "mountpointS3PodAttachments": {},
    });
    let mut strange = empty.clone();
    strange["mountpointS3PodAttachments"] = json!({
        "../../etc": [{ "workloadPodUID": "", "attachmentTime": "0001-01-01T00:00:00Z" }],
        "A B\u{0}\n": [{ "workloadPodUID": "no-uid", "attachmentTime": "9999-12-31T23:59:59Z" }],
        "": [],
    });
    for (name, spec) in [("odd-none", None), ("odd-empty", Some(empty)), ("odd-strange", Some(strange))] {
        let mut object = json!({
            "apiVersion": "s3.csi.scality.com/v2", "kind": "MountpointS3PodAttachment", "metadata": { "name": name },
        });
        if let Some(spec) = spec {
            object["spec"] = spec;
        }
        api.patch(name, &PatchParams::apply("a-person").force(), &Patch::Apply(object)).await?;
    }
    // The same workload again and again, in an attachment of a volume that is used.
    lane.bound("data", json!({})).await?;
    let user = lane.unbound_pod("user", &["data"], json!({})).await?;
    let entry = json!({ "workloadPodUID": user.uid(), "attachmentTime": "2026-11-21T02:00:01Z" });
    write(&lane, "data", json!({ "mp-odd-gone": [entry, entry], "mp-odd-gone-too": [entry] })).await?;
    lane.schedule("user", 1).await?;
    lane.shared("data", &[&["user"]]).await?;
    lane.barrier("after", 1).await?;
    lane.delete(&["user"]).await?;
    lane.clean("data").await?;
    for name in ["odd-none", "odd-empty", "odd-strange"] {
        super::lane::take_away_if_there(&api, name).await?;
    }
    Ok(())
}

/// Pods of others in the namespace of Mountpoint Pods, also such as are done, and such as have a claim of ours.
pub async fn strangers_in_the_namespace_are_left(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "strangers", 1).await?;
    for (name, end) in [("stranger-done", "Succeeded"), ("stranger-failed", "Failed")] {
        lane.create::<Pod>(Some(s3::MOUNTPOINT_NAMESPACE), stranger(&lane, name)).await?;
        lane.status(&lane.mountpoint_pods(), name, json!({ "phase": end })).await?;
    }
    lane.barrier("after", 1).await?;
    for name in ["stranger-done", "stranger-failed"] {
        let pod = lane.mountpoint_pods().get(name).await?;
        assert_eq!(pod.metadata.deletion_timestamp, None, "{name}");
        assert!(!pod.annotations().contains_key(s3::NEEDS_UNMOUNT), "{name}");
    }
    // Ours is deleted when it is done.
    let ended = lane.mountpoint_pods_of("after").await?;
    lane.delete(&["after"]).await?;
    lane.wait_for(&lane.mountpoint_pods(), &ended[0].name_any(), "gone", |pod| pod.is_none()).await?;
    lane.clean("after").await
}

fn stranger(lane: &Lane<'_>, name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "nodeName": lane.node(1), "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": "app",
                "resources": { "requests": { "cpu": "1m", "memory": "1Mi" }, "limits": { "memory": "1Mi" } },
                "securityContext": {
                    "runAsUser": 1000, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
                },
            }],
        },
    })
}

/// It runs and nothing names it: version 1 mounted it without a Mountpoint Pod. It stays so beside one that gets a Mountpoint
/// Pod for the same volume. When it comes again, it shares that.
pub async fn a_mount_of_version_1_is_left(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "version-1", 2).await?;
    world.nodes.hold(&lane.node(1));
    lane.claim("data").await?;
    lane.pod("old", 1, &["data"], json!({})).await?;
    let began = (Utc::now() - Duration::from_secs(60)).to_rfc3339_opts(SecondsFormat::Secs, true);
    let ready = json!([{ "type": "ContainersReady", "status": "True", "lastTransitionTime": began }]);
    lane.status(&lane.pods(), "old", json!({ "phase": "Running", "conditions": ready })).await?;
    let runs = |pod: Option<&Pod>| pod.is_some_and(|pod| phase(pod) == "Running");
    lane.wait_for(&lane.pods(), "old", "running", runs).await?;
    lane.barrier("before", 2).await?;
    lane.volume("data", json!({})).await?;
    lane.binds("data").await?;
    lane.barrier("after", 2).await?;
    assert_eq!(lane.attachments_of("data").await?, []);
    assert_eq!(lane.mountpoint_pods_of("data").await?.len(), 0);

    world.nodes.release(&lane.node(1));
    lane.pod("young", 1, &["data"], json!({})).await?;
    let served_by = lane.shared("data", &[&["young"]]).await?;
    lane.barrier("beside", 2).await?;
    assert_eq!(lane.shared("data", &[&["young"]]).await?, served_by, "its mount is no Mountpoint Pod's");

    lane.delete(&["old"]).await?;
    let look = async || {
        let left = lane.pods().list(&ListParams::default()).await?.items;
        Ok(if left.iter().any(|pod| pod.name_any() == "old") { Err("it is there".to_owned()) } else { Ok(()) })
    };
    world.cluster.wait("it ended", SOON, look).await?;
    lane.pod("old", 1, &["data"], json!({})).await?;
    assert_eq!(lane.shared("data", &[&["old", "young"]]).await?, served_by);
    lane.delete(&["old", "young"]).await?;
    lane.clean("data").await
}
