//! A cache of one kind: objects and their indexes change together under one lock, and every change is
//! handed to the subscribers in order. Filled by an [`Informer`](super::informer::Informer), or by
//! hand in tests and simulators.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use kube::Resource;
use tokio::sync::{mpsc, watch};

use super::clock::monotonic;

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

struct State<K> {
    indexers: Vec<Indexer<K>>,
    objects: HashMap<ObjectKey, Arc<K>>,
    /// Index name → value → keys.
    indexes: HashMap<&'static str, HashMap<String, BTreeSet<ObjectKey>>>,
    subscribers: Vec<mpsc::UnboundedSender<Change<K>>>,
    /// Keys seen since the running list began.
    listing: Option<HashSet<ObjectKey>>,
    relists: u64,
    progress: Instant,
}

impl<K> Store<K> {
    /// An empty store with the given indexes, not yet synced.
    pub fn new_detached(indexers: Vec<(&'static str, IndexFn<K>)>) -> Self {
        let state = State {
            indexes: indexers.iter().map(|(name, _)| (*name, HashMap::new())).collect(),
            indexers,
            objects: HashMap::new(),
            subscribers: Vec::new(),
            listing: None,
            relists: 0,
            progress: monotonic(),
        };
        Self { state: Arc::new(RwLock::new(state)), synced: Arc::new(watch::Sender::new(false)) }
    }

    /// The object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// All objects, in no order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// The objects under `value` in `index`, ordered by key. An index that was not declared is empty.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        let state = self.read();
        let keys = state.indexes.get(index).and_then(|values| values.get(value));
        keys.into_iter().flatten().filter_map(|key| state.objects.get(key).cloned()).collect()
    }

    /// How many objects are kept.
    pub fn len(&self) -> usize {
        self.read().objects.len()
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

    /// All changes from now on, in order, after one "new" change for each object that is present.
    /// Deletes and objects that a relist no longer holds come with `new: None`. The channel is
    /// unbounded, so a slow reader costs memory but can never stop the cache.
    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Change<K>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.write();
        for (key, object) in &state.objects {
            let change = Change { key: key.clone(), old: None, new: Some(object.clone()) };
            // Cannot fail: the receiver is in our hands.
            let _ = sender.send(change);
        }
        state.subscribers.push(sender);
        receiver
    }

    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Feeding a store.
impl<K: Resource> Store<K> {
    /// Puts an object in place of what is known under its key.
    pub fn insert(&self, object: K) {
        let mut state = self.write();
        let key = ObjectKey::from(&object);
        state.seen(&key);
        state.put(key, object);
    }

    /// Forgets an object.
    pub fn remove(&self, key: &ObjectKey) {
        let mut state = self.write();
        state.progress = monotonic();
        state.drop_key(key);
    }

    /// Notes that an object exists although it cannot be read; what is known of it stays.
    pub(crate) fn keep(&self, key: &ObjectKey) {
        self.write().seen(key);
    }

    /// A list begins: what it does not bring until [`Store::list_done`] is gone.
    pub fn list_begins(&self) {
        let mut state = self.write();
        state.progress = monotonic();
        state.listing = Some(HashSet::new());
    }

    /// A list is complete: forgets, with a change each, what it did not hold.
    pub fn list_done(&self) {
        let mut state = self.write();
        state.progress = monotonic();
        let listed = state.listing.take().unwrap_or_default();
        let vanished: Vec<_> = state.objects.keys().filter(|key| !listed.contains(key)).cloned().collect();
        for key in vanished {
            state.drop_key(&key);
        }
        state.relists += 1;
        drop(state);
        self.synced.send_replace(true);
    }
}

impl<K: Resource> State<K> {
    fn seen(&mut self, key: &ObjectKey) {
        self.progress = monotonic();
        if let Some(listing) = &mut self.listing {
            listing.insert(key.clone());
        }
    }

    fn put(&mut self, key: ObjectKey, object: K) {
        let old = self.objects.get(&key).cloned();
        if old.as_ref().is_some_and(|old| same_version(&**old, &object)) {
            return;
        }
        let new = Arc::new(object);
        if let Some(old) = &old {
            self.unindex(&key, old);
        }
        self.index(&key, &new);
        self.objects.insert(key.clone(), new.clone());
        self.tell(Change { key, old, new: Some(new) });
    }

    fn drop_key(&mut self, key: &ObjectKey) {
        if let Some(old) = self.objects.remove(key) {
            self.unindex(key, &old);
            self.tell(Change { key: key.clone(), old: Some(old), new: None });
        }
    }

    fn index(&mut self, key: &ObjectKey, object: &K) {
        for (name, values_of) in &self.indexers {
            let index = self.indexes.entry(name).or_default();
            for value in values_of(object) {
                index.entry(value).or_default().insert(key.clone());
            }
        }
    }

    fn unindex(&mut self, key: &ObjectKey, object: &K) {
        for (name, values_of) in &self.indexers {
            let Some(index) = self.indexes.get_mut(name) else {
                continue;
            };
            for value in values_of(object) {
                let Some(keys) = index.get_mut(&value) else {
                    continue;
                };
                keys.remove(key);
                if keys.is_empty() {
                    index.remove(&value);
                }
            }
        }
    }

    /// Hands a change to all who listen; those who stopped are forgotten.
    fn tell(&mut self, change: Change<K>) {
        self.subscribers.retain(|subscriber| subscriber.send(change.clone()).is_ok());
    }
}

/// Whether both are the same version of the same object, so that nothing changed.
fn same_version<K: Resource>(old: &K, new: &K) -> bool {
    let (old, new) = (old.meta(), new.meta());
    new.resource_version.is_some() && old.resource_version == new.resource_version && old.uid == new.uid
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
