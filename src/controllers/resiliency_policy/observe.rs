//! What one pass over the cluster sees: the stores; and, for a node that is about to be acted on, the API itself.

use std::sync::Arc;

use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use crate::api::slim::{Lease, Node, Pod};
use crate::api::usage::PodView;
use crate::controllers::{BY_NODE, Context, NODE_LEASES};
use crate::error::Result;
use crate::heartbeat::listener::Heartbeats;
use crate::heartbeat::verdict::Verdict;
use crate::runtime::clock::Now;
use crate::runtime::store::ObjectKey;

use super::decide::Seen;
use super::evidence::Silence;
use super::heartbeat::Heartbeat;
use super::memory::{Found, Memory};
use super::plan::{self, LiveNode};
use super::silence::is_still;

/// What the stores show.
pub fn cluster(cx: &Context, heartbeats: &Heartbeats, memory: &mut Memory, now: Now) -> Seen {
    let stores = &cx.stores;
    let nodes = stores.nodes.list();
    let epoch = (stores.leases.relists() + stores.nodes.relists(), cx.writer.leadership().term());
    let found = Found {
        policies: stores.policies.list(),
        heartbeats: nodes.iter().map(|node| (node.name_any(), heard(heartbeats, &node.name_any()))).collect(),
        nodes,
        leases: stores.leases.list(),
        fencer_leases: stores.fencer_leases.list(),
        pods: stores.pods.list().into_iter().map(|pod| PodView::new(pod, stores)).collect(),
        namespaces: stores.namespaces.list(),
        fences: stores.fences.list(),
        reports: stores.reports.list(),
        healths: if stores.healths.synced() { stores.healths.list() } else { Vec::new() },
    };
    memory.look(found, epoch, now)
}

/// What is heard of a node's agent now.
fn heard(heartbeats: &Heartbeats, node: &str) -> Heartbeat {
    let sight = heartbeats.of(node);
    let against = match sight.verdict {
        Some(Verdict::Unreachable { against, asked }) => Some((against, asked)),
        Some(Verdict::Reachable | Verdict::Inconclusive | Verdict::TooFewPeers) | None => None,
    };
    Heartbeat { silent_for: sight.silent_for, against }
}

/// One node as the API has it now; `None` when it is gone.
pub async fn live(cx: &Context, heartbeats: &Heartbeats, name: &str, silence: Silence) -> Result<Option<LiveNode>> {
    let reads = &cx.clients.reads;
    let nodes: Api<Node> = Api::all(reads.clone());
    let leases: Api<Lease> = Api::namespaced(reads.clone(), NODE_LEASES);
    let pods: Api<Pod> = Api::all(reads.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let (node, lease, pods) = tokio::try_join!(nodes.get_opt(name), leases.get_opt(name), pods.list(&of_node))?;
    let Some(node) = node else { return Ok(None) };
    // Meanwhile it may have been heard. What was not believed is not believed now.
    let heartbeat = if silence.heartbeat == Heartbeat::default() { silence.heartbeat } else { heard(heartbeats, name) };
    let silence = Silence { heartbeat, ..silence };
    let stores = &cx.stores;
    let known = stores.leases.get(&ObjectKey::namespaced(NODE_LEASES, name));
    let attachments = stores.attachments.by_index(BY_NODE, name);
    Ok(Some(LiveNode {
        silence: silence.read_live(&node),
        node: Arc::new(node),
        lease_is_still: is_still(lease.as_ref(), known.as_deref()),
        pods: pods.items.into_iter().map(|pod| PodView::new(Arc::new(pod), stores)).collect(),
        attached_volumes: plan::attached_volumes(&attachments, stores),
        attachments,
        csi_node: stores.csi_nodes.get(&ObjectKey::cluster(name)),
    }))
}
