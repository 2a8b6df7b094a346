//! Which changes are worth a pass.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::api::names;
use crate::api::slim::Node;
use crate::controllers::Context;
use crate::heartbeat::listener::{Heartbeats, Sources, Wish};
use crate::runtime::queue::Queue;
use crate::runtime::store::Change;

use super::{CLUSTER, heartbeat};

/// Pods change all the time and decide little: their changes are gathered for this long.
const POD_PACE: Duration = Duration::from_millis(500);

/// Starts to listen.
pub fn start(cx: &Context, queue: &Queue<&'static str>) {
    let stores = &cx.stores;
    queue.follow_all(stores.policies.subscribe(), None, CLUSTER);
    queue.follow(stores.nodes.subscribe(), None, |change| is_news(change).then_some(CLUSTER));
    queue.follow_all(stores.fences.subscribe(), None, CLUSTER);
    queue.follow_all(stores.reports.subscribe(), None, CLUSTER);
    queue.follow_all(stores.healths.subscribe(), Some(POD_PACE), CLUSTER);
    queue.follow_all(stores.namespaces.subscribe(), Some(POD_PACE), CLUSTER);
    queue.follow_all(stores.pods.subscribe(), Some(POD_PACE), CLUSTER);
    queue.add(CLUSTER);
}

/// Kubelets write their Node's status every few minutes and more; only what decisions rest on is worth a pass.
fn is_news(change: &Change<Node>) -> bool {
    change.differs(|node| {
        let (meta, boot_id) = (&node.metadata, &node.status.node_info.boot_id);
        (&meta.uid, node.ready(), node.taints(), boot_id, names::paused(meta))
    })
}

/// While it leads, peers are asked about nodes that are silent; what they say is worth a pass.
pub fn hear(cx: &Context, heartbeats: &Heartbeats, queue: &Queue<&'static str>, cancel: &CancellationToken) {
    let Some(mut changes) = heartbeats.changes() else { return };
    let sources = Sources { nodes: cx.stores.nodes.clone(), reports: cx.stores.node_reports.clone() };
    let (policies, leadership) = (cx.stores.policies.clone(), cx.writer.leadership().clone());
    let wish = move || {
        let policies = if leadership.remaining().is_some() { policies.list() } else { Vec::new() };
        let introduce = policies.iter().any(|policy| policy.spec.self_fencing.deadline().is_some());
        Wish { ask_after: heartbeat::suspect_after(policies.iter().map(Arc::as_ref)), introduce }
    };
    tokio::spawn(heartbeats.clone().run(sources, wish, cancel.clone()));
    let queue = queue.clone();
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            queue.add(CLUSTER);
        }
    });
}
