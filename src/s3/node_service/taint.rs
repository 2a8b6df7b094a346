//! Takes the taint `agent-not-ready` from the node once the kubelet knows the driver.

use std::time::Duration;

use json_patch::Patch;
use k8s_openapi::api::core::v1::Taint;
use kube::Api;
use tokio_util::sync::CancellationToken;

use crate::api::s3::{AGENT_NOT_READY_TAINT, DRIVER};
use crate::api::slim::{CsiNode, Node as KubernetesNode};
use crate::error::Result;
use crate::runtime::informer::Informer;
use crate::runtime::patch::{NodePrecondition, remove_taint};
use crate::runtime::store::{ObjectKey, Store};
use crate::runtime::telemetry::Telemetry;
use crate::runtime::writer::Writer;

use super::Node;

/// Pause after a write that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// Works until `cancel`: a taint that comes back goes again.
pub async fn run(node: &Node, writer: Writer, telemetry: &Telemetry, cancel: CancellationToken) {
    let by_name = format!("metadata.name={}", node.settings.node_name);
    let watches = &node.clients.watches;
    let nodes: Store<KubernetesNode> =
        Informer::new(Api::all(watches.clone()), "nodes").fields(&by_name).spawn(cancel.clone(), telemetry);
    let drivers: Store<CsiNode> =
        Informer::new(Api::all(watches.clone()), "csinodes").fields(&by_name).spawn(cancel.clone(), telemetry);
    let (mut node_changes, mut driver_changes) = (nodes.subscribe(), drivers.subscribe());
    let key = ObjectKey::cluster(&node.settings.node_name);
    loop {
        if let Err(error) = take(&nodes, &drivers, &key, &writer).await {
            tracing::warn!(%error, taint = AGENT_NOT_READY_TAINT, "the taint is not removed yet; it is tried again");
            tokio::time::sleep(AGAIN).await;
            continue;
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = node_changes.recv() => {}
            _ = driver_changes.recv() => {}
        }
    }
}

async fn take(nodes: &Store<KubernetesNode>, drivers: &Store<CsiNode>, key: &ObjectKey, writer: &Writer) -> Result<()> {
    let registered = drivers.get(key).is_some_and(|node| node.spec.drivers.iter().any(|driver| driver.name == DRIVER));
    let Some(node) = nodes.get(key).filter(|_| registered) else { return Ok(()) };
    let Some(patch) = without_ours(NodePrecondition::of(&node.metadata), node.taints()) else { return Ok(()) };
    match writer.json_patch::<KubernetesNode>(key, patch).await {
        Ok(_) => {
            tracing::info!(taint = AGENT_NOT_READY_TAINT, "the driver is registered: the taint is removed");
            Ok(())
        }
        // Somebody else changed the node: the watch brings it.
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Takes it away with every effect that it has; nothing if it has none.
fn without_ours(node: NodePrecondition<'_>, taints: &[Taint]) -> Option<Patch> {
    let mut left = taints.to_vec();
    let mut operations = Vec::new();
    while let Some(at) = left.iter().position(|taint| taint.key == AGENT_NOT_READY_TAINT) {
        let taint = left.get(at)?;
        operations.extend(remove_taint(node, &left, &taint.key, &taint.effect)?.0);
        left.remove(at);
    }
    (!operations.is_empty()).then_some(Patch(operations))
}
