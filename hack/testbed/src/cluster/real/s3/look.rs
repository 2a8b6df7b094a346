//! What there is of volumes that are buckets: in the API, on a node and in the bucket.

use std::collections::BTreeMap;
use std::path::Path;

use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use bulkhead::api::s3::{DEVICE, MOUNTPOINT_NAMESPACE, VOLUME_NAME, sources_folder};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::super::{PodPlace, RealCluster};
use crate::cluster::ClusterError;

/// The kubelet's folder on every node.
const KUBELET: &str = "/var/lib/kubelet";

impl RealCluster {
    /// The s3pa of a volume.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn attachments(&self, volume: &str) -> Result<Vec<MountpointS3PodAttachment>, ClusterError> {
        let all = Api::<MountpointS3PodAttachment>::all(self.client.clone()).list(&ListParams::default()).await?;
        Ok(all.items.into_iter().filter(|it| it.spec.persistent_volume_name == volume).collect())
    }

    /// All Mountpoint Pods.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn mountpoint_pods(&self) -> Result<Vec<Pod>, ClusterError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), MOUNTPOINT_NAMESPACE);
        Ok(pods.list(&ListParams::default()).await?.items)
    }

    /// Which Mountpoint Pod serves which workload of a volume, by the workload's uid.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn served(&self, volume: &str) -> Result<BTreeMap<String, String>, ClusterError> {
        let mut served = BTreeMap::new();
        for attachment in self.attachments(volume).await? {
            for (pod, workloads) in attachment.spec.mountpoint_s3_pod_attachments {
                served.extend(workloads.into_iter().map(|it| (it.workload_pod_uid, pod.clone())));
            }
        }
        Ok(served)
    }

    /// The Mountpoint Pod that serves a workload of a volume, if one does and is on a node.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn serving(&self, volume: &str, workload: &PodPlace) -> Result<Option<PodPlace>, ClusterError> {
        let Some(name) = self.served(volume).await?.remove(&workload.uid) else { return Ok(None) };
        let pod = self.mountpoint_pods().await?.into_iter().find(|pod| pod.name_any() == name);
        let place = |pod: Pod| Some(PodPlace { uid: pod.uid()?, node: pod.spec?.node_name?, name });
        Ok(pod.and_then(place))
    }

    /// What is left of a volume in the API and on a node, in words: s3pa, Mountpoint Pods, mounts, folders.
    ///
    /// # Errors
    /// When the API server refuses, or the node is off.
    pub async fn left_of(&self, volume: &str, node: &str) -> Result<Vec<String>, ClusterError> {
        let is_of = |pod: &Pod| pod.annotations().get(VOLUME_NAME).is_some_and(|name| name == volume);
        let (of_it, others): (Vec<_>, Vec<_>) = self.mountpoint_pods().await?.into_iter().partition(is_of);
        let attachments = self.attachments(volume).await?;
        let mut left: Vec<_> = attachments.iter().map(|it| format!("s3pa {}", it.name_any())).collect();
        left.extend(of_it.iter().map(described));
        left.extend(self.mounts_but(volume, node, &others).await?);
        Ok(left)
    }

    /// Targets of a volume on a node, and sources that are not of these Mountpoint Pods.
    async fn mounts_but(&self, volume: &str, node: &str, pods: &[Pod]) -> Result<Vec<String>, ClusterError> {
        let sources = sources_folder(Path::new(KUBELET)).display().to_string();
        let script = format!("grep -F {DEVICE} /proc/self/mountinfo; ls -d {sources}/*");
        let output = self.node(node)?.exec(&["sh", "-c", &script]).await?;
        let target = format!("~csi/{volume}/");
        let of_another = |line: &str| pods.iter().any(|pod| line.contains(&pod.name_any()));
        let is_left = |line: &&str| line.contains(&target) || (line.contains(&sources) && !of_another(line));
        Ok(String::from_utf8_lossy(&output.stdout).lines().filter(is_left).map(str::to_owned).collect())
    }

    /// What an object of a bucket is, read from the S3 server's disk.
    ///
    /// # Errors
    /// When there is no such object.
    pub fn in_bucket(&self, bucket: &str, key: &str) -> Result<String, ClusterError> {
        let path = self.s3()?.bucket(bucket).join(key);
        std::fs::read_to_string(&path).map_err(|source| ClusterError::File { path, source })
    }
}

fn described(pod: &Pod) -> String {
    let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    format!("Mountpoint Pod {} ({phase}, {:?})", pod.name_any(), pod.annotations())
}
