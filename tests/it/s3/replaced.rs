//! Mountpoint Pods that end while workloads need them.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::{Lane, phase};
use super::world::{SOON, World};

/// How it ends.
#[derive(Clone, Copy, Debug)]
pub enum End {
    Failed,
    Evicted,
    /// Its mounter says that all is well.
    Succeeded,
    /// By hand: it goes when nobody uses it.
    Deleted,
    /// By hand, without waiting.
    Gone,
    /// Before the workload has mounted anything.
    FailedEarly,
}

impl End {
    pub const ALL: [Self; 6] =
        [Self::Failed, Self::Evicted, Self::Succeeded, Self::Deleted, Self::Gone, Self::FailedEarly];
}

pub async fn one_that_ends(world: &World, end: End) -> Result<(), Failed> {
    let lane = Lane::new(world, &format!("replaced-{end:?}").to_lowercase(), 1).await?;
    lane.bound("data", json!({})).await?;
    if matches!(end, End::FailedEarly) {
        world.nodes.hold(&lane.node(1));
    }
    for pod in ["a", "b"] {
        lane.pod(pod, 1, &["data"], json!({})).await?;
    }
    let old = match end {
        End::FailedEarly => first_of(&lane).await?,
        _ => {
            let pods = lane.shared("data", &[&["a", "b"]]).await?;
            lane.mountpoint_pods().get(&pods[0]).await?
        }
    };
    ends(&lane, &old.name_any(), end).await?;
    lane.wait_for(&lane.mountpoint_pods(), &old.name_any(), "replaced", |pod| {
        pod.is_none_or(|pod| pod.uid() != old.uid() || pod.metadata.deletion_timestamp.is_some() || is_over(pod))
    })
    .await?;
    world.nodes.release(&lane.node(1));
    let new = lane.shared("data", &[&["a", "b"]]).await?;
    assert_ne!(lane.mountpoint_pods().get(&new[0]).await?.uid(), old.uid());
    if !matches!(end, End::Gone) {
        assert_ne!(new[0], old.name_any());
        let note = lane.told("a", "MountpointPodReplaced").await?;
        assert!(note.contains(&old.name_any()) && note.contains(&new[0]), "{note}");
        lane.told("b", "MountpointPodReplaced").await?;
    }
    // The old one is not left behind.
    let gone = |pod: Option<&Pod>| pod.is_none_or(|pod| pod.uid() != old.uid());
    lane.wait_for(&lane.mountpoint_pods(), &old.name_any(), "gone", gone).await?;

    // One that comes now joins the others.
    lane.pod("c", 1, &["data"], json!({})).await?;
    assert_eq!(lane.shared("data", &[&["a", "b", "c"]]).await?, new);
    lane.delete(&["a", "b", "c"]).await?;
    lane.clean("data").await
}

fn is_over(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

async fn first_of(lane: &Lane<'_>) -> Result<Pod, Failed> {
    let look = async || {
        let attachments = lane.attachments_of("data").await?;
        let all = attachments.iter().map(|it| it.spec.workloads().len()).sum::<usize>() == 2;
        let pods = lane.mountpoint_pods_of("data").await?;
        let bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|it| it.node_name.is_some());
        Ok(match pods.into_iter().find(bound) {
            Some(pod) if all => Ok(pod),
            other => Err(format!("{attachments:?} {other:?}")),
        })
    };
    Ok(lane.world.cluster.wait("a Mountpoint Pod is made for both", SOON, look).await?)
}

async fn ends(lane: &Lane<'_>, name: &str, end: End) -> Result<(), Failed> {
    let pods = lane.mountpoint_pods();
    let status = match end {
        End::Failed | End::FailedEarly => json!({ "phase": "Failed" }),
        End::Evicted => json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on memory." }),
        End::Succeeded => json!({ "phase": "Succeeded" }),
        End::Deleted => return Ok(pods.delete(name, &DeleteParams::default()).await.map(drop)?),
        End::Gone => return Ok(pods.delete(name, &DeleteParams::default().grace_period(0)).await.map(drop)?),
    };
    lane.status(&pods, name, status).await
}
