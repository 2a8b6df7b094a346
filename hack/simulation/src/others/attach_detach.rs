//! Attach/detach: looks every 100 ms, knows what it attached itself, and learns of attachments that others deleted only
//! at its sync each minute. A single-writer volume is attached nowhere while it knows it attached elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead::api::names;
use bulkhead::api::slim::{AttachedVolume, Node, VolumeAttachment};
use kube::ResourceExt;

use crate::chance::Chance;
use crate::shape::volumes_of;
use crate::time::{MINUTE, Millis, SECOND};
use crate::world::World;

use super::{Actor, next_tick};

/// How often it compares what it knows with what there is.
const SYNC: Millis = MINUTE;
/// After this a volume of an unhealthy node is detached though it may be mounted.
const FORCE_AFTER: Millis = 6 * MINUTE;

/// What attach/detach knows.
#[derive(Clone, Debug, Default)]
pub struct AttachDetach {
    /// What it holds for attached, by volume and node, and since when nobody wants it.
    pub actual: BTreeMap<(String, String), Option<Millis>>,
    /// Deletions it has asked for.
    detaching: BTreeSet<(String, String)>,
    /// Attachments that were refused, with their next try and the pause after it.
    refused: BTreeMap<(String, String), (Millis, Millis)>,
    synced_at: Millis,
}

/// Name of a VolumeAttachment: in truth a hash of volume, driver and node.
pub fn attachment_name(volume: &str, node: &str) -> String {
    format!("csi-{volume}-{node}")
}

impl World {
    pub(crate) fn attach_detach(&mut self, _: &mut dyn Chance) {
        let now = self.now;
        if self.api.down {
            return self.wake(Actor::AttachDetach, now + SECOND);
        }
        let mut knows = std::mem::take(&mut self.others.attach_detach);
        let wanted = self.wanted();
        if now >= knows.synced_at + SYNC {
            knows.synced_at = now;
            let there = |volume: &str, node: &str| self.api.attachments.get(&attachment_name(volume, node)).is_some();
            knows.actual.retain(|(volume, node), _| there(volume, node));
        }
        let mut next = knows.synced_at + SYNC;
        self.finish_detaches(&mut knows);
        self.detach(&mut knows, &wanted, &mut next);
        self.attach(&mut knows, &wanted, &mut next);
        self.tell_nodes(&knows);
        self.others.attach_detach = knows;
        self.wake(Actor::AttachDetach, next.max(next_tick(now)));
    }

    /// Volumes by node that a pod wants: any pod that is bound and has not ended.
    fn wanted(&self) -> BTreeSet<(String, String)> {
        let pods = self.api.pods.values().filter(|pod| !pod.is_finished());
        let bound = pods.filter_map(|pod| Some((pod, pod.spec.node_name.clone()?)));
        let wanted = bound.flat_map(|(pod, node)| volumes_of(pod).map(move |volume| (volume.to_owned(), node.clone())));
        wanted.filter(|(volume, _)| self.shape.attaches(volume)).collect()
    }

    /// What it deleted itself, it sees go.
    fn finish_detaches(&mut self, knows: &mut AttachDetach) {
        let gone =
            |(volume, node): &(String, String)| self.api.attachments.get(&attachment_name(volume, node)).is_none();
        let done: Vec<_> = knows.detaching.iter().filter(|it| gone(it)).cloned().collect();
        for it in done {
            knows.detaching.remove(&it);
            knows.actual.remove(&it);
        }
    }

    fn detach(&mut self, knows: &mut AttachDetach, wanted: &BTreeSet<(String, String)>, next: &mut Millis) {
        let now = self.now;
        for ((volume, node), unwanted) in &mut knows.actual {
            if wanted.contains(&(volume.clone(), node.clone())) {
                *unwanted = None;
                continue;
            }
            let since = *unwanted.get_or_insert(now);
            if knows.detaching.contains(&(volume.clone(), node.clone())) {
                continue;
            }
            let object = self.api.get::<Node>(node);
            let unique = self.shape.unique_name(volume);
            let mounted = object.as_ref().is_some_and(|node| node.status.volumes_in_use.contains(&unique));
            let healthy = object.as_ref().is_some_and(|node| node.ready() == "True");
            let out_of_service = object
                .as_ref()
                .is_some_and(|node| node.taints().iter().any(|it| it.key == names::OUT_OF_SERVICE_TAINT));
            let forced = out_of_service || !healthy && since + FORCE_AFTER <= now;
            if mounted && !forced {
                if !healthy {
                    *next = (*next).min(since + FORCE_AFTER);
                }
                continue;
            }
            if mounted && let Some(node) = &object {
                self.judge_forced_detach(volume, node);
            }
            let name = attachment_name(volume, node);
            if let Some(attachment) = self.api.get::<VolumeAttachment>(&name) {
                let uid = attachment.uid().unwrap_or_default();
                self.api.delete::<VolumeAttachment>(&name, &uid, now);
            }
            knows.detaching.insert((volume.clone(), node.clone()));
        }
    }

    fn attach(&mut self, knows: &mut AttachDetach, wanted: &BTreeSet<(String, String)>, next: &mut Millis) {
        let now = self.now;
        knows.refused.retain(|it, _| wanted.contains(it));
        for (volume, node) in wanted {
            let key = (volume.clone(), node.clone());
            if knows.actual.contains_key(&key) || self.api.nodes.get(node).is_none() {
                continue;
            }
            let shared = self.shape.volumes.get(volume).is_some_and(|volume| volume.shared);
            let elsewhere = knows.actual.keys().any(|(other, on)| other == volume && on != node);
            if elsewhere && !shared {
                continue;
            }
            if let Some((at, _)) = knows.refused.get(&key).filter(|(at, _)| *at > now) {
                *next = (*next).min(*at);
                continue;
            }
            let name = attachment_name(volume, node);
            if self.api.attachments.get(&name).is_none() {
                if !self.api.admits_attachment(node) {
                    let pause = knows.refused.get(&key).map_or(500, |(_, pause)| (pause * 2).min(2 * MINUTE));
                    knows.refused.insert(key, (now + pause, pause));
                    *next = (*next).min(now + pause);
                    self.counts.attachments_denied += 1;
                    continue;
                }
                let mut attachment = VolumeAttachment::default();
                attachment.metadata.name = Some(name);
                attachment.spec.attacher = self.shape.driver_of(volume).unwrap_or_default().to_owned();
                attachment.spec.node_name.clone_from(node);
                attachment.spec.source.persistent_volume_name = Some(volume.clone());
                let _ = self.api.create(attachment, now);
            }
            knows.refused.remove(&key);
            knows.actual.insert(key, None);
        }
    }

    /// `volumesAttached` of each node: what is attached there and not about to go.
    fn tell_nodes(&mut self, knows: &AttachDetach) {
        let nodes: Vec<String> = self.api.nodes.iter().map(|(name, _)| name.clone()).collect();
        for name in nodes {
            let here = knows.actual.iter().filter(|((_, node), _)| *node == name);
            let kept = here.filter(|(key, _)| !knows.detaching.contains(*key));
            let attached =
                kept.map(|((volume, _), _)| AttachedVolume { name: self.shape.unique_name(volume) }).collect();
            self.api.update::<Node>(&name, |node| node.status.volumes_attached = attached);
        }
    }
}
