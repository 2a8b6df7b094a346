//! Keeps one VolumeHealth for every volume that a VolumeHealthPolicy selects: gathers what agents, drivers and nodes say
//! of it, taints it, and shows the taints where they keep new users off. Keyed by the name of the PersistentVolume.

pub mod act;
pub mod beats;
pub mod changes;
pub mod decide;
mod feed;
pub mod gates;
pub mod loss;
pub(crate) mod metrics;
pub mod nodes;
pub mod observe;
pub mod projection;
mod release;
pub mod report_conditions;
pub mod reservation;
pub mod status;
pub mod taints;
mod tell;
#[cfg(test)]
mod tests;
pub mod uninstall;
pub mod voices;

use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use crate::controllers::Context;
use crate::error::Result;
use crate::runtime::lock::lock;
use crate::runtime::queue::{self, Next, QueueConfig, UNSEEN_PACE};

use beats::Beats;
use feed::Feed;
use metrics::Metrics;

/// Volumes worked on at once.
const CONCURRENCY: usize = 32;

struct Controller {
    cx: Context,
    metrics: Metrics,
    beats: Arc<Mutex<Beats>>,
}

/// Runs the controller until `cancel`.
pub async fn run(cx: Context, cancel: CancellationToken) {
    tokio::join!(watch(cx.clone(), cancel.clone()), release::run(cx, cancel));
}

async fn watch(cx: Context, cancel: CancellationToken) {
    let (queue, receiver) = queue::queue();
    let beats = Arc::new(Mutex::new(Beats::default()));
    Feed { cx: cx.clone(), queue, beats: beats.clone() }.start(&cancel);
    let leadership = cx.writer.leadership().clone();
    let telemetry = cx.telemetry.clone();
    let receiver = receiver.after(cx.stores.wait_health_synced());
    let metrics = Metrics::register(&telemetry);
    telemetry.before_scrape({
        let (cx, metrics) = (cx.clone(), metrics.clone());
        move || observe::measure(&cx, &metrics)
    });
    let controller = Arc::new(Controller { cx, metrics, beats });
    let config = QueueConfig::new("volume_health", "VolumeHealth", CONCURRENCY);
    let reconcile = move |volume: String| {
        let controller = controller.clone();
        async move { controller.reconcile(&volume).await }
    };
    queue::run(config, receiver, &telemetry, cancel, Some(leadership), reconcile).await;
}

impl Controller {
    async fn reconcile(&self, volume: &str) -> Result<Next> {
        let now = self.cx.clock.now();
        let seen = {
            let beats = lock(&self.beats);
            observe::stored(&self.cx.stores, &beats, volume, now)
        };
        let decision = decide::decide(&seen, now);
        tracing::debug!(volume, reason = decision.reason, effects = decision.effects.len(), "decided");
        for effect in decision.effects {
            match act::act(&self.cx, &self.metrics, &seen, effect).await {
                // What was decided on is gone, so decide anew.
                Err(error) if error.is_conflict() || error.is_not_found() => return Ok(Next::After(UNSEEN_PACE)),
                done => done?,
            }
        }
        tell::waiting(&self.cx, &seen);
        Ok(decision.look_again.into())
    }
}
