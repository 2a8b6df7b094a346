//! Paths that lead elsewhere, and a Mountpoint Pod that puts what it likes into the folder it shares with us.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use bulkhead::csi::v1::NodeUnpublishVolumeRequest;
use libtest_mimic::Trial;
use tonic::Code;

use super::plugin::Plugin;
use super::world::{HANDLE, Shared, World, trial, uid};

pub fn trials(shared: &Arc<Shared>) -> Vec<Trial> {
    vec![
        trial(shared, "hostile::paths_outside_of_a_pods_folder", paths_outside),
        trial(shared, "hostile::links_in_the_kubelets_folder", links_in_the_kubelets_folder),
        trial(shared, "hostile::what_a_mountpoint_pod_may_put_there", what_a_mountpoint_pod_may_put_there),
    ]
}

async fn paths_outside(world: World) {
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    let workload = world.workload(&pod).await;
    let root = world.kubelet.display();
    for path in [
        "/etc".to_owned(),
        format!("{root}/pods/{workload}/volumes/kubernetes.io~csi/../../../../etc/mount"),
        format!("{root}/pods/../{workload}/volumes/kubernetes.io~csi/pv-1/mount"),
        format!("{root}/pods/{workload}/volumes/kubernetes.io~csi/pv-1/mount/.."),
        format!("{root}/plugins/s3.csi.scality.com/mnt/{}", pod.name),
        format!("{root}/pods/{workload}/volumes/kubernetes.io~csi/pv-1\n/mount"),
    ] {
        let call = plugin.publish(&workload).with(|request| request.target_path = path.clone());
        assert_eq!(call.call().await.unwrap_err().code(), Code::InvalidArgument, "{path}");
        let call = NodeUnpublishVolumeRequest { volume_id: HANDLE.into(), target_path: path.clone() };
        let refused = plugin.calls.clone().node_unpublish_volume(call).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{path}");
    }
    let foreign = plugin.publish(&workload).context("csi.storage.k8s.io/pod.uid", &uid());
    assert_eq!(foreign.call().await.unwrap_err().code(), Code::InvalidArgument);
}

async fn links_in_the_kubelets_folder(world: World) {
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    let outside = world.folder.path().join("outside");
    fs::create_dir_all(outside.join("mount")).unwrap();
    let workload = world.workload(&pod).await;
    let target = world.target(&workload);
    symlink(&outside, &target).unwrap();
    plugin.publish(&workload).call().await.unwrap_err();
    fs::remove_file(&target).unwrap();
    fs::remove_dir(target.parent().unwrap()).unwrap();
    symlink(&outside, target.parent().unwrap()).unwrap();
    plugin.publish(&workload).call().await.unwrap_err();
    plugin.unpublish(&workload).await.unwrap_err();
    assert!(outside.join("mount").exists());
    assert!(!world.is_mounted(&target) && fs::read_dir(outside.join("mount")).unwrap().next().is_none());
}

async fn what_a_mountpoint_pod_may_put_there(world: World) {
    let plugin = Plugin::start_with(&world, &["--mount-timeout=2s"]).await;
    let mut pod = world.running_pod().await;
    let workload = world.workload(&pod).await;
    pod.kill();
    let outside = world.folder.path().join("outside");
    fs::create_dir_all(&outside).unwrap();
    let there = |name: &str| pod.communication.join(name);

    // Credentials that would be written elsewhere.
    symlink(&outside, there("credentials")).unwrap();
    plugin.publish(&workload).call().await.unwrap_err();
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    fs::remove_file(there("credentials")).unwrap();

    // Somebody else's socket, and a file without end in place of the error.
    let _ = fs::remove_file(there("mount.sock"));
    let other = outside.join("other.sock");
    let listener = std::os::unix::net::UnixListener::bind(&other).unwrap();
    listener.set_nonblocking(true).unwrap();
    symlink(&other, there("mount.sock")).unwrap();
    let error = plugin.publish(&workload).call().await.unwrap_err();
    assert!(!error.message().is_empty());
    assert!(listener.accept().is_err(), "nobody called the other socket");
    fs::remove_file(there("mount.sock")).unwrap();

    // The exit file as a link to what must not be written.
    fs::write(outside.join("precious"), "precious").unwrap();
    symlink(outside.join("precious"), there("mount.exit")).unwrap();
    world.needs_unmount(&pod).await;
    world
        .until("the exit file is there", || there("mount.exit").symlink_metadata().is_ok_and(|file| file.is_file()))
        .await;
    assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "precious");
    assert_eq!(world.mounts(), []);
}
