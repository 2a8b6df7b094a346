//! What a NodeFence reports: phase, conditions, counts and timeline, from the rows and the step that was decided.

use chrono::TimeDelta;

use crate::api::fencing::Proof;
use crate::api::node_fence::{
    NODE_FAILURE, NodeFenceStatus, PastEpisode, Phase, PodAction, PodStatusState, Progress, STORAGE_PATH_LOSS,
    Timeline, VOLUME_TAINT, VolumeStatusState,
};
use crate::api::time::{self, Now};

use super::boots;
use super::conditions;
use super::decide::{NodeState, Seen, Step, is_settled};
use super::rows::{self, Rows};

/// The status that the NodeFence should have.
pub fn compute(seen: &Seen, rows: &Rows, step: Option<&Step>, now: Now) -> NodeFenceStatus {
    let mut status = seen.fence.status.clone().unwrap_or_default();
    begin_episode(seen, &mut status);
    remember_boot(seen, rows, &mut status, now);
    status.observed_generation = seen.fence.metadata.generation;
    status.volumes = rows.volumes.iter().map(|row| row.status.clone()).collect();
    status.pods.clone_from(&rows.pods);
    let counts = Counts::of(seen, rows);
    status.weakest_proof = counts.weakest;
    status.progress = Some(Progress { pods: Some(counts.pods()), volumes: Some(counts.volumes()) });
    let timeline = mark_timeline(seen, rows, &counts, status.timeline.take().unwrap_or_default(), now);
    let phase = phase(seen, rows, &counts, &timeline, now);
    let timeline = Timeline {
        recovered_at: timeline.recovered_at.or((phase == Phase::Recovered).then(|| time::stamp(now.wall))),
        ..timeline
    };
    status.timeline = Some(timeline);
    status.phase = Some(phase);
    conditions::set(seen, rows, &counts, step, &mut status, now);
    status
}

/// A new episode begins with empty rows; the last one becomes history.
fn begin_episode(seen: &Seen, status: &mut NodeFenceStatus) {
    let decided_at = seen.fence.spec.plan.decided_at;
    let timeline = status.timeline.clone().unwrap_or_default();
    let Some(before) = timeline.decided_at.filter(|before| *before != decided_at) else { return };
    let progress = status.progress.clone().unwrap_or_default();
    let reasons = status.pods.iter().filter_map(|row| row.reason.as_deref());
    let of_storage = reasons.into_iter().find(|reason| matches!(*reason, VOLUME_TAINT | STORAGE_PATH_LOSS));
    let reason = of_storage.unwrap_or(NODE_FAILURE).to_owned();
    let past = PastEpisode {
        episode: seen.fence.spec.episode - 1,
        decided_at: before,
        recovered_at: timeline.recovered_at,
        reason,
        pods: progress.pods,
        volumes: progress.volumes,
        weakest_proof: status.weakest_proof,
    };
    status.history.insert(0, past);
    status.history.truncate(5);
    status.timeline = None;
    status.failed_boot_ids.clear();
}

/// The node fails in a boot of which that is not known yet.
fn remember_boot(seen: &Seen, rows: &Rows, status: &mut NodeFenceStatus, now: Now) {
    if let Some(boot_id) = boots::failed_again(seen, rows, now) {
        status.failed_boot_ids.insert(0, boot_id.to_owned());
        // Boot ids do not come again.
        status.failed_boot_ids.truncate(16);
    }
}

/// How far the incident got.
pub(super) struct Counts {
    pub to_release: usize,
    pub gone: usize,
    pub needed: usize,
    pub proved: usize,
    pub detached: usize,
    weakest: Option<Proof>,
}

impl Counts {
    fn of(seen: &Seen, rows: &Rows) -> Self {
        let plan = &seen.fence.spec.plan.pods;
        let releasing: Vec<_> =
            rows.pods.iter().zip(plan).filter(|(_, planned)| planned.action == PodAction::Release).collect();
        let gone = releasing.iter().filter(|(row, _)| row.state == PodStatusState::Released).count();
        let names: std::collections::BTreeSet<_> = releasing.iter().flat_map(|(_, planned)| &planned.volumes).collect();
        let episode = seen.fence.spec.episode;
        let volumes: Vec<_> =
            rows.volumes.iter().filter(|row| row.plan.episode != episode || names.contains(&row.plan.name)).collect();
        let cut_off = |row: &&&rows::VolumeRow| {
            matches!(
                row.status.state,
                VolumeStatusState::Fenced | VolumeStatusState::Detached | VolumeStatusState::Clean
            )
        };
        Self {
            to_release: releasing.len(),
            gone,
            needed: volumes.len(),
            proved: volumes.iter().filter(cut_off).count(),
            detached: volumes.iter().filter(|row| seen.attachments_of(&row.plan.name).next().is_none()).count(),
            weakest: volumes.iter().map(|row| row.status.proof).min(),
        }
    }

    fn pods(&self) -> String {
        format!("{}/{}", self.gone, self.to_release)
    }

    fn volumes(&self) -> String {
        format!("{}/{}", self.proved, self.needed)
    }
}

fn mark_timeline(seen: &Seen, rows: &Rows, counts: &Counts, timeline: Timeline, now: Now) -> Timeline {
    let when = |known: Option<_>, holds: bool| known.or(holds.then(|| time::stamp(now.wall)));
    let tainted = seen.our_taint().and_then(|taint| taint.time_added.as_ref()).map(time::from_k8s).map(time::stamp);
    // What the first record of an episode tells has happened before it.
    let tainted_at = timeline.tainted_at.or(tainted);
    let all_gone = counts.gone == counts.to_release;
    Timeline {
        decided_at: Some(seen.fence.spec.plan.decided_at),
        tainted_at,
        fenced_at: when(timeline.fenced_at, counts.proved == counts.needed && counts.needed > 0),
        first_released_at: when(timeline.first_released_at, counts.gone > 0),
        released_at: when(timeline.released_at, all_gone && counts.to_release > 0),
        detached_at: when(timeline.detached_at, all_gone && counts.detached == counts.needed && counts.needed > 0),
        returned_at: when(timeline.returned_at, rows.node == NodeState::Back && tainted_at.is_some()),
        recovered_at: timeline.recovered_at,
    }
}

fn phase(seen: &Seen, rows: &Rows, counts: &Counts, timeline: &Timeline, now: Now) -> Phase {
    if rows.is_over() {
        let given_back = seen.requests.is_empty() && seen.our_taint().is_none() && !seen.is_active();
        return if given_back { Phase::Recovered } else { Phase::Cleaning };
    }
    if rows.waits_to_begin() || !seen.is_active() {
        return Phase::Planned;
    }
    let settled = rows.pods.iter().all(|row| is_settled(row.state));
    // One that fails again stays in Cleaning: that is from where its next episode begins.
    let returned = rows.node == NodeState::Back || timeline.returned_at.is_some();
    if returned && settled {
        return Phase::Cleaning;
    }
    if !settled {
        return if timeline.tainted_at.is_some() || seen.node.is_none() { Phase::Fencing } else { Phase::Planned };
    }
    let resync = TimeDelta::from_std(seen.settings.resync).unwrap_or(TimeDelta::MAX);
    let watched = timeline.detached_at.is_some_and(|at| now.wall.signed_duration_since(at) >= resync);
    let detached = counts.detached == counts.needed;
    if detached && watched { Phase::Detached } else { Phase::PodsReleased }
}
