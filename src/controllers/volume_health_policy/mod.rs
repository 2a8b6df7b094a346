//! Says of each VolumeHealthPolicy what it rules. One serial pass over all of them: which policy rules a volume is a
//! question among policies. Their volumes are the business of `volume_health`.

pub mod act;
pub mod decide;
pub mod observe;
pub mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::api::names;
use crate::api::slim::AdmissionBinding;
use crate::api::volume_health::VolumeHealth;
use crate::api::volume_health_policy::VolumeHealthPolicy;
use crate::controllers::Context;
use crate::error::Result;
use crate::runtime::queue::{self, Next, Queue, QueueConfig};
use crate::runtime::store::Change;

/// The only key: a pass is over all policies.
const ALL: &str = "policies";
/// Volumes come and go all the time and change counts only: such changes are gathered for this long.
const PACE: Duration = Duration::from_secs(1);
/// Counts are written at most this often.
const COUNTS_PACE: Duration = Duration::from_secs(60);
/// The store has not seen our own write yet.
const UNSEEN_PACE: Duration = Duration::from_millis(100);

struct Controller {
    cx: Context,
    /// When counts were written last.
    counted_at: Mutex<Option<Instant>>,
}

/// Runs the controller until `cancel`.
pub async fn run(cx: Context, cancel: CancellationToken) {
    let (queue, receiver) = queue::queue();
    feed(&cx, &queue);
    let leadership = cx.writer.leadership().clone();
    let telemetry = cx.telemetry.clone();
    let receiver = receiver.after(cx.stores.wait_health_synced());
    let controller = Arc::new(Controller { cx, counted_at: Mutex::default() });
    let config = QueueConfig::new("volume_health_policy", "", 1);
    let reconcile = move |_: &'static str| {
        let controller = controller.clone();
        async move { controller.pass().await }
    };
    queue::run(config, receiver, &telemetry, cancel, Some(leadership), reconcile).await;
}

fn feed(cx: &Context, queue: &Queue<&'static str>) {
    let stores = &cx.stores;
    let is_other = |change: &Change<VolumeHealthPolicy>| {
        let view = |it: &Arc<VolumeHealthPolicy>| (it.metadata.generation, it.metadata.deletion_timestamp.is_some());
        change.old.as_ref().map(view) != change.new.as_ref().map(view)
    };
    on(stores.health_policies.subscribe(), queue, None, is_other);
    on(stores.admission_bindings.subscribe(), queue, None, |change: &Change<AdmissionBinding>| {
        names::ENFORCING_POLICIES.contains(&change.key.name.as_str())
    });
    on(stores.volumes.subscribe(), queue, Some(PACE), |_| true);
    on(stores.healths.subscribe(), queue, Some(PACE), |change: &Change<VolumeHealth>| {
        let phase = |it: &Arc<VolumeHealth>| it.status.as_ref().and_then(|status| status.phase);
        change.old.as_ref().map(phase) != change.new.as_ref().map(phase)
    });
}

fn on<K: Send + Sync + 'static>(
    mut changes: mpsc::UnboundedReceiver<Change<K>>,
    queue: &Queue<&'static str>,
    pace: Option<Duration>,
    counts: impl Fn(&Change<K>) -> bool + Send + 'static,
) {
    let queue = queue.clone();
    tokio::spawn(async move {
        while let Some(change) = changes.recv().await {
            match pace {
                _ if !counts(&change) => {}
                None => queue.add(ALL),
                Some(pace) => queue.add_after(ALL, pace),
            }
        }
    });
}

impl Controller {
    async fn pass(&self) -> Result<Next> {
        let mut counted_at = self.counted_at.lock().await;
        let now = self.cx.clock.now();
        let due_in =
            counted_at.map_or(Duration::ZERO, |at| COUNTS_PACE.saturating_sub(now.mono.saturating_duration_since(at)));
        let decision = decide::decide(&observe::stored(&self.cx.stores, due_in), now);
        let mut changed = false;
        for effect in decision.effects {
            match act::act(&self.cx, effect).await {
                Ok(counted) => {
                    if counted {
                        *counted_at = Some(now.mono);
                    }
                    // What could not be written with it may be due.
                    changed = true;
                }
                // Somebody wrote in between, or deleted it: what was decided on is gone, so decide anew.
                Err(error) if error.is_conflict() || error.is_not_found() => changed = true,
                Err(error) => return Err(error),
            }
        }
        Ok(match decision.look_again {
            _ if changed => Next::After(UNSEEN_PACE),
            Some(after) => Next::After(after),
            None => Next::Await,
        })
    }
}
