//! The health of volumes: what is told of them, how soon, and how little is written.

use std::fs;
use std::time::{Duration, Instant};

use bulkhead::api::node_volume_report::ReportedVolume;
use bulkhead::api::slim::{Node, PersistentVolume, Pod};
use bulkhead::api::volume::{Check, VolumeState};
use bulkhead::node_agent::mounts::mountinfo;
use bulkhead::runtime::store::ObjectKey;
use libtest_mimic::Trial;
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::json;

use super::cleaning::trial;
use super::plugin::{Behaviour, DRIVER, Told};
use super::world::{NODE, Volume, World, bind, folder, target, tmpfs, volume};

pub fn trials() -> Vec<Trial> {
    vec![
        // Its mounts come and go by the second: those of another test would have the agent look at other moments.
        trial("volumes::what_flaps_changes_little", what_flaps),
        trial("volumes::an_incident_and_health_share_the_report", an_incident_and_health),
    ]
}

/// Those in which nothing is cleaned, and no process has mounts of its own: none is in another's way. The longest first.
pub fn only_look() -> Vec<Trial> {
    vec![
        trial("volumes::what_the_drivers_node_plugin_says", what_the_plugin_says),
        trial("volumes::nothing_is_written_at_rest", nothing_is_written_at_rest),
        trial("volumes::a_mount_that_goes_is_told_soon_over_a_restart_too", a_mount_that_goes),
        trial("volumes::a_deleted_folder_is_told_soon_and_so_is_its_repair", a_deleted_folder),
        trial("volumes::a_pods_csi_mount_that_goes", a_csi_mount_that_goes),
        trial("volumes::what_self_fencing_covers_is_not_ill", what_self_fencing_covers),
        trial("volumes::only_volumes_that_a_policy_selects", only_selected),
    ]
}

/// From the act to the report, on a machine that is busy with other things. Alone it is three seconds.
const SOON: Duration = Duration::from_secs(10);

impl World {
    fn with_volumes() -> Self {
        let world = Self::new(Behaviour { stages: true, unmounts: true, ..Behaviour::default() });
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": NODE, "uid": "node-uid", "labels": { "kubernetes.io/hostname": NODE } },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }))
        .unwrap();
        world.stores.nodes.insert(node);
        world.policy(json!({}));
        world
    }

    fn policy(&self, selector: serde_json::Value) {
        let policy = json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "VolumeHealthPolicy", "metadata": { "name": "p" },
            "spec": { "selector": selector, "interval": "5s" },
        });
        self.stores.policies.insert(serde_json::from_value(policy).unwrap());
    }

    /// A local volume of this node.
    fn local(&self, name: &str) -> std::path::PathBuf {
        let path = self.root.parent().unwrap().join("disks").join(name);
        folder(&path);
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": { "name": name, "uid": format!("uid of {name}") },
            "spec": { "local": { "path": path }, "accessModes": ["ReadWriteOnce"], "nodeAffinity": { "required": {
                "nodeSelectorTerms": [{ "matchExpressions": [
                    { "key": "kubernetes.io/hostname", "operator": "In", "values": [NODE] }] }] } } },
            "status": { "phase": "Available" },
        }))
        .unwrap();
        self.stores.volumes.insert(volume);
        path
    }

    /// A CSI volume that is published for a pod which has run for a while.
    fn csi(&self, volume: &Volume) {
        let claim = json!({ "namespace": "shop", "name": volume.name });
        let object: PersistentVolume = serde_json::from_value(json!({
            "metadata": { "name": volume.name, "uid": format!("uid of {}", volume.name) },
            "spec": { "csi": { "driver": DRIVER, "volumeHandle": volume.handle }, "claimRef": claim },
            "status": { "phase": "Bound" },
        }))
        .unwrap();
        self.stores.volumes.insert(object);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": volume.pod, "namespace": "shop", "uid": volume.pod },
            "spec": { "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": volume.name } }] },
            "status": { "phase": "Running", "conditions": [
                { "type": "Initialized", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        }))
        .unwrap();
        self.stores.pods.insert(pod);
        self.publish(volume);
    }

    fn reported(&self, name: &str) -> Option<ReportedVolume> {
        self.status().volumes.into_iter().find(|volume| volume.name == name)
    }

    fn is_healthy(&self, name: &str) -> bool {
        self.reported(name).is_some_and(|volume| volume.state == VolumeState::Healthy)
    }

    async fn until_healthy(&self, name: &str) {
        self.until(&format!("{name} is Healthy"), |world| world.is_healthy(name)).await;
    }

    async fn until_found(&self, name: &str, check: Check, reason: &str) {
        self.until(&format!("{name}: {check:?} {reason}"), |world| {
            world.reported(name).is_some_and(|volume| {
                volume.findings.iter().any(|finding| finding.check == check && finding.reason == reason)
            })
        })
        .await;
    }

    fn writes(&self) -> usize {
        self.history.lock().unwrap().len()
    }
}

async fn a_deleted_folder() {
    let mut world = World::with_volumes();
    let path = world.local("disk-1");
    fs::write(path.join("data"), "x").unwrap();
    world.start();
    world.until_healthy("disk-1").await;
    assert_eq!((world.status().checked, world.status().unhealthy), (Some(1), Some(0)));
    fs::remove_dir_all(&path).unwrap();
    let act = Instant::now();
    world.until_found("disk-1", Check::PathExists, "PathMissing").await;
    assert!(act.elapsed() < SOON, "{:?}", act.elapsed());
    assert_eq!(world.reported("disk-1").unwrap().state, VolumeState::Inaccessible);
    assert_eq!((world.status().checked, world.status().unhealthy), (Some(1), Some(1)));
    folder(&path);
    world.until_healthy("disk-1").await;
    assert_eq!(world.reported("disk-1").unwrap().findings, []);
    // A volume whose PersistentVolume is gone is not said anything of.
    world.stores.volumes.remove(&ObjectKey::cluster("disk-1"));
    world.until("it is gone", |world| world.reported("disk-1").is_none()).await;
}

async fn a_mount_that_goes() {
    let mut world = World::with_volumes();
    let path = world.local("disk-1");
    tmpfs(&path);
    world.start();
    world.until_healthy("disk-1").await;
    rustix::mount::unmount(&path, UnmountFlags::empty()).unwrap();
    let act = Instant::now();
    world.until_found("disk-1", Check::MountPoint, "NotMountPoint").await;
    assert!(act.elapsed() < SOON, "{:?}", act.elapsed());
    let found = world.reported("disk-1").unwrap().findings;
    // Another process knows what was there, and goes on from what was said.
    world.stop();
    world.history.lock().unwrap().clear();
    world.start();
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(world.writes(), 0, "{:#?}", world.history.lock().unwrap());
    assert_eq!(world.reported("disk-1").unwrap().findings, found);
    tmpfs(&path);
    world.until_healthy("disk-1").await;
}

async fn nothing_is_written_at_rest() {
    let mut world = World::with_volumes();
    let good = world.local("good");
    tmpfs(&good);
    let bad = world.local("bad");
    world.csi(&volume(1));
    world.plugin.behaviour.lock().unwrap().health = Told::Condition(true);
    world.plugin.register();
    world.start();
    world.until_healthy("good").await;
    world.until_healthy("bad").await;
    fs::remove_dir(&bad).unwrap();
    world.until_found("bad", Check::PathExists, "PathMissing").await;
    world.until_found("pvc-1", Check::ControllerHealth, "VolumeConditionAbnormal").await;
    let writes = world.writes();
    // Many looks, and some intervals.
    tokio::time::sleep(Duration::from_secs(16)).await;
    assert_eq!(world.writes(), writes, "{:#?}", world.history.lock().unwrap().last());
}

async fn what_flaps() {
    let mut world = World::with_volumes();
    let path = world.local("disk-1");
    tmpfs(&path);
    let folder_of_another = world.local("disk-2");
    world.start();
    world.until_healthy("disk-1").await;
    world.until_healthy("disk-2").await;
    let before = world.writes();
    for _ in 0..15 {
        rustix::mount::unmount(&path, UnmountFlags::empty()).unwrap();
        fs::remove_dir(&folder_of_another).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        tmpfs(&path);
        folder(&folder_of_another);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let history = world.history.lock().unwrap().clone();
    let state = |status: &bulkhead::api::node_volume_report::NodeVolumeReportStatus, name: &str| {
        status.volumes.iter().find(|volume| volume.name == name).map(|volume| volume.state)
    };
    for name in ["disk-1", "disk-2"] {
        let states: Vec<_> = history[before - 1..].iter().map(|status| state(status, name)).collect();
        let transitions = states.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(transitions <= 2, "{name}: {states:?}");
    }
}

async fn only_selected() {
    let mut world = World::with_volumes();
    world.policy(json!({ "drivers": [DRIVER] }));
    world.local("disk-1");
    world.csi(&volume(1));
    world.start();
    world.until_healthy("pvc-1").await;
    assert!(world.reported("disk-1").is_none());
    world.policy(json!({}));
    world.until_healthy("disk-1").await;
}

async fn a_csi_mount_that_goes() {
    let mut world = World::with_volumes();
    let volume = volume(1);
    world.csi(&volume);
    world.start();
    world.until_healthy("pvc-1").await;
    assert_eq!(world.reported("pvc-1").unwrap().mounts, [], "they change with every pod");
    let mount = world.path(&target(&volume)).join("mount");
    rustix::mount::unmount(&mount, UnmountFlags::empty()).unwrap();
    let act = Instant::now();
    world.until_found("pvc-1", Check::CSIMounts, "NotMounted").await;
    assert!(act.elapsed() < SOON, "{:?}", act.elapsed());
    let told = world.reported("pvc-1").unwrap();
    assert_eq!(told.findings[0].pod_uids, [volume.pod.as_str()]);
    assert_eq!((told.driver.as_deref(), told.volume_handle.as_deref()), (Some(DRIVER), Some("handle-1")));
    assert!(!told.mounts.is_empty(), "the staged one is still there");
    bind(&world.plugin.private(&volume.handle), &mount);
    world.until_healthy("pvc-1").await;
}

async fn what_self_fencing_covers() {
    let mut world = World::with_volumes();
    for number in [1, 2] {
        world.csi(&volume(number));
    }
    world.start();
    world.until_healthy("pvc-1").await;
    world.until_healthy("pvc-2").await;
    for (number, source) in [(1, mountinfo::COVER), (2, "another")] {
        let path = world.path(&target(&volume(number))).join("mount");
        rustix::mount::mount(source, &path, "tmpfs", MountFlags::RDONLY, None).unwrap();
    }
    world.until_found("pvc-2", Check::Overmount, "Shadowed").await;
    assert!(world.is_healthy("pvc-1"), "{:#?}", world.reported("pvc-1"));
    // Uncovered it is looked at as ever.
    let mount = world.path(&target(&volume(1))).join("mount");
    for _ in 0..2 {
        rustix::mount::unmount(&mount, UnmountFlags::empty()).unwrap();
    }
    world.until_found("pvc-1", Check::CSIMounts, "NotMounted").await;
}

async fn what_the_plugin_says() {
    let mut world = World::with_volumes();
    let volume = volume(1);
    world.csi(&volume);
    let says = |world: &World, told| world.plugin.behaviour.lock().unwrap().health = told;
    says(&world, Told::Health(vec![(1, "RaidDegraded"), (2, "PathLost")]));
    world.plugin.register();
    world.start();
    world.until_found("pvc-1", Check::ControllerHealth, "PathLost").await;
    let told = world.reported("pvc-1").unwrap();
    assert_eq!(told.state, VolumeState::Inaccessible);
    assert_eq!(told.findings[0].pod_uids, [volume.pod.as_str()]);
    let path = world.path(&target(&volume)).join("mount").display().to_string();
    assert!(world.plugin.calls().contains(&format!("NodeGetVolumeHealth handle-1 {path}")));
    // What is not known is not healthy.
    says(&world, Told::Health(vec![(99, "SomethingNew")]));
    world.until_found("pvc-1", Check::ControllerHealth, "SomethingNew").await;
    assert_eq!(world.reported("pvc-1").unwrap().state, VolumeState::Unknown);
    says(&world, Told::Health(Vec::new()));
    world.until_healthy("pvc-1").await;
    says(&world, Told::Condition(true));
    world.until_found("pvc-1", Check::ControllerHealth, "VolumeConditionAbnormal").await;
    // A plugin that cannot say anything any more does not say by it that all is well.
    says(&world, Told::Nothing);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.reported("pvc-1").unwrap().findings[0].reason, "VolumeConditionAbnormal");
    says(&world, Told::Condition(false));
    world.until_healthy("pvc-1").await;
}

async fn an_incident_and_health() {
    let mut world = World::with_volumes();
    world.plugin.register();
    let disk = world.local("disk-1");
    tmpfs(&disk);
    let volume = volume(1);
    world.csi(&volume);
    world.start();
    world.until_healthy("disk-1").await;
    world.until_healthy("pvc-1").await;
    // Its pod holds it, so that the clean-up waits, with the mounts in the report.
    world.fence(1, std::slice::from_ref(&volume));
    world
        .until("the mounts are written down", |world| {
            world.reported("pvc-1").is_some_and(|volume| !volume.mounts.is_empty())
        })
        .await;
    rustix::mount::unmount(&disk, UnmountFlags::empty()).unwrap();
    world.until_found("disk-1", Check::MountPoint, "NotMountPoint").await;
    let told = world.reported("pvc-1").unwrap();
    assert!(!told.mounts.is_empty() && told.state == VolumeState::Healthy, "{told:?}");
    world.pod_is_gone(&volume.pod);
    world.stores.volumes.remove(&ObjectKey::cluster("pvc-1"));
    world
        .until("Clean", |world| {
            world.state() == Some(bulkhead::api::node_volume_report::CleanupState::Clean)
                && world.reported("pvc-1").is_none()
        })
        .await;
    world.until_found("disk-1", Check::MountPoint, "NotMountPoint").await;
}
