//! Volumes that are buckets on real nodes: the S3 driver as it is shipped, an S3 server on the storage network, and pods with a
//! shell that read and write on command.

mod look;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead::api::s3::DRIVER;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{PodPlace, RealCluster, workload};
use crate::cluster::{ClusterError, merge, wait};
use crate::real_nodes::busybox;
use crate::s3_server::{KeyPair, S3Server, Usable};
use crate::{images, mount_s3};

/// The namespace of workloads, volumes' claims and their Secrets.
const NAMESPACE: &str = "default";
/// Where the volume is in a shell's container.
const FOLDER: &str = "/data";
/// The image of pods with a shell.
const SHELL_IMAGE: &str = "testbed-shell:latest";
/// A command that hangs, as on a mount that nobody serves, is given up on.
const COMMAND: &str = "20";
/// The driver's own credentials.
const DRIVER_KEY: &str = "DRIVERKEY";
const DRIVER_SECRET: &str = "driver/secret";
/// The name of mount-s3's process.
const ENGINE: &str = "mount-s3";
/// That of the mounter, as the kernel cuts it. With it, the first of its container, all others there end.
const MOUNTER: &str = "scality-s3-csi-";

/// Ends what runs under the name `$2` in the pod of the uid `$1`: the kubelet mounts files of that pod into its containers.
const KILL_IN_POD: &str = r#"
found=1
for process in /proc/[0-9]*; do
    if [ "$(cat "$process/comm" 2>/dev/null)" = "$2" ] && grep -q "$1" "$process/mountinfo"; then
        kill -9 "${process#/proc/}" && found=0
    fi
done
exit $found
"#;

/// A volume that is a bucket, and its claim of the same name.
#[derive(Clone, Debug)]
pub struct S3Volume {
    /// Of the PersistentVolume and its claim.
    pub name: String,
    /// The bucket, which must be there.
    pub bucket: String,
    /// Mount options.
    pub options: Vec<String>,
    /// Access mode.
    pub access: &'static str,
    /// Further volume attributes.
    pub attributes: Value,
    /// The Secret in the workloads' namespace with which it is mounted; without one, the driver's own credentials.
    pub secret: Option<String>,
}

impl S3Volume {
    /// One that many read and write, of the bucket of this name.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            bucket: name.to_owned(),
            options: ["allow-delete", "allow-overwrite", "allow-other"].map(str::to_owned).to_vec(),
            access: "ReadWriteMany",
            attributes: json!({}),
            secret: None,
        }
    }

    fn volume(&self) -> Result<PersistentVolume, serde_json::Error> {
        let attributes = json!({"bucketName": self.bucket});
        let mut csi = json!({"driver": DRIVER, "volumeHandle": self.name, "volumeAttributes": attributes});
        merge(&mut csi, &json!({"volumeAttributes": self.attributes}));
        if let Some(secret) = &self.secret {
            let reference = json!({"name": secret, "namespace": NAMESPACE});
            let by_secret = json!({"authenticationSource": "secret"});
            merge(&mut csi, &json!({"volumeAttributes": by_secret, "nodePublishSecretRef": reference}));
        }
        serde_json::from_value(json!({
            "metadata": {"name": self.name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": [self.access],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "mountOptions": self.options,
                "claimRef": {"namespace": NAMESPACE, "name": self.name},
                "csi": csi,
            },
        }))
    }

    fn claim(&self) -> Result<PersistentVolumeClaim, serde_json::Error> {
        serde_json::from_value(json!({
            "metadata": {"name": self.name},
            "spec": {
                "storageClassName": "",
                "volumeName": self.name,
                "accessModes": [self.access],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }))
    }
}

/// A pod with a claim at `/data` and a shell that waits for commands.
#[derive(Clone, Debug)]
pub struct Shell<'a> {
    /// Its name.
    pub name: &'a str,
    /// The claim.
    pub claim: &'a str,
    /// The node that it must run on.
    pub node: &'a str,
    /// fsGroup of the pod.
    pub fs_group: Option<i64>,
    /// Whether what is mounted at the target later reaches the container.
    pub sees_later_mounts: bool,
    /// Whether the claim is used read-only.
    pub read_only: bool,
    /// A script that its first process runs. It has half a minute to end; one without a script is killed after a second.
    pub runs: Option<&'a str>,
}

impl<'a> Shell<'a> {
    /// One that reads and writes, and sees no later mounts.
    pub fn new(name: &'a str, claim: &'a str, node: &'a str) -> Self {
        Self { name, claim, node, fs_group: None, sees_later_mounts: false, read_only: false, runs: None }
    }

    fn pod(&self) -> Result<Pod, serde_json::Error> {
        let propagation = if self.sees_later_mounts { "HostToContainer" } else { "None" };
        serde_json::from_value(json!({
            "metadata": {"name": self.name, "labels": {"app": self.name}},
            "spec": {
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": if self.runs.is_some() { 30 } else { 1 },
                "nodeSelector": {"kubernetes.io/hostname": self.node},
                "securityContext": {"fsGroup": self.fs_group},
                "containers": [{
                    "name": "shell",
                    "image": SHELL_IMAGE,
                    "imagePullPolicy": "Never",
                    "command": self.runs.map(|script| ["/bin/sh", "-c", script]),
                    "volumeMounts": [{"name": "data", "mountPath": FOLDER, "mountPropagation": propagation}],
                }],
                "volumes": [{
                    "name": "data",
                    "persistentVolumeClaim": {"claimName": self.claim, "readOnly": self.read_only},
                }],
            },
        }))
    }
}

/// S3 beside the nodes: a server with its buckets in a folder, and the credentials that the driver has by itself, good for
/// every bucket.
pub struct S3 {
    /// The server.
    pub server: S3Server,
    _folder: TempDir,
}

impl S3 {
    pub(super) fn start(address: SocketAddr) -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = S3Server::start(folder.path(), address)?;
        server.keys().set(KeyPair::new(DRIVER_KEY, DRIVER_SECRET), Usable::All);
        Ok(Self { server, _folder: folder })
    }

    /// What a user adds to `config/with-s3`: where S3 is, and the driver's credentials.
    pub(super) fn complete(&self, objects: &mut Vec<DynamicObject>) -> Result<(), serde_json::Error> {
        for object in objects.iter_mut().filter(|object| object.name_any() == "s3-csi-settings") {
            merge(&mut object.data, &json!({"data": {"AWS_ENDPOINT_URL": self.server.endpoint()}}));
        }
        objects.insert(0, secret("kube-system", "s3-secret", DRIVER_KEY, DRIVER_SECRET)?);
        Ok(())
    }
}

/// A Secret under the driver's keys.
fn secret(namespace: &str, name: &str, access_key: &str, secret_key: &str) -> Result<DynamicObject, serde_json::Error> {
    serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": {"access_key_id": access_key, "secret_access_key": secret_key},
    }))
}

/// The archives that the nodes need besides: the Mountpoint Pods' image with a mount-s3, which takes the place of the one
/// without, and pods with a shell. Blocks: for minutes when mount-s3 is not built yet.
pub(super) fn archives(programs: &Path, folder: &Path) -> Result<Vec<PathBuf>, ClusterError> {
    let engine = mount_s3::ensure()?;
    let mounter = images::mounter_with(&engine, programs, folder)?;
    let shell = folder.join("testbed-shell.tar");
    busybox(SHELL_IMAGE, &["sleep", "infinity"]).write(&shell).map_err(images::ImagesError::from)?;
    Ok(vec![mounter, shell])
}

impl RealCluster {
    /// Creates a volume and its claim.
    ///
    /// # Errors
    /// When the API server refuses them.
    pub async fn add_s3_volume(&self, volume: &S3Volume) -> Result<(), ClusterError> {
        let create = PostParams::default();
        Api::all(self.client.clone()).create(&create, &volume.volume()?).await?;
        Api::namespaced(self.client.clone(), NAMESPACE).create(&create, &volume.claim()?).await?;
        Ok(())
    }

    /// Deletes a volume and its claim, which nobody uses any more. The bucket stays.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn remove_s3_volume(&self, name: &str) -> Result<(), ClusterError> {
        let delete = DeleteParams::default();
        Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), NAMESPACE).delete(name, &delete).await?;
        Api::<PersistentVolume>::all(self.client.clone()).delete(name, &delete).await?;
        Ok(())
    }

    /// Creates a Secret with credentials for volumes, or changes the one of this name.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn set_s3_secret(&self, name: &str, key: &KeyPair) -> Result<(), ClusterError> {
        let object = secret(NAMESPACE, name, &key.access_key, &key.secret_key)?;
        Ok(self.testbed.apply(vec![object]).await?)
    }

    /// The S3 server.
    ///
    /// # Errors
    /// When the cluster was started without one.
    pub fn s3(&self) -> Result<&S3Server, ClusterError> {
        let missing = || ClusterError::Array(std::io::Error::other("the cluster was started without S3"));
        self.s3.as_ref().map(|s3| &s3.server).ok_or_else(missing)
    }

    /// Creates a pod with a shell; it does not run yet.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn create_shell(&self, shell: &Shell<'_>) -> Result<(), ClusterError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        pods.create(&PostParams::default(), &shell.pod()?).await?;
        Ok(())
    }

    /// Waits until a pod with a shell runs.
    ///
    /// # Errors
    /// When it does not in time; the error says what it waits for.
    pub async fn shell_runs(&self, name: &str, limit: Duration) -> Result<PodPlace, ClusterError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        wait::until(&format!("pod {name} is Ready"), limit, async || {
            let place = pods.get_opt(name).await?.as_ref().and_then(workload::place_of);
            let Some(place) = place else { return Ok(Err(self.waiting().await?.join("; "))) };
            Ok(Ok(place))
        })
        .await
    }

    /// Runs a script in a pod with a shell, in the folder of the volume, and returns what it prints.
    ///
    /// # Errors
    /// When it fails, with what it printed, or hangs.
    pub async fn shell(&self, name: &str, script: &str) -> Result<String, ClusterError> {
        let script = format!("cd {FOLDER} && {script}");
        let command = ["/bin/busybox", "timeout", COMMAND, "sh", "-c", script.as_str()];
        let exec = ["exec", "--namespace", NAMESPACE, name, "--"];
        Ok(self.testbed.kubectl(&[&exec[..], &command].concat()).await?)
    }

    /// Deletes pods with a shell and waits until they are gone.
    ///
    /// # Errors
    /// When they are not gone in time.
    pub async fn end_shells(&self, names: &[&str], limit: Duration) -> Result<(), ClusterError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        for name in names {
            pods.delete(name, &DeleteParams::default()).await?;
        }
        wait::until(&format!("{} are gone", names.join(", ")), limit, async || {
            let all = pods.list(&ListParams::default()).await?;
            let left: Vec<_> =
                all.iter().map(ResourceExt::name_any).filter(|it| names.contains(&it.as_str())).collect();
            Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
        })
        .await
    }

    /// Kills mount-s3 in a Mountpoint Pod.
    ///
    /// # Errors
    /// When it does not run there, or the node is off.
    pub async fn kill_mount_program(&self, pod: &PodPlace) -> Result<(), ClusterError> {
        self.on_node(&pod.node, &["sh", "-c", KILL_IN_POD, "sh", &pod.uid, ENGINE]).await
    }

    /// Kills all that runs in the container of a Mountpoint Pod at once, as the kernel does when it is out of memory.
    ///
    /// # Errors
    /// When it does not run, or the node is off.
    pub async fn kill_mountpoint_container(&self, pod: &PodPlace) -> Result<(), ClusterError> {
        self.on_node(&pod.node, &["sh", "-c", KILL_IN_POD, "sh", &pod.uid, MOUNTER]).await
    }
}
