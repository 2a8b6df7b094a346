//! Which nodes a change is worth a look at.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::api::driver_report::DriverReport;
use crate::api::fence_request::FenceRequest;
use crate::api::node_volume_report::NodeVolumeReport;
use crate::api::slim::{Node, Pod, VolumeAttachment};
use crate::controllers::{Context, Stores};
use crate::runtime::queue::Queue;
use crate::runtime::store::{Change, ObjectKey};

use super::missing_report;

/// Pods and attachments go by the dozen; their changes are gathered for this long.
const PROGRESS_PACE: Duration = Duration::from_millis(50);

/// Starts to listen.
pub fn start(cx: &Context, queue: &Queue<String>) {
    let stores = &cx.stores;
    on_change(cx, stores.fences.subscribe(), queue, Worth::All, |change| vec![change.key.name.clone()]);
    on_change(cx, stores.nodes.subscribe(), queue, Worth::Unreported, |change: &Change<Node>| {
        vec![change.key.name.clone()]
    });
    on_change(cx, stores.node_reports.subscribe(), queue, Worth::Unreported, |change: &Change<NodeVolumeReport>| {
        vec![change.key.name.clone()]
    });
    on_change(cx, stores.reports.subscribe(), queue, Worth::Fenced(None), |change: &Change<DriverReport>| {
        let statuses = change.both().filter_map(|report| report.status.as_ref());
        let nodes: BTreeSet<_> =
            statuses.flat_map(|status| &status.unreachable).map(|pair| pair.node.clone()).collect();
        nodes.into_iter().collect()
    });
    on_change(cx, stores.requests.subscribe(), queue, Worth::Fenced(None), |change: &Change<FenceRequest>| {
        change.both().map(|request| request.spec.node_name.clone()).collect()
    });
    let paced = Worth::Fenced(Some(PROGRESS_PACE));
    on_change(cx, stores.pods.subscribe(), queue, paced, |change: &Change<Pod>| {
        change.both().filter_map(|pod| pod.spec.node_name.clone()).collect()
    });
    on_change(cx, stores.attachments.subscribe(), queue, paced, |change: &Change<VolumeAttachment>| {
        change.both().map(|attachment| attachment.spec.node_name.clone()).collect()
    });
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
    fn is_for(self, stores: &Stores, node: &str) -> bool {
        let node = &ObjectKey::cluster(node);
        let is_fenced = || stores.fences.get(node).is_some();
        match self {
            Self::All => true,
            Self::Fenced(_) => is_fenced(),
            Self::Unreported => is_fenced() || missing_report(stores, node).is_some(),
        }
    }

    fn pace(self) -> Option<Duration> {
        match self {
            Self::Fenced(pace) => pace,
            Self::All | Self::Unreported => None,
        }
    }
}

fn on_change<K: Send + Sync + 'static>(
    cx: &Context,
    changes: mpsc::UnboundedReceiver<Change<K>>,
    queue: &Queue<String>,
    worth: Worth,
    nodes: impl Fn(&Change<K>) -> Vec<String> + Send + 'static,
) {
    let stores = cx.stores.clone();
    queue.follow(changes, worth.pace(), move |change| {
        let mut nodes = nodes(change);
        nodes.retain(|node| worth.is_for(&stores, node));
        nodes
    });
}
