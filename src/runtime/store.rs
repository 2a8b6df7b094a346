//! A cache of one kind: objects and their indexes change together under one lock, and every change is
//! handed to the subscribers in order. Filled by an [`Informer`](super::informer::Informer), or by
//! hand in tests and simulators.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use kube::Resource;
use tokio::sync::{mpsc, watch};

use super::{
    clock::monotonic,
    packing::Packer,
    slots::{PART, State, name_of},
};

/// Names an object of a known kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// `None` for cluster-scoped kinds.
    pub namespace: Option<String>,
    /// The object's name.
    pub name: String,
}

impl ObjectKey {
    /// Key of a cluster-scoped object.
    pub fn cluster(name: impl Into<String>) -> Self {
        Self { namespace: None, name: name.into() }
    }

    /// Key of a namespaced object.
    pub fn namespaced(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }
}

impl<K: Resource> From<&K> for ObjectKey {
    fn from(object: &K) -> Self {
        let meta = object.meta();
        Self { namespace: meta.namespace.clone(), name: meta.name.clone().unwrap_or_default() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// One change of one object. `old` and `new` may have different uids: deleted and created again while
/// nobody watched.
#[derive(Debug)]
pub struct Change<K> {
    /// Which object.
    pub key: ObjectKey,
    /// What was known; `None` for a new object.
    pub old: Option<Arc<K>>,
    /// What is known now; `None` when the object is gone.
    pub new: Option<Arc<K>>,
}

impl<K> Clone for Change<K> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), old: self.old.clone(), new: self.new.clone() }
    }
}

impl<K> Change<K> {
    /// The object as it was and as it is; one of them where it came or went.
    pub fn both(&self) -> impl Iterator<Item = &Arc<K>> {
        self.old.iter().chain(&self.new)
    }

    /// Whether `view` shows another object than before: also that it came or went.
    pub fn differs<'a, V: PartialEq>(&'a self, view: impl Fn(&'a K) -> V) -> bool {
        self.old.as_deref().map(&view) != self.new.as_deref().map(&view)
    }
}

/// Computes the values under which an object is found in one index.
pub type IndexFn<K> = fn(&K) -> Vec<String>;

/// A named index: name and function.
pub(crate) type Indexer<K> = (&'static str, IndexFn<K>);

/// Handle to a cache; clones share it.
pub struct Store<K> {
    state: Arc<RwLock<State<K>>>,
    synced: Arc<watch::Sender<bool>>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), synced: self.synced.clone() }
    }
}

impl<K> Store<K> {
    /// An empty store with the given indexes, not yet synced.
    pub fn new_detached(indexers: Vec<(&'static str, IndexFn<K>)>) -> Self {
        Self::with(indexers, Packer::none())
    }

    pub(crate) fn with(indexers: Vec<Indexer<K>>, packer: Packer<K>) -> Self {
        Self { state: Arc::new(RwLock::new(State::new(indexers, packer))), synced: Arc::new(watch::Sender::new(false)) }
    }

    /// All objects, in no order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read().all().collect()
    }

    /// How many objects are kept.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a first list is complete. Before that, absence means nothing.
    pub fn synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits for the first complete list.
    pub async fn wait_synced(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// How many lists were completed. When it grows, changes in between were not seen one by one.
    pub fn relists(&self) -> u64 {
        self.read().relists
    }

    /// When the last event or list arrived. Bookmarks do not count: kube's watcher hides them.
    pub fn last_progress(&self) -> Instant {
        self.read().progress
    }

    /// How many changes there were. While it stays, so does everything.
    pub fn changes(&self) -> u64 {
        self.read().changes
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looking into a store.
impl<K: Resource> Store<K> {
    /// The object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read().find(key).map(|(_, object)| object)
    }

    /// The objects under `value` in `index`, ordered by key. An index that was not declared is empty.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        let mut found = self.read().of_index(index, value);
        found.sort_by(|one, other| name_of(&**one).cmp(&name_of(&**other)));
        found
    }

    /// All changes from now on, in order, after one "new" change for each object that is present.
    /// Deletes and objects that a relist no longer holds come with `new: None`. The channel is
    /// unbounded, so a slow reader costs memory but can never stop the cache.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Change<K>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.write();
        for object in state.all() {
            let change = Change { key: ObjectKey::from(&*object), old: None, new: Some(object) };
            // Cannot fail: the receiver is in our hands.
            let _ = sender.send(change);
        }
        state.subscribers.push(sender);
        receiver
    }

    /// All changes from now on, in order, and none for what is present: for who has looked at that, or will by another way. A
    /// store that packs would unpack all of it at once, to wait in the channel: of 50,000 claims some hundred megabytes.
    pub fn changes_from_now(&self) -> mpsc::UnboundedReceiver<Change<K>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.write().subscribers.push(sender);
        receiver
    }

    /// Hands each object to `look`, in no order: where all of a large kind are gone through, [`list`](Self::list) would unpack
    /// them all before the first. The store goes on meanwhile: what changes may be handed over as it was or as it is, and what
    /// comes or goes may be missed. So does all else: to unpack a large kind takes seconds, in which a Lease must be renewed.
    pub async fn each(&self, mut look: impl FnMut(Arc<K>)) {
        let mut from = 0;
        loop {
            let (part, is_last) = self.read().part(from);
            part.into_iter().for_each(&mut look);
            if is_last {
                return;
            }
            from += PART;
            tokio::task::yield_now().await;
        }
    }
}

/// Feeding a store.
impl<K: Resource> Store<K> {
    /// Puts an object in place of what is known under its key.
    pub fn insert(&self, object: K) {
        let mut state = self.write();
        state.progress = monotonic();
        state.put(object);
    }

    /// Forgets an object.
    pub fn remove(&self, key: &ObjectKey) {
        let mut state = self.write();
        state.progress = monotonic();
        if let Some((slot, old)) = state.find(key) {
            state.clear(slot, old);
        }
    }

    /// Notes that an object exists although it cannot be read; what is known of it stays.
    pub(crate) fn keep(&self, key: &ObjectKey) {
        let mut state = self.write();
        state.progress = monotonic();
        if let Some((slot, _)) = state.find(key) {
            state.listed(slot);
        }
    }

    /// A list begins: what it does not bring until [`Store::list_done`] is gone.
    pub fn list_begins(&self) {
        let mut state = self.write();
        state.progress = monotonic();
        state.forget_listed();
    }

    /// A list is complete: forgets, with a change each, what it did not hold.
    pub fn list_done(&self) {
        let mut state = self.write();
        state.progress = monotonic();
        for slot in state.unlisted() {
            if let Some(old) = state.at(slot) {
                state.clear(slot, old);
            }
        }
        state.relists += 1;
        drop(state);
        self.synced.send_replace(true);
    }
}

/// How long our own writes are waited for in the stores, and how often they are asked.
const SETTLING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(5));

/// Waits until the stores show what was written: or the next pass would do it again, and be refused. What is not shown in
/// time is found by the next pass.
pub async fn settle(is_shown: impl Fn() -> bool) {
    let (limit, pace) = SETTLING;
    let shown = async {
        while !is_shown() {
            tokio::time::sleep(pace).await;
        }
    };
    let _ = tokio::time::timeout(limit, shown).await;
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
