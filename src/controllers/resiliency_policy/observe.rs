//! What one pass over the cluster sees: the stores; and, for a node that is about to be acted on, the API itself.

use std::sync::Arc;

use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::api::driver_report::DriverReport;
use crate::api::slim::{Lease, Node, Pod};
use crate::api::usage::PodView;
use crate::controllers::{BY_NODE, Context, NODE_LEASES};
use crate::error::Result;
use crate::runtime::clock::Now;
use crate::runtime::store::ObjectKey;

use super::decide::Seen;
use super::evidence::Silence;
use super::memory::{Found, Memory};
use super::plan::{self, LiveNode};
use super::silence::is_still;
use super::storage::Reports;

/// What the stores show.
pub fn cluster(cx: &Context, memory: &mut Memory, now: Now) -> Seen {
    let stores = &cx.stores;
    let epoch = (stores.leases.relists() + stores.nodes.relists(), cx.writer.leadership().term());
    let found = Found {
        policies: stores.policies.list(),
        nodes: stores.nodes.list(),
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

/// One node as the API has it now; `None` when it is gone.
pub async fn live(cx: &Context, name: &str, silence: Silence) -> Result<Option<LiveNode>> {
    let reads = &cx.clients.reads;
    let nodes: Api<Node> = Api::all(reads.clone());
    let leases: Api<Lease> = Api::namespaced(reads.clone(), NODE_LEASES);
    let pods: Api<Pod> = Api::all(reads.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let stores = &cx.stores;
    let (node, lease, pods, reports) = tokio::try_join!(
        async { Ok(nodes.get_opt(name).await?) },
        async { Ok(leases.get_opt(name).await?) },
        async { Ok(pods.list(&of_node).await?) },
        reports_on(cx, name),
    )?;
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
        reports,
    }))
}

/// What the drivers say now by which the store shows that the node lost a path.
async fn reports_on(cx: &Context, node: &str) -> Result<Reports> {
    let api: Api<DriverReport> = Api::all(cx.clients.reads.clone());
    let mut reports = Reports::new();
    for known in cx.stores.reports.list().into_iter().filter(|report| report.paths_of(node).next().is_some()) {
        let driver = known.name_any();
        if let Some(report) = api.get_opt(&driver).await? {
            reports.insert(driver, Arc::new(report));
        }
    }
    Ok(reports)
}
