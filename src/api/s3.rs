//! Names of the S3 driver: what the Scality driver and its Mountpoint Pods call labels, annotations, volume attributes,
//! environment and files. Drop-in: none of them is ours to change. Pure.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha224, Sha256};

use super::names::hex;

/// The CSI driver; also the API group of `s3pa`, and the prefix of labels and annotations.
pub const DRIVER: &str = "s3.csi.scality.com";
/// Where Mountpoint Pods live when nothing else is said.
pub const MOUNTPOINT_NAMESPACE: &str = "mount-s3";
/// Prefix of the names of Mountpoint Pods.
pub const MOUNTPOINT_POD_PREFIX: &str = "mp-";

/// Label of a Mountpoint Pod: version of mount-s3. For people.
pub const MOUNTPOINT_VERSION_LABEL: &str = "s3.csi.scality.com/mountpoint-version";
/// Label of a Mountpoint Pod and of an s3pa: version of the controller that made it. A workload is never assigned to a pod
/// of another version.
pub const DRIVER_VERSION_LABEL: &str = "s3.csi.scality.com/mounted-by-csi-driver-version";
/// Label of a Mountpoint Pod: uid of the workload for which it was made.
pub const POD_UID_LABEL: &str = "s3.csi.scality.com/pod-uid";
/// Label of a Mountpoint Pod: name of the PersistentVolume, where it fits into a label (63 characters). The annotation of
/// this name always has it.
pub const VOLUME_NAME: &str = "s3.csi.scality.com/volume-name";
/// Annotation of a Mountpoint Pod: handle of the volume.
pub const VOLUME_ID: &str = "s3.csi.scality.com/volume-id";
/// Annotation of a Mountpoint Pod, `true`: no workload uses it any more. Never taken back.
pub const NEEDS_UNMOUNT: &str = "s3.csi.scality.com/needs-unmount";
/// Annotation of a Mountpoint Pod, `true`, set by a person: no further workload, those that are there go on.
pub const NO_NEW_WORKLOAD: &str = "s3.csi.scality.com/no-new-workload";
/// Lets Cluster Autoscaler remove a node in spite of the Mountpoint Pod on it.
pub const DAEMONSET_POD: &str = "cluster-autoscaler.kubernetes.io/daemonset-pod";
/// Annotation of a Mountpoint Pod of ours: its [`Mount`] as JSON. With it an s3pa that was lost can be made again.
pub const MOUNT_ANNOTATION: &str = "bulkhead.dev/s3-mount";
/// Annotation of a Mountpoint Pod of ours: uid of the PersistentVolume. A volume that is made anew under the same name never
/// shares an old mount.
pub const VOLUME_UID_ANNOTATION: &str = "bulkhead.dev/s3-volume-uid";
/// Annotation of a Mountpoint Pod of ours: how many failed in a row before it was made. Absent for none.
pub const FAILURES_ANNOTATION: &str = "bulkhead.dev/s3-failures";
/// Label of every Mountpoint Pod of ours.
pub const MOUNTPOINT_POD_LABEL: &str = "bulkhead.dev/mountpoint-pod";
/// Finalizer of an s3pa: no Mountpoint Pod is left behind.
pub const FINALIZER: &str = "bulkhead.dev/mountpoint-pods";
/// Action of the Events that tell what the sweep of attachments and Mountpoint Pods did.
pub const SWEEP_ACTION: &str = "Sweep";
/// Taint of a node on which the driver does not run yet; the node service removes it.
pub const AGENT_NOT_READY_TAINT: &str = "s3.csi.scality.com/agent-not-ready";

/// The container of a Mountpoint Pod.
pub const CONTAINER: &str = "mountpoint";
/// Its emptyDir, in memory: socket, error and exit file, credentials.
pub const COMMUNICATION_VOLUME: &str = "comm";
/// Where a Mountpoint Pod sees it.
pub const COMMUNICATION_FOLDER: &str = "/comm";
/// The volume of a local cache, and where a Mountpoint Pod sees it.
pub const CACHE_VOLUME: &str = "local-cache";
/// Where a Mountpoint Pod sees its cache.
pub const CACHE_FOLDER: &str = "/local-cache";
/// Socket on which the mounter receives options and descriptor.
pub const SOCKET: &str = "mount.sock";
/// Where the mounter writes why mount-s3 failed.
pub const ERROR_FILE: &str = "mount.err";
/// Made by the node service: mount-s3 is to end, and that is no failure.
pub const EXIT_FILE: &str = "mount.exit";
/// Folder of credentials.
pub const CREDENTIALS_FOLDER: &str = "credentials";
/// Device name of our FUSE mounts in the mount table.
pub const DEVICE: &str = "mountpoint-s3";

/// What decides which workloads share one Mountpoint Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Node.
    pub node_name: String,
    /// PersistentVolume.
    pub persistent_volume_name: String,
    /// Its handle.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// Its mount options, joined with commas in their order.
    pub mount_options: String,
    /// fsGroup of the workload as decimal text; empty when unset.
    #[serde(rename = "workloadFSGroup")]
    pub workload_fs_group: String,
}

impl Mount {
    /// Name of the s3pa that we make: the same whoever makes it, so that two replicas or two attempts make one. Those with
    /// generated names are read all the same.
    pub fn attachment_name(&self) -> String {
        let fields = [
            &self.node_name,
            &self.persistent_volume_name,
            &self.volume_id,
            &self.mount_options,
            &self.workload_fs_group,
        ];
        let mut hash = Sha256::new();
        for field in fields {
            hash.update(field);
            hash.update([0]);
        }
        format!("s3pa-{}", hex(&hash.finalize(), 10))
    }
}

/// For logs.
impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node_name, persistent_volume_name, workload_fs_group, .. } = self;
        write!(f, "{persistent_volume_name} on {node_name}")?;
        if workload_fs_group.is_empty() { Ok(()) } else { write!(f, " for group {workload_fs_group}") }
    }
}

/// Name of the Mountpoint Pod that is made for a workload and a volume, as upstream names it. `instead_of` is the uid of a
/// Mountpoint Pod of that name that failed.
pub fn mountpoint_pod_name(workload_uid: &str, volume: &str, instead_of: Option<&str>) -> String {
    let mut hash = Sha224::new();
    hash.update(workload_uid);
    hash.update(volume);
    hash.update(instead_of.unwrap_or_default());
    format!("{MOUNTPOINT_POD_PREFIX}{}", hex(&hash.finalize(), 28))
}

/// Folder with the source of every Mountpoint Pod of a node.
pub fn sources_folder(kubelet_root: &Path) -> PathBuf {
    kubelet_root.join("plugins").join(DRIVER).join("mnt")
}

/// Folder of a Mountpoint Pod's communication volume as the node sees it.
pub fn communication_folder(kubelet_root: &Path, mountpoint_pod_uid: &str) -> PathBuf {
    let volumes = kubelet_root.join("pods").join(mountpoint_pod_uid).join("volumes");
    volumes.join("kubernetes.io~empty-dir").join(COMMUNICATION_VOLUME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_tell_mounts_apart() {
        let mount = Mount { node_name: "a".into(), persistent_volume_name: "b".into(), ..Mount::default() };
        let other = Mount { node_name: "ab".into(), ..Mount::default() };
        assert_eq!(mount.attachment_name().len(), 25);
        assert_ne!(mount.attachment_name(), other.attachment_name());
        let pod = mountpoint_pod_name("0f0e", "pv", None);
        assert_eq!(pod.len(), 59);
        assert_ne!(pod, mountpoint_pod_name("0f0e", "pv", Some("1")));
    }

    /// Upstream's programs look for this name: hex SHA-224 of uid and volume (echo -n uidpv | sha224sum).
    #[test]
    fn the_pods_name_is_upstreams() {
        let name = mountpoint_pod_name("uid", "pv", None);
        assert_eq!(name, "mp-244ada2eb680187cf1555f9affd02f352f8b35229da3905863c874b8");
    }
}
