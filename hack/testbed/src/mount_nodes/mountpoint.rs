//! The life of a Mountpoint Pod: it serves until it is told to unmount, and ends when nothing is mounted on it.

use bulkhead::api::s3;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::played::Played;
use super::views::until;
use crate::lock::lock;
use crate::nodes::status::{self, Stage};

pub(super) async fn run(mountpoint: Played) {
    tokio::select! {
        biased;
        () = mountpoint.must_end() => {}
        () = start(&mountpoint) => {}
    }
    mountpoint.wait_for(|pod| pod.is_none_or(|pod| status::must_end(pod) || needs_unmount(pod))).await;
    if !mountpoint.is_final() {
        tokio::select! {
            () = mountpoint.wait_for(|pod| pod.is_none_or(status::is_final)) => {}
            () = unmounted(&mountpoint) => mountpoint.report(Stage::Ended).await,
        }
    }
    mountpoint.wait_for(|pod| pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())).await;
    if mountpoint.pod().is_some() {
        mountpoint.delete().await;
    }
}

async fn start(mountpoint: &Played) {
    mountpoint.state.let_go(&mountpoint.node).await;
    mountpoint.report(Stage::Running).await;
}

/// It ignores the signal to end until then.
async fn unmounted(mountpoint: &Played) {
    let users = lock(&mountpoint.state.mounts).users(&mountpoint.name);
    until(users, |users| *users == 0).await;
    mountpoint.state.let_go(&mountpoint.node).await;
}

fn needs_unmount(pod: &Pod) -> bool {
    pod.annotations().get(s3::NEEDS_UNMOUNT).is_some_and(|value| value == "true")
}

/// The node service mounts on it.
pub(super) fn takes_mounts(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && !needs_unmount(pod)
}
