//! Incidents of a node that has lost the path to the storage of its pods, while its kubelet may be well (docs/adr/0022). The
//! pods have lost their data already: they are ended as on a failed node. The node takes no pod until the array says that it
//! is connected again.

use crate::api::driver_report::PathState;
use crate::api::resiliency_policy::{CheckSwitch, RestraintType, StoragePathLossAction};

use super::decide::Seen;
use super::volumes;

/// Whether the incident is one of a lost path only, on a node whose kubelet is there.
pub fn is_by_path(seen: &Seen) -> bool {
    let talks = seen.node.as_ref().is_some_and(|node| volumes::kubelet_talks(seen, node));
    talks && seen.fence.spec.plan.is_by_path()
}

/// Whether such an incident has nothing more to begin: the path is back; or no policy asks for it any more; or the backend
/// is out for everyone, or the storage of too many nodes is in trouble, and nothing was cut off yet.
pub fn is_over(seen: &Seen) -> bool {
    !is_lost(seen) || is_out_for_everyone(seen) && !is_committed(seen)
}

/// Whether a path whose loss is part of the evidence is not proved to be back.
pub fn is_lost(seen: &Seen) -> bool {
    is_asked_for(seen) && seen.fence.spec.plan.lost_backends().any(|backend| !is_back(seen, backend))
}

fn is_back(seen: &Seen, backend: &str) -> bool {
    let node = seen.fence.metadata.name.as_deref().unwrap_or_default();
    driver_of(seen, backend)
        .and_then(|driver| seen.reports.get(driver))
        .is_some_and(|report| report.is_back(node, backend))
}

/// A driver has one backend, of its own name.
fn driver_of<'a>(seen: &'a Seen, backend: &'a str) -> Option<&'a str> {
    seen.reports.contains_key(backend).then_some(backend)
}

fn is_asked_for(seen: &Seen) -> bool {
    seen.policies.iter().any(|policy| {
        policy.spec.triggers.storage_path_loss == StoragePathLossAction::Release
            && policy.spec.detection.storage.connectivity_check == CheckSwitch::Enabled
    })
}

fn is_committed(seen: &Seen) -> bool {
    let rows = seen.fence.status.iter().flat_map(|status| &status.volumes);
    rows.into_iter().any(|row| row.episode == seen.fence.spec.episode && row.committed_at.is_some())
}

/// Whether the brake holds on a backend that the incident rests on, or on storage as a whole, by what its policies report.
fn is_out_for_everyone(seen: &Seen) -> bool {
    let restraints = seen.policies.iter().flat_map(|policy| &policy.status).flat_map(|status| &status.restraints);
    let mut outages = restraints.filter(|it| it.type_ == RestraintType::ArrayOutage).map(|it| it.name.as_deref());
    outages.any(|name| name.is_none_or(|name| seen.fence.spec.plan.lost_backends().any(|backend| backend == name)))
}

/// Whether nobody can say now that the path is lost which the incident rests on: nothing is begun then.
pub fn is_unsure(seen: &Seen) -> bool {
    let node = seen.fence.metadata.name.as_deref().unwrap_or_default();
    let says = |backend: &str| {
        let report = driver_of(seen, backend).and_then(|driver| seen.reports.get(driver));
        let mut pairs =
            report.into_iter().filter(|report| report.tells_connectivity()).flat_map(|it| it.paths_of(node));
        pairs.any(|pair| pair.backend == backend && pair.state == PathState::Disconnected)
    };
    let rests_on_it = is_by_path(seen) && is_lost(seen);
    rests_on_it && (is_out_for_everyone(seen) || !seen.fence.spec.plan.lost_backends().any(says))
}
