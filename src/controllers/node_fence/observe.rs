//! What one pass over an incident sees: the stores; and, before anything dangerous, the API itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::api::node_fence::NodeFence;
use crate::api::slim::{Lease, Node, Pod, VolumeAttachment};
use crate::api::usage::PodView;
use crate::controllers::{BY_NODE, Context, NODE_LEASES};
use crate::error::Result;
use crate::runtime::clock::Now;
use crate::runtime::store::ObjectKey;

use super::Incident;
use super::decide::{Seen, Settings};

/// What the stores show; `None` when there is no NodeFence of that name.
pub fn stored(cx: &Context, name: &str, incident: &mut Incident, settings: Settings, now: Now) -> Option<Seen> {
    let stores = &cx.stores;
    let fence = stores.fences.get(&ObjectKey::cluster(name))?;
    incident.begin(&fence, now);
    let node = stores.nodes.get(&ObjectKey::cluster(name));
    let lease = stores.leases.get(&ObjectKey::namespaced(NODE_LEASES, name));
    let renewed = lease.and_then(|lease| lease.spec.renew_time.clone());
    let attachments = stores.attachments.by_index(BY_NODE, name);
    let pods = stores.pods.by_index(BY_NODE, name).into_iter().map(|pod| PodView::new(pod, stores)).collect();
    let policies =
        fence.spec.policies.iter().filter_map(|policy| stores.policies.get(&ObjectKey::cluster(&policy.name)));
    let drivers = fence.spec.plan.volumes.iter().filter_map(|volume| volume.driver.clone());
    let reports = drivers.filter_map(|driver| Some((driver.clone(), stores.reports.get(&ObjectKey::cluster(driver))?)));
    Some(Seen {
        node,
        lease_is_still: incident.lease_is_still(renewed),
        pods,
        attached_since: incident.attached_since(&attachments, now),
        attachments,
        requests: stores.requests.by_index(BY_NODE, name),
        reports: reports.collect(),
        policies: policies.collect(),
        asked: incident.asked.clone(),
        live: false,
        out_of_service_spent: incident.out_of_service_spent,
        recorded_for: incident.recorded_at.map_or(Duration::ZERO, |at| now.mono.saturating_duration_since(at)),
        settings,
        fence,
    })
}

/// The same with node, Lease, pods and attachments as the API has them now.
pub async fn live(cx: &Context, incident: &mut Incident, seen: Seen, now: Now) -> Result<Seen> {
    let name = seen.fence.name_any();
    let reads = &cx.clients.reads;
    let nodes: Api<Node> = Api::all(reads.clone());
    let leases: Api<Lease> = Api::namespaced(reads.clone(), NODE_LEASES);
    let pods: Api<Pod> = Api::all(reads.clone());
    let attachments: Api<VolumeAttachment> = Api::all(reads.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let all = ListParams::default();
    let (node, lease, pods, attachments) =
        tokio::try_join!(nodes.get_opt(&name), leases.get_opt(&name), pods.list(&of_node), attachments.list(&all),)?;
    let attachments: Vec<_> =
        attachments.items.into_iter().filter(|attachment| attachment.spec.node_name == name).map(Arc::new).collect();
    let renewed = lease.and_then(|lease| lease.spec.renew_time);
    Ok(Seen {
        node: node.map(Arc::new),
        lease_is_still: incident.lease_is_still(renewed),
        pods: pods.items.into_iter().map(|pod| PodView::new(Arc::new(pod), &cx.stores)).collect(),
        attached_since: incident.attached_since(&attachments, now),
        attachments,
        live: true,
        ..seen
    })
}

impl Incident {
    /// A new episode forgets what was asked and seen in the last one.
    fn begin(&mut self, fence: &NodeFence, now: Now) {
        let episode = (fence.metadata.uid.clone(), fence.spec.episode);
        if self.episode.as_ref() != Some(&episode) {
            let recorded_at = Some(now.mono);
            *self = Self { episode: Some(episode), confirmed: self.confirmed, recorded_at, ..Self::default() };
        }
    }

    /// Whether the Lease is as it was when this process first looked.
    fn lease_is_still(&mut self, renewed: Option<MicroTime>) -> bool {
        match &self.renewed {
            None => {
                self.renewed = Some(renewed);
                true
            }
            Some(first) => *first == renewed,
        }
    }

    fn attached_since(
        &mut self,
        attachments: &[Arc<VolumeAttachment>],
        now: Now,
    ) -> BTreeMap<String, std::time::Instant> {
        for attachment in attachments.iter().filter(|attachment| attachment.status.attached) {
            if let Some(uid) = &attachment.metadata.uid {
                self.attached_since.entry(uid.clone()).or_insert(now.mono);
            }
        }
        self.attached_since.clone()
    }
}
