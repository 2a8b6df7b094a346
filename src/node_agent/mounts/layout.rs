//! Where the kubelet keeps what belongs to CSI volumes. All paths are relative to its root folder, and made only of
//! names that were checked: nothing that comes from the API or from a record can leave it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::mountinfo::is_within;
use crate::api::names;

/// Folder of the CSI plugin's global mounts.
const CSI: &str = "plugins/kubernetes.io/csi";
/// Folder of its raw block volumes.
pub const BLOCK: &str = "plugins/kubernetes.io/csi/volumeDevices";
/// Folder, within a pod's, of its CSI mounts.
pub const POD_MOUNTS: &str = "volumes/kubernetes.io~csi";
/// Folder, within a pod's, of its CSI block devices.
pub const POD_DEVICES: &str = "volumeDevices/kubernetes.io~csi";
/// Name of the record beside a mount.
pub const RECORD: &str = "vol_data.json";

/// A volume whose traces are looked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Wanted {
    /// PersistentVolume.
    pub name: String,
    /// CSI driver.
    pub driver: String,
    /// CSI volume handle.
    pub handle: String,
    /// Whether the node is proved to be cut off from it.
    pub proved: bool,
    /// Its pods that are to be gone, by uid.
    pub pods: Vec<String>,
    /// Where there may be more such pods than these: the pods of the API. A container of any other may be one of it.
    #[serde(default)]
    pub others: Option<Vec<String>>,
    /// Mounts of it that an earlier inventory found outside of the folders below: device and path.
    pub known: Vec<(super::mountinfo::Device, String)>,
}

impl Wanted {
    /// Whether a container that is of these pods is, or may be, one of the volume's.
    pub fn may_be_of(&self, pods: &BTreeSet<String>) -> bool {
        let unknown = |pod: &String| self.others.as_ref().is_some_and(|others| !others.contains(pod));
        pods.iter().any(|pod| self.pods.contains(pod) || unknown(pod))
    }

    /// Whether folders can be named after it.
    pub fn is_usable(&self) -> bool {
        is_name(&self.name) && is_name(&self.driver) && !self.handle.is_empty()
    }
}

/// Whether a text can be the name of one folder: what Kubernetes allows for objects and drivers, and for uids.
pub fn is_name(text: &str) -> bool {
    let kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !text.is_empty() && text.len() <= 253 && text.chars().all(kept) && text.chars().any(|c| c.is_ascii_alphanumeric())
}

/// A place that a CSI call is about: its path, and all that lies there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The path that the CSI calls name.
    pub path: String,
    /// Where something may be mounted.
    pub mounts: Vec<String>,
    /// What is deleted at the end, in this order. Files are unlinked, folders removed when empty. Never the kubelet's record, nor the
    /// folder that it lies in: a kubelet that was not started since reads it to unmount, finds nothing to do and deletes both. Without the
    /// record it tries for ever, keeps the volume in the Node's `volumesInUse`, and never lets the pod go.
    pub leftovers: Vec<String>,
    /// Folders that others may use too: removed when empty, and no remnant by themselves.
    pub shared: Vec<String>,
}

/// A volume's mount in a pod; `folder` is the name of its folder there.
pub fn target(pod: &str, folder: &str) -> Layout {
    mounted_at(format!("pods/{pod}/{POD_MOUNTS}/{folder}/mount"))
}

/// A path where a volume is mounted, and nothing more.
fn mounted_at(path: String) -> Layout {
    Layout { mounts: vec![path.clone()], leftovers: vec![path.clone()], shared: Vec::new(), path }
}

/// A raw block volume's device in a pod.
pub fn block_target(pod: &str, volume: &str) -> Layout {
    let path = format!("{BLOCK}/publish/{volume}/{pod}");
    let global = format!("{BLOCK}/{volume}/dev/{pod}");
    Layout {
        mounts: vec![global.clone(), path.clone()],
        leftovers: vec![format!("pods/{pod}/{POD_DEVICES}/{volume}"), global, path.clone()],
        shared: vec![format!("{BLOCK}/publish/{volume}")],
        path,
    }
}

/// Every place where the volume may be staged: as Kubernetes does now, as it did before 1.24, and as raw block.
pub fn staging(volume: &Wanted) -> [Layout; 3] {
    let digest = Sha256::digest(&volume.handle);
    let now = format!("{CSI}/{}/{}", volume.driver, names::hex(&digest, digest.len()));
    let before = format!("{CSI}/pv/{}", volume.name);
    let block = format!("{BLOCK}/staging/{}", volume.name);
    [format!("{now}/globalmount"), format!("{before}/globalmount"), block].map(mounted_at)
}

/// Whose a path below the kubelet's root is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner<'a> {
    /// The kubelet's, for a volume of a pod (also a sub-path of it): the pod's uid and the name of the folder.
    Pod(&'a str, &'a str),
    /// The kubelet's, for a volume: the rest of the path says which.
    Volume,
    /// Anybody's, such as a driver's.
    Other,
}

/// Whose a path relative to the kubelet's root is.
pub fn owner(path: &str) -> Owner<'_> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["pods", pod, "volumes" | "volumeDevices", "kubernetes.io~csi", volume, ..]
        | ["pods", pod, "volume-subpaths", volume, ..]
        | ["plugins", "kubernetes.io", "csi", "volumeDevices", "publish", volume, pod, ..]
        | ["plugins", "kubernetes.io", "csi", "volumeDevices", volume, "dev", pod, ..] => Owner::Pod(pod, volume),
        _ if is_within(path, CSI) => Owner::Volume,
        _ => Owner::Other,
    }
}

/// The pod and the volume's folder, if a path relative to the kubelet's root is where a pod's volume of any kind is
/// mounted: not below it, and no sub-path.
pub fn pod_mount(path: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        ["pods", pod, "volumes", "kubernetes.io~csi", volume, "mount"]
        | ["plugins", "kubernetes.io", "csi", "volumeDevices", "publish", volume, pod] => Some((pod, volume)),
        ["pods", pod, "volumes", plugin, volume] if *plugin != "kubernetes.io~csi" => Some((pod, volume)),
        _ => None,
    }
}

/// Where the record is of what is staged at a path; none if nothing is staged at such a path.
pub fn staging_record(path: &str) -> Option<String> {
    if let Some(volume) = path.strip_prefix(BLOCK).and_then(|rest| rest.strip_prefix("/staging/")) {
        return Some(format!("{BLOCK}/{volume}/data/{RECORD}"));
    }
    let folder = path.strip_suffix("/globalmount")?;
    (owner(path) == Owner::Volume).then(|| format!("{folder}/{RECORD}"))
}

/// Whose an absolute path is, wherever the kubelet's root is: the longest part of it that is the kubelet's says so.
pub fn owner_anywhere(path: &str) -> Owner<'_> {
    let parts = path.match_indices('/').filter_map(|(at, _)| path.get(at + 1..));
    parts.map(owner).find(|owner| *owner != Owner::Other).unwrap_or(Owner::Other)
}

/// The pod whose folder a mount's root lies in: a container has its pod's `etc-hosts` and its termination log mounted.
pub fn pod_of_root(root: &str) -> Option<&str> {
    let mut rest = root;
    while let Some((_, after)) = rest.split_once("/pods/") {
        let mut parts = after.split('/');
        if let (Some(pod), Some("etc-hosts" | "containers")) = (parts.next(), parts.next()) {
            return Some(pod);
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        Wanted {
            name: "pvc-1".into(),
            driver: "csi.example.com".into(),
            handle: "share-41".into(),
            proved: true,
            pods: Vec::new(),
            others: None,
            known: Vec::new(),
        }
    }

    #[test]
    fn only_names_become_folders() {
        for good in ["pvc-1", "csi.example.com", "a1f0c1e2-0001-4000-8000-000000000009", "a_b"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "../x", "a b", "a\0", "-", "ä", &"x".repeat(254)] {
            assert!(!is_name(bad), "{bad}");
        }
        assert!(!Wanted { name: "uid/data".into(), ..wanted() }.is_usable());
        assert!(!Wanted { handle: String::new(), ..wanted() }.is_usable());
        assert!(wanted().is_usable());
    }

    #[test]
    fn the_kubelets_folders() {
        let places = staging(&wanted()).map(|layout| layout.path);
        let digest = "c1dc13f428eebf1153c691db5276f0118220fdc60211ec0601428b695f034fbf";
        assert_eq!(places[0], format!("plugins/kubernetes.io/csi/csi.example.com/{digest}/globalmount"));
        assert_eq!(places[1], "plugins/kubernetes.io/csi/pv/pvc-1/globalmount");
        assert_eq!(places[2], "plugins/kubernetes.io/csi/volumeDevices/staging/pvc-1");
        assert_eq!(target("u", "pvc-1").path, "pods/u/volumes/kubernetes.io~csi/pvc-1/mount");
        assert_eq!(block_target("u", "pvc-1").path, "plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/u");
    }

    #[test]
    fn whose_a_path_is() {
        for (path, expected) in [
            ("pods/u/volumes/kubernetes.io~csi/v/mount", Owner::Pod("u", "v")),
            ("pods/u/volume-subpaths/v/c/0", Owner::Pod("u", "v")),
            ("plugins/kubernetes.io/csi/volumeDevices/publish/v/u", Owner::Pod("u", "v")),
            ("plugins/kubernetes.io/csi/volumeDevices/v/dev/u", Owner::Pod("u", "v")),
            ("plugins/kubernetes.io/csi/d/0123/globalmount", Owner::Volume),
            ("plugins/csi.example.com/private/v", Owner::Other),
        ] {
            assert_eq!(owner(path), expected, "{path}");
        }
    }

    #[test]
    fn where_a_pods_volume_is_mounted() {
        for (path, expected) in [
            ("pods/u/volumes/kubernetes.io~csi/v/mount", Some(("u", "v"))),
            ("pods/u/volumes/kubernetes.io~csi/v", None),
            ("pods/u/volumes/kubernetes.io~csi/v/mount/below", None),
            ("pods/u/volumes/kubernetes.io~local-volume/v", Some(("u", "v"))),
            ("pods/u/volumes/kubernetes.io~nfs/v", Some(("u", "v"))),
            ("plugins/kubernetes.io/csi/volumeDevices/publish/v/u", Some(("u", "v"))),
            ("pods/u/volume-subpaths/v/c/0", None),
            ("plugins/kubernetes.io/csi/d/0123/globalmount", None),
        ] {
            assert_eq!(pod_mount(path), expected, "{path}");
        }
    }

    #[test]
    fn where_the_record_of_a_staged_volume_is_and_that_it_stays() {
        for place in staging(&wanted()) {
            let record = staging_record(&place.path).unwrap();
            assert!(record.ends_with("/vol_data.json"), "{record}");
            assert!(!place.leftovers.iter().any(|path| is_within(&record, path)), "{record}");
        }
        assert_eq!(staging_record("plugins/csi.example.com/private/globalmount"), None);
    }

    #[test]
    fn a_containers_mounts_tell_its_pod() {
        assert_eq!(pod_of_root("/var/lib/kubelet/pods/u-1/etc-hosts"), Some("u-1"));
        assert_eq!(pod_of_root("/data/pods/x/kubelet/pods/u-1/containers/db/0a"), Some("u-1"));
        assert_eq!(pod_of_root("/kubelet/pods/u-1/volumes/x"), None);
        assert_eq!(pod_of_root("/"), None);
    }
}
