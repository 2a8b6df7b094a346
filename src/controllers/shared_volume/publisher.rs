//! Tells providers where volumes are mounted from, beside the queue: a provider that hangs must hold up neither the switch
//! of its own volumes nor those of others. At most one call for each SharedVolume is under way.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::controllers::Context;
use crate::runtime::lock::lock;
use crate::runtime::queue::Queue;
use crate::runtime::store::ObjectKey;
use crate::storageos::providers::{Providers, PublishError};

use super::decide::{Acknowledged, Effect, Note, PublishFailure, Seen};
use super::memories::Memories;
use super::metrics::Metrics;
use super::tell;

/// Longest that a provider may take, with all that is tried again.
const LIMIT: Duration = Duration::from_secs(60);

/// All calls to providers.
pub struct Publisher {
    pub cx: Context,
    pub providers: Providers,
    pub metrics: Metrics,
    pub memories: Memories,
    pub queue: Queue<ObjectKey>,
    pub cancel: CancellationToken,
    pub under_way: Arc<Mutex<HashSet<ObjectKey>>>,
}

/// One that is under way; its end wakes the SharedVolume.
struct UnderWay {
    key: ObjectKey,
    queue: Queue<ObjectKey>,
    all: Arc<Mutex<HashSet<ObjectKey>>>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.key);
        self.queue.add(self.key.clone());
    }
}

impl Publisher {
    /// Begins what a pass decided, unless a call for this SharedVolume is under way. `acknowledged` and `notes` count once
    /// the provider has taken it.
    pub fn begin(
        &self,
        key: &ObjectKey,
        seen: &Seen,
        effect: &Effect,
        acknowledged: Option<Acknowledged>,
        notes: &[Note],
    ) {
        let Effect::Publish { provider, namespace, volume, endpoint } = effect.clone() else { return };
        if !lock(&self.under_way).insert(key.clone()) {
            return;
        }
        let under_way = UnderWay { key: key.clone(), queue: self.queue.clone(), all: self.under_way.clone() };
        let (cx, providers, metrics, memories) =
            (self.cx.clone(), self.providers.clone(), self.metrics.clone(), self.memories.clone());
        let (seen, notes) = (seen.clone(), notes.to_vec());
        let publication = async move {
            // Dropped last: the pass that it wakes finds what is noted here.
            let under_way = under_way;
            let Some(leading) = cx.writer.leadership().remaining() else { return };
            let told = providers.publish(&provider, &namespace, &volume, &endpoint);
            let told = tokio::time::timeout(leading.min(LIMIT), told).await;
            let told = told.unwrap_or_else(|_| Err(PublishError::Unreachable("no answer in time".to_owned())));
            metrics.published(&told);
            let at = cx.clock.now().mono;
            memories.note(&under_way.key, |memory| match &told {
                Ok(()) => (memory.published, memory.publish_failed) = (acknowledged, None),
                Err(error) => memory.publish_failed = Some(failure(memory.publish_failed.take(), endpoint, error, at)),
            });
            if told.is_ok() {
                tell::tell(&cx, &seen, &notes);
            }
        };
        let cancel = self.cancel.clone();
        tokio::spawn(async move { cancel.run_until_cancelled(publication).await });
    }
}

fn failure(
    before: Option<PublishFailure>,
    endpoint: String,
    error: &PublishError,
    at: std::time::Instant,
) -> PublishFailure {
    let failures = before.filter(|before| before.endpoint == endpoint).map_or(0, |before| before.failures) + 1;
    PublishFailure {
        endpoint,
        is_conflict: *error == PublishError::VersionConflict,
        error: error.to_string(),
        failures,
        at,
    }
}
