//! What breaks on real nodes besides the nodes: volumes (folders of a node's disk as local volumes, FUSE servers that die), and
//! the network of pods.

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::RealCluster;
use crate::cluster::ClusterError;
use crate::real_nodes::RealNodeError;

/// Where the disks of local volumes are on a node.
const DISKS: &str = "/var/lib/volumes";

/// The settings of the plugin that gives pods their network.
const POD_NETWORK: &str = "/etc/cni/net.d/10-pods.conflist";

/// Ends the connection of the FUSE server of `$1`: its requests fail from then on as if the server had died, and so the server
/// sees it too. The control file system shows the connections of the whole machine, by the number of their device.
const END_FILE_SERVER: &str = r#"
set -eu
device=$(awk -v volume="$1" '{ for (i = 7; i < NF; i++) if ($i == "-" && $(i + 1) ~ /^fuse/ && $(i + 2) == volume) print $3 }' \
    /proc/self/mountinfo | sort -u)
[ "$(echo "$device" | wc -w)" = 1 ] || { echo "mounted as: $device" >&2; exit 1; }
control=$(mktemp -d)
mount -t fusectl fusectl "$control"
echo 1 >"$control/${device#*:}/abort" || failed=1
umount "$control"
rmdir "$control"
[ -z "${failed:-}" ]
"#;

/// A folder on a disk of a node, as a PersistentVolume.
#[derive(Clone, Debug)]
pub struct LocalVolume<'a> {
    /// Of the PersistentVolume and of the folder.
    pub name: &'a str,
    /// The node.
    pub node: &'a str,
    /// The disk: a folder of many.
    pub disk: &'a str,
    /// Its StorageClass.
    pub class: &'a str,
    /// Such as `16Mi`.
    pub size: &'a str,
}

impl RealCluster {
    /// Makes the folder and the PersistentVolume of a local volume.
    ///
    /// # Errors
    /// When the node is off, or the API server refuses the volume.
    pub async fn add_local_volume(&self, volume: &LocalVolume<'_>) -> Result<(), ClusterError> {
        let path = format!("{DISKS}/{}/{}", volume.disk, volume.name);
        self.on_node(volume.node, &["mkdir", "-p", &path]).await?;
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [volume.node]});
        let object: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": volume.name},
            "spec": {
                "capacity": {"storage": volume.size},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": volume.class,
                "local": {"path": path},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        }))?;
        Api::all(self.client.clone()).create(&PostParams::default(), &object).await?;
        Ok(())
    }

    /// Moves the folder of a disk away: what is on it is not found any more, and who has it mounted keeps it.
    ///
    /// # Errors
    /// When the node is off, or there is no such disk.
    pub async fn hide_disk(&self, node: &str, disk: &str) -> Result<(), ClusterError> {
        self.on_node(node, &["mv", &format!("{DISKS}/{disk}"), &format!("{DISKS}/{disk}.away")]).await
    }

    /// Undoes [`RealCluster::hide_disk`].
    ///
    /// # Errors
    /// When the node is off, or the disk is not hidden.
    pub async fn show_disk(&self, node: &str, disk: &str) -> Result<(), ClusterError> {
        self.on_node(node, &["mv", &format!("{DISKS}/{disk}.away"), &format!("{DISKS}/{disk}")]).await
    }

    /// The FUSE server of a volume dies on a node: whoever has it mounted there has a dead mount (`ENOTCONN`), until the
    /// driver mounts it anew for a new pod.
    ///
    /// # Errors
    /// When the node is off, or the volume is not mounted there.
    pub async fn end_file_server(&self, node: &str, handle: &str) -> Result<(), ClusterError> {
        self.on_node(node, &["sh", "-c", END_FILE_SERVER, "sh", handle]).await
    }

    /// Takes away the settings of the network of a node's pods, as a CNI plugin does that is replaced: the node turns NotReady.
    /// Pods that run keep their network.
    ///
    /// # Errors
    /// When the node is off, or they are away.
    pub async fn hide_pod_network(&self, node: &str) -> Result<(), ClusterError> {
        self.on_node(node, &["mv", POD_NETWORK, &format!("{POD_NETWORK}.away")]).await
    }

    /// Undoes [`RealCluster::hide_pod_network`].
    ///
    /// # Errors
    /// When the node is off, or they are not away.
    pub async fn show_pod_network(&self, node: &str) -> Result<(), ClusterError> {
        // containerd reads the folder anew when a file was written or removed there, and not when one appeared.
        let script = "cp \"$1.away\" \"$1\" && rm \"$1.away\"";
        self.on_node(node, &["sh", "-c", script, "sh", POD_NETWORK]).await
    }

    pub(super) async fn on_node(&self, node: &str, argv: &[&str]) -> Result<(), ClusterError> {
        let output = self.node(node)?.exec(argv).await?;
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(RealNodeError::Command { command: argv.join(" "), message }.into())
    }
}
