//! The external-attacher of a driver: publishes for VolumeAttachments, unpublishes for those that are being deleted, and
//! each minute publishes again what an attachment still wants and the array no longer has.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead::api::names;
use bulkhead::api::slim::VolumeAttachment;
use kube::ResourceExt;

use crate::chance::{Chance, Choice};
use crate::shape::handle;
use crate::time::{MINUTE, Millis, SECOND};
use crate::world::{Task, World};

use super::Actor;

/// `--reconcile-sync`.
const RESYNC: Millis = MINUTE;

/// What an attacher remembers.
#[derive(Clone, Debug, Default)]
pub struct Attacher {
    /// Attachments, by uid, for which a call is under way.
    busy: BTreeSet<String>,
    /// Failed ones, with their next try and the pause after it.
    failed: BTreeMap<String, (Millis, Millis)>,
    calls: BTreeMap<u64, Call>,
}

#[derive(Clone, Debug)]
struct Call {
    name: String,
    uid: String,
    volume: String,
    node_id: String,
    publishes: bool,
}

impl World {
    pub(crate) fn attacher(&mut self, driver: &str, chance: &mut dyn Chance) {
        let now = self.now;
        if self.api.down {
            return self.wake(Actor::Attacher(driver.to_owned()), now + SECOND);
        }
        let ours: Vec<_> = self.api.attachments.values().filter(|it| it.spec.attacher == driver).cloned().collect();
        for attachment in ours {
            let uid = attachment.uid().unwrap_or_default();
            let Some(attacher) = self.others.attachers.get(driver) else { return };
            let pause = attacher.failed.get(&uid).map(|(at, _)| *at).filter(|at| *at > now);
            if attacher.busy.contains(&uid) {
                continue;
            }
            if let Some(at) = pause {
                self.wake(Actor::Attacher(driver.to_owned()), at);
                continue;
            }
            if attachment.metadata.deletion_timestamp.is_some() {
                self.attacher_calls(driver, &attachment, false, chance);
            } else if !attachment.status.attached {
                self.prepare(driver, &attachment);
                if let Some(prepared) = self.api.get::<VolumeAttachment>(&attachment.name_any()) {
                    self.attacher_calls(driver, &prepared, true, chance);
                }
            }
        }
    }

    /// Finalizer and node id come before the first publish.
    fn prepare(&mut self, driver: &str, attachment: &VolumeAttachment) {
        let Some(node_id) = self.machines.get(&attachment.spec.node_name).map(|it| it.node_id.clone()) else { return };
        self.api.update::<VolumeAttachment>(&attachment.name_any(), |it| {
            let finalizer = names::attacher_finalizer(driver);
            let finalizers = it.metadata.finalizers.get_or_insert_default();
            if !finalizers.contains(&finalizer) {
                finalizers.push(finalizer);
            }
            let annotations = it.metadata.annotations.get_or_insert_default();
            annotations.insert(names::ATTACHED_NODE_ID_ANNOTATION.into(), node_id);
        });
    }

    fn attacher_calls(
        &mut self,
        driver: &str,
        attachment: &VolumeAttachment,
        publishes: bool,
        chance: &mut dyn Chance,
    ) {
        let Some(node_id) = attachment.node_id().map(str::to_owned) else { return };
        let id = self.number();
        let takes = self.arrays.get(driver).map_or(50, |array| array.latency) + chance.between(Choice::Others, 1, 100);
        let slow = chance.one_in(Choice::Others, 40) && chance.one_in(Choice::Others, 3);
        let takes = if slow { takes + chance.between(Choice::Others, 1000, 30_000) } else { takes };
        let uid = attachment.uid().unwrap_or_default();
        let call = Call {
            name: attachment.name_any(),
            uid: uid.clone(),
            volume: attachment.volume().to_owned(),
            node_id,
            publishes,
        };
        let Some(attacher) = self.others.attachers.get_mut(driver) else { return };
        attacher.busy.insert(uid);
        attacher.calls.insert(id, call);
        self.schedule(self.now + takes, Task::Attached(id));
    }

    /// A call of an attacher ends; the array did it at that moment.
    pub(crate) fn attacher_call_ends(&mut self, id: u64, chance: &mut dyn Chance) {
        let now = self.now;
        let found =
            self.others.attachers.iter_mut().find_map(|(driver, it)| Some((driver.clone(), it.calls.remove(&id)?)));
        let Some((driver, call)) = found else { return };
        let (Some(attacher), Some(array)) = (self.others.attachers.get_mut(&driver), self.arrays.get_mut(&driver))
        else {
            return;
        };
        attacher.busy.remove(&call.uid);
        if array.mood.is_down || self.api.down {
            let pause = attacher.failed.get(&call.uid).map_or(SECOND, |(_, pause)| (pause * 2).min(5 * MINUTE));
            attacher.failed.insert(call.uid, (now + pause, pause));
            return self.wake(Actor::Attacher(driver), now + pause);
        }
        attacher.failed.remove(&call.uid);
        let handle = handle(&call.volume);
        if call.publishes {
            let anew = !array.accepts(&handle, &call.node_id);
            array.publish(&handle, &call.node_id);
            self.oracle.published(&call.volume, &call.node_id, now, anew);
        } else {
            array.unpublish(&handle, &call.node_id, now);
        }
        self.oracle.touch();
        let (name, volume, node_id) = (&call.name, &call.volume, &call.node_id);
        self.tell(|| {
            format!("attacher {} {volume} {node_id} ({name})", if call.publishes { "publishes" } else { "unpublishes" })
        });
        let same = self.api.attachments.get(&call.name).is_some_and(|it| it.uid().as_ref() == Some(&call.uid));
        if same && call.publishes {
            self.api.update::<VolumeAttachment>(&call.name, |it| it.status.attached = true);
        } else if same {
            self.api.update::<VolumeAttachment>(&call.name, |it| {
                let finalizer = names::attacher_finalizer(&driver);
                it.metadata.finalizers.iter_mut().for_each(|them| them.retain(|it| *it != finalizer));
                it.status.attached = false;
            });
        }
        let late = chance.between(Choice::Others, 1, 20);
        self.wake(Actor::Attacher(driver), now + late);
    }

    pub(crate) fn attacher_resync(&mut self, driver: &str, chance: &mut dyn Chance) {
        self.wake(Actor::Resync(driver.to_owned()), self.now + RESYNC);
        if self.api.down {
            return;
        }
        let lost: Vec<_> = self.api.attachments.values().filter(|it| it.spec.attacher == driver).cloned().collect();
        for attachment in lost {
            let wants = attachment.status.attached && attachment.metadata.deletion_timestamp.is_none();
            let node_id = attachment.node_id().unwrap_or_default();
            let array = self.arrays.get(driver);
            let has = array.is_some_and(|array| array.accepts(&handle(attachment.volume()), node_id));
            let busy = self
                .others
                .attachers
                .get(driver)
                .is_some_and(|it| it.busy.contains(&attachment.uid().unwrap_or_default()));
            if wants && !has && !busy {
                self.counts.republished += 1;
                self.attacher_calls(driver, &attachment, true, chance);
            }
        }
    }
}
