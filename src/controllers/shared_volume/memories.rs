//! What this process remembers of SharedVolumes between two passes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
