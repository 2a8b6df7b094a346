//! What is not touched, and what the report says then.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bulkhead::api::node_volume_report::{CleanupState, RemnantKind};
use libtest_mimic::Trial;

use super::cleaning::trial;
use super::objects::running;
use super::plugin::Behaviour;
use super::world::{World, folder, record, staging, target, tmpfs, volume};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("refusing::a_pod_that_is_the_kubelets", a_pod_that_is_the_kubelets),
        trial("refusing::a_pod_that_the_watch_has_not_told_of", a_pod_that_the_watch_has_not_told_of),
        trial("refusing::a_container_that_holds_the_volume", a_container_that_holds_the_volume),
        trial("refusing::a_container_whose_volume_the_host_has_lost", a_container_whose_volume_the_host_has_lost),
        trial("refusing::a_process_of_the_host_that_holds_it", a_process_of_the_host_that_holds_it),
        trial("refusing::a_record_that_cannot_be_read", a_record_that_cannot_be_read),
        trial("refusing::a_record_of_another_volume", a_record_of_another_volume),
        trial("refusing::a_driver_that_is_not_there", a_driver_that_is_not_there),
        trial("refusing::a_driver_that_refuses", a_driver_that_refuses),
        trial("refusing::a_folder_that_is_a_link", a_folder_that_is_a_link),
        trial("refusing::data_below_the_mount_point", data_below_the_mount_point),
        trial("refusing::the_file_system_of_the_kubelet_itself", the_file_system_of_the_kubelet_itself),
        trial("refusing::a_folder_that_is_not_the_kubelets", a_folder_that_is_not_the_kubelets),
        trial("refusing::a_node_that_cannot_be_looked_at_in_time", a_node_that_cannot_be_looked_at_in_time),
        trial("refusing::no_fence_no_cleaning", no_fence_no_cleaning),
    ]
}

fn able() -> Behaviour {
    Behaviour { stages: true, unmounts: true, ..Behaviour::default() }
}

/// A world with one zombie.
fn world() -> World {
    let world = World::new(able());
    world.plugin.register();
    world.publish(&volume(1));
    world.fence(1, &[volume(1)]);
    world
}

/// Long enough for several passes.
async fn a_while() {
    tokio::time::sleep(Duration::from_millis(2500)).await;
}

async fn a_pod_that_is_the_kubelets() {
    let mut world = world();
    world.pod(&volume(1).pod);
    let before = world.mounts();
    world.start();
    world.until("it is told", |world| world.state() == Some(CleanupState::Inventory)).await;
    a_while().await;
    assert_eq!(world.mounts(), before);
    assert_eq!(world.plugin.calls(), [] as [&str; 0]);
    assert_eq!(world.state(), Some(CleanupState::Inventory));
    world.pod_is_gone(&volume(1).pod);
    world.until_clean().await;
}

async fn a_pod_that_the_watch_has_not_told_of() {
    let mut world = world();
    world.untold.lock().unwrap().push(running(&volume(1).pod));
    let before = world.mounts();
    world.start();
    world.until_blocked_by("PodNotGone").await;
    assert_eq!(world.mounts(), before);
    assert_eq!(world.plugin.calls(), [] as [&str; 0]);
    // A pod that came later is not of the plan: what it uses cannot be told.
    *world.untold.lock().unwrap() = vec![running("a1f0c1e2-0002-4000-8000-000000000001")];
    world.until_blocked_by("PodMayUseVolume").await;
    assert!(world.mounts().iter().any(|path| path.ends_with("globalmount")), "{:?}", world.mounts());
    world.untold.lock().unwrap().clear();
    world.until_clean().await;
}

/// A process with mounts of its own, as a container has.
pub fn container(script: &str) -> Child {
    let child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let (ours, theirs) = ("/proc/self/ns/mnt".to_owned(), format!("/proc/{}/ns/mnt", child.id()));
    while fs::read_link(&ours).unwrap() == fs::read_link(&theirs).unwrap() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

async fn a_container_that_holds_the_volume() {
    let mut world = world();
    let mut child = container("exec sleep 600");
    let before = world.mounts();
    world.start();
    world.until_blocked_by("ProcessHoldsMount").await;
    let remaining = world.status().cleanup.unwrap().remaining;
    assert_eq!((remaining[0].kind, remaining.len()), (RemnantKind::Process, 1), "{remaining:?}");
    assert_eq!(remaining[0].id, format!("pid {} (sleep)", child.id()));
    a_while().await;
    assert_eq!(world.mounts(), before, "nothing is taken from a container that runs");
    assert_eq!(world.plugin.calls(), [] as [&str; 0]);
    child.kill().unwrap();
    child.wait().unwrap();
    world.until_clean().await;
    world.until("the Event", |world| world.events.lock().unwrap().len() >= 3).await;
    assert_eq!(*world.events.lock().unwrap(), ["CleanupStarted", "CleanupBlocked", "NodeClean"]);
}

async fn a_container_whose_volume_the_host_has_lost() {
    let mut world = World::new(able());
    world.plugin.register();
    let zombie = volume(1);
    // Nothing of the volume on the host; the container still has its pod's hosts file mounted, as all have.
    let hosts = world.path(&format!("pods/{}/etc-hosts", zombie.pod));
    folder(hosts.parent().unwrap());
    fs::write(&hosts, "").unwrap();
    let mut child = container(&format!("mount --bind {0} {0} && exec sleep 600", hosts.display()));
    world.fence(1, &[zombie]);
    world.start();
    world.until_blocked_by("ProcessHoldsMount").await;
    child.kill().unwrap();
    child.wait().unwrap();
    world.until_clean().await;
}

async fn a_process_of_the_host_that_holds_it() {
    let mut world = World::new(Behaviour { stages: true, ..Behaviour::default() });
    world.plugin.register();
    world.publish(&volume(1));
    world.fence(1, &[volume(1)]);
    let mounted = world.path(&target(&volume(1))).join("mount");
    let mut child = Command::new("sleep").arg("600").current_dir(&mounted).spawn().unwrap();
    world.start();
    world.until_blocked_by("MountBusy").await;
    child.kill().unwrap();
    child.wait().unwrap();
    world.until_clean().await;
}

async fn a_record_that_cannot_be_read() {
    let mut world = world();
    let file = world.path(&target(&volume(1))).join("vol_data.json");
    let good = fs::read(&file).unwrap();
    fs::write(&file, "{").unwrap();
    let before = world.mounts();
    world.start();
    world.until_blocked_by("RecordUnreadable").await;
    a_while().await;
    assert_eq!(world.mounts(), before);
    fs::write(&file, good).unwrap();
    world.until_clean().await;
}

async fn a_record_of_another_volume() {
    let mut world = world();
    record(&world.path(&target(&volume(1))), &volume(7));
    let before = world.mounts();
    world.start();
    world.until_blocked_by("RecordOfAnotherVolume").await;
    assert_eq!(world.mounts(), before);
}

async fn a_driver_that_is_not_there() {
    let mut world = World::new(able());
    world.publish(&volume(1));
    world.fence(1, &[volume(1)]);
    let before = world.mounts();
    world.start();
    world.until_blocked_by("DriverMissing").await;
    assert_eq!(world.mounts(), before);
    world.plugin.register();
    world.until_clean().await;
}

async fn a_driver_that_refuses() {
    let mut world = world();
    world.plugin.behaviour.lock().unwrap().refuses = Some(tonic::Code::FailedPrecondition);
    let before = world.mounts();
    world.start();
    world.until_blocked_by("NodeUnpublishFailedPrecondition").await;
    assert_eq!(world.mounts(), before);
    // A volume that the driver does not know any more is not published.
    world.plugin.behaviour.lock().unwrap().refuses = Some(tonic::Code::NotFound);
    world.until_clean().await;
}

async fn a_folder_that_is_a_link() {
    let mut world = World::new(able());
    world.plugin.register();
    let zombie = volume(1);
    let elsewhere = world.root.parent().unwrap().join("precious");
    folder(&elsewhere.join("mount"));
    record(&elsewhere, &zombie);
    let path = world.path(&target(&zombie));
    folder(path.parent().unwrap());
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    world.fence(1, &[zombie]);
    world.start();
    world.until("blocked", |world| world.state() == Some(CleanupState::Blocked)).await;
    a_while().await;
    assert!(elsewhere.join("vol_data.json").exists() && elsewhere.join("mount").exists());
    assert_eq!(world.plugin.calls(), [] as [&str; 0]);
}

async fn data_below_the_mount_point() {
    let mut world = World::new(able());
    world.plugin.register();
    let zombie = volume(1);
    let mounted = world.path(&target(&zombie)).join("mount");
    folder(&mounted);
    fs::write(mounted.join("precious"), "data").unwrap();
    record(mounted.parent().unwrap(), &zombie);
    world.fence(1, &[zombie]);
    world.start();
    world.until_blocked_by("FolderNotEmpty").await;
    assert_eq!(fs::read(mounted.join("precious")).unwrap(), b"data");
}

async fn the_file_system_of_the_kubelet_itself() {
    let mut world = World::new(able());
    world.plugin.register();
    let zombie = volume(1);
    // As a driver that gives out folders of the node's own disk would, gone wrong: all of that disk.
    let mounted = world.path(&target(&zombie)).join("mount");
    let below = world.root.parent().unwrap().join("disk");
    folder(&below);
    tmpfs(&below);
    folder(&mounted);
    record(mounted.parent().unwrap(), &zombie);
    rustix::mount::mount_bind("/", &mounted).unwrap();
    let all = fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    world.fence(1, &[zombie]);
    world.start();
    world.until_blocked_by("SystemFileSystem").await;
    a_while().await;
    assert_eq!(fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(), all);
    rustix::mount::unmount(&below, rustix::mount::UnmountFlags::empty()).unwrap();
}

async fn no_fence_no_cleaning() {
    let mut world = World::new(able());
    world.plugin.register();
    world.publish(&volume(1));
    let before = world.mounts();
    world.start();
    world.until("the report", |world| world.status().node_uid.is_some()).await;
    a_while().await;
    assert_eq!((world.state(), world.mounts()), (None, before));
    assert_eq!(world.history.lock().unwrap().len(), 1, "written once, then nothing changes");
    let status = world.status();
    assert_eq!(status.node_uid.as_deref(), Some("node-uid"));
    assert!(status.boot_id.is_some() && status.agent_version.is_some());
    assert!(!world.path(&staging(&volume(1))).join("globalmount").join("x").exists());
}

async fn a_folder_that_is_not_the_kubelets() {
    let mut world = World::new(able());
    fs::remove_dir(world.path("pods")).unwrap();
    world.fence(1, &[volume(1)]);
    world.start();
    world.until_blocked_by("KubeletFolderUnreadable").await;
}

async fn a_node_that_cannot_be_looked_at_in_time() {
    let mut world = world();
    world.inventory_timeout = Duration::from_micros(1);
    let before = world.mounts();
    world.start();
    world.until_blocked_by("InventoryTimedOut").await;
    assert_eq!(world.mounts(), before);
    world.inventory_timeout = Duration::from_secs(15);
    world.start();
    world.until_clean().await;
}
