//! How the plan of an open NodeFence grows: by what it lacks, and never by more. Rows that are there stay as they are. Pure.

use std::collections::BTreeSet;

use chrono::TimeDelta;

use crate::api::node_fence::{EVIDENCE_MAX, NodeFence, PODS_MAX, Plan, PlannedPod, PodAction, VOLUMES_MAX};
use crate::api::time::{self, Now};
use crate::api::usage::PodView;

use super::plan::{LiveNode, digest, is_spare};
use super::select::Effective;

/// Whether the plan of an open NodeFence lacks one of these pods. One that came later and never started there is no
/// victim of the failure if its owner put it back (by `nodeName`, or since it tolerates every taint): he would do so again
/// each time it is released. A scheduler that had not heard of the taint yet, as after an outage of the API server, will
/// have heard of it the next time; who leaves the pod to it leaves it there until the node is back. A plan that is full takes
/// in no more, as its condition Released says: that is what puts an end to a scheduler that never hears of the taint.
pub(super) fn lacks(fence: Option<&NodeFence>, pods: &[(&PodView, Effective)]) -> bool {
    let Some(fence) = fence else { return true };
    let plan = &fence.spec.plan;
    let victims = pods.iter().filter(|(pod, _)| pod.pod.is("Initialized") || pod.pod.was_bound_past_the_fence());
    !plan.is_full() && victims.into_iter().any(|(pod, _)| !plan.pods.iter().any(|row| row.uid == pod.uid()))
}

/// The plan without the pods that came back to the node too soon. One that is put there again as often as it is released, by a
/// scheduler that does not go by our taint or by a template that names the node, waits twice as long each time; the first one does not.
pub(super) fn without_early_returns(mut wanted: Plan, known: &Plan, live: &LiveNode, now: Now) -> Plan {
    wanted.pods.retain_mut(|row| {
        let pod = live.pods.iter().find(|pod| pod.uid() == row.uid);
        let created = pod.and_then(|pod| pod.pod.metadata.creation_timestamp.as_ref()).map(time::from_k8s);
        let Some((pod, created)) = pod.zip(created).filter(|(_, created)| *created >= known.decided_at) else {
            return true;
        };
        let released = known.pods.iter().filter(|before| before.uid != row.uid && before.action == PodAction::Release);
        let returns =
            released.filter(|before| is_followed_by(before, row, pod)).map(|before| before.returns.unwrap_or(0));
        let Some(before) = returns.max() else { return true };
        row.returns = Some(before.saturating_add(1));
        now.wall.signed_duration_since(created) >= wait_after(before)
    });
    wanted
}

/// Whether a pod stands in for one that was released. A StatefulSet gives it the same name; of other owners any replica may be it, of
/// which the name begins as those of all do; and whoever else has a volume of it.
fn is_followed_by(before: &PlannedPod, row: &PlannedPod, pod: &PodView) -> bool {
    // What the API server keeps of a prefix when it makes a name.
    const PREFIX_MAX: usize = 58;
    let is_replica = || {
        let prefix = pod.pod.metadata.generate_name.as_deref().filter(|prefix| !prefix.is_empty());
        let prefix = prefix.map(|prefix| prefix.get(..PREFIX_MAX).unwrap_or(prefix));
        prefix.is_some_and(|prefix| before.name.starts_with(prefix))
    };
    let has_its_volume = || before.volumes.iter().any(|name| row.volumes.contains(name));
    let is_by_name = pod.pod.controller_kind() == Some("StatefulSet");
    before.namespace == row.namespace && (before.name == row.name || !is_by_name && (is_replica() || has_its_volume()))
}

/// How old a pod must be that was put back so many times before.
fn wait_after(before: i32) -> TimeDelta {
    const LONGEST: TimeDelta = TimeDelta::minutes(5);
    match before {
        ..=0 => TimeDelta::zero(),
        _ => TimeDelta::seconds(1 << before.min(9)).min(LONGEST),
    }
}

/// Whether the plan moves some pods off a node that was well, so that the node's own failure is news: with it other methods
/// may be used. Where the list of evidence is full that cannot be told.
pub(super) fn widens(plan: &Plan) -> bool {
    !plan.is_of_node() && plan.evidence.len() < EVIDENCE_MAX
}

/// The plan grown by what it lacks, as far as it has room; `None` when it lacks nothing. Rows that are there stay as they are.
pub(super) fn grown(plan: &Plan, wanted: &Plan) -> Option<Plan> {
    let pods: BTreeSet<_> = plan.pods.iter().map(|row| row.uid.as_str()).collect();
    let volumes: BTreeSet<_> = plan.volumes.iter().map(|row| (row.episode, row.name.as_str())).collect();
    let new_pods = wanted.pods.iter().filter(|row| !pods.contains(row.uid.as_str()) && !is_spare(row));
    let new_pods: Vec<_> = new_pods.take(PODS_MAX.saturating_sub(plan.pods.len())).cloned().collect();
    let new_volumes = wanted.volumes.iter().filter(|row| !volumes.contains(&(row.episode, row.name.as_str())));
    let new_volumes: Vec<_> = new_volumes.take(VOLUMES_MAX.saturating_sub(plan.volumes.len())).cloned().collect();
    let mut new_evidence = Vec::new();
    if widens(plan) && wanted.is_of_node() {
        new_evidence.extend(wanted.evidence.iter().filter(|it| !plan.evidence.contains(it)).cloned());
        new_evidence.truncate(EVIDENCE_MAX - plan.evidence.len());
    }
    if new_pods.is_empty() && new_volumes.is_empty() && new_evidence.is_empty() {
        return None;
    }
    let mut plan = plan.clone();
    plan.evidence.extend(new_evidence);
    plan.pods.extend(new_pods);
    plan.volumes.extend(new_volumes);
    plan.digest = digest(&plan);
    Some(plan)
}
