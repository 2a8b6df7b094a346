//! Sources go when nobody uses them any more, whatever happened before.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt, stream};
use libtest_mimic::Trial;

use super::engine::ARGUMENTS;
use super::publishing::read;
use super::world::{MountpointPod, Shared, World, trial, uid};

/// Mountpoint Pods that end together.
const TOGETHER: usize = 100;
/// So many of them start at once.
const AT_ONCE: usize = 10;

pub fn trials(shared: &Arc<Shared>) -> Vec<Trial> {
    vec![
        trial(shared, "unmounting::the_source_goes_with_the_last", the_source_goes_with_the_last),
        trial(shared, "unmounting::what_is_found_at_the_start", what_is_found_at_the_start),
        trial(shared, "unmounting::sources_of_pods_that_are_gone", sources_of_pods_that_are_gone),
        trial(shared, "unmounting::a_pod_that_never_mounted_ends", a_pod_that_never_mounted_ends),
        trial(shared, "unmounting::without_the_pods_folder", without_the_pods_folder),
        trial(shared, "unmounting::many_end_together", many_end_together),
        trial(shared, "unmounting::a_drained_pod_ends_when_nobody_is_left", a_drained_pod_ends),
    ]
}

async fn until_gone(world: &World, pod: &MountpointPod) {
    let source = world.source(pod);
    world.until("the source is gone", || !world.is_mounted(&source) && !source.exists()).await;
}

async fn the_source_goes_with_the_last(world: World) {
    let (plugin, mut pod) = (world.plugin().await, world.running_pod().await);
    let (one, two) = (uid(), uid());
    for workload in [&one, &two] {
        world.make_folder(workload);
    }
    world.attach("", &[(&pod, &[&one, &two])]).await;
    for workload in [&one, &two] {
        plugin.publish(workload).call().await.unwrap();
    }
    // As upstream's controller does it: while the workloads still work.
    world.needs_unmount(&pod).await;
    let marker = pod.communication.join("mount.exit");
    world.until("the mounter is told", || marker.exists()).await;
    fs::write(world.target(&one).join("a"), "still works").unwrap();
    plugin.unpublish(&one).await.unwrap();
    assert_eq!(read(&world.target(&two), "a"), "still works");
    plugin.unpublish(&two).await.unwrap();
    let begun = Instant::now();
    until_gone(&world, &pod).await;
    // 1 s on a machine of its own; upstream looks every 5 s, and gives up after 30.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(pod.exit_code().await, Some(0), "the pod succeeded");
}

async fn what_is_found_at_the_start(world: World) {
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    let workload = world.workload(&pod).await;
    plugin.publish(&workload).call().await.unwrap();
    drop(plugin);
    world.needs_unmount(&pod).await;
    // With live mounts: what the plugin holds itself must not keep them.
    let plugin = world.plugin().await;
    let marker = pod.communication.join("mount.exit");
    world.until("the mounter is told", || marker.exists()).await;
    read(&world.target(&workload), ARGUMENTS);
    plugin.unpublish(&workload).await.unwrap();
    until_gone(&world, &pod).await;
}

async fn sources_of_pods_that_are_gone(world: World) {
    let (plugin, used, unused) = (world.plugin().await, world.running_pod().await, world.running_pod().await);
    let (one, two) = (uid(), uid());
    for workload in [&one, &two] {
        world.make_folder(workload);
    }
    world.attach("", &[(&used, &[&one]), (&unused, &[&two])]).await;
    for workload in [&one, &two] {
        plugin.publish(workload).call().await.unwrap();
    }
    plugin.unpublish(&two).await.unwrap();
    drop(plugin);
    world.delete_pod(&used).await;
    world.delete_pod(&unused).await;
    fs::create_dir_all(world.kubelet.join("plugins/s3.csi.scality.com/mnt/mp-of-long-ago")).unwrap();
    let plugin = world.plugin().await;
    until_gone(&world, &unused).await;
    world
        .until("an empty folder is gone", || {
            !world.kubelet.join("plugins/s3.csi.scality.com/mnt/mp-of-long-ago").exists()
        })
        .await;
    assert!(world.is_mounted(&world.source(&used)), "a workload has it");
    plugin.unpublish(&one).await.unwrap();
    until_gone(&world, &used).await;
}

async fn a_pod_that_never_mounted_ends(world: World) {
    let _plugin = world.plugin().await;
    let mut pod = world.running_pod().await;
    world.needs_unmount(&pod).await;
    assert_eq!(pod.exit_code().await, Some(0));
}

async fn without_the_pods_folder(world: World) {
    let (plugin, mut pod) = (world.plugin().await, world.running_pod().await);
    let workload = world.workload(&pod).await;
    plugin.publish(&workload).call().await.unwrap();
    plugin.unpublish(&workload).await.unwrap();
    pod.kill();
    fs::remove_dir_all(&pod.communication).unwrap();
    world.needs_unmount(&pod).await;
    until_gone(&world, &pod).await;
}

async fn many_end_together(world: World) {
    let plugin = world.plugin().await;
    let published = (0..TOGETHER).map(async |place| {
        let (pod, workload) = (world.running_pod().await, uid());
        world.make_folder(&workload);
        world.attach(&place.to_string(), &[(&pod, &[&workload])]).await;
        plugin.publish(&workload).call().await.unwrap();
        (pod, workload)
    });
    let pods: Vec<_> = stream::iter(published).buffer_unordered(AT_ONCE).collect().await;
    // One that stays in use holds up no other.
    let (last, rest) = pods.split_last().unwrap();
    join_all(pods.iter().map(|(pod, _)| world.needs_unmount(pod))).await;
    let begun = Instant::now();
    join_all(rest.iter().map(async |(_, workload)| plugin.unpublish(workload).await.unwrap())).await;
    join_all(rest.iter().map(|(pod, _)| until_gone(&world, pod))).await;
    // 1 s on a machine of its own; upstream takes 5 s for each, one after the other.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert!(world.is_mounted(&world.source(&last.0)));
    plugin.unpublish(&last.1).await.unwrap();
    until_gone(&world, &last.0).await;
}

async fn a_drained_pod_ends(world: World) {
    let (plugin, mut drained) = (world.plugin().await, world.running_pod().await);
    let workload = world.workload(&drained).await;
    plugin.publish(&workload).call().await.unwrap();
    fs::write(world.target(&workload).join("a"), "text").unwrap();
    world.evict(&drained).await;
    // It serves until the controller has given its workload to another, and then until that workload is gone.
    assert_eq!(read(&world.target(&workload), "a"), "text");
    let next = world.running_pod().await;
    world.attach("", &[(&next, &[&workload])]).await;
    world.until("the other serves", || world.is_mounted(&world.source(&next))).await;
    world.until("it is on top", || !world.target(&workload).join("a").exists()).await;
    assert!(world.is_mounted(&world.source(&drained)), "containers that do not follow still have it");
    plugin.unpublish(&workload).await.unwrap();
    until_gone(&world, &drained).await;
    assert_eq!(drained.exit_code().await, Some(0));
    assert!(world.is_mounted(&world.source(&next)));
}
