//! What is cleaned, and in which order.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use bulkhead::api::node_volume_report::CleanupState;
use libtest_mimic::{Failed, Trial};

use super::plugin::Behaviour;
use super::refusing::container;
use super::world::{World, bind, folder, record, staging, target, tmpfs, volume};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("cleaning::fifty_volumes_in_csi_order", fifty_volumes_in_csi_order),
        trial("cleaning::a_driver_that_does_nothing_leaves_nothing", a_driver_that_does_nothing),
        trial("cleaning::a_volume_staged_by_nobody", a_volume_staged_by_nobody),
        trial("cleaning::folders_without_mounts", folders_without_mounts),
        trial("cleaning::sub_paths_and_the_old_layout", sub_paths_and_the_old_layout),
        trial("cleaning::a_raw_block_volume_and_its_loop_devices", a_raw_block_volume),
        trial("cleaning::a_restart_at_any_time_finds_the_rest", a_restart_finds_the_rest),
        trial("cleaning::a_restart_without_the_api_finds_the_rest_when_it_is_back", a_restart_without_the_api),
        trial("cleaning::what_appears_after_clean_is_told_and_cleaned", what_appears_after_clean),
        trial("cleaning::what_no_watch_tells_is_found_behind_it", what_no_watch_tells),
        trial("cleaning::a_fuse_server_that_hangs", a_fuse_server_that_hangs),
        trial("cleaning::a_host_that_is_another_mount_namespace", a_host_that_is_another_mount_namespace),
    ]
}

/// A trial that runs in a tokio runtime.
pub fn trial<F: Future<Output = ()> + 'static>(name: &str, test: fn() -> F) -> Trial {
    Trial::test(name.to_owned(), move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(test());
        runtime.shutdown_background();
        Ok::<(), Failed>(())
    })
}

/// A plugin that stages and unmounts.
pub fn able() -> Behaviour {
    Behaviour { stages: true, unmounts: true, ..Behaviour::default() }
}

async fn fifty_volumes_in_csi_order() {
    let mut world = World::new(able());
    world.plugin.register();
    let volumes: Vec<_> = (0..50).map(volume).collect();
    volumes.iter().for_each(|volume| world.publish(volume));
    world.fence(1, &volumes);
    let began = Instant::now();
    world.start();
    world.until("cleaning has begun", |world| world.state().is_some()).await;
    world.until_clean().await;
    // The promise is 10 s on a machine of its own; the benchmark measures it.
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    let calls = world.plugin.calls();
    for volume in &volumes {
        let of_it = |call: &&String| call.split(' ').nth(1) == Some(volume.handle.as_str());
        let path = |path: String| world.path(&path).display().to_string();
        let expected = [
            format!("NodeUnpublishVolume {} {}/mount", volume.handle, path(target(volume))),
            format!("NodeUnstageVolume {} {}/globalmount", volume.handle, path(staging(volume))),
        ];
        assert_eq!(calls.iter().filter(of_it).collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
        only_the_record_is_left(&world.path(&target(volume)));
        only_the_record_is_left(&world.path(&staging(volume)));
    }
    let history = world.history.lock().unwrap().clone();
    let passes: Vec<_> = history.iter().filter_map(|status| Some(status.cleanup.as_ref()?.clean_passes)).collect();
    assert_eq!(passes.iter().filter(|passes| **passes > 0).collect::<Vec<_>>(), [&1, &2], "told twice: {passes:?}");
    assert!(history.len() <= 6, "the report was written {} times", history.len());
    let mounted = history.iter().map(|status| status.volumes.len()).max();
    assert_eq!(mounted, Some(50), "all were told before they went");
    world.until("Events are sent", |world| world.events.lock().unwrap().len() >= 2).await;
    assert_eq!(*world.events.lock().unwrap(), ["CleanupStarted", "NodeClean"]);
}

async fn a_driver_that_does_nothing() {
    let mut world = World::new(Behaviour { stages: true, ..Behaviour::default() });
    world.plugin.register();
    let (zombie, other) = (volume(1), volume(2));
    world.publish(&zombie);
    world.publish(&other);
    world.pod(&other.pod);
    let before = world.mounts().len();
    // A pod with a claim that the plan does not know would keep everything staged.
    world.fence_beside(1, &[zombie], &[&other.pod]);
    world.start();
    world.until("clean", |world| world.state() == Some(CleanupState::Clean)).await;
    assert_eq!(world.mounts().len(), before / 2, "the other volume is as it was: {:#?}", world.mounts());
    assert!(
        world
            .mounts()
            .iter()
            .all(|path| path.contains(&other.name) || path.contains(&other.handle) || path.contains(&staging(&other)))
    );
    assert_eq!(world.plugin.calls().len(), 2);
}

async fn a_volume_staged_by_nobody() {
    let mut world = World::new(Behaviour { unmounts: true, ..Behaviour::default() });
    world.plugin.register();
    let zombie = volume(1);
    let mounted = world.path(&target(&zombie)).join("mount");
    folder(&mounted);
    tmpfs(&mounted);
    record(mounted.parent().unwrap(), &zombie);
    world.fence(1, &[zombie]);
    world.start();
    world.until_clean().await;
    let calls = world.plugin.calls();
    assert!(calls.len() == 1 && calls[0].starts_with("NodeUnpublishVolume"), "{calls:?}");
}

async fn folders_without_mounts() {
    let mut world = World::new(able());
    world.plugin.register();
    let zombie = volume(1);
    folder(&world.path(&target(&zombie)).join("mount"));
    record(&world.path(&staging(&zombie)), &zombie);
    world.fence(1, &[volume(1)]);
    world.start();
    world.until_clean().await;
    assert!(!world.path(&target(&zombie)).join("mount").exists());
    only_the_record_is_left(&world.path(&staging(&zombie)));
}

/// A kubelet that was not started since needs it to let the volume go, and deletes it then.
fn only_the_record_is_left(folder: &std::path::Path) {
    let left: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["vol_data.json"], "{}", folder.display());
}

async fn sub_paths_and_the_old_layout() {
    let mut world = World::new(Behaviour { stages: true, ..Behaviour::default() });
    world.plugin.register();
    let zombie = volume(1);
    let staged = world.path("plugins/kubernetes.io/csi/pv/pvc-1/globalmount");
    folder(&staged);
    tmpfs(&staged);
    record(staged.parent().unwrap(), &zombie);
    folder(&staged.join("sub"));
    let mounted = world.path(&target(&zombie)).join("mount");
    folder(&mounted);
    bind(&staged, &mounted);
    let sub = world.path(&format!("pods/{}/volume-subpaths/{}/db/0", zombie.pod, zombie.name));
    folder(&sub);
    bind(&mounted.join("sub"), &sub);
    world.fence(1, &[zombie]);
    world.start();
    world.until_clean().await;
    assert!(!sub.exists());
    only_the_record_is_left(staged.parent().unwrap());
}

async fn a_raw_block_volume() {
    let mut world = World::new(Behaviour { stages: true, ..Behaviour::default() });
    world.plugin.register();
    let zombie = volume(1);
    // The driver: an image on its own mount, behind a loop device, bound where the pod's device is published.
    let private = world.plugin.private(&zombie.handle);
    folder(&private);
    tmpfs(&private);
    let image = private.join("image");
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let device = attach(&image);
    let block = world.path("plugins/kubernetes.io/csi/volumeDevices");
    let staged = block.join("staging/pvc-1");
    folder(&staged);
    bind(&private, &staged);
    record(&block.join("pvc-1/data"), &zombie);
    let published = block.join("publish/pvc-1").join(&zombie.pod);
    // The kubelet: the device bound once more, and a loop device on it so that it is not taken away.
    let global = block.join("pvc-1/dev").join(&zombie.pod);
    for path in [&published, &global] {
        folder(path.parent().unwrap());
        fs::File::create(path).unwrap();
        bind(device.as_ref(), path);
    }
    let kubelets = attach(&global);
    let link = world.path(&format!("pods/{}/volumeDevices/kubernetes.io~csi", zombie.pod));
    folder(&link);
    std::os::unix::fs::symlink(&published, link.join("pvc-1")).unwrap();
    world.fence(1, &[zombie]);
    world.start();
    world.until_clean().await;
    let listed = Command::new("losetup").arg("--all").output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for device in [device, kubelets] {
        assert!(!listed.contains(&format!("{device}:")), "{device} is attached: {listed}");
    }
    only_the_record_is_left(&block.join("pvc-1/data"));
    assert!(!staged.exists() && !global.exists() && !published.exists() && !link.join("pvc-1").exists());
}

fn attach(file: &std::path::Path) -> String {
    let attached = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
    assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
    String::from_utf8(attached.stdout).unwrap().trim().to_owned()
}

async fn a_restart_finds_the_rest() {
    let mut world = World::new(Behaviour { stages: true, hangs: 1, ..Behaviour::default() });
    world.plugin.register();
    let volumes: Vec<_> = (0..6).map(volume).collect();
    volumes.iter().for_each(|volume| world.publish(volume));
    world.fence(1, &volumes);
    world.start();
    for count in 1..=6 {
        world.until("a call", |world| world.plugin.calls().len() >= count || world.mounts().is_empty()).await;
        world.start();
    }
    // The driver takes a volume down and the agent dies: only the report knows of the driver's own mount then.
    world.until_clean().await;
}

/// Nothing that is left is remembered by anybody: it is on the disk. But what of it may go, only the API says.
async fn a_restart_without_the_api() {
    let mut world = World::new(Behaviour { stages: true, hangs: 1, ..Behaviour::default() });
    world.plugin.register();
    let (zombie, anew) = (volume(1), volume(2));
    world.publish(&zombie);
    world.publish(&anew);
    // The pod that came after the zombie has its name, and a uid of its own.
    world.pod_anew(&zombie.name, &anew.pod);
    world.fence_beside(1, &[zombie], &[&anew.pod]);
    let before = world.mounts();
    world.start();
    world.until("the driver is asked", |world| world.plugin.calls().len() == 1).await;
    let had = world.lose_the_api();
    world.start();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(world.mounts(), before, "something was removed on nobody's word");
    assert_eq!(world.plugin.calls().len(), 1);
    world.find_the_api(&had);
    world.until("clean", |world| world.state() == Some(CleanupState::Clean)).await;
    let left = world.mounts();
    assert_eq!(left.len(), before.len() / 2, "the other volume is as it was: {left:#?}");
    let of_it = |path: &String| [&anew.name, &anew.handle, &staging(&anew)].iter().any(|part| path.contains(*part));
    assert!(left.iter().all(of_it), "{left:#?}");
}

async fn what_appears_after_clean() {
    let mut world = World::new(able());
    world.plugin.register();
    world.publish(&volume(1));
    world.fence(1, &[volume(1)]);
    world.start();
    world.until_clean().await;
    world.start();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(world.state(), Some(CleanupState::Clean), "a restart alone changes nothing");
    let written = world.history.lock().unwrap().len();
    world.publish(&volume(1));
    world.until("it is told", |world| world.history.lock().unwrap().len() > written).await;
    let told = world.history.lock().unwrap()[written].clone();
    assert_ne!(told.cleanup.unwrap().state, CleanupState::Clean);
    world.until_clean().await;
    world.publish(&volume(1));
    world.fence(2, &[volume(1)]);
    world.until("the next episode", |world| world.status().cleanup.is_some_and(|cleanup| cleanup.episode == 2)).await;
    world.until_clean().await;
}

/// A watch may be silent without a word: the NodeFence is read itself, each 30 s, and here each second.
async fn what_no_watch_tells() {
    let mut world = World::new(able());
    world.plugin.register();
    world.publish(&volume(1));
    world.fence(1, &[volume(1)]);
    world.start();
    world.until_clean().await;
    world.publish(&volume(2));
    world.fence_untold(2, &[volume(2)]);
    world.until("the next episode", |world| world.status().cleanup.is_some_and(|cleanup| cleanup.episode == 2)).await;
    world.until_clean().await;
    assert!(world.plugin.calls().iter().any(|call| call.contains(&volume(2).handle)), "{:?}", world.plugin.calls());
}

async fn a_fuse_server_that_hangs() {
    let mut world = World::new(Behaviour { stages: true, hangs: 1, ..Behaviour::default() });
    world.call_timeout = Duration::from_secs(1);
    world.plugin.register();
    let zombie = volume(1);
    let server = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
    let staged = world.path(&staging(&zombie)).join("globalmount");
    folder(&staged);
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&server));
    let options = std::ffi::CString::new(options).unwrap();
    rustix::mount::mount("hung", &staged, "fuse.hung", rustix::mount::MountFlags::empty(), options.as_c_str()).unwrap();
    record(staged.parent().unwrap(), &zombie);
    // Somebody waits for it already, as the kubelet's statistics do.
    let mut waiting =
        Command::new("stat").arg("--file-system").arg(&staged).stderr(std::process::Stdio::null()).spawn().unwrap();
    let mounted = world.path(&target(&zombie)).join("mount");
    folder(&mounted);
    bind(&staged, &mounted);
    record(mounted.parent().unwrap(), &zombie);
    world.fence(1, &[zombie]);
    world.start();
    world.until_blocked_by("NodeUnpublishDeadlineExceeded").await;
    world.until_clean().await;
    waiting.wait().unwrap();
    drop(server);
}

async fn a_host_that_is_another_mount_namespace() {
    let mut world = World::new(Behaviour { stages: true, ..Behaviour::default() });
    world.plugin.register();
    world.publish(&volume(1));
    // What the agent in its container has not: the mounts of the host.
    let mut host = container("exec sleep 600");
    for path in world.mounts().iter().rev() {
        rustix::mount::unmount(path.as_str(), rustix::mount::UnmountFlags::empty()).unwrap();
    }
    world.host = format!("/proc/{}", host.id());
    let mounts = |world: &World| {
        let text = fs::read_to_string(format!("{}/mountinfo", world.host)).unwrap();
        text.lines().filter(|line| line.contains(world.root.to_str().unwrap())).count()
    };
    assert_eq!(mounts(&world), 3);
    world.fence(1, &[volume(1)]);
    world.start();
    world.until_clean().await;
    assert_eq!(mounts(&world), 0);
    assert_eq!(world.plugin.calls().len(), 2);
    host.kill().unwrap();
    host.wait().unwrap();
}
