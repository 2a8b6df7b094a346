//! What one pass over an incident sees: the stores; and, before anything dangerous, the API itself.

use std::sync::Arc;

use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::api::node_fence::NodeFence;
use crate::api::node_volume_report::NodeVolumeReport;
use crate::api::slim::{Lease, Node, Pod, VolumeAttachment, protobuf};
use crate::api::usage::PodView;
use crate::controllers::{BY_NODE, Context, NODE_LEASES};
use crate::error::Result;
use crate::runtime::clock::Now;
use crate::runtime::protobuf::client;
use crate::runtime::store::ObjectKey;

use super::decide::{Seen, Settings};
use super::memory::{Found, Incident, Live};

/// What the stores show; `None` when there is no NodeFence of that name.
pub fn stored(cx: &Context, name: &str, incident: &mut Incident, settings: Settings, now: Now) -> Option<Seen> {
    let stores = &cx.stores;
    let fence = stores.fences.get(&ObjectKey::cluster(name))?;
    let report = |driver: &str| Some((driver.to_owned(), stores.reports.get(&ObjectKey::cluster(driver))?));
    let reports = fence.spec.plan.drivers().into_iter().filter_map(report).collect();
    let volumes = fence.spec.plan.volumes.iter().map(|volume| &volume.name);
    let healths = volumes.filter_map(|name| Some((name.clone(), stores.healths.get(&ObjectKey::cluster(name))?)));
    let policies =
        fence.spec.policies.iter().filter_map(|policy| stores.policies.get(&ObjectKey::cluster(&policy.name)));
    let found = Found {
        node: stores.nodes.get(&ObjectKey::cluster(name)),
        lease: stores.leases.get(&ObjectKey::namespaced(NODE_LEASES, name)),
        pods: stores.pods.by_index(BY_NODE, name).into_iter().map(|pod| PodView::new(pod, stores)).collect(),
        attachments: stores.attachments.by_index(BY_NODE, name),
        requests: stores.requests.by_index(BY_NODE, name),
        reports,
        node_report: stores.node_reports.get(&ObjectKey::cluster(name)),
        healths: stores.healths.synced().then(|| healths.collect()),
        policies: policies.collect(),
        fence,
    };
    Some(incident.look(found, settings, now))
}

/// The same with NodeFence, node, Lease, pods, attachments and the agent's report as the API has them now.
pub async fn live(cx: &Context, incident: &mut Incident, seen: Seen, now: Now) -> Result<Seen> {
    let name = seen.fence.name_any();
    let reads = &cx.clients.reads;
    let fences: Api<NodeFence> = Api::all(reads.clone());
    let nodes: Api<Node> = Api::all(client(reads, &protobuf::NODE));
    let leases: Api<Lease> = Api::namespaced(client(reads, &protobuf::LEASE), NODE_LEASES);
    let pods: Api<Pod> = Api::all(client(reads, &protobuf::POD));
    // No server selects them by node: in a large cluster it is the largest answer of all.
    let attachments: Api<VolumeAttachment> = Api::all(client(reads, &protobuf::VOLUME_ATTACHMENT));
    let reports: Api<NodeVolumeReport> = Api::all(reads.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let all = ListParams::default();
    let (fence, node, lease, pods, attachments, node_report) = tokio::try_join!(
        fences.get_opt(&name),
        nodes.get_opt(&name),
        leases.get_opt(&name),
        pods.list(&of_node),
        attachments.list(&all),
        reports.get_opt(&name),
    )?;
    let attachments: Vec<_> =
        attachments.items.into_iter().filter(|attachment| attachment.spec.node_name == name).map(Arc::new).collect();
    let live = Live {
        fence: fence.map(Arc::new),
        node: node.map(Arc::new),
        lease,
        pods: pods.items.into_iter().map(|pod| PodView::new(Arc::new(pod), &cx.stores)).collect(),
        attachments,
        node_report: node_report.map(Arc::new),
    };
    Ok(incident.look_live(seen, live, now))
}
