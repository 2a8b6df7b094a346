//! What one pass over the cluster sees: the stores; and, for a node that is about to be acted on, the API itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::api::names;
use crate::api::slim::{Lease, Node, Pod};
use crate::api::usage::{CsiVolume, Lookup, PodView};
use crate::controllers::{BY_NODE, Context, NODE_LEASES};
use crate::error::Result;
use crate::runtime::clock::Now;
use crate::runtime::store::ObjectKey;

use super::decide::Seen;
use super::evidence::Silence;
use super::plan::LiveNode;
use super::silence::{FencerTracker, SilenceTracker};

/// What the stores show.
pub fn cluster(cx: &Context, silence: &mut SilenceTracker, fencers: &mut FencerTracker, now: Now) -> Seen {
    let stores = &cx.stores;
    let leases = stores.leases.list();
    let nodes = stores.nodes.list();
    let epoch = (stores.leases.relists() + stores.nodes.relists(), cx.writer.leadership().term());
    let named = leases.iter().filter_map(|lease| Some((lease.metadata.name.as_deref()?, lease.as_ref())));
    silence.update(named, nodes.iter().map(Arc::as_ref), epoch, now.mono);
    let mut pods: BTreeMap<String, Vec<PodView>> = BTreeMap::new();
    for pod in stores.pods.list() {
        if let Some(node) = pod.spec.node_name.clone() {
            pods.entry(node).or_default().push(PodView::new(pod, stores));
        }
    }
    let held = stores.fencer_leases.list();
    fencers.update(held.iter().filter_map(|lease| Some((lease.metadata.name.as_deref()?, lease.as_ref()))), now.mono);
    let reports: BTreeMap<_, _> = stores.reports.list().into_iter().map(|report| (report.name_any(), report)).collect();
    let namespaces = stores.namespaces.list().into_iter();
    Seen {
        policies: stores.policies.list(),
        nodes: nodes.into_iter().map(|node| (node.clone(), silence.of(&node, now.mono))).collect(),
        pods,
        namespaces: namespaces.map(|ns| (ns.name_any(), ns.metadata.labels.clone().unwrap_or_default())).collect(),
        fences: stores.fences.list(),
        silent_fencers: reports
            .keys()
            .filter(|driver| fencers.is_silent(&names::fencer_lease(driver), now.mono))
            .cloned()
            .collect(),
        reports,
        live: BTreeMap::new(),
        outage_seen: BTreeMap::new(),
        counts_due: false,
    }
}

/// One node as the API has it now; `None` when it is gone.
pub async fn live(cx: &Context, name: &str, silence: Silence) -> Result<Option<LiveNode>> {
    let reads = &cx.clients.reads;
    let nodes: Api<Node> = Api::all(reads.clone());
    let leases: Api<Lease> = Api::namespaced(reads.clone(), NODE_LEASES);
    let pods: Api<Pod> = Api::all(reads.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
    let (node, lease, pods) = tokio::try_join!(nodes.get_opt(name), leases.get_opt(name), pods.list(&of_node))?;
    let Some(node) = node else { return Ok(None) };
    let stores = &cx.stores;
    let known = stores.leases.get(&ObjectKey::namespaced(NODE_LEASES, name));
    let lease_is_still = lease.as_ref().map(|l| &l.spec.renew_time) == known.as_ref().map(|l| &l.spec.renew_time);
    let attachments = stores.attachments.by_index(BY_NODE, name);
    let attached_volumes =
        attachments.iter().filter_map(|attachment| csi_volume(stores, attachment.volume())).collect();
    // Seen unreachable for the first time just now is no less unreachable.
    let unreachable_for = node.is_unreachable().then(|| silence.unreachable_for.unwrap_or(Duration::ZERO));
    Ok(Some(LiveNode {
        node: Arc::new(node),
        silence: Silence { unreachable_for, ..silence },
        lease_is_still,
        pods: pods.items.into_iter().map(|pod| PodView::new(Arc::new(pod), stores)).collect(),
        attachments,
        attached_volumes,
        csi_node: stores.csi_nodes.get(&ObjectKey::cluster(name)),
    }))
}

fn csi_volume(lookup: &dyn Lookup, name: &str) -> Option<(String, CsiVolume)> {
    let volume = lookup.volume(name)?;
    let csi = volume.spec.csi.as_ref()?;
    let uid = volume.metadata.uid.clone().unwrap_or_default();
    Some((name.to_owned(), CsiVolume { uid, driver: csi.driver.clone(), handle: csi.volume_handle.clone() }))
}
