//! What one pass over a mount sees: the stores. A write that rests on an old view is refused, because each names the
//! version that was seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::affinity::HOSTNAME_LABEL;
use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::s3::Mount;
use crate::api::slim::{PersistentVolume, Pod};
use crate::controllers::{BY_MOUNT, BY_PLACE, BY_UID, BY_WORKLOAD, S3Stores, Stores, indexes};
use crate::runtime::store::ObjectKey;

use super::decide::{Effect, Seen, Workload};
use super::departed::Departed;
use super::volumes;

/// What the stores show.
pub fn stored(stores: &Stores, s3: &S3Stores, departed: &Departed, mount: &Mount) -> Seen {
    let of_mount = mount.attachment_name();
    let mut attachments = s3.attachments.by_index(BY_MOUNT, &of_mount);
    attachments.retain(|attachment| attachment.spec.mount() == *mount);
    let volume = stores.volumes.get(&ObjectKey::cluster(&mount.persistent_volume_name));
    let uids: BTreeSet<_> = attachments.iter().flat_map(|it| it.spec.workloads()).map(str::to_owned).collect();
    let mut seen = Seen {
        mount: mount.clone(),
        pods: mountpoint_pods(s3, &of_mount, &attachments),
        departed: uids.iter().filter(|uid| departed.has(uid)).cloned().collect(),
        volume,
        hostname: hostname(stores, &mount.node_name),
        ..Seen::default()
    };
    for uid in &uids {
        let pod = stores.pods.by_index(BY_UID, uid).into_iter().next();
        let workload = pod.map(|pod| {
            let wants = volumes::has(&pod, &mount.persistent_volume_name, stores);
            (uid.clone(), Workload { pod, wants })
        });
        seen.workloads.extend(workload);
    }
    for pod in seen.volume.iter().flat_map(|volume| users(stores, s3, mount, volume)) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let wants = !is_served_elsewhere(s3, mount, &uid);
        seen.workloads.entry(uid).or_insert(Workload { pod, wants });
    }
    seen.attachments = attachments;
    seen
}

/// What a node is called in affinities: not always its name.
fn hostname(stores: &Stores, node: &str) -> Option<String> {
    stores.nodes.get(&ObjectKey::cluster(node))?.metadata.labels.as_ref()?.get(HOSTNAME_LABEL).cloned()
}

fn mountpoint_pods(
    s3: &S3Stores,
    of_mount: &str,
    attachments: &[Arc<MountpointS3PodAttachment>],
) -> BTreeMap<String, Arc<MountpointPod>> {
    let named = attachments.iter().flat_map(|it| it.spec.mountpoint_s3_pod_attachments.keys());
    let named = named.filter_map(|name| s3.mountpoint_pod(name));
    let pods = named.chain(s3.mountpoint_pods.by_index(BY_MOUNT, of_mount));
    pods.map(|pod| (pod.name().to_owned(), pod)).collect()
}

/// Pods of the node that have the volume with this mount's options and group.
fn users(stores: &Stores, s3: &S3Stores, mount: &Mount, volume: &PersistentVolume) -> Vec<Arc<Pod>> {
    let Some(claim) = indexes::claim_of_volume(volume) else { return Vec::new() };
    let mut pods = stores.pods.by_index(BY_PLACE, &indexes::place(&mount.node_name, &claim));
    pods.retain(|pod| s3.is_workload(pod) && volumes::mounts(pod, stores).contains(mount));
    pods
}

/// The options of a volume may change: those who had it before keep the attachment that they have.
fn is_served_elsewhere(s3: &S3Stores, mount: &Mount, uid: &str) -> bool {
    s3.attachments.by_index(BY_WORKLOAD, uid).iter().any(|attachment| {
        attachment.spec.persistent_volume_name == mount.persistent_volume_name && attachment.spec.mount() != *mount
    })
}

/// Whether the stores show a write.
pub fn shows(s3: &S3Stores, effect: &Effect) -> bool {
    let attachment = |it: &MountpointS3PodAttachment| s3.attachments.get(&ObjectKey::from(it));
    let pod = |it: &MountpointPod| s3.mountpoint_pod(it.name());
    match effect {
        Effect::Create(it) => attachment(it).is_some(),
        Effect::Replace { before, .. } | Effect::Record { before, .. } => {
            attachment(before).is_none_or(|now| now.metadata.resource_version != before.metadata.resource_version)
        }
        Effect::Remove(before) => attachment(before)
            .is_none_or(|now| now.metadata.uid != before.metadata.uid || now.metadata.deletion_timestamp.is_some()),
        Effect::Retire(before) => pod(before).is_none_or(|now| now.uid() != before.uid() || now.needs_unmount()),
        Effect::CreatePod { pod, .. } => s3.mountpoint_pod(pod.metadata.name.as_deref().unwrap_or_default()).is_some(),
        Effect::DeletePod { pod: before, .. } => {
            pod(before).is_none_or(|now| now.uid() != before.uid() || now.is_terminating())
        }
    }
}
