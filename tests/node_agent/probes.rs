//! Probes against the running kernel: what is done to a volume is seen, and that it is whole again too.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bulkhead::api::hysteresis::Sample;
use bulkhead::api::volume::Check;
use bulkhead::node_agent::probes::{self, Kind, Seen, Subject};
use libtest_mimic::Trial;

use super::bench::{Bench, Disk, NONE, good, local, run, staged, subject, target, unmount, wrong};
use super::cleaning::trial;
use super::world::{PATIENCE, bind, folder, tmpfs};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("probes::a_local_folder_that_is_removed", a_local_folder_that_is_removed),
        trial("probes::a_file_system_that_is_unmounted", a_file_system_that_is_unmounted),
        trial("probes::a_bound_folder_that_is_deleted", a_bound_folder_that_is_deleted),
        trial("probes::something_mounted_over_it", something_mounted_over_it),
        trial("probes::something_mounted_above_a_plain_folder", something_mounted_above_a_plain_folder),
        trial("probes::another_file_system_instead", another_file_system_instead),
        trial("probes::the_wrong_type_of_file_system", the_wrong_type_of_file_system),
        trial("probes::an_error_that_turns_it_read_only", an_error_that_turns_it_read_only),
        trial("probes::an_error_that_is_only_counted", an_error_that_is_only_counted),
        trial("probes::a_mount_that_is_made_read_only", a_mount_that_is_made_read_only),
        trial("probes::a_raw_block_volume", a_raw_block_volume),
        trial("probes::csi_mounts_that_are_gone_or_hidden", csi_mounts_that_are_gone_or_hidden),
        trial("probes::a_path_that_is_a_link", a_path_that_is_a_link),
        trial("probes::the_kernel_tells_of_mounts", the_kernel_tells_of_mounts),
    ]
}

async fn a_local_folder_that_is_removed() {
    let bench = Bench::new();
    let path = bench.folder("v");
    fs::write(path.join("data"), "x").unwrap();
    let volume = bench.first(local(&path)).await;
    assert!(!volume.baseline.as_ref().unwrap().mount_point, "a plain folder is legal");
    let checks = good(&bench.look(&volume).await);
    for check in [Check::PathExists, Check::MountPoint, Check::MountIdentity, Check::Overmount, Check::ReadOnly] {
        assert!(checks.contains(&check), "{check:?}: {checks:?}");
    }
    fs::remove_dir_all(&path).unwrap();
    assert_eq!(wrong(&bench.look(&volume).await), [(Check::PathExists, "PathMissing")]);
    fs::write(&path, "a file").unwrap();
    assert_eq!(wrong(&bench.look(&volume).await), [(Check::PathExists, "PathMissing")]);
    fs::remove_file(&path).unwrap();
    folder(&path);
    good(&bench.look(&volume).await);
}

async fn a_file_system_that_is_unmounted() {
    let bench = Bench::new();
    let (disk, path) = (bench.disk("a"), bench.folder("v"));
    disk.mount(&path, "defaults");
    let pods = bench.folder("pod");
    bind(&path, &pods);
    let mut volume = Subject { fs_type: "ext4".into(), ..local(&path) };
    volume.expected = vec![target(&pods, "u-1")];
    let volume = bench.first(volume).await;
    let checks = good(&bench.look(&volume).await);
    for check in [Check::Device, Check::FilesystemType, Check::FilesystemErrors, Check::HungIO, Check::KernelLog] {
        assert!(checks.contains(&check), "{check:?}: {checks:?}");
    }
    unmount(&path);
    let seen = bench.look(&volume).await;
    assert_eq!(wrong(&seen), [(Check::MountPoint, "NotMountPoint")]);
    let told = seen.iter().find(|one| one.check == Check::MountPoint).unwrap();
    assert_eq!(told.pods, ["u-1"]);
    disk.mount(&path, "defaults");
    good(&bench.look(&volume).await);
    unmount(&pods);
    assert_eq!(wrong(&bench.look(&volume).await), [(Check::MountPoint, "NotMounted")]);
}

async fn a_bound_folder_that_is_deleted() {
    let bench = Bench::new();
    let (from, path) = (bench.folder("from"), bench.folder("v"));
    bind(&from, &path);
    let volume = bench.first(local(&path)).await;
    good(&bench.look(&volume).await);
    fs::remove_dir(&from).unwrap();
    assert!(fs::metadata(&path).is_ok(), "a stat still finds it");
    assert_eq!(wrong(&bench.look(&volume).await), [(Check::PathExists, "PathMissing")]);
}

async fn something_mounted_over_it() {
    let bench = Bench::new();
    let (disk, path) = (bench.disk("a"), bench.folder("above/v"));
    disk.mount(&path, "defaults");
    let volume = bench.first(local(&path)).await;
    tmpfs(&path);
    let seen = bench.look(&volume).await;
    assert_eq!(wrong(&seen), [(Check::Overmount, "Shadowed"), (Check::FilesystemType, "FilesystemTypeMismatch")]);
    unmount(&path);
    good(&bench.look(&volume).await);
    // A folder above it.
    let above = bench.root.join("above");
    tmpfs(&above);
    folder(&path);
    assert_eq!(wrong(&bench.look(&volume).await), [(Check::Overmount, "Shadowed")]);
    unmount(&above);
    good(&bench.look(&volume).await);
    // The same once more hides nothing.
    bind(&path, &path);
    good(&bench.look(&volume).await);
}

async fn something_mounted_above_a_plain_folder() {
    let bench = Bench::new();
    let path = bench.folder("above/v");
    let volume = bench.first(local(&path)).await;
    tmpfs(&path);
    assert_eq!(wrong(&bench.look(&volume).await)[0], (Check::Overmount, "Shadowed"));
    unmount(&path);
    good(&bench.look(&volume).await);
    let above = bench.root.join("above");
    tmpfs(&above);
    assert!(wrong(&bench.look(&volume).await).contains(&(Check::PathExists, "PathMissing")));
    folder(&path);
    assert_eq!(wrong(&bench.look(&volume).await)[0], (Check::Overmount, "Shadowed"));
}

async fn another_file_system_instead() {
    let bench = Bench::new();
    let (disk, path) = (bench.disk("a"), bench.folder("v"));
    disk.mount(&path, "defaults");
    let volume = bench.first(local(&path)).await;
    assert!(volume.baseline.as_ref().unwrap().fs_uuid.is_some(), "{volume:?}");
    unmount(&path);
    let other = bench.disk("b");
    other.mount(&path, "defaults");
    assert_eq!(wrong(&bench.look(&volume).await), [(Check::MountIdentity, "DeviceReplaced")]);
    unmount(&path);
    // The same disk under another name, as after it was plugged in again.
    let image = disk.image.clone();
    drop(disk);
    drop(other);
    let keeps_the_name = Disk::attach(bench.disk("c").image.clone());
    let again = Disk::attach(image);
    again.mount(&path, "defaults");
    good(&bench.look(&volume).await);
    drop(keeps_the_name);
}

async fn the_wrong_type_of_file_system() {
    let bench = Bench::new();
    let (disk, path) = (bench.disk("a"), bench.folder("v"));
    disk.mount(&path, "defaults");
    for (fs_type, expected) in [
        ("xfs", vec![(Check::FilesystemType, "FilesystemTypeMismatch")]),
        ("", vec![]),
        ("auto", vec![]),
        ("ext4", vec![]),
    ] {
        let volume = bench.first(Subject { fs_type: fs_type.into(), ..local(&path) }).await;
        assert_eq!(wrong(&bench.look(&volume).await), expected, "{fs_type}");
    }
    // A plain folder on it has the type of nobody's choice.
    let inside = path.join("inside");
    folder(&inside);
    let volume = bench.first(Subject { fs_type: "xfs".into(), ..local(&inside) }).await;
    assert_eq!(wrong(&bench.look(&volume).await), NONE);
}

async fn an_error_that_turns_it_read_only() {
    let bench = Bench::new();
    let (disk, path) = (bench.disk("a"), bench.folder("v"));
    disk.mount(&path, "errors=remount-ro");
    let volume = bench.first(local(&path)).await;
    good(&bench.look(&volume).await);
    disk.break_file_system();
    let expected = [(Check::ReadOnly, "ReadOnlyRemount"), (Check::FilesystemErrors, "FilesystemErrors")];
    bench.until_wrong(&volume, &expected).await;
    // Who was to read only still can.
    let reader = Subject { read_only: true, ..volume.clone() };
    assert_eq!(wrong(&bench.look(&reader).await), [(Check::FilesystemErrors, "FilesystemErrors")]);
    unmount(&path);
    let status = Command::new("e2fsck").arg("-fy").arg(&disk.device).output().unwrap().status;
    assert!(status.code().unwrap() <= 1, "{status}");
    disk.mount(&path, "errors=remount-ro");
    good(&bench.look(&volume).await);
}

async fn an_error_that_is_only_counted() {
    let bench = Bench::new();
    let (disk, path) = (bench.disk("a"), bench.folder("v"));
    disk.mount(&path, "errors=continue");
    let volume = bench.first(local(&path)).await;
    disk.break_file_system();
    bench.until_wrong(&volume, &[(Check::FilesystemErrors, "FilesystemErrors")]).await;
    // What it had counted before it was seen first says nothing.
    let later = bench.first(local(&path)).await;
    good(&bench.look(&later).await);
}

async fn a_mount_that_is_made_read_only() {
    let bench = Bench::new();
    let (disk, path) = (bench.disk("a"), bench.folder("v"));
    disk.mount(&path, "defaults");
    let pods = bench.folder("pod");
    bind(&path, &pods);
    run("mount", &["-o", "remount,bind,ro", pods.to_str().unwrap()]);
    let volume = bench.first(Subject { expected: vec![target(&pods, "u-1")], ..local(&path) }).await;
    // A pod may ask for that.
    good(&bench.look(&volume).await);
    run("mount", &["-o", "remount,ro", path.to_str().unwrap()]);
    assert_eq!(wrong(&bench.look(&volume).await), [(Check::ReadOnly, "ReadOnlyRemount")]);
    run("mount", &["-o", "remount,rw", path.to_str().unwrap()]);
    good(&bench.look(&volume).await);
}

async fn a_raw_block_volume() {
    let bench = Bench::new();
    let disk = bench.disk("a");
    let volume = Subject { block: true, capacity: 16 << 20, ..local(&disk.device) };
    let volume = bench.first(volume).await;
    let checks = good(&bench.look(&volume).await);
    assert!(!checks.contains(&Check::MountPoint) && checks.contains(&Check::Device), "{checks:?}");
    run("truncate", &["--size", "8M", disk.image.to_str().unwrap()]);
    run("losetup", &["--set-capacity", disk.device.to_str().unwrap()]);
    assert_eq!(wrong(&bench.look(&volume).await), [(Check::Device, "DeviceShrunk")]);
    run("losetup", &["--detach", disk.device.to_str().unwrap()]);
    assert_eq!(wrong(&bench.look(&volume).await), [(Check::Device, "DeviceMissing")]);
    // Another disk that got the same number.
    let other = bench.root.join("other.img");
    run("truncate", &["--size", "16M", other.to_str().unwrap()]);
    run("losetup", &[disk.device.to_str().unwrap(), other.to_str().unwrap()]);
    assert_eq!(wrong(&bench.look(&volume).await), [(Check::MountIdentity, "DeviceReplaced")]);
}

async fn csi_mounts_that_are_gone_or_hidden() {
    let bench = Bench::new();
    let (disk, staging) = (bench.disk("a"), bench.folder("globalmount"));
    let (one, two) = (bench.folder("pods/u-1"), bench.folder("pods/u-2"));
    disk.mount(&staging, "defaults");
    bind(&staging, &one);
    bind(&staging, &two);
    let kind = Kind::CSI { driver: "csi.example.com".into(), handle: "h".into() };
    let volume = Subject {
        fs_type: "ext4".into(),
        expected: vec![staged(&staging), target(&one, "u-1"), target(&two, "u-2")],
        ..subject(kind)
    };
    let volume = bench.first(volume).await;
    let checks = good(&bench.look(&volume).await);
    assert!(checks.contains(&Check::CSIMounts) && checks.contains(&Check::Device), "{checks:?}");
    let pods = |seen: &[Seen], check| seen.iter().find(|one| one.check == check).unwrap().pods.clone();
    unmount(&two);
    let seen = bench.look(&volume).await;
    assert_eq!(
        (wrong(&seen), pods(&seen, Check::CSIMounts)),
        (vec![(Check::CSIMounts, "NotMounted")], vec!["u-2".into()])
    );
    bind(&staging, &two);
    tmpfs(&one);
    let seen = bench.look(&volume).await;
    assert_eq!(
        (wrong(&seen), pods(&seen, Check::Overmount)),
        (vec![(Check::Overmount, "Shadowed")], vec!["u-1".into()])
    );
    unmount(&one);
    good(&bench.look(&volume).await);
    unmount(&staging);
    let seen = bench.look(&volume).await;
    assert_eq!(pods(&seen, Check::CSIMounts), ["u-1", "u-2"]);
    // A driver that finds nothing to mount.
    let disks = Subject { baseline: None, ..volume.clone() };
    unmount(&one);
    unmount(&two);
    assert_eq!(wrong(&bench.look(&disks).await), [(Check::CSIMounts, "NotMounted")]);
}

async fn a_path_that_is_a_link() {
    let bench = Bench::new();
    let (real, elsewhere, path) = (bench.folder("real"), bench.folder("elsewhere"), bench.root.join("v"));
    std::os::unix::fs::symlink(&real, &path).unwrap();
    let volume = bench.first(local(&path)).await;
    good(&bench.look(&volume).await);
    // Whoever may write beside it lets it lead elsewhere: that says nothing, good or bad.
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    let seen = bench.look(&volume).await;
    assert_eq!(wrong(&seen), NONE);
    assert_eq!(seen.iter().find(|one| one.check == Check::PathExists).unwrap().sample, Sample::Unknown);
    // A block device is found through its name in /dev/disk.
    fs::remove_file(&path).unwrap();
    let disk = bench.disk("a");
    std::os::unix::fs::symlink(&disk.device, &path).unwrap();
    let volume = bench.first(Subject { block: true, ..local(&path) }).await;
    assert!(good(&bench.look(&volume).await).contains(&Check::Device));
}

async fn the_kernel_tells_of_mounts() {
    let bench = Bench::new();
    let path = bench.folder("v");
    let watch = probes::watch::MountWatch::new("/proc/self").unwrap();
    for _ in 0..3 {
        for change in [tmpfs as fn(&Path), unmount] {
            let began = Instant::now();
            let (told, ()) = tokio::join!(tokio::time::timeout(PATIENCE, watch.changed()), async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                change(&path);
            });
            told.unwrap().unwrap();
            assert!(began.elapsed() >= Duration::from_millis(50), "nothing had changed yet");
        }
    }
    let quiet = tokio::time::timeout(Duration::from_millis(300), watch.changed()).await;
    assert!(quiet.is_err(), "nothing changes");
}
