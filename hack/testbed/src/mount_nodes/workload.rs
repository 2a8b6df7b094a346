//! The life of a workload: its volumes are mounted, it runs, it ends, they are unmounted.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::played::Played;
use super::views::until;
use super::{ENDS_AFTER, mountpoint};
use crate::lock::lock;
use crate::nodes::status::Stage;

pub(super) async fn run(workload: Played) {
    tokio::select! {
        biased;
        () = workload.must_end() => {}
        () = live(&workload) => {}
    }
    end(&workload).await;
    lock(&workload.state.mounts).unmount_all(&workload.uid);
    workload.state.forget(&workload.uid);
    workload.wait_for(|pod| pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())).await;
    if workload.pod().is_some() {
        workload.delete().await;
    }
}

/// Never returns.
async fn live(workload: &Played) {
    let Some(pod) = workload.pod() else { return std::future::pending().await };
    workload.state.let_go(&workload.node).await;
    let volumes = workload.state.claims.volumes_of(&pod).await;
    for volume in &volumes {
        mount(workload, volume).await;
    }
    workload.state.let_go(&workload.node).await;
    workload.report(Stage::Running).await;
    let follow = volumes.iter().map(|volume| follow(workload, volume));
    futures::future::join_all(follow).await;
    std::future::pending().await
}

/// Mounts it where it is assigned to, as soon as that runs.
async fn mount(workload: &Played, volume: &str) {
    let assigned = workload.state.assignments(&workload.uid);
    loop {
        until(assigned.clone(), |assigned| assigned.contains_key(volume)).await;
        let Some(mountpoint_pod) = assigned.borrow().get(volume).cloned() else { continue };
        let view = workload.state.mountpoint_pod(&mountpoint_pod);
        tokio::select! {
            () = until(view, |pod| pod.as_deref().is_some_and(mountpoint::takes_mounts)) => {
                return lock(&workload.state.mounts).mount(&workload.uid, volume, &mountpoint_pod);
            }
            () = until(assigned.clone(), |assigned| assigned.get(volume) != Some(&mountpoint_pod)) => {}
        }
    }
}

/// When it is assigned to another Mountpoint Pod, it is mounted there.
async fn follow(workload: &Played, volume: &str) {
    let assigned = workload.state.assignments(&workload.uid);
    loop {
        let mounted = lock(&workload.state.mounts).of_workload(&workload.uid).remove(volume);
        until(assigned.clone(), |assigned| assigned.get(volume) != mounted.as_ref()).await;
        mount(workload, volume).await;
    }
}

/// Containers end when they were asked to, and that takes as long as the workload wants.
async fn end(workload: &Played) {
    let Some(pod) = workload.pod().filter(|_| !workload.is_final()) else { return };
    tokio::select! {
        () = workload.wait_for(|pod| pod.is_none()) => return,
        () = tokio::time::sleep(ends_after(&pod)) => {}
    }
    tokio::select! {
        () = workload.wait_for(|pod| pod.is_none()) => return,
        () = workload.state.let_go(&workload.node) => {}
    }
    workload.report(Stage::Ended).await;
}

fn ends_after(pod: &Pod) -> Duration {
    let said = pod.annotations().get(ENDS_AFTER).and_then(|said| said.parse().ok());
    Duration::from_millis(said.unwrap_or(0))
}
