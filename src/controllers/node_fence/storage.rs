//! Incidents of a node that has lost the path to the storage of its pods, while its kubelet may be well (docs/adr/0022). The
//! pods have lost their data already: they are ended as on a failed node. The node takes no pod until the array says that it
//! is connected again.

use std::collections::BTreeSet;

use crate::api::driver_report::PathState;
use crate::api::resiliency_policy::{CheckSwitch, RestraintType, StoragePathLossAction};

use super::decide::{NodeState, Seen, is_settled};
use super::rows::Rows;
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

/// Whether nothing else is waited for: a node that failed is back and clean, or everything has moved off one that was never away.
/// No pod is to land where it would not reach its data.
pub fn is_awaited(seen: &Seen, rows: &Rows) -> bool {
    let is_rest_done = match rows.node {
        NodeState::Away => is_by_path(seen) && rows.pods.iter().all(|row| is_settled(row.state)),
        NodeState::Back => !is_by_path(seen) && rows.is_over(),
        NodeState::Gone => false,
    };
    is_rest_done && is_lost(seen)
}

/// What is said while nothing but the path is waited for: who does not prove it, why, and the way out where nobody can.
pub fn awaited(seen: &Seen, rows: &Rows) -> Option<String> {
    if !is_awaited(seen, rows) {
        return None;
    }
    let lost: BTreeSet<_> = seen.fence.spec.plan.lost_backends().filter(|backend| !is_back(seen, backend)).collect();
    let told: Vec<_> =
        lost.iter().take(5).map(|backend| format!("driver {backend} {}", unproved(seen, backend))).collect();
    let more = lost.len().saturating_sub(told.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!(
        "it is not proved that the node reaches its storage: {}{more}; it takes no pods until then. Where nobody can prove it, \
         triggers.storagePathLoss: Ignore in each policy of the plan gives the node back",
        told.join(", ")
    ))
}

/// Why the word of a driver does not prove the path to its backend.
fn unproved(seen: &Seen, backend: &str) -> String {
    let node = seen.fence.metadata.name.as_deref().unwrap_or_default();
    let Some(report) = driver_of(seen, backend).and_then(|driver| seen.reports.get(driver)) else {
        return "has no DriverReport".into();
    };
    if !report.is_ready() {
        return "does not answer its sidecar".into();
    }
    if !report.tells_connectivity() {
        return "cannot say it, without the podmon extension".into();
    }
    match report.paths_of(node).find(|pair| pair.backend == backend) {
        Some(pair) => format!("says {:?} since {}", pair.state, pair.since.to_rfc3339()),
        None => "says it of too few nodes".into(),
    }
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

/// Whether a brake holds on a backend that the incident rests on, or on storage as a whole, by what its policies report. The calm
/// after an outage of one backend says nothing against an incident that was decided on in it: each pod was asked for by then, and
/// what that calm holds is not in the plan. Its policy may have pods there that lost another backend, beside pods of a policy whose
/// own calm is over. Undone for it, the same would be decided on again at once, and so on until it ends.
fn is_out_for_everyone(seen: &Seen) -> bool {
    let plan = &seen.fence.spec.plan;
    let restraints = seen.policies.iter().flat_map(|policy| &policy.status).flat_map(|status| &status.restraints);
    let mut outages = restraints.filter(|it| it.type_ == RestraintType::ArrayOutage);
    outages.any(|it| {
        // While an outage lasts nothing is decided on for its sake, whatever the clocks of two leaders say.
        let is_news = it.until.is_none() || it.since > plan.decided_at;
        it.name.as_deref().is_none_or(|name| is_news && plan.lost_backends().any(|backend| backend == name))
    })
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
