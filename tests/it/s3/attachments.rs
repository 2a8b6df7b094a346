//! `s3pa` that go, come from upstream's controller, or hold nothing.

use std::collections::BTreeSet;

use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use bulkhead::api::s3;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Resource, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use crate::printed::Printed;

use super::lane::{Lane, needs_unmount, phase, take_away};
use super::world::{SOON, World};

/// By hand, guarded by our finalizer or not, under workloads that run: the same pods go on.
pub async fn a_deleted_one_is_made_anew(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "deleted", 1).await?;
    lane.bound("data", json!({})).await?;
    lane.pod("a", 1, &["data"], json!({})).await?;
    lane.pod("b", 1, &["data"], json!({})).await?;
    let pods = lane.shared("data", &[&["a", "b"]]).await?;
    let served_by = lane.mountpoint_pods().get(&pods[0]).await?;
    for guarded in [true, false] {
        let old = lane.attachment("data").await?;
        let name = old.name_any();
        match guarded {
            true => drop(lane.attachments().delete(&name, &DeleteParams::default()).await?),
            false => take_away(&lane.attachments(), &name).await?,
        }
        let anew = |now: Option<&MountpointS3PodAttachment>| now.is_some_and(|now| now.uid() != old.uid());
        lane.wait_for(&lane.attachments(), &name, "made anew", anew).await?;
        assert_eq!(lane.shared("data", &[&["a", "b"]]).await?, pods);
        let now = lane.mountpoint_pods_of("data").await?;
        assert_eq!(now.len(), 1, "no new Mountpoint Pod");
        assert_eq!(now[0].uid(), served_by.uid());
        assert!(!needs_unmount(&now[0]), "its users run");
        assert_eq!(lane.attachment("data").await?.finalizers(), [s3::FINALIZER]);
    }
    lane.delete(&["a", "b"]).await?;
    lane.clean("data").await
}

/// As upstream's controller leaves it behind: a generated name, neither finalizer nor our annotations.
pub async fn upstreams_is_used(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "upstream", 1).await?;
    lane.bound("data", json!({})).await?;
    let old = upstreams(&lane, "old").await?;
    lane.shared("data", &[&["old"]]).await?;
    lane.pod("new", 1, &["data"], json!({})).await?;
    lane.shared("data", &[&["old"], &["new"]]).await?;
    assert_eq!(lane.attachment("data").await?.name_any(), old.name_any(), "it is used, not replaced");
    lane.delete(&["old"]).await?;
    lane.shared("data", &[&["new"]]).await?;
    gone(&lane, "upstream-old").await?;
    lane.delete(&["new"]).await?;
    lane.clean("data").await
}

/// Two controllers of upstream's ran at once. Nothing that is mounted is lost.
pub async fn duplicates_with_live_pods_merge(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "duplicates", 1).await?;
    lane.bound("data", json!({})).await?;
    for workload in ["a", "b"] {
        upstreams(&lane, workload).await?;
    }
    let look = async || {
        let attachments = lane.attachments_of("data").await?;
        Ok(if attachments.len() == 1 { Ok(()) } else { Err(format!("{attachments:?}")) })
    };
    world.cluster.wait("duplicates are merged", SOON, look).await?;
    let pods = lane.shared("data", &[&["a"], &["b"]]).await?;
    assert_eq!(pods.iter().collect::<BTreeSet<_>>().len(), 2, "each keeps what it is mounted on");
    for name in ["upstream-a", "upstream-b"] {
        assert!(!needs_unmount(&lane.mountpoint_pods().get(&pod_name(&lane, name)).await?));
    }
    lane.delete(&["a", "b"]).await?;
    gone(&lane, "upstream-a").await?;
    gone(&lane, "upstream-b").await?;
    lane.clean("data").await
}

/// Neither an empty map nor an entry without workloads stays.
pub async fn empty_ones_are_collected(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "empty", 1).await?;
    for (claim, entries) in [("map", json!({})), ("entry", json!({ "mp-nobody": [] }))] {
        lane.bound(claim, json!({})).await?;
        write(&lane, claim, entries).await?;
        lane.clean(claim).await?;
    }
    // Beside one that is used.
    lane.bound("beside", json!({})).await?;
    lane.pod("user", 1, &["beside"], json!({})).await?;
    let pods = lane.shared("beside", &[&["user"]]).await?;
    write(&lane, "beside", json!({ "mp-nobody": [] })).await?;
    write(&lane, "beside", json!({})).await?;
    let look = async || {
        let attachments = lane.attachments_of("beside").await?;
        Ok(if attachments.len() == 1 { Ok(()) } else { Err(format!("{attachments:?}")) })
    };
    world.cluster.wait("only the one in use is left", SOON, look).await?;
    assert_eq!(lane.shared("beside", &[&["user"]]).await?, pods);
    lane.delete(&["user"]).await?;
    lane.clean("beside").await
}

/// Counts, Mountpoint Pods and the condition; and at rest nothing more is written.
pub async fn status_tells_who_is_served(world: &World) -> Result<(), Failed> {
    let lane = Lane::new(world, "status", 1).await?;
    lane.bound("data", json!({})).await?;
    lane.pod("a", 1, &["data"], json!({})).await?;
    lane.pod("b", 1, &["data"], json!({})).await?;
    let pods = lane.shared("data", &[&["a", "b"]]).await?;
    let name = lane.attachment("data").await?.name_any();
    let told = lane
        .wait_for(&lane.attachments(), &name, "told", |attachment| {
            let status = attachment.and_then(|attachment| attachment.status.as_ref());
            status.is_some_and(|status| {
                let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
                status.workloads == Some(2)
                    && ready.is_some_and(|ready| ready.status == "True" && ready.reason == "Serving")
            })
        })
        .await?;
    let status = told.and_then(|attachment| attachment.status).ok_or("no status")?;
    assert_eq!(status.mountpoint_pods.len(), 1);
    assert_eq!((status.mountpoint_pods[0].name.as_str(), status.mountpoint_pods[0].workloads), (pods[0].as_str(), 2));
    assert!(status.oldest_attachment.is_some());
    is_printed(&lane, &name, &pods[0]).await?;
    lane.delete(&["a", "b"]).await?;
    lane.clean("data").await
}

/// Upstream's four columns, which its users know, and ours only where they ask for more.
async fn is_printed(lane: &Lane<'_>, name: &str, mountpoint_pod: &str) -> Result<(), Failed> {
    let path = format!("{}/{name}", MountpointS3PodAttachment::url_path(&(), None));
    let printed = Printed::of(&lane.client(), &path).await?;
    assert_eq!(printed.columns, ["Name", "Node", "PV Name", "Mount Options", "Age"]);
    assert_eq!(printed.wide, ["Workloads", "Ready", "Reason", "Mountpoint Pods", "Oldest"]);
    for (column, cell) in [
        ("Name", json!(name)),
        ("Node", json!(lane.node(1))),
        ("PV Name", json!(lane.volume_name("data"))),
        ("Workloads", json!(2)),
        ("Ready", json!("True")),
        ("Reason", json!("Serving")),
        ("Mountpoint Pods", json!(mountpoint_pod)),
    ] {
        assert_eq!(*printed.cell(column), cell, "{column}: {printed:?}");
    }
    assert!(["Age", "Oldest"].iter().all(|column| printed.cell(column).is_string()), "{printed:?}");
    Ok(())
}

/// A workload that upstream's controller served: its pod, the Mountpoint Pod, and an attachment for it alone.
async fn upstreams(lane: &Lane<'_>, workload: &str) -> Result<MountpointS3PodAttachment, Failed> {
    let mountpoint_pod = pod_name(lane, &format!("upstream-{workload}"));
    lane.create::<Pod>(Some(s3::MOUNTPOINT_NAMESPACE), mountpoint_pod_of(lane, &mountpoint_pod)).await?;
    let runs = |pod: Option<&Pod>| pod.is_some_and(|pod| phase(pod) == "Running");
    lane.wait_for(&lane.mountpoint_pods(), &mountpoint_pod, "running", runs).await?;
    let pod = lane.unbound_pod(workload, &["data"], json!({})).await?;
    let entry = json!([{ "workloadPodUID": pod.uid(), "attachmentTime": "2026-11-21T02:00:01Z" }]);
    let attachment = write(lane, "data", json!({ mountpoint_pod: entry })).await?;
    lane.schedule(workload, 1).await?;
    Ok(attachment)
}

fn pod_name(lane: &Lane<'_>, name: &str) -> String {
    format!("mp-{}-{name}", lane.name)
}

fn mountpoint_pod_of(lane: &Lane<'_>, name: &str) -> Value {
    let here = json!({ "key": "metadata.name", "operator": "In", "values": [lane.node(1)] });
    let terms = json!({ "nodeSelectorTerms": [{ "matchFields": [here] }] });
    json!({
        "metadata": { "name": name, "labels": { s3::DRIVER_VERSION_LABEL: "2.1.1", s3::VOLUME_NAME: lane.volume_name("data") } },
        "spec": {
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms } },
            "tolerations": [{ "operator": "Exists" }],
            "restartPolicy": "OnFailure",
            "containers": [{
                "name": s3::CONTAINER, "image": "upstream",
                "resources": { "requests": { "cpu": "1m", "memory": "1Mi" }, "limits": { "memory": "1Mi" } },
                "securityContext": {
                    "runAsUser": 1000, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
                },
            }],
        },
    })
}

/// Writes an attachment as upstream's controller does.
pub async fn write(lane: &Lane<'_>, claim: &str, entries: Value) -> Result<MountpointS3PodAttachment, Failed> {
    let volume = lane.volume_name(claim);
    let spec = json!({
        "nodeName": lane.node(1), "persistentVolumeName": volume, "volumeID": format!("handle-{volume}"),
        "mountOptions": "", "workloadFSGroup": "", "mountpointS3PodAttachments": entries,
    });
    let metadata = json!({ "generateName": "s3pa-", "labels": { s3::DRIVER_VERSION_LABEL: "2.1.1" } });
    lane.create(None, json!({ "metadata": metadata, "spec": spec })).await
}

async fn gone(lane: &Lane<'_>, name: &str) -> Result<(), Failed> {
    lane.wait_for(&lane.mountpoint_pods(), &pod_name(lane, name), "gone", |pod| pod.is_none()).await.map(drop)
}
