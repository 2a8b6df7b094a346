//! Incidents of a node that is well, for the sake of its pods' volumes (docs/adr/0014). The kubelet is there: it is asked to
//! end the pods, and no taint that acts on the whole node is ever used.

use chrono::TimeDelta;

use crate::api::node_fence::{Channel, Evidence, PodAction, PodStatusState, STORAGE_PATH_LOSS, VOLUME_TAINT};
use crate::api::slim::Node;
use crate::api::time::{self, Now};
use crate::api::usage::PodView;
use crate::api::volume_health::Extent;
use crate::mutants::{self, Mutant};

use super::decide::{Seen, is_settled};
use super::{pods, rows};

/// How long after its grace period a pod may take to end. A process that waits for a volume that will not answer never
/// does; then the proof of the fence is all that there is, as on a node that failed.
const STUCK_AFTER: TimeDelta = TimeDelta::seconds(30);

/// Whether a kubelet is there that can stop its pods itself: one that renews its Lease and reports itself not ready (a slow
/// network plugin) is, all the same; and so is one of which only others say that it is silent, while it may be renewing its Lease.
pub fn kubelet_talks(seen: &Seen, node: &Node) -> bool {
    match node.ready() {
        "True" => true,
        "False" => !seen.lease_is_still,
        _ => may_renew(seen),
    }
}

/// Whether a kubelet that was there in this incident may be renewing its Lease as ever. A node lifecycle controller whose own watch lags
/// behind, as after an outage of the API server, writes Ready=Unknown over one that never fell silent (docs/adr/0031). Of a node that
/// was declared failed by the silence of its kubelet, and was not back since, no Lease tells that before its Node does: a store that
/// was behind shows a renewal of before.
pub fn may_renew(seen: &Seen) -> bool {
    let plan = &seen.fence.spec.plan;
    let is_of_silence = |it: &Evidence| matches!(it.channel, Channel::Kubelet | Channel::Agent | Channel::Power);
    let timeline = seen.fence.status.as_ref().and_then(|status| status.timeline.as_ref());
    // The record may be of the episode before.
    let of_episode = timeline.filter(|timeline| timeline.decided_at == Some(plan.decided_at));
    let was_back = of_episode.is_some_and(|timeline| timeline.returned_at.is_some());
    let was_there = was_back || !plan.evidence.iter().any(is_of_silence);
    seen.renewed_lately && was_there && !mutants::is_on(Mutant::LeaseIgnored)
}

/// Whether the incident is one of volumes, on a node that is well.
pub fn is_by_volume(seen: &Seen) -> bool {
    let talks = seen.node.as_ref().is_some_and(|node| kubelet_talks(seen, node));
    talks && seen.fence.spec.plan.is_by_volume()
}

/// Whether such an incident has nothing more to begin: the pods have gone and nothing of theirs is attached; or the taints
/// that asked for it are gone, or hold everywhere by now; or so many volumes are in trouble that they say nothing.
pub fn is_over(seen: &Seen) -> bool {
    is_moved(seen) || !is_asked_for(seen) || rows::outage(seen).is_some()
}

/// While the health of the volumes is not known, as after a start, nothing has changed.
fn is_asked_for(seen: &Seen) -> bool {
    let Some(healths) = &seen.healths else { return true };
    let keys: Vec<_> = seen.policies.iter().flat_map(|it| &it.spec.triggers.volume_taints).cloned().collect();
    let node = seen.fence.metadata.name.as_deref().unwrap_or_default();
    seen.fence.spec.plan.volumes.iter().any(|row| {
        let found =
            healths.get(&row.name).and_then(|it| it.trouble(&keys, row.uid.as_deref().unwrap_or_default(), node));
        found.is_some_and(|(_, extent)| extent == Extent::Nodes)
    })
}

fn is_moved(seen: &Seen) -> bool {
    let Some(status) = &seen.fence.status else { return false };
    let episode = seen.fence.spec.episode;
    let settled = seen.fence.spec.plan.pods.iter().filter(|row| row.action == PodAction::Release).all(|planned| {
        let row = status.pods.iter().find(|row| row.episode == planned.episode && row.uid == planned.uid);
        row.is_some_and(|row| is_settled(row.state))
    });
    let mut volumes = seen.fence.spec.plan.volumes.iter().filter(|row| row.episode == episode);
    settled && volumes.all(|row| seen.attachments_of(&row.name).next().is_none() || pods::is_wanted(seen, &row.name))
}

/// Whether a pod that was asked to end has time left to.
pub fn is_ending(seen: &Seen, pod: &PodView, now: Now) -> bool {
    let by = pod.pod.metadata.deletion_timestamp.as_ref().map(time::from_k8s);
    is_by_volume(seen) && by.is_some_and(|by| now.wall < by + STUCK_AFTER)
}

/// Whether a pod is to be asked to end, in its own time: one that was asked and does not is ended.
pub fn is_asked_to_end(seen: &Seen, pod: &PodView) -> bool {
    is_by_volume(seen) && !pod.pod.is_terminating()
}

/// Why a pod of the plan goes, where its record says so.
pub fn reason(seen: &Seen, uid: &str, state: PodStatusState) -> Option<String> {
    let of_storage = |reason: &str| matches!(reason, VOLUME_TAINT | STORAGE_PATH_LOSS);
    let planned = seen.fence.spec.plan.pods.iter().find(|row| row.uid == uid && of_storage(&row.reason));
    let goes = matches!(state, PodStatusState::Releasing | PodStatusState::Released);
    planned.filter(|_| goes).map(|planned| planned.reason.clone())
}
