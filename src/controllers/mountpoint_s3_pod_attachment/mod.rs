//! Gives every S3 volume of a workload a Mountpoint Pod on its node, shared by all workloads of one [`Mount`], and takes it
//! away after the last. Drop-in for the controller of the Scality driver.

pub mod act;
pub mod attributes;
pub mod backoff;
pub mod decide;
pub mod departed;
mod feed;
pub mod flags;
pub(crate) mod metrics;
pub mod mountpoint_pod;
pub mod observe;
pub mod orphans;
pub mod plan;
pub mod status;
mod strays;
mod tell;
#[cfg(test)]
mod tests;
pub mod uninstall;
pub mod volumes;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::api::s3::Mount;
use crate::controllers::{Context, S3Stores};
use crate::error::Result;
use crate::runtime::lock::lock;
use crate::runtime::queue::{self, Next, Queue, QueueConfig, UNSEEN_PACE_OF_MOUNTS};
use crate::runtime::store;

use decide::{Decision, Effect, Patience, Seen};
use departed::Departed;
use feed::Feed;
use metrics::Metrics;
use mountpoint_pod::Settings;
use strays::Strays;

/// Mounts worked on at once.
const CONCURRENCY: usize = 32;
/// How long a mount must be left alone before its status is written: many things happen while it is set up.
const QUIET: Duration = Duration::from_secs(1);

/// How the controller works.
#[derive(Clone, Debug)]
pub struct Config {
    /// What Mountpoint Pods are like.
    pub pods: Settings,
    /// When things count as stale.
    pub patience: Patience,
    /// How often everything is looked at, though nothing changed.
    pub sweep: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { pods: Settings::default(), patience: Patience::default(), sweep: Duration::from_secs(120) }
    }
}

struct Controller {
    cx: Context,
    s3: S3Stores,
    config: Config,
    metrics: Metrics,
    departed: Arc<Mutex<Departed>>,
    /// When the status of a mount may be written.
    status_due: Mutex<HashMap<Mount, Instant>>,
}

/// Runs the controller until `cancel`.
pub async fn run(cx: Context, s3: S3Stores, config: Config, cancel: CancellationToken) {
    let (queue, receiver) = queue::queue();
    let departed = Arc::new(Mutex::new(Departed::default()));
    Feed { cx: cx.clone(), s3: s3.clone(), queue: queue.clone(), departed: departed.clone() }.start();
    let leadership = cx.writer.leadership().clone();
    let telemetry = cx.telemetry.clone();
    let metrics = Metrics::register(&telemetry);
    telemetry.before_scrape({
        let (s3, metrics) = (s3.clone(), metrics.clone());
        move || metrics.look(&s3.mountpoint_pods.list(), &s3.attachments.list())
    });
    let (stray_queue, stray_receiver) = queue::queue();
    Strays::feed(&s3, &stray_queue);
    let receiver = receiver.after(s3.wait_synced(&cx.stores));
    let stray_receiver = stray_receiver.after(s3.wait_synced(&cx.stores));
    let strays =
        Arc::new(Strays { cx: cx.clone(), s3: s3.clone(), patience: config.patience, metrics: metrics.clone() });
    let sweeping = sweep(s3.clone(), queue, stray_queue, config.sweep, cancel.clone());
    let controller = Arc::new(Controller { cx, s3, config, metrics, departed, status_due: Mutex::default() });
    let reconcile = move |mount: Mount| {
        let controller = controller.clone();
        async move { controller.reconcile(&mount).await }
    };
    let stray = move |name: String| {
        let strays = strays.clone();
        async move { strays.reconcile(&name).await }
    };
    let mounts = QueueConfig::new("mountpoint_s3_pod_attachment", "", CONCURRENCY);
    let others = QueueConfig::new("stray_mountpoint_pods", "Pod", strays::CONCURRENCY);
    tokio::join!(
        queue::run(mounts, receiver, &telemetry, cancel.clone(), Some(leadership.clone()), reconcile),
        queue::run(others, stray_receiver, &telemetry, cancel, Some(leadership), stray),
        sweeping,
    );
}

/// The backstop behind the watches.
async fn sweep(s3: S3Stores, mounts: Queue<Mount>, strays: Queue<String>, every: Duration, cancel: CancellationToken) {
    let sweep = async {
        loop {
            tokio::time::sleep(every).await;
            feed::all(&s3).into_iter().for_each(|mount| mounts.add(mount));
            Strays::all(&s3).into_iter().for_each(|name| strays.add(name));
        }
    };
    cancel.run_until_cancelled(sweep).await;
}

impl Controller {
    async fn reconcile(&self, mount: &Mount) -> Result<Next> {
        let now = self.cx.clock.now();
        let seen = self.observe(mount, now.mono);
        let decision = decide::decide(&seen, &self.config.pods, self.config.patience, now);
        tracing::debug!(%mount, reason = decision.reason, effects = decision.effects.len(), "decided");
        tell::complaint(&self.cx, &seen, &decision);
        for effect in &decision.effects {
            match act::act(&self.cx, effect).await {
                Ok(()) => {
                    self.metrics.did(effect, &seen, &decision, self.cx.clock.now().wall);
                    tell::done(&self.cx, &seen, effect, &decision);
                }
                // What was decided on is gone, so decide anew.
                Err(error) if error.is_conflict() && !is_creation(effect) => {
                    return Ok(Next::After(UNSEEN_PACE_OF_MOUNTS));
                }
                Err(error) => {
                    tell::refused(&self.cx, effect, &error);
                    return Err(error);
                }
            }
        }
        store::settle(|| decision.effects.iter().all(|effect| observe::shows(&self.s3, effect))).await;
        Ok(self.next(mount, &decision))
    }

    fn observe(&self, mount: &Mount, now: Instant) -> Seen {
        let departed = lock(&self.departed);
        let mut seen = observe::stored(&self.cx.stores, &self.s3, &departed, mount);
        seen.is_quiet = self.status_due().get(mount).is_some_and(|due| *due <= now);
        seen
    }

    fn next(&self, mount: &Mount, decision: &Decision) -> Next {
        let now = self.cx.clock.now().mono;
        let mut status_due = self.status_due();
        let writes_more = decision.effects.iter().any(|effect| !matches!(effect, Effect::Record { .. }));
        if !writes_more && !decision.status_waits {
            status_due.remove(mount);
            return decision.look_again.into();
        }
        let due = match status_due.get(mount) {
            Some(due) if !writes_more => *due,
            _ => now + QUIET,
        };
        status_due.insert(mount.clone(), due);
        let wait = due.saturating_duration_since(now);
        Next::After(decision.look_again.map_or(wait, |sooner| sooner.min(wait)))
    }

    fn status_due(&self) -> std::sync::MutexGuard<'_, HashMap<Mount, Instant>> {
        lock(&self.status_due)
    }
}

/// One that exists and is not shown may never be: that is no moment's matter.
fn is_creation(effect: &Effect) -> bool {
    matches!(effect, Effect::CreatePod { .. } | Effect::Create(_))
}
