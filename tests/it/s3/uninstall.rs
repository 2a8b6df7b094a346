//! `bulkhead-controller release-s3`: the objects go to another controller, the mounts stay as they are.

use std::path::Path;
use std::process::{Output, Stdio};

use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use bulkhead::api::s3;
use bulkhead_testbed::Identity;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use libtest_mimic::Failed;
use serde_json::json;
use tokio::process::{Child, Command};

use super::lane::Lane;
use super::world::{SOON, World};

const ALL: [(&str, &[&str]); 2] = [("data", &["a", "b"]), ("other", &["c"])];

pub async fn releases_what_it_guards_and_changes_nothing_else() -> Result<(), Failed> {
    let world = World::start(&[]).await?;
    let controller = world.cluster.controller("bulkhead-controller-0")?;
    let lane = Lane::new(&world, "released", 2).await?;
    for (claim, workloads) in ALL {
        lane.bound(claim, json!({})).await?;
        for workload in workloads {
            lane.pod(workload, 1, &[claim], json!({})).await?;
        }
        lane.shared(claim, &[workloads]).await?;
    }
    let before = state(&lane).await?;
    assert!(before.0.iter().all(|attachment| attachment.finalizers() == [s3::FINALIZER]));

    let kubeconfig = world.cluster.testbed.kubeconfig(&Identity::OperatorController)?;
    let mut waits = release(&kubeconfig)?;
    // The controller leads and goes on with its work.
    lane.barrier("while-it-leads", 2).await?;
    lane.delete(&["while-it-leads"]).await?;
    lane.clean("while-it-leads").await?;
    assert!(waits.try_wait()?.is_none(), "it must wait until no controller runs");
    assert_eq!(state(&lane).await?.0.len(), before.0.len());
    assert!(state(&lane).await?.0.iter().all(|attachment| attachment.finalizers() == [s3::FINALIZER]));

    controller.stop().await;
    said(waits, "2 MountpointS3PodAttachments released").await?;
    let after = state(&lane).await?;
    assert!(after.0.iter().all(|attachment| attachment.finalizers().is_empty()));
    let specs = |attachments: &[MountpointS3PodAttachment]| {
        attachments.iter().map(|it| (it.uid(), it.spec.clone())).collect::<Vec<_>>()
    };
    assert_eq!(specs(&after.0), specs(&before.0));
    assert_eq!(after.1, before.1, "Mountpoint Pods");
    for (claim, workloads) in ALL {
        lane.shared(claim, &[workloads]).await?;
    }
    said(release(&kubeconfig)?, "0 MountpointS3PodAttachments released").await?;

    // Nothing holds them now, and a controller that comes back takes them up where they were.
    let name = lane.attachment("other").await?.name_any();
    lane.attachments().delete(&name, &DeleteParams::default()).await?;
    lane.wait_for(&lane.attachments(), &name, "gone", |attachment| attachment.is_none()).await?;
    let again = world.cluster.controller("bulkhead-controller-0")?;
    lane.wait_for(&lane.attachments(), &name, "made anew", |attachment| attachment.is_some()).await?;
    for (claim, workloads) in ALL {
        lane.shared(claim, &[workloads]).await?;
    }
    assert_eq!(state(&lane).await?.1, before.1, "the same Mountpoint Pods");
    for (claim, workloads) in ALL {
        lane.delete(workloads).await?;
        lane.clean(claim).await?;
    }
    drop(again);
    Ok(())
}

/// Attachments; uid and resourceVersion of Mountpoint Pods.
async fn state(lane: &Lane<'_>) -> Result<(Vec<MountpointS3PodAttachment>, Vec<(String, Option<String>)>), Failed> {
    let attachments = lane.attachments().list(&ListParams::default()).await?.items;
    let pods = lane.mountpoint_pods().list(&ListParams::default()).await?.items;
    let version = |pod: &Pod| (pod.name_any(), pod.resource_version());
    Ok((attachments, pods.iter().map(version).collect()))
}

fn release(kubeconfig: &Path) -> std::io::Result<Child> {
    Command::new(env!("CARGO_BIN_EXE_bulkhead-controller"))
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["--identity", "uninstall", "--listen", "127.0.0.1:0", "release-s3"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

async fn said(program: Child, wanted: &str) -> Result<(), Failed> {
    let Output { status, stdout, stderr } = tokio::time::timeout(SOON, program.wait_with_output()).await??;
    let stdout = String::from_utf8_lossy(&stdout);
    assert!(status.success() && stdout.contains(wanted), "{stdout} {}", String::from_utf8_lossy(&stderr));
    Ok(())
}
