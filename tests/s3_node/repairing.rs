//! What dies is mounted again, and containers that follow the mounts of their node see it.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use bulkhead::csi::v1::volume_usage::Unit;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::Api;
use kube::api::PostParams;
use libtest_mimic::Trial;
use serde_json::json;

use super::engine::{KEYS, PROCESS};
use super::publishing::read;
use super::world::{Shared, VOLUME, World, trial, uid};

pub fn trials(shared: &Arc<Shared>) -> Vec<Trial> {
    vec![
        trial(shared, "repairing::a_container_that_follows_sees_the_new_mount", a_container_that_follows_sees_it),
        trial(shared, "repairing::another_mountpoint_pod_takes_over", another_mountpoint_pod_takes_over),
        trial(shared, "repairing::after_a_restart_of_the_plugin", after_a_restart_of_the_plugin),
        trial(shared, "repairing::a_move_that_all_follow_warns_nobody", a_move_that_all_follow_warns_nobody),
        trial(shared, "repairing::deaths_leave_no_mounts_behind", deaths_leave_no_mounts_behind),
        trial(shared, "repairing::what_is_unpublished_is_not_mounted_again", what_is_unpublished_is_not_mounted_again),
    ]
}

/// A container: a mount namespace of its own with the volume in it.
struct Container {
    process: Child,
    data: PathBuf,
}

impl Container {
    fn start(world: &World, workload: &str, propagation: &str) -> Self {
        let data = world.folder.path().join(format!("data-{propagation}-{workload}"));
        fs::create_dir_all(&data).unwrap();
        let script = "mount --bind \"$0\" \"$1\" && echo ready && exec cat";
        let mut process = Command::new("unshare")
            .args(["--mount", "--propagation", propagation, "--kill-child", "--", "sh", "-c", script])
            .args([&world.target(workload), &data])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        process.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        Self { process, data }
    }

    /// What it reads.
    fn read(&self, name: &str) -> Option<String> {
        let space = format!("--mount=/proc/{}/ns/mnt", self.process.id());
        let read = Command::new("nsenter").arg(space).arg("--").arg("cat").arg(self.data.join(name)).output().unwrap();
        read.status.success().then(|| String::from_utf8(read.stdout).unwrap())
    }

    fn can_write(&self) -> bool {
        let space = format!("--mount=/proc/{}/ns/mnt", self.process.id());
        let path = self.data.join("written");
        let write = ["--", "sh", "-c", "echo text > \"$0\""];
        Command::new("nsenter").arg(space).args(write).arg(path).stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn server(target: &Path) -> Option<String> {
    fs::read_to_string(target.join(PROCESS)).ok()
}

/// The workload as a person wrote it, so that the Event can say who sees the new mount. Its containers are named by what they
/// do.
async fn in_the_api(world: &World, containers: &[(&str, &str)]) -> String {
    let mount = |propagation: &str| json!([{ "name": "data", "mountPath": "/data", "mountPropagation": propagation }]);
    let container =
        |(name, propagation): &(&str, &str)| json!({ "name": name, "image": "i", "volumeMounts": mount(propagation) });
    let pod = json!({
        "metadata": { "generateName": "web-" },
        "spec": {
            "nodeName": world.node,
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
            "containers": containers.iter().map(container).collect::<Vec<_>>(),
        },
    });
    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), "shop");
    let volumes: Api<PersistentVolume> = Api::all(world.admin.clone());
    let volume = json!({
        "metadata": { "name": VOLUME },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"],
            "claimRef": { "namespace": "shop", "name": "data" },
            "csi": { "driver": "s3.csi.scality.com", "volumeHandle": "h" },
        },
    });
    // Another test may have made it.
    let _ = volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await;
    let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    format!("{} {}", pod.metadata.name.unwrap(), pod.metadata.uid.unwrap())
}

async fn a_container_that_follows_sees_it(world: World) {
    let (plugin, mut pod) = (world.plugin().await, world.running_pod().await);
    let named = in_the_api(&world, &[("follows", "HostToContainer"), ("keeps", "None")]).await;
    let (name, writer) = named.split_once(' ').unwrap();
    let reader = uid();
    for workload in [writer, &reader] {
        world.make_folder(workload);
    }
    world.attach("", &[(&pod, &[writer, &reader])]).await;
    let named_call = || plugin.publish(writer).context("csi.storage.k8s.io/pod.name", name);
    named_call().call().await.unwrap();
    plugin.publish(&reader).with(|request| request.readonly = true).call().await.unwrap();
    let follows = Container::start(&world, writer, "slave");
    let only_reads = Container::start(&world, &reader, "slave");
    let keeps = Container::start(&world, writer, "private");
    let before = follows.read(PROCESS).unwrap();
    assert_eq!(keeps.read(PROCESS), Some(before.clone()));

    pod.kill();
    world.until("the mount is dead", || server(&world.target(writer)).is_none()).await;
    let stats = plugin.stats(&world.target(writer)).await.unwrap();
    assert!(stats.volume_condition.is_some_and(|condition| condition.abnormal));
    assert!(stats.usage.iter().any(|usage| usage.unit() == Unit::Bytes));
    pod.start();
    let begun = Instant::now();
    world
        .until("both are mounted again", || [writer, &reader].iter().all(|one| server(&world.target(one)).is_some()))
        .await;
    eprintln!("mounted again within {:?}", begun.elapsed());
    let after = follows.read(PROCESS).expect("the container sees the new mount");
    assert_ne!(after, before);
    assert!(follows.can_write());
    assert_eq!(only_reads.read(PROCESS), Some(after));
    assert!(!only_reads.can_write(), "what was read-only stays it");
    assert_eq!(keeps.read(PROCESS), None, "a container that does not follow keeps the dead one");
    let event = world.until_told(writer, "was dead and is mounted again").await;
    assert_eq!((event.reason.as_deref(), event.type_.as_deref()), (Some("MountDead"), Some("Warning")));
    let note = event.message.unwrap();
    assert!(note.contains("Seen by follows") && note.contains("Not seen by keeps"), "{note}");

    // The kubelet's own repetition finds nothing to do, and the end takes all layers away.
    let mounts = world.mounts();
    named_call().call().await.unwrap();
    assert_eq!(world.mounts(), mounts);
    drop((follows, only_reads, keeps));
    for workload in [writer, &reader] {
        plugin.unpublish(workload).await.unwrap();
        assert!(!world.target(workload).exists());
    }
}

async fn another_mountpoint_pod_takes_over(world: World) {
    let (plugin, mut first) = (world.plugin().await, world.running_pod().await);
    let workload = world.workload(&first).await;
    let call = || plugin.publish(&workload).secret("KEYONE", "secret/one");
    call().call().await.unwrap();
    let before = server(&world.target(&workload)).unwrap();
    // Evicted: the kubelet takes its folder away, and with it the credentials.
    first.kill();
    fs::remove_dir_all(&first.communication).unwrap();
    world.set_phase(&first, json!({ "phase": "Failed", "reason": "Evicted" })).await;
    let second = world.running_pod().await;
    world.attach("", &[(&second, &[&workload])]).await;
    world.until("it is mounted again", || server(&world.target(&workload)).is_some_and(|now| now != before)).await;
    assert!(read(&world.target(&workload), KEYS).contains("KEYONE"));
    world.until_told(&workload, "is mounted again").await;
    // What is left of the first goes with its pod.
    world.delete_pod(&first).await;
    plugin.unpublish(&workload).await.unwrap();
    let source = world.source(&first);
    world.until("the first source is gone", || !source.exists()).await;
}

async fn after_a_restart_of_the_plugin(world: World) {
    let (plugin, mut pod) = (world.plugin().await, world.running_pod().await);
    let workload = world.workload(&pod).await;
    plugin.publish(&workload).secret("KEYONE", "secret/one").call().await.unwrap();
    drop(plugin);
    pod.start();
    let plugin = world.plugin().await;
    world.until("it is mounted again", || server(&world.target(&workload)).is_some()).await;
    assert!(read(&world.target(&workload), KEYS).contains("KEYONE"), "the file in the pod's memory has them");
    plugin.unpublish(&workload).await.unwrap();
}

async fn a_move_that_all_follow_warns_nobody(world: World) {
    let (plugin, first, second) = (world.plugin().await, world.running_pod().await, world.running_pod().await);
    let named = in_the_api(&world, &[("follows", "HostToContainer")]).await;
    let (name, workload) = named.split_once(' ').unwrap();
    world.make_folder(workload);
    world.attach("", &[(&first, &[workload])]).await;
    plugin.publish(workload).context("csi.storage.k8s.io/pod.name", name).call().await.unwrap();
    world.evict(&first).await;
    world.attach("", &[(&second, &[workload])]).await;
    let event = world.until_told(workload, "is served by another Mountpoint Pod now").await;
    assert_eq!((event.reason.as_deref(), event.type_.as_deref()), (Some("MountMoved"), Some("Normal")), "{event:?}");
}

async fn deaths_leave_no_mounts_behind(world: World) {
    let (plugin, mut pod) = (world.plugin().await, world.running_pod().await);
    let workload = world.workload(&pod).await;
    plugin.publish(&workload).call().await.unwrap();
    let target = world.target(&workload);
    let follows = Container::start(&world, &workload, "slave");
    for death in 1..=4 {
        let before = server(&target);
        pod.start();
        world.until("it is mounted again", || server(&target).is_some_and(|now| Some(now) != before)).await;
        assert_eq!(follows.read(PROCESS), server(&target), "death {death}");
        let layers = world.mounts().iter().filter(|mount| Path::new(&mount.path) == target).count();
        assert!(layers <= 2, "{layers} mounts after death {death}");
    }
    drop(follows);
    plugin.unpublish(&workload).await.unwrap();
    assert!(!target.exists());
}

/// The workload ends while its dead mount is about to be made anew.
async fn what_is_unpublished_is_not_mounted_again(world: World) {
    let (plugin, mut pod) = (world.plugin().await, world.running_pod().await);
    let kept = world.kubelet.join("plugins/s3.csi.scality.com/publications");
    loop {
        let workload = world.workload(&pod).await;
        plugin.publish(&workload).call().await.unwrap();
        let target = world.target(&workload);
        // It cannot be unmounted at once, and so the repair comes while it is being unpublished.
        let in_use = fs::File::open(&target).unwrap();
        let said = |words: &str| plugin.log().matches(words).count();
        let ended = || said("unpublished meanwhile") + said("not mounted again yet");
        let before = (said("to be mounted again"), ended());
        let unpublished = tokio::spawn({
            let (calls, request) = (plugin.calls.clone(), plugin.unpublish_request(&workload));
            async move { calls.clone().node_unpublish_volume(request).await }
        });
        pod.start();
        world.until("it is to be mounted again", || said("to be mounted again") > before.0).await;
        drop(in_use);
        if unpublished.await.unwrap().is_err() {
            // Too late on a machine that is busy: the unmount was given up before, and the mount made anew rightly.
            plugin.unpublish(&workload).await.unwrap();
            continue;
        }
        world.until("the repair has given up", || ended() > before.1).await;
        assert!(!target.exists());
        assert_eq!(fs::read_dir(&kept).unwrap().count(), 0);
        return;
    }
}
