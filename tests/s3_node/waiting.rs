//! What has to happen before a volume can be mounted, and what is said when it does not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use serde_json::json;
use tonic::Code;

use super::engine::{ARGUMENTS, NO_BUCKET, PROCESS, SILENT};
use super::plugin::Plugin;
use super::publishing::read;
use super::world::{HANDLE, MountpointPod, NAMESPACE, PATIENCE, Shared, World, is_wide, trial, uid};

/// Workloads whose turn is measured.
const MEASURED: usize = 60;

pub fn trials(shared: &Arc<Shared>) -> Vec<Trial> {
    vec![
        trial(shared, "waiting::the_s3pa_and_the_pod_may_come_late", both_come_late),
        trial(shared, "waiting::an_s3pa_wakes_its_workload_at_once", an_s3pa_wakes_its_workload),
        trial(shared, "waiting::the_scheduler_has_the_word", the_scheduler_has_the_word),
        trial(shared, "waiting::mount_s3_has_the_word", mount_s3_has_the_word),
        trial(shared, "waiting::mount_s3_that_never_answers", mount_s3_that_never_answers),
        trial(shared, "waiting::words_of_the_mount_s3_before_are_not_believed", words_of_the_one_before),
        trial(shared, "waiting::a_workload_that_ends_waits_for_no_mounter", a_workload_that_ends_waits_for_no_mounter),
        trial(shared, "waiting::all_who_wait_share_one_failure", all_who_wait_share_one_failure),
        trial(shared, "waiting::calls_for_one_source_mount_it_once", calls_for_one_source),
    ]
}

async fn both_come_late(world: World) {
    let plugin = world.plugin().await;
    let workload = uid();
    world.make_folder(&workload);
    let call = tokio::spawn(plugin.publish(&workload).call());
    let mut pod = world.pending_pod("mp-late").await;
    world.attach("", &[(&pod, &[&workload])]).await;
    // The mounter listens only when the pod is said to run already.
    std::fs::create_dir_all(&pod.communication).unwrap();
    world.set_phase(&pod, json!({ "phase": "Running" })).await;
    pod.start();
    call.await.unwrap().unwrap();
    read(&world.target(&workload), ARGUMENTS);
}

async fn an_s3pa_wakes_its_workload(world: World) {
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    let first = world.workload(&pod).await;
    plugin.publish(&first).call().await.unwrap();
    let mut workloads = vec![first];
    let mut took = Vec::new();
    for _ in 0..MEASURED {
        let workload = uid();
        world.make_folder(&workload);
        let mut call = tokio::spawn(plugin.publish(&workload).call());
        // Until it waits.
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut call).await.is_err());
        workloads.push(workload);
        let all: Vec<_> = workloads.iter().map(String::as_str).collect();
        world.attach("", &[(&pod, &all)]).await;
        let begun = Instant::now();
        call.await.unwrap().unwrap();
        took.push(begun.elapsed());
    }
    took.sort();
    eprintln!("from the s3pa to the mount: median {:?}, p99 {:?}", took[took.len() / 2], took[took.len() - 1]);
    assert!(took[took.len() / 2] < Duration::from_secs(1), "{took:?}");
    if is_wide() {
        assert!(took[took.len() - 1] < Duration::from_millis(50), "{took:?}");
    }
}

async fn the_scheduler_has_the_word(world: World) {
    let plugin = Plugin::start_with(&world, &["--pod-timeout=1s"]).await;
    let workload = uid();
    world.make_folder(&workload);
    let lonely = plugin.publish(&workload).call().await.unwrap_err();
    assert!(lonely.code() == Code::Unavailable && lonely.message().contains("bulkhead-controller"), "{lonely}");

    let pod = world.pending_pod("mp-waits").await;
    world.attach("", &[(&pod, &[&workload])]).await;
    let full = "0/1 nodes are available: 1 Too many pods.";
    let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": full });
    world.set_phase(&pod, json!({ "phase": "Pending", "conditions": [condition] })).await;
    let full_node = plugin.publish(&workload).call().await.unwrap_err();
    assert!(
        full_node.message().contains(full) && full_node.message().contains(&format!("{NAMESPACE}/mp-waits")),
        "{full_node}"
    );

    world
        .set_phase(
            &pod,
            json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory." }),
        )
        .await;
    let evicted = plugin.publish(&workload).call().await.unwrap_err();
    assert!(evicted.message().contains("low on resource: memory"), "{evicted}");

    world.delete_pod(&pod).await;
    let gone = plugin.publish(&workload).call().await.unwrap_err();
    assert!(gone.message().contains("does not exist"), "{gone}");
    assert!(!world.target(&workload).exists(), "nothing is left behind");
}

async fn mount_s3_has_the_word(world: World) {
    let (plugin, mut pod) = (world.plugin().await, world.running_pod().await);
    let workload = world.workload(&pod).await;
    let error = plugin.publish(&workload).bucket(NO_BUCKET).call().await.unwrap_err();
    assert!(error.code() == Code::Internal && error.message().contains("The bucket does not exist"), "{error}");
    let (log, call) = (plugin.log(), format!("method=\"NodePublishVolume\" volume=\"{HANDLE}\" pod=\"pod shop/web\""));
    assert!(log.lines().any(|line| line.contains("not published") && line.contains(&call)), "{log}");
    assert!(!world.target(&workload).exists() && !world.source(&pod).exists());
    assert_eq!(world.mounts(), []);
    // The kubelet starts the container again; the next call gets through.
    pod.exit_code().await;
    pod.start();
    plugin.publish(&workload).call().await.unwrap();
    read(&world.target(&workload), ARGUMENTS);
}

async fn mount_s3_that_never_answers(world: World) {
    let plugin = Plugin::start_with(&world, &["--mount-timeout=2s"]).await;
    let pod = world.running_pod().await;
    let workload = world.workload(&pod).await;
    let error = plugin.publish(&workload).bucket(SILENT).call().await.unwrap_err();
    assert!(error.code() == Code::Unavailable && error.message().contains("does not answer"), "{error}");
    assert_eq!(world.mounts(), []);
}

/// A Mountpoint Pod that runs without anybody who listens: its container begins anew again and again.
async fn pod_in_a_crash_loop(world: &World) -> MountpointPod {
    let mut pod = world.running_pod().await;
    pod.kill();
    let _ = std::fs::remove_file(pod.communication.join("mount.sock"));
    pod
}

async fn until_its_mounter_is_called(world: &World, pod: &MountpointPod) {
    // Right before that, the keys are written.
    world.until("an attempt has begun", || pod.communication.join("credentials").exists()).await;
}

async fn words_of_the_one_before(world: World) {
    let (plugin, mut pod) = (world.plugin().await, pod_in_a_crash_loop(&world).await);
    let workload = world.workload(&pod).await;
    let call = tokio::spawn(plugin.publish(&workload).call());
    until_its_mounter_is_called(&world, &pod).await;
    // The mounter before has waited for its mount-s3 until now.
    std::fs::write(pod.communication.join("mount.err"), "Error: of the one before").unwrap();
    pod.start();
    call.await.unwrap().unwrap();
    read(&world.target(&workload), ARGUMENTS);
}

async fn a_workload_that_ends_waits_for_no_mounter(world: World) {
    let plugin = Plugin::start_with(&world, &["--mount-timeout=5m"]).await;
    let pod = pod_in_a_crash_loop(&world).await;
    let (first, second) = (uid(), uid());
    for workload in [&first, &second] {
        world.make_folder(workload);
    }
    world.attach("", &[(&pod, &[&first, &second])]).await;
    let begins = tokio::spawn(plugin.publish(&first).call());
    until_its_mounter_is_called(&world, &pod).await;
    let waits = tokio::spawn(plugin.publish(&second).call());
    for (workload, call) in [(second, waits), (first, begins)] {
        let end = Instant::now() + PATIENCE;
        // The first time the call may not have come that far yet.
        while !call.is_finished() {
            plugin.unpublish(&workload).await.unwrap();
            assert!(Instant::now() < end, "the workload waits for a mounter that does not come");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let given_up = call.await.unwrap().unwrap_err();
        assert_eq!(given_up.code(), Code::Aborted, "{given_up}");
        assert!(!world.target(&workload).exists());
    }
}

async fn all_who_wait_share_one_failure(world: World) {
    const TIMEOUT: Duration = Duration::from_secs(5);
    let plugin = Plugin::start_with(&world, &["--mount-timeout=5s"]).await;
    let pod = pod_in_a_crash_loop(&world).await;
    let workloads: Vec<_> = (0..20).map(|_| uid()).collect();
    for workload in &workloads {
        world.make_folder(workload);
    }
    let uids: Vec<_> = workloads.iter().map(String::as_str).collect();
    world.attach("", &[(&pod, &uids)]).await;
    let begun = Instant::now();
    let calls: Vec<_> = workloads.iter().map(|workload| tokio::spawn(plugin.publish(workload).call())).collect();
    for call in calls {
        let failed = call.await.unwrap().unwrap_err();
        assert!(failed.message().contains("no mounter listened"), "{failed}");
    }
    // Those that came too late for the first attempt have the second.
    assert!(begun.elapsed() < TIMEOUT * 5, "{:?}", begun.elapsed());
}

async fn calls_for_one_source(world: World) {
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    let workloads: Vec<_> = (0..20).map(|_| uid()).collect();
    for workload in &workloads {
        world.make_folder(workload);
    }
    let uids: Vec<_> = workloads.iter().map(String::as_str).collect();
    world.attach("", &[(&pod, &uids)]).await;
    let before = plugin.descriptors();
    let calls: Vec<_> = workloads.iter().map(|workload| tokio::spawn(plugin.publish(workload).call())).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let servers: Vec<_> = workloads.iter().map(|workload| read(&world.target(workload), PROCESS)).collect();
    assert!(servers.iter().all(|server| *server == servers[0]), "{servers:?}");
    assert!(world.mounts().iter().all(|mount| mount.device == world.mounts()[0].device));
    // Whoever asks again and again leaves nothing open.
    for _ in 0..10 {
        for workload in &workloads {
            plugin.publish(workload).call().await.unwrap();
        }
    }
    for workload in &workloads {
        plugin.unpublish(workload).await.unwrap();
    }
    assert!(plugin.descriptors() <= before + 3, "{before} descriptors before, {} now", plugin.descriptors());
    let kept = std::fs::read_dir(world.kubelet.join("plugins/s3.csi.scality.com/publications")).unwrap().count();
    assert_eq!(kept, 0);
}
