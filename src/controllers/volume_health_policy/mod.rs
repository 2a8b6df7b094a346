//! Says of each VolumeHealthPolicy what it rules. One serial pass over all of them: which policy rules a volume is a
//! question among policies. Their volumes are the business of `volume_health`.

pub mod act;
pub mod decide;
mod feed;
pub mod observe;
pub mod status;
mod tell;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::controllers::Context;
use crate::error::Result;
use crate::runtime::queue::{self, Next, QueueConfig, UNSEEN_PACE};

/// The only key: a pass is over all policies.
const ALL: &str = "policies";
/// Counts are written at most this often.
const COUNTS_PACE: Duration = Duration::from_secs(60);

struct Controller {
    cx: Context,
    /// When counts were written last.
    counted_at: Mutex<Option<Instant>>,
}

/// Runs the controller until `cancel`.
pub async fn run(cx: Context, cancel: CancellationToken) {
    let (queue, receiver) = queue::queue();
    feed::start(&cx, &queue);
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
        Ok(if changed { Next::After(UNSEEN_PACE) } else { decision.look_again.into() })
    }
}
