//! Pods of the plan: which may go, which wait and why, and their release.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::api::conditions;
use crate::api::fencing::Proof;
use crate::api::node_fence::{
    Channel, NodeFenceStatus, PlannedPod, PodAction, PodStatus, PodStatusState, VolumeStatusState,
};
use crate::api::pod_affinity;
use crate::api::slim::Pod;
use crate::api::time::{self, Now};
use crate::api::usage::{PodView, UNKNOWN_VOLUME_KIND};
use crate::mutants::{self, Mutant};

use super::decide::{Effect, NodeState, Seen, Step, is_closed, is_settled};
use super::rows::{Rows, VolumeRow};
use super::{fencers, unattached, units, volumes};

/// Reasons of a pod that no proof of its own volumes can release.
const BLOCKED: [&str; 3] = ["LocalVolume", UNKNOWN_VOLUME_KIND, "SharerHeld"];

/// The recorded row of a planned pod, or a new one.
pub fn recorded(plan: &PlannedPod, recorded: &NodeFenceStatus) -> PodStatus {
    let known = recorded.pods.iter().find(|row| row.episode == plan.episode && row.uid == plan.uid);
    known.cloned().unwrap_or_else(|| PodStatus {
        episode: plan.episode,
        uid: plan.uid.clone(),
        state: if plan.action == PodAction::Keep { PodStatusState::Kept } else { PodStatusState::Pending },
        released_at: None,
        reason: (plan.action == PodAction::Keep).then(|| plan.reason.clone()),
        message: None,
    })
}

/// Whether only something else than a proof can release the pod.
pub fn is_blocked(row: &PodStatus) -> bool {
    row.state == PodStatusState::Waiting && row.reason.as_deref().is_some_and(|reason| BLOCKED.contains(&reason))
}

/// Whether a pod on the node that has not ended uses the volume.
pub fn is_in_use(seen: &Seen, volume: &str) -> bool {
    let running = seen.pods.iter().filter(|pod| may_run(seen, pod));
    running.into_iter().any(|pod| pod.volumes.iter().any(|used| used.name == volume))
}

/// Whether a pod on the node that has not ended wants the volume, though it may not have started yet. While it does, its
/// attachment will not go.
pub fn is_wanted(seen: &Seen, volume: &str) -> bool {
    let open = seen.pods.iter().filter(|pod| !pod.pod.is_finished());
    open.into_iter().any(|pod| pod.volumes.iter().any(|used| used.name == volume))
}

/// Whether the pod may run. One that came after the plan and of which no kubelet has said anything does not, unless a kubelet
/// was or is there to start it: its owner put it back on the failed node, and nothing is attached for it there. If it
/// counted, the attachment of what was released would stay, and the attacher would give the node its access back.
fn may_run(seen: &Seen, pod: &PodView) -> bool {
    let planned = seen.fence.spec.plan.pods.iter().any(|row| row.uid == pod.uid());
    // The kubelet of a node that failed by a taint was never away, and that of one whose storage was in trouble first was there
    // when the incident began.
    let plan = &seen.fence.spec.plan;
    let by_taint = plan.evidence.iter().any(|it| it.channel == Channel::Taint);
    let kubelet_may_start_it = seen.fence.was_back() || by_taint || plan.began_on_a_well_node() || !seen.lease_is_still;
    // The kubelet's first word about a pod; False while its init containers run.
    let told = pod.pod.condition("Initialized").is_some();
    !pod.pod.is_finished() && (planned || kubelet_may_start_it || told)
}

/// Pods that have gone: released by us, or by others without our proof. A pod that is only missing from the store
/// may not have arrived there yet, and one without volumes never does, so its departure is believed after a live look.
pub fn observe_departures(seen: &Seen, rows: &mut Rows, now: Now) {
    let present: BTreeSet<&str> = seen.pods.iter().map(PodView::uid).collect();
    let plan = &seen.fence.spec.plan.pods;
    for (row, planned) in rows.pods.iter_mut().zip(plan).filter(|(row, _)| !is_settled(row.state)) {
        if present.contains(row.uid.as_str()) {
            continue;
        }
        let ours = row.state == PodStatusState::Releasing;
        let is_in_no_store = planned.volumes.is_empty();
        if (!ours || is_in_no_store) && !seen.is_live() {
            rows.need_live = true;
            continue;
        }
        row.state = PodStatusState::Released;
        row.released_at = Some(time::stamp(now.wall));
        row.reason = if ours { volumes::reason(seen, &row.uid, row.state) } else { Some("ReleasedByOthers".into()) };
        row.message = (!ours).then(|| "deleted by somebody else, without our proof".into());
    }
}

/// Pods that wait for something no fence can give, and with them all that share a volume with them: cutting a shared
/// volume off would take it from the pod that stays.
pub fn find_blocked(seen: &Seen, rows: &mut Rows) {
    let plan = &seen.fence.spec.plan.pods;
    for (row, planned) in rows.pods.iter_mut().zip(plan).filter(|(row, _)| !is_settled(row.state)) {
        if row.state == PodStatusState::Releasing {
            continue;
        }
        match unmovable(seen, planned) {
            Some((reason, message)) => wait(row, reason, message),
            None if is_blocked(row) => {
                row.state = PodStatusState::Pending;
                row.reason = None;
                row.message = None;
            }
            None => {}
        }
    }
    // Whom a pod must run beside may use no volume, and be in no store.
    let may_be_bound = |pod: &PodView| pod_affinity::is_binding(&pod.pod);
    if !seen.is_live() && units::are_groups_released_together(seen) && seen.pods.iter().any(may_be_bound) {
        rows.need_live |= rows.pods.iter().any(|row| !is_settled(row.state));
    }
    while let Some((index, holder)) = next_held(seen, rows) {
        if let Some(row) = rows.pods.get_mut(index) {
            wait(row, "SharerHeld", format!("{holder}, which stays"));
        }
    }
}

/// The next pod that shares a volume with one that stays, or must run beside it; and how it is tied to which.
fn next_held(seen: &Seen, rows: &Rows) -> Option<(usize, String)> {
    let plan = &seen.fence.spec.plan.pods;
    let goes = |uid: &str| {
        let row =
            rows.pods.iter().zip(plan).find(|(row, planned)| row.uid == uid && planned.action == PodAction::Release);
        row.is_some_and(|(row, _)| !is_blocked(row) && row.state != PodStatusState::Undone)
    };
    let staying: Vec<_> = seen.pods.iter().filter(|pod| may_run(seen, pod) && !goes(pod.uid())).collect();
    let together = units::are_groups_released_together(seen);
    rows.pods.iter().zip(plan).enumerate().find_map(|(index, (row, planned))| {
        let open =
            matches!(row.state, PodStatusState::Pending) || row.state == PodStatusState::Waiting && !is_blocked(row);
        let uses = |pod: &PodView| pod.volumes.iter().any(|volume| planned.volumes.contains(&volume.name));
        let own = seen.pods.iter().find(|pod| together && pod.uid() == row.uid);
        let binds = |pod: &PodView| own.is_some_and(|own| pod_affinity::are_bound(&own.pod, &pod.pod));
        let others = || staying.iter().filter(|pod| open && pod.uid() != row.uid);
        let shares = others().find(|pod| uses(pod)).map(|pod| format!("shares a volume with {}", pod.display()));
        let bound = || others().find(|pod| binds(pod)).map(|pod| format!("must run beside {}", pod.display()));
        Some((index, shares.or_else(bound)?))
    })
}

fn unmovable(seen: &Seen, planned: &PlannedPod) -> Option<(&'static str, String)> {
    let pod = seen.pods.iter().find(|pod| pod.uid() == planned.uid)?;
    pod.unmovable().or_else(|| pod.uncovered(|volume, _| unattached::is_covered(seen, &volume.name)))
}

fn wait(row: &mut PodStatus, reason: &str, message: String) {
    row.state = PodStatusState::Waiting;
    row.reason = Some(reason.into());
    row.message = Some(message);
}

/// Pods whose every volume is proved are to be released. When the node is back, pods of a volume that may have been
/// cut off go in any case, for they may have lost their data; the others stay as they were.
pub fn advance(seen: &Seen, rows: &mut Rows, now: Now) {
    let plan = &seen.fence.spec.plan.pods;
    let together = units::volumes_to_prove(seen, rows);
    for index in 0..rows.pods.len() {
        let (Some(row), Some(planned), Some(wanted)) = (rows.pods.get(index), plan.get(index), together.get(index))
        else {
            continue;
        };
        // A pod that was given up goes after all when a volume was cut off since, for a pod that shares it.
        let undone = row.state == PodStatusState::Undone;
        if row.state == PodStatusState::Releasing || is_settled(row.state) && !undone {
            continue;
        }
        let next = match rows.node {
            NodeState::Back => when_back(seen, rows, planned, now),
            _ if undone || is_blocked(row) => None,
            _ => when_away(seen, rows, planned, wanted),
        };
        // Nothing is recorded as going that may not go.
        let next = next.filter(|(state, ..)| *state != PodStatusState::Releasing || rows.held.is_none());
        if let (Some((state, reason, message)), Some(row)) = (next, rows.pods.get_mut(index)) {
            row.state = state;
            row.reason = reason;
            row.message = message;
        }
    }
}

type Next = Option<(PodStatusState, Option<String>, Option<String>)>;

/// A pod is given up only when no fence call of its volumes was or may yet be sent: until its request is turned round
/// the fencer may be first, and the pod must go after all.
fn when_back(seen: &Seen, rows: &Rows, planned: &PlannedPod, now: Now) -> Next {
    // Rows that an earlier episode left unclean count too: what was cut off then is not given back yet.
    let volumes = || rows.volumes.iter().filter(|row| planned.volumes.contains(&row.plan.name));
    let state = if volumes().any(|row| row.is_committed() && !is_closed(row.status.state)) {
        PodStatusState::Releasing
    } else if volumes().any(|row| fencers::may_be_started(seen, row, now)) {
        return None;
    } else {
        PodStatusState::Undone
    };
    let reason = match &seen.fence.spec.plan {
        plan if plan.is_by_volume() => "TaintGone",
        plan if plan.is_by_path() => "PathRestored",
        _ => "NodeReturned",
    };
    Some((state, Some(reason.into()), None))
}

/// `wanted` are the volumes that must be proved: of the pod, and of all that go with it.
fn when_away(seen: &Seen, rows: &Rows, planned: &PlannedPod, wanted: &BTreeSet<String>) -> Next {
    // One that nothing must be proved for is not given up before the node is tainted: until then all can be undone.
    if wanted.is_empty() && seen.node.is_some() && seen.our_taint().is_none() {
        return Some((PodStatusState::Pending, None, None));
    }
    if wanted.iter().all(|name| is_proved(rows, name)) {
        return Some((PodStatusState::Releasing, volumes::reason(seen, &planned.uid, PodStatusState::Releasing), None));
    }
    let has_failed = |name: &&String| {
        let row = rows.volume(name);
        row.is_none_or(|row| row.status.state == VolumeStatusState::Failed || row.plan.methods.is_empty())
    };
    let failed: Vec<_> = wanted.iter().filter(has_failed).map(String::as_str).collect();
    if failed.is_empty() {
        return Some((PodStatusState::Pending, None, None));
    }
    let mut message = failed.join(", ");
    conditions::truncate(&mut message, 512);
    Some((PodStatusState::Waiting, Some("ProofTooWeak".into()), Some(message)))
}

/// Deletes the pods that are recorded as Releasing, highest priority first, each only while its proof counts.
pub fn release(seen: &Seen, rows: &Rows, now: Now) -> Option<Step> {
    let mut going: Vec<_> = going(seen, rows, now).collect();
    if going.is_empty() {
        return None;
    }
    going.sort_by_key(|pod| std::cmp::Reverse(pod.pod.spec.priority.unwrap_or(0)));
    let back = rows.node == NodeState::Back;
    let mut effects = Vec::new();
    for pod in going {
        let grace_seconds = if back || volumes::is_asked_to_end(seen, pod) { None } else { Some(0) };
        let not_after = if back { None } else { proved_until(rows, pod) };
        let has_finalizers = pod.pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
        if has_finalizers && !pod.pod.is_finished() && grace_seconds == Some(0) {
            effects.push(Effect::FailPod { pod: pod.clone(), not_after });
        } else {
            effects.push(Effect::DeletePod { pod: pod.clone(), grace_seconds, not_after });
        }
    }
    Step::live("Releasing", effects)
}

/// The version at which a pod is deleted that a pass decided on: what the store has by then, where it tells no more than that the pod is
/// not ready any more. The node lifecycle controller marks all pods of a silent node so while they are released (MarkPodsNotReady). Any
/// other change may be its kubelet's, and is decided on anew.
pub fn latest(decided: Arc<Pod>, stored: Option<Arc<Pod>>) -> Arc<Pod> {
    stored.filter(|stored| stored.has_only_become_unready(&decided)).unwrap_or(decided)
}

/// Whether a volume is proved to be cut off, by an answer that still counts.
fn is_proved(rows: &Rows, volume: &str) -> bool {
    let begun = |row: &VolumeRow| row.is_committed() && mutants::is_on(Mutant::DeleteBeforeFence);
    mutants::is_on(Mutant::NoFence) || rows.volume(volume).is_some_and(|row| row.fresh || begun(row))
}

/// When the first of the proofs that the pod rests on is too old: a pass with hundreds of deletions on a slow API server
/// outlasts it. Method Detach, proof PowerOff and minimum proof None do not age.
fn proved_until(rows: &Rows, pod: &PodView) -> Option<Now> {
    let volumes = pod.volumes.iter().filter_map(|volume| rows.volume(&volume.name));
    let limits = volumes.filter(|row| row.minimum > Proof::None).filter_map(|row| row.counts_until);
    limits.reduce(|one, other| Now { wall: one.wall.min(other.wall), mono: one.mono.min(other.mono) })
}

/// Pods that may be deleted now. One that is being deleted already is deleted again only to take its grace period
/// away: nobody is there to keep to it.
fn going<'a>(seen: &'a Seen, rows: &'a Rows, now: Now) -> impl Iterator<Item = &'a PodView> {
    let together = units::volumes_to_prove(seen, rows);
    rows.pods.iter().zip(together).filter(|(row, _)| row.state == PodStatusState::Releasing).filter_map(
        move |(row, wanted)| {
            let pod = seen.pods.iter().find(|pod| pod.uid() == row.uid)?;
            let back = rows.node == NodeState::Back;
            let proved = back || wanted.iter().all(|name| is_proved(rows, name));
            // One whose finalizers wait for its end is marked Failed even if somebody else has deleted it meanwhile.
            let held =
                pod.pod.metadata.finalizers.as_ref().is_some_and(|them| !them.is_empty()) && !pod.pod.is_finished();
            let forced = pod.pod.metadata.deletion_grace_period_seconds == Some(0) && !held;
            let asked = pod.pod.is_terminating() && (back || forced || volumes::is_ending(seen, pod, now));
            (proved && !asked).then_some(pod)
        },
    )
}
