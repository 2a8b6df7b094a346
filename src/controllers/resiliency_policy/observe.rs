//! What one pass over the cluster sees: the stores; and, for a node that is about to be acted on, the API itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, ResourceExt};

use crate::api::driver_report::DriverReport;
use crate::api::fence_request::FenceRequest;
use crate::api::slim::{Lease, Node, Pod, protobuf};
use crate::api::usage::PodView;
use crate::controllers::{BY_NODE, BY_TROUBLE, CRASH_LOOP, Context, NODE_LEASES, Stores};
use crate::error::{Error, ErrorClass, Result};
use crate::heartbeat::listener::Heartbeats;
use crate::heartbeat::verdict::Verdict;
use crate::runtime::clock::Now;
use crate::runtime::protobuf::client;
use crate::runtime::store::ObjectKey;

use super::decide::Seen;
use super::evidence::Silence;
use super::heartbeat::Heartbeat;
use super::kubevirt;
use super::memory::{Found, Memory};
use super::plan::{self, LiveNode};
use super::scope::{self, Counts, Scope, Tally};
use super::silence::is_still;
use super::storage::Reports;

/// What the stores show.
pub async fn cluster(cx: &Context, heartbeats: &Heartbeats, memory: &mut Memory, now: Now) -> Seen {
    let stores = &cx.stores;
    let mut found = found_but_pods(stores);
    found.heartbeats = found.nodes.iter().map(|node| (node.name_any(), heard(heartbeats, &node.name_any()))).collect();
    let epoch = (stores.leases.relists() + stores.nodes.relists(), cx.writer.leadership().term());
    found.changes = Some(changes(stores));
    let wanted = memory.scope(&found, epoch, now);
    // Where nobody wants more of all pods than their number, they are counted one after the other, and those that a pass needs
    // anyhow are looked at: unpacked together, the pods of a large cluster are many times what the process keeps.
    let is_count = wanted == Scope::All && !scope::is_of_all(&found);
    found.scope = if is_count { memory.nodes(&found, now) } else { wanted };
    found.pods = pods(stores, &found.scope);
    let mut seen = memory.look(found, epoch, now);
    if is_count {
        let (counts, conflicts) = tally(&seen, stores).await;
        seen.counts = counts;
        seen.conflicts = Some(conflicts);
    }
    seen
}

/// Counts all pods.
async fn tally(seen: &Seen, stores: &Stores) -> (Counts, BTreeMap<String, String>) {
    let mut tally = Tally::new(seen);
    stores.pods.each(|pod| tally.take(&PodView::new(pod, stores))).await;
    tally.finish()
}

/// All of it, as the stores have it, and no heartbeat. `kubectl bulkhead` looks with the same eyes.
pub fn found(stores: &Stores) -> Found {
    Found { pods: pods(stores, &Scope::All), ..found_but_pods(stores) }
}

/// The same with the pods of one node only, and the health of their volumes.
pub fn found_on(stores: &Stores, node: &str) -> Found {
    let scope = Scope::Nodes([node.to_owned()].into());
    let pods = pods(stores, &scope);
    let volumes: BTreeSet<_> = pods.iter().flat_map(|pod| &pod.volumes).map(|volume| volume.name.as_str()).collect();
    let healths = volumes.into_iter().filter_map(|name| stores.healths.get(&ObjectKey::cluster(name))).collect();
    Found { pods, healths, scope, ..found_but_pods(stores) }
}

fn pods(stores: &Stores, scope: &Scope) -> Vec<PodView> {
    let pods = match scope {
        Scope::All => stores.pods.list(),
        Scope::Nodes(nodes) => {
            let looping = stores.pods.by_index(BY_TROUBLE, CRASH_LOOP);
            let mut nodes = nodes.clone();
            nodes.extend(looping.iter().filter_map(|pod| pod.spec.node_name.clone()));
            nodes.iter().flat_map(|node| stores.pods.by_index(BY_NODE, node)).collect()
        }
    };
    pods.into_iter().map(|pod| PodView::new(pod, stores)).collect()
}

/// A number that grows with whatever the counts of policies, and what is told with them, may rest on.
fn changes(stores: &Stores) -> u64 {
    let of_pods =
        stores.pods.changes() + stores.claims.changes() + stores.volumes.changes() + stores.csi_drivers.changes();
    let of_ours = stores.policies.changes() + stores.fences.changes() + stores.reports.changes();
    of_pods + of_ours + stores.namespaces.changes()
}

fn found_but_pods(stores: &Stores) -> Found {
    Found {
        policies: stores.policies.list(),
        nodes: stores.nodes.list(),
        leases: stores.leases.list(),
        heartbeats: BTreeMap::new(),
        fencer_leases: stores.fencer_leases.list(),
        scope: Scope::All,
        pods: Vec::new(),
        changes: None,
        namespaces: stores.namespaces.list(),
        fences: stores.fences.list(),
        requests: stores.requests.list(),
        reports: stores.reports.list(),
        healths: if stores.healths.synced() { stores.healths.list() } else { Vec::new() },
    }
}

/// What is heard of a node's agent now.
fn heard(heartbeats: &Heartbeats, node: &str) -> Heartbeat {
    let sight = heartbeats.of(node);
    let against = match sight.verdict {
        Some(Verdict::Unreachable { against, asked }) => Some((against, asked)),
        Some(Verdict::Reachable | Verdict::Inconclusive | Verdict::TooFewPeers) | None => None,
    };
    Heartbeat { silent_for: sight.silent_for, against, out_of_reach_for: sight.out_of_reach_for }
}

/// One node as the API has it now; `None` when it is gone.
pub async fn live(cx: &Context, heartbeats: &Heartbeats, name: &str, silence: Silence) -> Result<Option<LiveNode>> {
    let mut found = read(&cx.clients.reads, &cx.stores, name, silence).await?;
    // Meanwhile it may have been heard. What was not believed is not believed now.
    if let Some(live) = found.as_mut().filter(|_| silence.heartbeat != Heartbeat::default()) {
        live.silence.heartbeat = heard(heartbeats, name);
    }
    Ok(found)
}

/// The same for who has stores and a client, and does not lead.
pub async fn read(reads: &Client, stores: &Stores, name: &str, silence: Silence) -> Result<Option<LiveNode>> {
    let nodes: Api<Node> = Api::all(client(reads, &protobuf::NODE));
    let leases: Api<Lease> = Api::namespaced(client(reads, &protobuf::LEASE), NODE_LEASES);
    let pods: Api<Pod> = Api::all(client(reads, &protobuf::POD));
    let of_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let (node, lease, pods, reports, requests) = tokio::try_join!(
        async { Ok(nodes.get_opt(name).await?) },
        async { Ok(leases.get_opt(name).await?) },
        async { Ok(pods.list(&of_node).await?) },
        reports_on(reads, stores, name),
        requests_for(reads, stores, name),
    )?;
    let Some(node) = node else { return Ok(None) };
    let pods: Vec<_> = pods.items.into_iter().map(|pod| PodView::new(Arc::new(pod), stores)).collect();
    let attachments = stores.attachments.by_index(BY_NODE, name);
    Ok(Some(LiveNode {
        silence: silence.read_live(&node),
        node: Arc::new(node),
        lease_is_still: is_still(lease.as_ref(), silence),
        migration_targets: migration_targets(reads, &pods).await?,
        pods,
        attached_volumes: plan::attached_volumes(&attachments, stores),
        attachments,
        csi_node: stores.csi_nodes.get(&ObjectKey::cluster(name)),
        reports,
        node_report: stores.node_reports.get(&ObjectKey::cluster(name)),
        requests,
    }))
}

/// Uids of the pods into which a virtual machine is being migrated.
async fn migration_targets(reads: &Client, pods: &[PodView]) -> Result<BTreeSet<String>> {
    let mut targets = BTreeSet::new();
    for pod in pods {
        let Some(instance) = kubevirt::migrated_instance(&pod.pod) else { continue };
        let version = pod.pod.controller().map(|owner| owner.api_version.as_str()).unwrap_or_default();
        let kind = GroupVersionKind::gvk(
            kubevirt::GROUP,
            version.rsplit('/').next().unwrap_or_default(),
            kubevirt::INSTANCE_KIND,
        );
        let resource = ApiResource::from_gvk_with_plural(&kind, "virtualmachineinstances");
        let api: Api<DynamicObject> = Api::namespaced_with(reads.clone(), pod.namespace(), &resource);
        let instance = match api.get_opt(instance).await.map_err(Error::from) {
            // Who may not ask knows nothing.
            Err(error) if error.class() == ErrorClass::Forbidden => None,
            found => found?,
        };
        let runs_on = instance.as_ref().and_then(|it| it.data.pointer("/status/nodeName")?.as_str());
        if kubevirt::is_target(&pod.pod, runs_on) {
            targets.insert(pod.uid().to_owned());
        }
    }
    Ok(targets)
}

/// What those say now by whom the store shows that the node lost a path, or its power.
async fn reports_on(reads: &Client, stores: &Stores, node: &str) -> Result<Reports> {
    let api: Api<DriverReport> = Api::all(reads.clone());
    let mut reports = Reports::new();
    let speaks_of_it = |report: &Arc<DriverReport>| {
        report.paths_of(node).next().is_some() || report.powered_off().any(|row| row.node == node)
    };
    for known in stores.reports.list().into_iter().filter(speaks_of_it) {
        let driver = known.name_any();
        if let Some(report) = api.get_opt(&driver).await? {
            reports.insert(driver, Arc::new(report));
        }
    }
    Ok(reports)
}

/// The FenceRequests of a node as they are now: the watch may be late. Without a NodeFence nobody was asked for anything.
async fn requests_for(reads: &Client, stores: &Stores, node: &str) -> Result<Vec<Arc<FenceRequest>>> {
    if stores.fences.get(&ObjectKey::cluster(node)).is_none() {
        return Ok(Vec::new());
    }
    let requests: Api<FenceRequest> = Api::all(reads.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    Ok(requests.list(&of_node).await?.items.into_iter().map(Arc::new).collect())
}
