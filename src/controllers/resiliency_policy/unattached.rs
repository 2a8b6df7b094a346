//! Volumes that are mounted without being attached (docs/adr/0029): there is no publish to take back, so only what cuts off the
//! node as a whole covers them. How they are planned, and why they are not covered. Pure.

use crate::api::fencing::{FenceMethod, FenceMethodType, PlannedMethod, Proof};
use crate::api::node_fence::PlannedVolume;
use crate::api::proof::class_of_other_cluster;
use crate::api::usage::{PodView, UnattachedVolume, VolumeUse};

use super::decide::{Seen, effective};
use super::plan::{LiveNode, registered, unfenceable};
use super::select::Effective;

/// The row of such a volume in the plan; one that no method of the policies covers is of a kind that cannot be fenced.
pub(super) fn row(
    live: &LiveNode,
    episode: i64,
    name: &str,
    kind: &UnattachedVolume,
    policies: &Effective,
    trusted: bool,
) -> PlannedVolume {
    let by_network = |method: &FenceMethod| method.type_ == FenceMethodType::NetworkFence;
    let registered = registered(live, kind.driver());
    let mut methods = policies.unattached_methods(kind);
    // csi-addons may call the node so: without it nobody can tell whose addresses it says.
    methods.retain(|method| !by_network(method) || registered.is_some());
    if methods.is_empty() {
        return unfenceable(episode, name, policies.minimum_proof(kind.driver()));
    }
    // Nothing was published to the node under any id: for a fencer that knows the machine it is a label.
    let node_id = registered.or(live.node.metadata.name.as_deref());
    let uid = kind.csi.as_ref().map(|csi| csi.uid.clone());
    PlannedVolume {
        uid: uid.filter(|uid| !uid.is_empty()),
        driver: kind.csi.as_ref().map(|csi| csi.driver.clone()),
        volume_handle: kind.csi.as_ref().map(|csi| csi.handle.clone()),
        node_id: node_id.filter(|_| trusted).map(str::to_owned),
        attach_required: Some(false),
        cluster_id: kind.cluster_id.clone().filter(|_| methods.iter().any(by_network)),
        methods: methods.into_iter().map(PlannedMethod::from).collect(),
        ..unfenceable(episode, name, policies.unattached_minimum(kind))
    }
}

/// Why a pod would wait for such a volume whatever is proved, as things are: its policies have no method that covers it, the class that
/// they name is of another cluster, or nobody is there to switch its node off.
pub(super) fn waits(seen: &Seen, pod: &PodView) -> Option<(&'static str, String)> {
    let policies = effective(seen, pod)?;
    let uncovered = pod.uncovered(|_, kind| !policies.unattached_methods(kind).is_empty());
    uncovered.or_else(|| pod.unattached().find_map(|(volume, kind)| unprovable(seen, &policies, volume, kind)))
}

fn unprovable(
    seen: &Seen,
    policies: &Effective,
    volume: &VolumeUse,
    kind: &UnattachedVolume,
) -> Option<(&'static str, String)> {
    let methods = policies.unattached_methods(kind);
    if kind.csi.is_none() {
        // What drivers lack is told of each driver; NFS in-tree has none.
        let best = seen.fencers("").best_proof(methods);
        let why = || format!("volume {}: nobody is there who could switch its node off", volume.name);
        return (best.proof < Proof::PowerOff).then(|| (best.lacking, why()));
    }
    // Classes that are not there are told of each driver.
    let may_be_proved = |method: &FenceMethod| {
        method.type_ != FenceMethodType::NetworkFence
            || is_there(seen, kind, method) && wrong_class(seen, kind, method).is_none()
    };
    let why = methods.iter().find_map(|method| wrong_class(seen, kind, method))?;
    let is_unprovable = !methods.iter().any(may_be_proved);
    is_unprovable.then(|| ("ProofTooWeak", format!("volume {}: {why}", volume.name)))
}

/// The first volume of a pod for which a class that its policies list is of no use, and why. Another method may cover it; but where
/// that is an external fencer, a node is switched off that csi-addons could have shut out.
pub fn useless_class<'a>(seen: &Seen, pod: &'a PodView) -> Option<(&'a VolumeUse, String)> {
    let policies = effective(seen, pod)?;
    pod.unattached().find_map(|(volume, kind)| {
        let methods = policies.unattached_methods(kind);
        Some((volume, methods.iter().find_map(|method| wrong_class(seen, kind, method))?))
    })
}

/// Why the class of a method shuts nobody out of a volume: it is of another cluster of the storage, or nobody says of which.
pub fn wrong_class(seen: &Seen, kind: &UnattachedVolume, method: &FenceMethod) -> Option<String> {
    let (csi, class) = (kind.csi.as_ref()?, method.network_fence.as_ref()?.class_name.as_str());
    let (report, demanded) = (seen.reports.get(&csi.driver)?, kind.demanded_cluster());
    let is_wrong = is_there(seen, kind, method) && !report.is_class_of_cluster(class, Some(demanded));
    is_wrong.then(|| class_of_other_cluster(report, &csi.driver, class, demanded))
}

/// Whether the driver has the class of a method.
fn is_there(seen: &Seen, kind: &UnattachedVolume, method: &FenceMethod) -> bool {
    let class = method.network_fence.as_ref().map(|network| network.class_name.as_str());
    let report = seen.reports.get(kind.driver());
    report.zip(class).is_some_and(|(report, class)| report.network_fence_proof(class) > Proof::None)
}
