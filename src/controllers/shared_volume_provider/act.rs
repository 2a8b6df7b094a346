//! Carries out what a pass decided and what is written to the API, each effect at its own moment of leadership.

use std::sync::Arc;

use futures::{FutureExt as _, StreamExt as _, stream};
use kube::ResourceExt;

use crate::api::shared_volume_provider::{SharedVolumeProvider, SharedVolumeProviderStatus};
use crate::controllers::Context;
use crate::error::Result;
use crate::storageos::providers::Providers;

use super::decide::Effect;
use super::discovery::Draft;
use super::metrics::Metrics;
use super::tell;

/// SharedVolumes written at once.
const CONCURRENCY: usize = 16;
/// Field manager of what discovery writes: everybody else may edit it.
const MANAGER: &str = "bulkhead-controller/discovery";

/// Writes what discovery found for one provider.
pub struct Discoverer<'a> {
    /// Writer and Events.
    pub cx: &'a Context,
    /// What is counted.
    pub metrics: &'a Metrics,
    /// Who is told that a volume is worked on.
    pub providers: &'a Providers,
    /// The provider.
    pub provider: &'a SharedVolumeProvider,
}

impl Discoverer<'_> {
    /// Writes the SharedVolumes among the effects. One that is refused keeps no other from being written; the first error is
    /// returned.
    pub async fn create(&self, effects: &[Effect]) -> Result<()> {
        let mut writes = Vec::new();
        for effect in effects {
            if let Effect::Create { draft, volume_id, is_hashed } = effect {
                writes.push(self.create_one(draft, volume_id, *is_hashed).boxed());
            }
        }
        let results: Vec<_> = stream::iter(writes).buffer_unordered(CONCURRENCY).collect().await;
        results.into_iter().collect()
    }

    async fn create_one(&self, draft: &Draft, volume_id: &str, is_hashed: bool) -> Result<()> {
        let name = self.provider.name_any();
        // Before it is seen by anybody who says that it is settled.
        self.providers.expect(&name, volume_id);
        let created = write(self.cx, draft).await;
        match &created {
            Ok(true) => {
                self.metrics.created();
                tell::created(self.cx, self.provider, draft, is_hashed);
            }
            // There is one already, and who works on it says when it is settled; or it is for a later poll.
            Ok(false) | Err(_) => self.providers.settled(&name, volume_id),
        }
        created.map(drop)
    }
}

/// Returns whether it was written: there may be one of that name.
async fn write(cx: &Context, draft: &Draft) -> Result<bool> {
    match cx.writer.under(MANAGER).create(draft).await {
        Err(error) if error.is_conflict() => Ok(false),
        created => created.map(|_: Draft| true),
    }
}

/// Writes the status of a provider.
pub async fn record(
    cx: &Context,
    metrics: &Metrics,
    provider: &Arc<SharedVolumeProvider>,
    status: &SharedVolumeProviderStatus,
) -> Result<()> {
    let before = provider.status.clone().unwrap_or_default();
    let mut next = provider.as_ref().clone();
    next.status = Some(status.clone());
    let written = cx.writer.replace_status(&next).await?;
    metrics.recorded();
    tell::transitions(cx, &before, &written);
    Ok(())
}
