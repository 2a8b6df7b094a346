//! What a [`Store`](super::store::Store) has under its lock: objects in slots, where to find them, and who is told of changes.

use std::sync::Arc;
use std::time::Instant;

use kube::Resource;
use tokio::sync::mpsc;

use super::clock::monotonic;
use super::packing::{Packed, Packer};
use super::places::Places;
use super::store::{Change, Indexer, ObjectKey};

/// So many objects are unpacked at once where all are gone through.
pub(super) const PART: usize = 256;

/// All of it.
pub(super) struct State<K> {
    indexers: Vec<Indexer<K>>,
    packer: Packer<K>,
    slots: Vec<Option<Slot<K>>>,
    /// Slots that nothing is in.
    free: Vec<u32>,
    /// Key → slot.
    pub keys: Places,
    /// In the order of the indexers: value → slots.
    pub indexes: Vec<Places>,
    pub subscribers: Vec<mpsc::UnboundedSender<Change<K>>>,
    pub relists: u64,
    pub changes: u64,
    pub progress: Instant,
}

struct Slot<K> {
    object: Packed<K>,
    /// It came since the last list began.
    listed: bool,
}

impl<K> State<K> {
    /// Nothing yet.
    pub fn new(indexers: Vec<Indexer<K>>, packer: Packer<K>) -> Self {
        Self {
            indexes: indexers.iter().map(|_| Places::default()).collect(),
            indexers,
            packer,
            slots: Vec::new(),
            free: Vec::new(),
            keys: Places::default(),
            subscribers: Vec::new(),
            relists: 0,
            changes: 0,
            progress: monotonic(),
        }
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn all(&self) -> impl Iterator<Item = Arc<K>> {
        self.slots.iter().flatten().filter_map(|slot| self.packer.unpack(&slot.object))
    }

    /// What an index has under a value, in no order.
    pub fn of_index(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        let indexed = self.indexers.iter().zip(&self.indexes).find(|((name, _), _)| *name == index);
        let Some(((_, values_of), places)) = indexed else { return Vec::new() };
        let found = places.of(value).iter().filter_map(|slot| self.at(*slot));
        // Two values may have one hash.
        found.filter(|object| values_of(object).iter().any(|it| it == value)).collect()
    }

    /// Those in the slots from there on, as far as [`PART`] goes, and whether there are no more.
    pub fn part(&self, from: usize) -> (Vec<Arc<K>>, bool) {
        let slots = self.slots.get(from..).unwrap_or_default();
        let present = slots.iter().take(PART).flatten();
        (present.filter_map(|slot| self.packer.unpack(&slot.object)).collect(), slots.len() <= PART)
    }

    pub fn at(&self, slot: u32) -> Option<Arc<K>> {
        self.packer.unpack(&self.slot(slot)?.object)
    }

    fn slot(&self, slot: u32) -> Option<&Slot<K>> {
        self.slots.get(usize::try_from(slot).ok()?)?.as_ref()
    }

    pub fn listed(&mut self, slot: u32) {
        let slot = usize::try_from(slot).ok().and_then(|slot| self.slots.get_mut(slot)?.as_mut());
        if let Some(slot) = slot {
            slot.listed = true;
        }
    }

    /// A list begins, and has brought nothing yet.
    pub fn forget_listed(&mut self) {
        self.slots.iter_mut().flatten().for_each(|slot| slot.listed = false);
    }

    pub fn unlisted(&self) -> Vec<u32> {
        let slots = (0..).zip(&self.slots);
        slots.filter(|(_, slot)| slot.as_ref().is_some_and(|slot| !slot.listed)).map(|(number, _)| number).collect()
    }

    fn fill(&mut self, number: u32, slot: Option<Slot<K>>) {
        match usize::try_from(number).ok().and_then(|number| self.slots.get_mut(number)) {
            Some(place) => *place = slot,
            None => self.slots.push(slot),
        }
    }

    /// Brings the indexes from what was there to what is.
    fn index(&mut self, slot: u32, old: Option<&K>, new: Option<&K>) {
        for ((_, values_of), places) in self.indexers.iter().zip(&mut self.indexes) {
            let (old, new) = (old.map(values_of).unwrap_or_default(), new.map(values_of).unwrap_or_default());
            for gone in old.iter().filter(|value| !new.contains(value)) {
                places.remove(gone.as_str(), slot);
            }
            for come in new.iter().filter(|value| !old.contains(value)) {
                places.add(come.as_str(), slot);
            }
        }
    }

    /// Hands a change to all who listen; those who stopped are forgotten.
    fn tell(&mut self, change: Change<K>) {
        self.changes += 1;
        self.subscribers.retain(|subscriber| subscriber.send(change.clone()).is_ok());
    }
}

impl<K: Resource> State<K> {
    pub fn find(&self, key: &ObjectKey) -> Option<(u32, Arc<K>)> {
        let slots = self.keys.of(key).iter().filter_map(|slot| Some((*slot, self.at(*slot)?)));
        let wanted = (key.namespace.as_deref(), key.name.as_str());
        slots.into_iter().find(|(_, object)| name_of(&**object) == wanted)
    }

    pub fn put(&mut self, object: K) {
        let key = ObjectKey::from(&object);
        let known = self.find(&key);
        if let Some((slot, old)) = &known
            && same_version(&**old, &object)
        {
            self.listed(*slot);
            return;
        }
        let new = Arc::new(object);
        let (slot, old) = match known {
            Some((slot, old)) => (slot, Some(old)),
            None => (self.free.pop().unwrap_or(u32::try_from(self.slots.len()).unwrap_or(u32::MAX)), None),
        };
        if old.is_none() {
            self.keys.add(&key, slot);
        }
        self.index(slot, old.as_deref(), Some(&*new));
        let object = self.packer.pack(&new);
        self.fill(slot, Some(Slot { object, listed: true }));
        self.tell(Change { key, old, new: Some(new) });
    }

    pub fn clear(&mut self, slot: u32, old: Arc<K>) {
        let key = ObjectKey::from(&*old);
        self.keys.remove(&key, slot);
        self.index(slot, Some(&*old), None);
        self.fill(slot, None);
        self.free.push(slot);
        self.tell(Change { key, old: Some(old), new: None });
    }
}

/// Namespace and name.
pub(super) fn name_of<K: Resource>(object: &K) -> (Option<&str>, &str) {
    let meta = object.meta();
    (meta.namespace.as_deref(), meta.name.as_deref().unwrap_or_default())
}

/// Whether both are the same version of the same object, so that nothing changed.
fn same_version<K: Resource>(old: &K, new: &K) -> bool {
    let (old, new) = (old.meta(), new.meta());
    new.resource_version.is_some() && old.resource_version == new.resource_version && old.uid == new.uid
}
