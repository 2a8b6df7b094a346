//! Pods of the plan that go in one step or not at all: those that hang together by volumes they share, and, where a policy
//! says so, by required pod affinity. What is cut off for one of them is cut off for all.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::node_fence::PodAction;
use crate::api::pod_affinity;
use crate::api::resiliency_policy::AffinityGroups;
use crate::api::units;

use super::decide::{Seen, is_settled};
use super::rows::Rows;

/// For each pod of the plan, in its order, the volumes that must be proved before it goes: its own, and those of all others
/// that are to go with it and are still there.
pub fn volumes_to_prove(seen: &Seen, rows: &Rows) -> Vec<BTreeSet<String>> {
    let plan = &seen.fence.spec.plan.pods;
    let is_open = |index: usize| {
        let row = rows.pods.get(index).zip(plan.get(index));
        row.is_some_and(|(row, planned)| planned.action == PodAction::Release && !is_settled(row.state))
    };
    let open: Vec<_> = (0..plan.len()).filter(|index| is_open(*index)).collect();
    let volumes = |index: &usize| plan.get(*index).map(|row| row.volumes.as_slice()).unwrap_or_default();
    let used = open.iter().enumerate().flat_map(|(place, index)| volumes(index).iter().map(move |name| (place, name)));
    let mut links = units::by_name(used);
    if are_groups_released_together(seen) {
        let uids = open.iter().filter_map(|index| plan.get(*index)).map(|row| row.uid.as_str());
        links.extend(bound(seen, &uids.collect::<Vec<_>>()));
    }
    let units = units::units(open.len(), links);
    let mut of_units: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for (index, unit) in open.iter().zip(&units) {
        of_units.entry(*unit).or_default().extend(volumes(index).iter().cloned());
    }
    let mut wanted: Vec<BTreeSet<String>> = plan.iter().map(|row| row.volumes.iter().cloned().collect()).collect();
    for (index, unit) in open.iter().zip(&units) {
        if let (Some(wanted), Some(of_unit)) = (wanted.get_mut(*index), of_units.get(unit)) {
            wanted.clone_from(of_unit);
        }
    }
    wanted
}

/// Whether a policy of the plan keeps pods that must run on one node together.
pub fn are_groups_released_together(seen: &Seen) -> bool {
    seen.policies.iter().any(|policy| policy.spec.release.affinity_groups == AffinityGroups::Together)
}

/// Links between pods of these uids that must run on one node.
fn bound(seen: &Seen, uids: &[&str]) -> Vec<(usize, usize)> {
    let present = uids.iter().enumerate();
    let present = present.filter_map(|(place, uid)| Some((place, seen.pods.iter().find(|pod| pod.uid() == *uid)?)));
    let present: Vec<_> = present.collect();
    let binding = present.iter().filter(|(_, pod)| pod_affinity::is_binding(&pod.pod));
    let links = binding.flat_map(|(place, pod)| {
        present
            .iter()
            .filter(|(_, other)| pod_affinity::are_bound(&pod.pod, &other.pod))
            .map(|(other, _)| (*place, *other))
    });
    links.collect()
}
