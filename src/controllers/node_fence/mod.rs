//! Carries one node's incident through: taint, fence, read back, release, detach, clean. Keyed by node name.

pub mod act;
mod again;
pub mod answers;
pub mod boots;
pub mod change;
pub mod clean;
mod conditions;
pub mod decide;
pub mod detach;
pub mod external;
mod feed;
pub mod fencers;
pub mod guard;
pub mod held;
pub mod io;
pub mod memory;
pub(crate) mod metrics;
pub mod observe;
mod pace;
pub mod pods;
pub mod recovery;
pub mod report;
pub mod requests;
pub mod rows;
pub mod shut_out;
pub mod status;
pub mod storage;
mod tell;
#[cfg(test)]
mod tests;
mod unattached;
mod units;
pub mod volumes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::{Api, ResourceExt};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::api::node_fence::NodeFence;
use crate::api::node_volume_report::NodeVolumeReport;
use crate::controllers::{Context, Stores};
use crate::error::Result;
use crate::runtime::lock::lock;
use crate::runtime::logs;
use crate::runtime::queue::{self, Next, QueueConfig, UNSEEN_PACE, UNSEEN_PACE_OF_FENCES};
use crate::runtime::store::ObjectKey;

use decide::Settings;
use memory::Incident;
use metrics::Metrics;

/// How soon the creation of a report is tried again.
const REPORT_RETRY: Duration = Duration::from_secs(30);
/// Incidents worked on at once.
const CONCURRENCY: usize = 16;

struct Controller {
    cx: Context,
    metrics: Metrics,
    settings: Settings,
    incidents: std::sync::Mutex<HashMap<String, Arc<Mutex<Incident>>>>,
}

/// Runs the controller until `cancel`.
pub async fn run(cx: Context, settings: Settings, cancel: CancellationToken) {
    let (queue, receiver) = queue::queue();
    feed::start(&cx, &queue);
    let leadership = cx.writer.leadership().clone();
    let telemetry = cx.telemetry.clone();
    let receiver = receiver.after(cx.stores.wait_synced());
    let metrics = Metrics::register(&telemetry);
    let controller = Arc::new(Controller { cx, metrics, settings, incidents: std::sync::Mutex::default() });
    let config = QueueConfig::new("node_fence", "NodeFence", CONCURRENCY);
    let reconcile = move |node: String| {
        let controller = controller.clone();
        async move { controller.reconcile(&node).await }
    };
    queue::run(config, receiver, &telemetry, cancel, Some(leadership), reconcile).await;
}

fn missing_report(stores: &Stores, node: &ObjectKey) -> Option<NodeVolumeReport> {
    report::missing(stores.nodes.get(node).as_deref(), stores.node_reports.get(node).as_deref())
}

impl Controller {
    async fn reconcile(&self, node: &str) -> Result<Next> {
        let next = self.incident_of(node).await?;
        // A fence waits for nothing that is only needed after it.
        let report = self.create_report(node).await.unwrap_or_else(|error| {
            tracing::warn!(node, %error, "the NodeVolumeReport is not created; its agent cannot report");
            self.metrics.report_failed();
            Some(REPORT_RETRY)
        });
        Ok(match (next, report) {
            (Next::After(next), Some(report)) => Next::After(next.min(report)),
            (Next::Await, Some(report)) => Next::After(report),
            (next, None) => next,
        })
    }

    async fn incident_of(&self, node: &str) -> Result<Next> {
        let incident = self.incident(node);
        let mut incident = incident.lock().await;
        match self.step(node, &mut incident).await {
            // Somebody wrote in between: what was decided on is gone, so decide anew.
            Err(error) if error.is_conflict() => Ok(Next::After(UNSEEN_PACE)),
            other => other,
        }
    }

    /// Creates the node's report if it has none. Returns when to look again, where that cannot be told yet.
    async fn create_report(&self, node: &str) -> Result<Option<Duration>> {
        let stores = &self.cx.stores;
        let Some(report) = missing_report(stores, &ObjectKey::cluster(node)) else { return Ok(None) };
        if !stores.node_reports.synced() {
            return Ok(Some(Duration::from_secs(1)));
        }
        match self.cx.writer.create(&report).await {
            // The store has not seen it yet.
            Err(error) if error.is_conflict() => Ok(None),
            created => created.map(|_| None),
        }
    }

    async fn step(&self, node: &str, incident: &mut Incident) -> Result<Next> {
        let now = self.cx.clock.now();
        let Some(mut seen) = observe::stored(&self.cx, node, incident, self.settings, now) else {
            self.forget(node);
            return Ok(Next::Await);
        };
        logs::note_policies(seen.fence.spec.policies.iter().map(|policy| policy.name.as_str()));
        if incident.is_ahead_of(&seen, now) || !self.is_confirmed(&seen.fence, incident).await? {
            return Ok(Next::After(UNSEEN_PACE_OF_FENCES));
        }
        let mut decision = decide::decide(&seen, now);
        if decision.look_live {
            seen = observe::live(&self.cx, incident, seen, now).await?;
            decision = decide::decide(&seen, self.cx.clock.now());
        }
        tracing::debug!(node, reason = decision.reason, effects = decision.effects.len(), "decided");
        act::Actor { cx: &self.cx, metrics: &self.metrics, seen: &seen }.act(incident, decision.effects).await?;
        Ok(decision.look_again.into())
    }

    /// A process that has just come to lead may have a store that lags behind the last leader: what it begins with must
    /// be what the API has.
    async fn is_confirmed(&self, fence: &NodeFence, incident: &mut Incident) -> Result<bool> {
        if !incident.is_confirmed() {
            let api: Api<NodeFence> = Api::all(self.cx.clients.reads.clone());
            incident.confirm(fence, api.get_opt(&fence.name_any()).await?.as_ref());
        }
        Ok(incident.is_confirmed())
    }

    fn incident(&self, node: &str) -> Arc<Mutex<Incident>> {
        let mut incidents = lock(&self.incidents);
        incidents.entry(node.to_owned()).or_default().clone()
    }

    fn forget(&self, node: &str) {
        lock(&self.incidents).remove(node);
    }
}
