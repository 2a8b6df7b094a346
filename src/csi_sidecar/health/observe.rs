//! Which volumes are watched: PersistentVolumes of this driver that a policy selects, and where they are attached.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube::{Api, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::api::slim::{CsiNode, PersistentVolume, VolumeAttachment, protobuf};
use crate::api::volume::{Check, CheckMode};
use crate::api::volume_health_policy::{self, VolumeHealthPolicy};
use crate::runtime::informer::Informer;
use crate::runtime::store::{ObjectKey, Store};

use super::super::Context;
use super::decide::{Attachment, Watched};
use super::memory::Volumes;

/// Index of the VolumeAttachments by PersistentVolume.
const BY_VOLUME: &str = "volume";
/// Longer handles do not fit into a report; CSI allows 128 bytes.
const HANDLE_MAX: usize = 1024;

/// What is read of the cluster.
#[derive(Clone)]
pub struct Stores {
    /// PersistentVolumes of the driver.
    pub volumes: Store<PersistentVolume>,
    /// VolumeHealthPolicies.
    pub policies: Store<VolumeHealthPolicy>,
    /// VolumeAttachments of the driver.
    pub attachments: Store<VolumeAttachment>,
    /// CSINodes.
    pub nodes: Store<CsiNode>,
}

impl Stores {
    /// Empty ones, for tests.
    pub fn new_detached() -> Self {
        Self {
            volumes: Store::new_detached(Vec::new()),
            policies: Store::new_detached(Vec::new()),
            attachments: Store::new_detached(vec![(BY_VOLUME, by_volume)]),
            nodes: Store::new_detached(Vec::new()),
        }
    }

    /// Begins to watch, until `cancel`.
    pub fn spawn(cx: &Context, cancel: &CancellationToken) -> Self {
        let client = &cx.clients.watches;
        let driver: Arc<str> = cx.name.as_str().into();
        let attacher = driver.clone();
        let ours = move |volume: &PersistentVolume| volume.spec.csi.as_ref().is_some_and(|csi| *csi.driver == *driver);
        Self {
            volumes: Informer::new(Api::all(client.clone()), "persistentvolumes")
                .protobuf(&protobuf::PERSISTENT_VOLUME)
                .keep(ours)
                .spawn(cancel.clone(), &cx.telemetry),
            policies: Informer::new(Api::all(client.clone()), "volumehealthpolicies")
                .spawn(cancel.clone(), &cx.telemetry),
            attachments: Informer::new(Api::all(client.clone()), "volumeattachments")
                .protobuf(&protobuf::VOLUME_ATTACHMENT)
                .keep(move |attachment: &VolumeAttachment| *attachment.spec.attacher == *attacher)
                .index(BY_VOLUME, by_volume)
                .spawn(cancel.clone(), &cx.telemetry),
            nodes: Informer::new(Api::all(client.clone()), "csinodes")
                .protobuf(&protobuf::CSI_NODE)
                .spawn(cancel.clone(), &cx.telemetry),
        }
    }

    /// Returns when all were read once.
    pub async fn synced(&self) {
        self.volumes.wait_synced().await;
        self.policies.wait_synced().await;
        self.attachments.wait_synced().await;
        self.nodes.wait_synced().await;
    }

    /// All volumes that are watched now.
    pub fn watched(&self, driver: &str) -> Volumes {
        let policies = self.policies.list();
        let node_ids = self.node_ids(driver);
        let mut volumes = self.volumes.list();
        volumes.sort_by_key(|volume| volume.name_any());
        let mut watched = Volumes::new();
        for volume in volumes {
            let Some(policy) = volume_health_policy::ruling(policies.iter().map(AsRef::as_ref), &volume) else {
                continue;
            };
            let Some(csi) = volume.spec.csi.as_ref() else { continue };
            if csi.volume_handle.is_empty() || csi.volume_handle.len() > HANDLE_MAX {
                continue;
            }
            let is_on = |check| policy.spec.mode(check) != CheckMode::Disabled;
            let (health, published) = (is_on(Check::ControllerHealth), is_on(Check::PublishedNodes));
            if !health && !published {
                continue;
            }
            let attached = if published { self.attached(&volume, &node_ids) } else { BTreeMap::new() };
            // Two PersistentVolumes may be the same volume: then the policy of the first rules it.
            let same = watched.entry(csi.volume_handle.clone()).or_insert_with(|| Watched {
                interval: policy.spec.interval.get(),
                thresholds: policy.spec.thresholds.clone(),
                health,
                attached: BTreeMap::new(),
                block: volume.spec.volume_mode.as_deref() == Some("Block"),
                access_modes: volume.spec.access_modes.clone().unwrap_or_default(),
            });
            same.attached.extend(attached);
        }
        watched
    }

    fn attached(&self, volume: &PersistentVolume, node_ids: &HashMap<String, String>) -> BTreeMap<String, Attachment> {
        let attachments = self.attachments.by_index(BY_VOLUME, &volume.name_any());
        let attached = attachments.iter().filter(|attachment| is_attached(attachment));
        attached
            .filter_map(|attachment| {
                let node = attachment.spec.node_name.clone();
                // The id that was really published, else the one that the node's plugin has now.
                let id = attachment.node_id().map(str::to_owned).or_else(|| node_ids.get(&node).cloned())?;
                let (name, uid) = (attachment.name_any(), attachment.metadata.uid.clone().unwrap_or_default());
                (!id.is_empty()).then_some((node, Attachment { name, uid, node_id: id }))
            })
            .collect()
    }

    /// Whether an attachment still holds.
    pub fn holds(&self, attachment: &Attachment) -> bool {
        let known = self.attachments.get(&ObjectKey::cluster(attachment.name.as_str()));
        known.is_some_and(|known| known.metadata.uid.as_ref() == Some(&attachment.uid) && is_attached(&known))
    }

    fn node_ids(&self, driver: &str) -> HashMap<String, String> {
        let nodes = self.nodes.list();
        let ids = nodes.iter().filter_map(|node| {
            let there = node.spec.drivers.iter().find(|there| there.name == driver)?;
            Some((node.name_any(), there.node_id.clone()))
        });
        ids.collect()
    }
}

fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.attached && attachment.metadata.deletion_timestamp.is_none()
}

fn by_volume(attachment: &VolumeAttachment) -> Vec<String> {
    vec![attachment.volume().to_owned()]
}
