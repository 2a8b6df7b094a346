//! Mounts of version 1, side by side with ours.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;
use rustix::mount::MountFlags;

use super::engine::KEYS;
use super::plugin::Plugin;
use super::publishing::read;
use super::world::{Shared, World, trial, uid};

pub fn trials(shared: &Arc<Shared>) -> Vec<Trial> {
    vec![
        trial(shared, "legacy::systemd_mounts_are_told_from_ours_by_their_references", systemd_mounts_are_told),
        trial(shared, "legacy::keys_of_a_secret_are_in_no_file_of_version_1", keys_of_a_secret_are_in_no_file),
    ]
}

/// How many files with keys there are on the host.
fn keys_on(host: &Path) -> usize {
    let files = fs::read_dir(host).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    files.filter(|name| name.contains("s3-csi-")).count()
}

/// Mounts as version 1 does: mount-s3 right at the target. Nobody has to answer for what is tested here.
fn mount_as_systemd(target: &Path) -> fs::File {
    fs::create_dir_all(target).unwrap();
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    rustix::mount::mount("mountpoint-s3", target, "fuse", MountFlags::empty(), options.as_c_str()).unwrap();
    device
}

async fn systemd_mounts_are_told(world: World) {
    let pod = world.running_pod().await;
    let (old, one, two) = (uid(), uid(), uid());
    for workload in [&old, &one, &two] {
        world.make_folder(workload);
    }
    let _served = mount_as_systemd(&world.target(&old));
    let host = world.kubelet.join("plugins/s3.csi.scality.com");
    let kept = host.join(format!("{old}-models~2026-s3-csi-credentials"));
    fs::create_dir_all(&host).unwrap();
    fs::write(&kept, "[old]\n").unwrap();
    let plugin = Plugin::start(&world, &[("AWS_ACCESS_KEY_ID", "ROTATED")]).await;

    // n = 0: version 1. Its file is written again, and nothing is mounted.
    let before = world.mounts();
    plugin.publish(&old).call().await.unwrap();
    assert_eq!(world.mounts(), before);
    assert!(fs::read_to_string(&kept).unwrap().contains("ROTATED"));

    // n = 1 and n = 2: ours. Nothing of theirs is on the host.
    world.attach("", &[(&pod, &[&one, &two])]).await;
    let of_old = keys_on(&host);
    for workload in [&one, &two] {
        plugin.publish(workload).call().await.unwrap();
        plugin.publish(&one).call().await.unwrap();
        assert!(read(&world.target(workload), KEYS).contains("ROTATED"));
        assert_eq!(keys_on(&host), of_old);
    }
    plugin.publish(&old).call().await.unwrap();

    plugin.unpublish(&old).await.unwrap();
    assert!(!world.target(&old).exists() && !kept.exists());
    assert_eq!(keys_on(&host), 0);
    // The next pod of that workload is served by a Mountpoint Pod.
    let next = world.workload(&pod).await;
    plugin.publish(&next).call().await.unwrap();
    assert!(read(&world.target(&next), KEYS).contains("ROTATED"));
}

/// It gave them to mount-s3 in its environment. None are put where nobody reads them; the workload has new ones with its next
/// pod.
async fn keys_of_a_secret_are_in_no_file(world: World) {
    let old = uid();
    world.make_folder(&old);
    let _served = mount_as_systemd(&world.target(&old));
    let plugin = world.plugin().await;
    let before = world.mounts();
    plugin.publish(&old).secret("ROTATED", "secret").call().await.unwrap();
    assert_eq!(world.mounts(), before);
    assert_eq!(keys_on(&world.kubelet.join("plugins/s3.csi.scality.com")), 0);

    plugin.unpublish(&old).await.unwrap();
    let pod = world.running_pod().await;
    let next = world.workload(&pod).await;
    plugin.publish(&next).secret("ROTATED", "secret").call().await.unwrap();
    assert!(read(&world.target(&next), KEYS).contains("ROTATED"));
}
