//! What one pass over the cluster sees: the stores; and, for a node that is about to be acted on, the API itself.

use std::sync::Arc;

use kube::api::ListParams;
use kube::{Api, Client};

use crate::api::slim::{Lease, Node, Pod};
use crate::api::usage::PodView;
use crate::controllers::{BY_NODE, Context, NODE_LEASES, Stores};
use crate::error::Result;
use crate::runtime::clock::Now;
use crate::runtime::store::ObjectKey;

use super::decide::Seen;
use super::evidence::Silence;
use super::memory::{Found, Memory};
use super::plan::{self, LiveNode};
use super::silence::is_still;

/// What the stores show.
pub fn cluster(cx: &Context, memory: &mut Memory, now: Now) -> Seen {
    let stores = &cx.stores;
    let epoch = (stores.leases.relists() + stores.nodes.relists(), cx.writer.leadership().term());
    memory.look(found(stores), epoch, now)
}

/// All of it, as the stores have it. `kubectl bulkhead` looks with the same eyes.
pub fn found(stores: &Stores) -> Found {
    Found {
        policies: stores.policies.list(),
        nodes: stores.nodes.list(),
        leases: stores.leases.list(),
        fencer_leases: stores.fencer_leases.list(),
        pods: stores.pods.list().into_iter().map(|pod| PodView::new(pod, stores)).collect(),
        namespaces: stores.namespaces.list(),
        fences: stores.fences.list(),
        reports: stores.reports.list(),
        healths: if stores.healths.synced() { stores.healths.list() } else { Vec::new() },
    }
}

/// One node as the API has it now; `None` when it is gone.
pub async fn live(cx: &Context, name: &str, silence: Silence) -> Result<Option<LiveNode>> {
    read(&cx.clients.reads, &cx.stores, name, silence).await
}

/// The same for who has stores and a client, and does not lead.
pub async fn read(reads: &Client, stores: &Stores, name: &str, silence: Silence) -> Result<Option<LiveNode>> {
    let nodes: Api<Node> = Api::all(reads.clone());
    let leases: Api<Lease> = Api::namespaced(reads.clone(), NODE_LEASES);
    let pods: Api<Pod> = Api::all(reads.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let (node, lease, pods) = tokio::try_join!(nodes.get_opt(name), leases.get_opt(name), pods.list(&of_node))?;
    let Some(node) = node else { return Ok(None) };
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
