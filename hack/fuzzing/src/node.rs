//! What the node agent reads: of the kernel, of the kubelet's folder, of other processes. Whoever is root on the node writes
//! there what they like.

use std::net::IpAddr;

use bulkhead::node_agent::addresses;
use bulkhead::node_agent::mounts::layout::{self, Owner};
use bulkhead::node_agent::mounts::vol_data::{self, Record};
use bulkhead::node_agent::mounts::{mountinfo, process};
use bulkhead::node_agent::probes::{device, kernel_log, superblock as file_system};

/// `/proc/PID/mountinfo`: a mount for each line, or none at all.
pub fn mountinfo(data: &[u8]) {
    if let Ok(mounts) = mountinfo::parse(data) {
        let lines = data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        assert_eq!(mounts.len(), lines);
        for mount in mounts {
            assert!(mount.path.len() <= data.len() * 3 && mount.root.len() <= data.len() * 3, "{mount:?}");
            assert_eq!(mount.device.to_string().parse(), Ok(mount.device));
        }
    }
}

/// `vol_data.json`: names a volume in full, and as it is written again.
pub fn vol_data(data: &[u8]) {
    let record = vol_data::parse(data);
    assert_ne!(record, Record::Absent, "what is there is not absent");
    if let Record::Of(volume) = record {
        assert!(!volume.driver.is_empty() && !volume.handle.is_empty() && data.len() <= vol_data::LENGTH_MAX);
        let written = serde_json::to_vec(&volume).unwrap_or_default();
        assert!(written.len() > vol_data::LENGTH_MAX || vol_data::parse(&written) == Record::Of(volume));
    }
}

/// Paths below the kubelet's root: what belongs to a pod is named by parts of the path.
pub fn kubelet_paths(data: &[u8]) {
    let path = String::from_utf8_lossy(data);
    for owner in [layout::owner(&path), layout::owner_anywhere(&path)] {
        if let Owner::Pod(pod, volume) = owner {
            assert!(!pod.contains('/') && !volume.contains('/'), "{path:?}");
        }
    }
    if let Some((pod, volume)) = layout::pod_mount(&path) {
        assert!(matches!(layout::owner(&path), Owner::Pod(..) | Owner::Other), "{path:?}");
        assert!(!pod.contains('/') && !volume.contains('/'), "{path:?}");
    }
    if layout::is_name(&path) {
        assert!(!path.contains(['/', '\0']) && !matches!(&*path, "" | "." | ".."), "{path:?}");
    }
    if let Some(pod) = layout::pod_of_root(&path) {
        assert!(!pod.contains('/'), "{path:?}");
    }
    let _ = layout::staging_record(&path);
}

/// Files of `/proc/PID`.
pub fn process_files(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = process::mount_id(&text);
    for mapped in process::mapped(&text).flatten() {
        assert!(!mapped.path.contains('\n'), "{mapped:?}");
    }
    assert!(!process::shown_name(data).chars().any(char::is_control));
}

/// Lines of `/dev/kmsg`, and what sysfs says of a device.
pub fn kernel_log(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = kernel_log::parse(&text);
    let _ = device::parse_completed(&text);
    let _ = device::parse_in_flight(&text);
    assert!(device::parse_bad_blocks(&text).len() <= text.lines().count());
}

/// The first bytes of a volume, which its user writes: what identifies a file system is within the length that is read.
pub fn superblock(data: &[u8]) {
    let found = file_system::uuid(data);
    assert!(found.as_ref().is_none_or(|uuid| uuid.len() == 36), "{found:?}");
    assert_eq!(file_system::uuid(data.get(..file_system::LENGTH).unwrap_or(data)), found);
}

/// `fib_trie`, `route` and `if_inet6` below `/proc/PID/net`, an empty line between them: addresses, and none of an interface
/// that stays within the node.
pub fn host_addresses(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut files = text.splitn(3, "\n\n");
    let [trie, route, if_inet6] = [(); 3].map(|()| files.next().unwrap_or_default());
    let found = addresses::parse(trie, route, if_inet6, |_| false);
    assert!(found.len() <= addresses::MOST && found.iter().all(|it| it.parse::<IpAddr>().is_ok()), "{found:?}");
    assert!(addresses::parse(trie, route, if_inet6, |_| true).is_empty());
}
