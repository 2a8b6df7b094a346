//! How the plan of an open NodeFence grows: by what it lacks, and never by more. Rows that are there stay as they are. Pure.

use std::collections::BTreeSet;

use chrono::TimeDelta;

use crate::api::node_fence::{EVIDENCE_MAX, NodeFence, Plan, PodAction};
use crate::api::time::{self, Now};
use crate::api::usage::PodView;

use super::plan::{LiveNode, digest, is_spare};
use super::select::Effective;

/// Whether the plan of an open NodeFence lacks one of these pods. One that came later and never started there is no
/// victim of the failure if its owner put it back (by `nodeName`, or since it tolerates every taint): he would do so again
/// each time it is released. A scheduler that had not heard of the taint yet, as after an outage of the API server, will
/// have heard of it the next time; who leaves the pod to it leaves it there until the node is back.
pub(super) fn lacks(fence: Option<&NodeFence>, pods: &[(&PodView, Effective)]) -> bool {
    let Some(fence) = fence else { return true };
    let victims = pods.iter().filter(|(pod, _)| pod.pod.is("Initialized") || pod.pod.was_bound_past_the_fence());
    victims.into_iter().any(|(pod, _)| !fence.spec.plan.pods.iter().any(|row| row.uid == pod.uid()))
}

/// The plan without the pods that came back to the node too soon. One whose template names the node, or that tolerates
/// every taint, is put there again as often as it is released: each time it waits twice as long.
pub(super) fn without_early_returns(mut wanted: Plan, known: &Plan, live: &LiveNode, now: Now) -> Plan {
    const LONGEST: TimeDelta = TimeDelta::minutes(5);
    wanted.pods.retain(|row| {
        let released = known.pods.iter().filter(|before| before.uid != row.uid && before.action == PodAction::Release);
        let before = released.filter(|before| before.volumes.iter().any(|name| row.volumes.contains(name))).count();
        let pod = live.pods.iter().find(|pod| pod.uid() == row.uid);
        let created = pod.and_then(|pod| pod.pod.metadata.creation_timestamp.as_ref()).map(time::from_k8s);
        let wait = i32::try_from(before).ok().and_then(|before| TimeDelta::seconds(1).checked_mul(1 << before.min(9)));
        before == 0
            || created.is_none_or(|at| now.wall.signed_duration_since(at) >= wait.unwrap_or(LONGEST).min(LONGEST))
    });
    wanted
}

/// Whether the plan moves some pods off a node that was well, so that the node's own failure is news: with it other methods
/// may be used. Where the list of evidence is full that cannot be told.
pub(super) fn widens(plan: &Plan) -> bool {
    !plan.is_of_node() && plan.evidence.len() < EVIDENCE_MAX
}

/// The plan grown by what it lacks; `None` when it lacks nothing. Rows that are there stay as they are.
pub(super) fn grown(plan: &Plan, wanted: &Plan) -> Option<Plan> {
    let pods: BTreeSet<_> = plan.pods.iter().map(|row| row.uid.as_str()).collect();
    let volumes: BTreeSet<_> = plan.volumes.iter().map(|row| (row.episode, row.name.as_str())).collect();
    let new_pods: Vec<_> =
        wanted.pods.iter().filter(|row| !pods.contains(row.uid.as_str()) && !is_spare(row)).cloned().collect();
    let new_volumes: Vec<_> =
        wanted.volumes.iter().filter(|row| !volumes.contains(&(row.episode, row.name.as_str()))).cloned().collect();
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
