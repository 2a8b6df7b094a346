//! What this process remembers between two passes: the [`Memory`] of each SharedVolume, and which volume each asks its provider
//! for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::runtime::lock::lock;
use crate::runtime::store::ObjectKey;

use super::decide::Memory;

/// What this process remembers of each SharedVolume.
#[derive(Clone, Default)]
pub struct Memories(Arc<Mutex<HashMap<ObjectKey, Memory>>>);

impl Memories {
    /// What is remembered.
    pub fn of(&self, key: &ObjectKey) -> Memory {
        self.lock().get(key).cloned().unwrap_or_default()
    }

    /// Takes in what a pass that saw `before` wants to be remembered. What a provider said is known better here, if it said
    /// it meanwhile, or was only just asked.
    pub fn keep(&self, key: &ObjectKey, before: &Memory, mut after: Memory, was_asked: bool) {
        let mut memories = self.lock();
        let current = memories.entry(key.clone()).or_default();
        let is_same = current.published == before.published && current.publish_failed == before.publish_failed;
        if was_asked || !is_same {
            after.published = current.published.take();
            after.publish_failed = current.publish_failed.take();
        }
        *current = after;
    }

    /// Changes what is remembered.
    pub fn note(&self, key: &ObjectKey, change: impl FnOnce(&mut Memory)) {
        change(self.lock().entry(key.clone()).or_default());
    }

    /// The SharedVolume is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Memory>> {
        lock(&self.0)
    }
}

/// A volume of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOf {
    /// Name of the SharedVolumeProvider.
    pub provider: String,
    /// Id of the volume there.
    pub volume_id: String,
}

/// Which volume each SharedVolume asks its provider for.
#[derive(Default)]
pub struct Asked(Mutex<HashMap<ObjectKey, VolumeOf>>);

impl Asked {
    /// A SharedVolume asks for this volume from now on. Returns the one it asked for before, if nobody does any more.
    pub fn ask(&self, key: &ObjectKey, volume: Option<VolumeOf>) -> Option<VolumeOf> {
        let mut asked = lock(&self.0);
        let before = match volume {
            Some(volume) => asked.insert(key.clone(), volume),
            None => asked.remove(key),
        };
        // Two may name the same volume, though only one of them can be right.
        before.filter(|before| !asked.values().any(|other| other == before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::shared_volume::decide::Acknowledged;

    fn acknowledged(endpoint: &str) -> Option<Acknowledged> {
        Some(Acknowledged { endpoint: endpoint.to_owned(), over: "1".to_owned() })
    }

    #[test]
    fn what_a_provider_said_during_a_pass_is_kept() {
        let (memories, key) = (Memories::default(), ObjectKey::namespaced("web", "media"));
        let before = memories.of(&key);
        let after = Memory { last_switch: Some(crate::runtime::clock::monotonic()), ..Memory::default() };
        memories.note(&key, |memory| memory.published = acknowledged("10.0.0.7:2049"));
        memories.keep(&key, &before, after.clone(), false);
        let now = memories.of(&key);
        assert_eq!((&now.published, now.last_switch), (&acknowledged("10.0.0.7:2049"), after.last_switch));
        // A pass that saw it may forget it.
        memories.keep(&key, &now, after, false);
        assert_eq!(memories.of(&key).published, None);
    }

    #[test]
    fn what_a_provider_is_yet_to_take_is_not_remembered_as_taken() {
        let (memories, key) = (Memories::default(), ObjectKey::namespaced("web", "media"));
        let wanted = Memory { published: acknowledged("10.0.0.7:2049"), ..Memory::default() };
        memories.keep(&key, &Memory::default(), wanted, true);
        assert_eq!(memories.of(&key).published, None);
        memories.forget(&key);
        assert_eq!(memories.of(&key), Memory::default());
    }

    #[test]
    fn a_volume_is_asked_for_until_the_last_one_leaves_it() {
        let asked = Asked::default();
        let volume = |id: &str| Some(VolumeOf { provider: "p".to_owned(), volume_id: id.to_owned() });
        let [first, second] = ["a", "b"].map(|name| ObjectKey::namespaced("web", name));
        assert_eq!(asked.ask(&first, volume("v")), None);
        assert_eq!(asked.ask(&first, volume("v")), None);
        assert_eq!(asked.ask(&second, volume("v")), None);
        assert_eq!(asked.ask(&first, None), None);
        assert_eq!(asked.ask(&second, volume("w")), volume("v"));
        assert_eq!(asked.ask(&second, None), volume("w"));
        assert_eq!(asked.ask(&second, None), None);
    }
}
