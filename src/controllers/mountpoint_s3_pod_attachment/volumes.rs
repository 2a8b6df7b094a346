//! Which S3 volumes a pod has, found through its claims, and what each is shared by. Pure: the caller brings the objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::s3::{DRIVER, Mount};
use crate::api::slim::{PersistentVolume, PersistentVolumeClaim, Pod, Volume, VolumeSource};
use crate::api::usage::Lookup;

/// The mounts that a pod needs on its node, each once. Volumes are independent: one whose claim is not bound yet keeps no
/// other from being found.
pub fn mounts(pod: &Pod, lookup: &dyn Lookup) -> Vec<Mount> {
    let Some(node) = &pod.spec.node_name else { return Vec::new() };
    let volumes = pod.spec.volumes.iter().filter_map(|volume| resolve(pod, volume, lookup));
    let mut mounts: Vec<_> = volumes.map(|volume| mount(node, pod, &volume)).collect();
    mounts.sort_unstable();
    mounts.dedup();
    mounts
}

/// Whether a pod has this PersistentVolume, whatever it is mounted with.
pub fn has(pod: &Pod, volume: &str, lookup: &dyn Lookup) -> bool {
    pod.spec.volumes.iter().filter_map(|it| resolve(pod, it, lookup)).any(|it| name(&it) == volume)
}

/// What cannot be served of a pod, in words for the person who wrote it.
pub fn complaints(pod: &Pod, lookup: &dyn Lookup) -> Vec<String> {
    let inline = |volume: &Volume| volume.source == VolumeSource::InlineCsi(DRIVER.to_owned());
    let mut complaints: Vec<_> = pod.spec.volumes.iter().filter(|volume| inline(volume)).map(of_inline).collect();
    let mut by_handle: BTreeMap<String, String> = BTreeMap::new();
    for volume in pod.spec.volumes.iter().filter_map(|volume| resolve(pod, volume, lookup)) {
        let (name, handle) = (name(&volume), handle(&volume));
        match by_handle.insert(handle.clone(), name.clone()) {
            Some(other) if other != name => complaints.push(of_handle(&other, &name, &handle)),
            _ => {}
        }
    }
    complaints
}

fn of_inline(volume: &Volume) -> String {
    format!(
        "volume {} names the driver {DRIVER} itself, which is not supported: make a PersistentVolume and a claim for it",
        volume.name
    )
}

fn of_handle(one: &str, other: &str, handle: &str) -> String {
    format!(
        "PersistentVolumes {one} and {other} have the same volumeHandle {handle}, so the kubelet mounts only one of them \
         in this pod: give each its own volumeHandle"
    )
}

/// The S3 volume behind a volume of a pod, if both sides of the binding say so.
fn resolve(pod: &Pod, volume: &Volume, lookup: &dyn Lookup) -> Option<Arc<PersistentVolume>> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let claim = match &volume.source {
        VolumeSource::Claim(name) => lookup.claim(namespace, name)?,
        VolumeSource::Ephemeral => {
            let name = format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name);
            lookup.claim(namespace, &name).filter(|claim| belongs_to(claim, pod))?
        }
        _ => return None,
    };
    let volume = lookup.volume(claim.spec.volume_name.as_deref()?)?;
    let is_ours = volume.spec.csi.as_ref().is_some_and(|csi| csi.driver == DRIVER);
    (is_ours && is_bound(&volume, &claim)).then_some(volume)
}

/// As the kubelet: the claim of another pod that has the name of ours is not used.
fn belongs_to(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let owners = claim.metadata.owner_references.as_deref().unwrap_or_default();
    pod.metadata.uid.is_some() && owners.iter().any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref())
}

fn is_bound(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.uid.is_some()
            && reference.uid == claim.metadata.uid
            && reference.name == claim.metadata.name
            && reference.namespace == claim.metadata.namespace
    })
}

fn mount(node: &str, pod: &Pod, volume: &PersistentVolume) -> Mount {
    Mount {
        node_name: node.to_owned(),
        persistent_volume_name: name(volume),
        volume_id: handle(volume),
        mount_options: volume.spec.mount_options.as_deref().unwrap_or_default().join(","),
        workload_fs_group: pod.spec.security_context.fs_group.map(|group| group.to_string()).unwrap_or_default(),
    }
}

fn name(volume: &PersistentVolume) -> String {
    volume.metadata.name.clone().unwrap_or_default()
}

fn handle(volume: &PersistentVolume) -> String {
    volume.spec.csi.as_ref().map(|csi| csi.volume_handle.clone()).unwrap_or_default()
}
