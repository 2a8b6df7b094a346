//! Carries one node's incident through: taint, fence, read back, release, detach, clean. Keyed by node name.

pub mod act;
pub mod answers;
pub mod boots;
pub mod change;
pub mod clean;
mod conditions;
pub mod decide;
pub mod detach;
pub mod external;
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

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::{Api, ResourceExt};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::api::driver_report::DriverReport;
use crate::api::fence_request::FenceRequest;
use crate::api::node_fence::NodeFence;
use crate::api::node_volume_report::NodeVolumeReport;
use crate::api::slim::{Node, Pod, VolumeAttachment};
use crate::controllers::{Context, Stores};
use crate::error::Result;
use crate::runtime::logs;
use crate::runtime::queue::{self, Next, Queue, QueueConfig};
use crate::runtime::store::{Change, ObjectKey};

use decide::Settings;
use memory::Incident;
use metrics::Metrics;

/// How soon the creation of a report is tried again.
const REPORT_RETRY: Duration = Duration::from_secs(30);
/// Incidents worked on at once.
const CONCURRENCY: usize = 16;
/// Pods and attachments go by the dozen; their changes are gathered for this long.
const PROGRESS_PACE: Duration = Duration::from_millis(50);

struct Controller {
    cx: Context,
    metrics: Metrics,
    settings: Settings,
    incidents: std::sync::Mutex<HashMap<String, Arc<Mutex<Incident>>>>,
}

/// Runs the controller until `cancel`.
pub async fn run(cx: Context, settings: Settings, cancel: CancellationToken) {
    let (queue, receiver) = queue::queue();
    feed(&cx, &queue);
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

fn feed(cx: &Context, queue: &Queue<String>) {
    let stores = &cx.stores;
    on_change(cx, stores.fences.subscribe(), queue, Worth::All, |change| vec![change.key.name.clone()]);
    on_change(cx, stores.nodes.subscribe(), queue, Worth::Unreported, |change: &Change<Node>| {
        vec![change.key.name.clone()]
    });
    on_change(cx, stores.node_reports.subscribe(), queue, Worth::Unreported, |change: &Change<NodeVolumeReport>| {
        vec![change.key.name.clone()]
    });
    on_change(cx, stores.reports.subscribe(), queue, Worth::Fenced(None), |change: &Change<DriverReport>| {
        let statuses = both(change).filter_map(|report| report.status.as_ref());
        let nodes: BTreeSet<_> =
            statuses.flat_map(|status| &status.unreachable).map(|pair| pair.node.clone()).collect();
        nodes.into_iter().collect()
    });
    on_change(cx, stores.requests.subscribe(), queue, Worth::Fenced(None), |change: &Change<FenceRequest>| {
        both(change).map(|request| request.spec.node_name.clone()).collect()
    });
    let paced = Worth::Fenced(Some(PROGRESS_PACE));
    on_change(cx, stores.pods.subscribe(), queue, paced, |change: &Change<Pod>| {
        both(change).filter_map(|pod| pod.spec.node_name.clone()).collect()
    });
    on_change(cx, stores.attachments.subscribe(), queue, paced, |change: &Change<VolumeAttachment>| {
        both(change).map(|attachment| attachment.spec.node_name.clone()).collect()
    });
}

fn both<K>(change: &Change<K>) -> impl Iterator<Item = &Arc<K>> {
    change.old.iter().chain(&change.new)
}

/// For which nodes a change is worth a look: the others are none of this controller's business.
#[derive(Clone, Copy)]
enum Worth {
    /// All: of a NodeFence that has gone, what is remembered of it must go too.
    All,
    /// Those with a NodeFence; changes are gathered for this long.
    Fenced(Option<Duration>),
    /// Those as well that have no report. That is not asked for each pod: reports are large.
    Unreported,
}

impl Worth {
    fn is_for(self, stores: &Stores, node: &ObjectKey) -> bool {
        let is_fenced = || stores.fences.get(node).is_some();
        match self {
            Self::All => true,
            Self::Fenced(_) => is_fenced(),
            Self::Unreported => is_fenced() || missing_report(stores, node).is_some(),
        }
    }
}

fn on_change<K: Send + Sync + 'static>(
    cx: &Context,
    mut changes: mpsc::UnboundedReceiver<Change<K>>,
    queue: &Queue<String>,
    worth: Worth,
    nodes: impl Fn(&Change<K>) -> Vec<String> + Send + 'static,
) {
    let (queue, stores) = (queue.clone(), cx.stores.clone());
    tokio::spawn(async move {
        while let Some(change) = changes.recv().await {
            for node in nodes(&change) {
                match worth {
                    _ if !worth.is_for(&stores, &ObjectKey::cluster(&node)) => {}
                    Worth::Fenced(Some(pace)) => queue.add_after(node, pace),
                    Worth::All | Worth::Fenced(None) | Worth::Unreported => queue.add(node),
                }
            }
        }
    });
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
            Err(error) if error.is_conflict() => Ok(Next::After(Duration::from_millis(100))),
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
            return Ok(Next::After(Duration::from_millis(20)));
        }
        let mut decision = decide::decide(&seen, now);
        if decision.look_live {
            seen = observe::live(&self.cx, incident, seen, now).await?;
            decision = decide::decide(&seen, self.cx.clock.now());
        }
        tracing::debug!(node, reason = decision.reason, effects = decision.effects.len(), "decided");
        act::Actor { cx: &self.cx, metrics: &self.metrics, seen: &seen }.act(incident, decision.effects).await?;
        Ok(decision.look_again.map_or(Next::Await, Next::After))
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
        let mut incidents = self.incidents.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        incidents.entry(node.to_owned()).or_default().clone()
    }

    fn forget(&self, node: &str) {
        self.incidents.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(node);
    }
}
