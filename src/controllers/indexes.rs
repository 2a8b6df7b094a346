//! By what objects are found besides their name. Pure.

use crate::api::affinity::{self, HOSTNAME_LABEL};
use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::node_volume_report::NodeVolumeReport;
use crate::api::shared_volume::{SHARED_VOLUME_LABEL, SharedVolume};
use crate::api::slim::network::{EndpointSlice, ServerPod};
use crate::api::slim::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use crate::api::volume_health::VolumeHealth;

use super::shared_volume::objects::service_name;

pub use crate::api::usage::{claim_of_volume, claims_of_pod};

/// Pods, attachments and requests by the name of their node.
pub const BY_NODE: &str = "node";
/// Pods, and VolumeHealths, by `namespace/name` of their claims.
pub const BY_CLAIM: &str = "claim";
/// Attachments, claims and reports by the name of the PersistentVolume.
pub const BY_VOLUME: &str = "volume";
/// Nodes, and the local volumes on them, by host name.
pub const BY_HOST: &str = "host";
/// Where local volumes are found that name no host: their affinity has to be asked.
pub const ANY_HOST: &str = "*";
/// Volumes by CSI driver.
pub const BY_DRIVER: &str = "driver";
/// Volumes by [`handle`].
pub const BY_HANDLE: &str = "handle";

/// Pods by what is wrong with them.
pub const BY_TROUBLE: &str = "trouble";
/// A container fails again and again.
pub const CRASH_LOOP: &str = "CrashLoopBackOff";
/// Pods by uid.
pub const BY_UID: &str = "uid";
/// Pods by [`place`].
pub const BY_PLACE: &str = "place";
/// s3pa, and Mountpoint Pods, by the name that ours have for their mount.
pub const BY_MOUNT: &str = "mount";
/// s3pa by the uid of a workload.
pub const BY_WORKLOAD: &str = "workload";
/// s3pa by the name of a Mountpoint Pod.
pub const BY_MOUNTPOINT_POD: &str = "mountpointpod";
/// SharedVolumes, and slices, by `namespace/name` of their Service.
pub const BY_SERVICE: &str = "service";
/// Slices by `namespace/name` of the SharedVolume that they say they belong to.
pub const BY_SHARED_VOLUME: &str = "sharedvolume";
/// SharedVolumes by [`provider_volume`].
pub const BY_PROVIDER_VOLUME: &str = "providervolume";

/// What tells the volumes of all CSI drivers apart.
pub fn handle(driver: &str, handle: &str) -> String {
    format!("{driver}^{handle}")
}

pub(super) fn node_of_pod(pod: &Pod) -> Vec<String> {
    pod.spec.node_name.iter().cloned().collect()
}

/// A claim and the node where it is used.
pub fn place(node: &str, claim: &str) -> String {
    format!("{node}/{claim}")
}

pub(super) fn places_of_pod(pod: &Pod) -> Vec<String> {
    let node = pod.spec.node_name.as_deref();
    node.map(|node| claims_of_pod(pod).iter().map(|claim| place(node, claim)).collect()).unwrap_or_default()
}

pub(super) fn uid_of_pod(pod: &Pod) -> Vec<String> {
    pod.metadata.uid.iter().cloned().collect()
}

pub(super) fn trouble_of_pod(pod: &Pod) -> Vec<String> {
    pod.crash_looping().map(|_| CRASH_LOOP.to_owned()).into_iter().collect()
}

pub(super) fn mount_of_attachment(attachment: &MountpointS3PodAttachment) -> Vec<String> {
    vec![attachment.spec.mount().attachment_name()]
}

pub(super) fn workloads_of_attachment(attachment: &MountpointS3PodAttachment) -> Vec<String> {
    attachment.spec.workloads().into_iter().map(str::to_owned).collect()
}

pub(super) fn pods_of_attachment(attachment: &MountpointS3PodAttachment) -> Vec<String> {
    attachment.spec.mountpoint_s3_pod_attachments.keys().cloned().collect()
}

pub(super) fn mount_of_pod(pod: &MountpointPod) -> Vec<String> {
    pod.mount().iter().map(|mount| mount.attachment_name()).collect()
}

/// The host names by which a node may be named: its own and its label.
pub fn hosts_of_node(node: &Node) -> Vec<String> {
    let label = node.metadata.labels.as_ref().and_then(|labels| labels.get(HOSTNAME_LABEL));
    let mut hosts: Vec<_> = node.metadata.name.iter().chain(label).cloned().collect();
    hosts.dedup();
    hosts
}

/// Only local volumes: the others are not lost with a node.
pub(super) fn hosts_of_volume(volume: &PersistentVolume) -> Vec<String> {
    if volume.spec.local.is_none() {
        return Vec::new();
    }
    let hosts = affinity::hosts(volume);
    if hosts.is_empty() { vec![ANY_HOST.to_owned()] } else { hosts }
}

pub(super) fn driver_of_volume(volume: &PersistentVolume) -> Vec<String> {
    volume.spec.csi.iter().map(|csi| csi.driver.clone()).collect()
}

pub(super) fn handle_of_volume(volume: &PersistentVolume) -> Vec<String> {
    volume.spec.csi.iter().map(|csi| handle(&csi.driver, &csi.volume_handle)).collect()
}

pub(super) fn volumes_of_report(report: &NodeVolumeReport) -> Vec<String> {
    report.status.iter().flat_map(|status| &status.volumes).map(|volume| volume.name.clone()).collect()
}

/// `namespace/name` of the claim that a VolumeHealth says its volume is bound to.
pub fn claims_of_health(health: &VolumeHealth) -> Vec<String> {
    let volume = health.status.as_ref().and_then(|status| status.volume.as_ref());
    volume.and_then(|volume| volume.claim.clone()).into_iter().collect()
}

/// The volume that a claim is bound to, or asks for.
pub(super) fn volume_of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    claim.spec.volume_name.iter().cloned().collect()
}

/// What tells the volumes of all providers apart.
pub fn provider_volume(provider: &str, volume_id: &str) -> String {
    format!("{provider}/{volume_id}")
}

pub(super) fn provider_volume_of_shared_volume(it: &SharedVolume) -> Vec<String> {
    let provider = it.spec.backend.provider.iter();
    provider.map(|provider| provider_volume(&provider.name, &provider.volume_id)).collect()
}

pub(super) fn claim_of_shared_volume(it: &SharedVolume) -> Vec<String> {
    it.metadata.namespace.iter().map(|namespace| format!("{namespace}/{}", it.spec.claim_name)).collect()
}

pub(super) fn service_of_shared_volume(it: &SharedVolume) -> Vec<String> {
    let name = service_name(it);
    it.metadata.namespace.iter().map(|namespace| format!("{namespace}/{name}")).collect()
}

/// Nodes of the servers that it may have, and of the one that it has. Pods are found by their own watch.
pub(super) fn nodes_of_shared_volume(it: &SharedVolume) -> Vec<String> {
    let candidates = it.spec.backend.static_.iter().flat_map(|backend| &backend.candidates);
    let active = it.status.as_ref().and_then(|status| status.active.as_ref());
    let active = active.and_then(|active| active.node_name.as_ref());
    let mut nodes: Vec<_> = candidates.filter_map(|it| it.node_name.as_ref()).chain(active).cloned().collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

pub(super) fn service_of_slice(slice: &EndpointSlice) -> Vec<String> {
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    slice.service().map(|service| format!("{namespace}/{service}")).into_iter().collect()
}

pub(super) fn shared_volume_of_slice(slice: &EndpointSlice) -> Vec<String> {
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    let label = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SHARED_VOLUME_LABEL));
    label.map(|name| format!("{namespace}/{name}")).into_iter().collect()
}

pub(super) fn node_of_server_pod(pod: &ServerPod) -> Vec<String> {
    pod.spec.node_name.iter().cloned().collect()
}
