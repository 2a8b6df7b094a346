//! What one pass over a volume sees: the stores. Nothing is read live: a taint that comes a moment late harms nobody,
//! and the record is written at the version that was seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;

use crate::api::affinity;
use crate::api::names;
use crate::api::slim::{PersistentVolume, Pod};
use crate::api::time;
use crate::controllers::{BY_CLAIM, BY_HOST, BY_NODE, BY_VOLUME, Context, Stores, indexes};
use crate::runtime::clock::Now;
use crate::runtime::store::ObjectKey;

use super::beats::Beats;
use super::decide::{Place, Seen};
use super::metrics::Metrics;
use super::{decide, gates, nodes, status};

/// What the stores show.
pub fn stored(stores: &Stores, beats: &Beats, name: &str, now: Now) -> Seen {
    let key = ObjectKey::cluster(name);
    let mut seen = Seen {
        name: name.to_owned(),
        volume: stores.volumes.get(&key),
        health: stores.healths.get(&key),
        policies: stores.health_policies.list(),
        attachments: stores.attachments.by_index(BY_VOLUME, name),
        can_enforce: stores.can_enforce(),
        ..Seen::default()
    };
    let Some(volume) = seen.volume.clone() else { return seen };
    if let Some(csi) = &volume.spec.csi {
        seen.driver_report = stores.reports.get(&ObjectKey::cluster(&csi.driver));
        seen.driver_is_heard = beats.is_heard(&names::fencer_lease(&csi.driver), now);
    }
    seen.pods = users(stores, &volume);
    seen.held_elsewhere = held_elsewhere(stores, &seen);
    seen.places = places(stores, &seen, &volume);
    let failing = |place: &Place| place.node.as_deref().is_some_and(|node| nodes::failing_since(node).is_some());
    if seen.is_local() && seen.places.values().any(failing) {
        seen.storm = nodes::storm_since(stores.nodes.list().iter().map(Arc::as_ref));
    }
    seen
}

/// Pods that use the claim, if that is bound to this volume.
fn users(stores: &Stores, volume: &PersistentVolume) -> Vec<Arc<Pod>> {
    let claim = status::claim(volume).filter(|claim| {
        let key = claim.split_once('/').map(|(namespace, name)| ObjectKey::namespaced(namespace, name));
        let found = key.and_then(|key| stores.claims.get(&key));
        found.is_some_and(|found| found.spec.volume_name == volume.metadata.name)
    });
    claim.map(|claim| stores.pods.by_index(BY_CLAIM, &claim)).unwrap_or_default()
}

/// Pods that wait for another volume as well. Asked only where it matters: for a VolumeHealth that leaves.
fn held_elsewhere(stores: &Stores, seen: &Seen) -> BTreeSet<String> {
    if seen.health.as_ref().is_none_or(|health| health.metadata.deletion_timestamp.is_none()) {
        return BTreeSet::new();
    }
    let others = |pod: &Pod| {
        let healths =
            indexes::claims_of_pod(pod).into_iter().flat_map(|claim| stores.healths.by_index(BY_CLAIM, &claim));
        healths.filter(|health| health.name_any() != seen.name).any(|health| gates::holds(&health))
    };
    seen.pods.iter().filter(|pod| pod.is_held() && others(pod)).map(|pod| decide::named(pod)).collect()
}

fn places(stores: &Stores, seen: &Seen, volume: &PersistentVolume) -> BTreeMap<String, Place> {
    let hosts = hosts(stores, seen, volume);
    let reporting = stores.node_reports.by_index(BY_VOLUME, &seen.name);
    let mut names: BTreeSet<String> = hosts.clone();
    names.extend(reporting.iter().map(|report| report.name_any()));
    names.extend(seen.attachments.iter().map(|attachment| attachment.spec.node_name.clone()));
    names.extend(seen.pods.iter().filter_map(|pod| pod.spec.node_name.clone()));
    let recorded = seen.status().into_iter().flat_map(|status| &status.observations);
    names.extend(recorded.map(|it| it.node.clone()).filter(|node| !node.is_empty()));
    let place = |name: String| {
        let key = ObjectKey::cluster(&name);
        let is_ready = |pod: &Arc<Pod>| pod.is("Ready") && !pod.is_terminating();
        let place = Place {
            node: stores.nodes.get(&key),
            is_host: hosts.contains(&name),
            report: stores.node_reports.get(&key),
            agent_ready: stores.agents.by_index(BY_NODE, &name).iter().any(is_ready),
        };
        (name, place)
    };
    names.into_iter().map(place).collect()
}

/// The nodes of a local volume by name, also those that are no more.
fn hosts(stores: &Stores, seen: &Seen, volume: &PersistentVolume) -> BTreeSet<String> {
    if !seen.is_local() {
        return BTreeSet::new();
    }
    let named = affinity::hosts(volume);
    if named.is_empty() {
        let nodes = stores.nodes.list();
        let allowed: BTreeSet<_> =
            nodes.iter().filter(|node| affinity::allows(volume, node)).map(|node| node.name_any()).collect();
        let recorded = seen.status().and_then(|status| status.volume.as_ref());
        let before = || recorded.into_iter().flat_map(|volume| volume.nodes.clone()).collect();
        return if allowed.is_empty() { before() } else { allowed };
    }
    let of_host = |host: String| {
        let nodes = stores.nodes.by_index(BY_HOST, &host);
        let found: Vec<_> =
            nodes.iter().filter(|node| affinity::allows(volume, node)).map(|node| node.name_any()).collect();
        if found.is_empty() { vec![host] } else { found }
    };
    named.into_iter().flat_map(of_host).collect()
}

/// What the gauges show.
pub fn measure(cx: &Context, metrics: &Metrics) {
    let stores = &cx.stores;
    let now = cx.clock.now().wall;
    let unready = |pod: &Arc<Pod>| {
        let ready = pod.condition("Ready").filter(|ready| ready.status != "True")?;
        let since = time::from_k8s(ready.last_transition_time.as_ref()?);
        (now - since).to_std().ok().map(|silent| silent.as_secs_f64())
    };
    let silent_for = stores.agents.list().iter().filter_map(unready).fold(0.0, f64::max);
    let storm = nodes::storm_since(stores.nodes.list().iter().map(Arc::as_ref));
    metrics.look(&stores.healths.list(), silent_for, storm.is_some_and(|since| now < since + nodes::STORM_HOLD));
}
