//! What a NodeFence reports: phase, conditions, counts and timeline, from the rows and the step that was decided.

use chrono::TimeDelta;

use crate::api::conditions::{self, State};
use crate::api::fencing::Proof;
use crate::api::node_fence::{
    NodeFenceStatus, PastEpisode, Phase, PodAction, PodStatusState, Progress, Timeline, VolumeStatusState,
};
use crate::api::time::{self, Now};

use super::decide::{NodeState, Seen, Step, is_settled};
use super::rows::{self, Rows};

/// The status that the NodeFence should have.
pub fn compute(seen: &Seen, rows: &Rows, step: Option<&Step>, now: Now) -> NodeFenceStatus {
    let mut status = seen.fence.status.clone().unwrap_or_default();
    begin_episode(seen, &mut status);
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
    set_conditions(seen, rows, &counts, step, &mut status, now);
    status
}

/// A new episode begins with empty rows; the last one becomes history.
fn begin_episode(seen: &Seen, status: &mut NodeFenceStatus) {
    let decided_at = seen.fence.spec.plan.decided_at;
    let timeline = status.timeline.clone().unwrap_or_default();
    let Some(before) = timeline.decided_at.filter(|before| *before != decided_at) else { return };
    let progress = status.progress.clone().unwrap_or_default();
    let past = PastEpisode {
        episode: seen.fence.spec.episode - 1,
        decided_at: before,
        recovered_at: timeline.recovered_at,
        reason: "NodeFailure".into(),
        pods: progress.pods,
        volumes: progress.volumes,
        weakest_proof: status.weakest_proof,
    };
    status.history.insert(0, past);
    status.history.truncate(5);
    status.timeline = None;
}

struct Counts {
    to_release: usize,
    gone: usize,
    needed: usize,
    proved: usize,
    detached: usize,
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
    let all_gone = counts.gone == counts.to_release;
    Timeline {
        decided_at: Some(seen.fence.spec.plan.decided_at),
        tainted_at: when(timeline.tainted_at, seen.our_taint().is_some()),
        fenced_at: when(timeline.fenced_at, counts.proved == counts.needed && counts.needed > 0),
        first_released_at: when(timeline.first_released_at, counts.gone > 0),
        released_at: when(timeline.released_at, all_gone && counts.to_release > 0),
        detached_at: when(timeline.detached_at, all_gone && counts.detached == counts.needed && counts.needed > 0),
        returned_at: when(timeline.returned_at, rows.node == NodeState::Back && timeline.tainted_at.is_some()),
        recovered_at: timeline.recovered_at,
    }
}

fn phase(seen: &Seen, rows: &Rows, counts: &Counts, timeline: &Timeline, now: Now) -> Phase {
    if rows.is_over() {
        let given_back = seen.requests.is_empty() && seen.our_taint().is_none() && !seen.is_active();
        return if given_back { Phase::Recovered } else { Phase::Cleaning };
    }
    if rows.is_held() || !seen.is_active() {
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

fn set_conditions(
    seen: &Seen,
    rows: &Rows,
    counts: &Counts,
    step: Option<&Step>,
    status: &mut NodeFenceStatus,
    now: Now,
) {
    let generation = seen.fence.metadata.generation.unwrap_or_default();
    let phase = status.phase.unwrap_or(Phase::Planned);
    let conditions = &mut status.conditions;
    let mut set = |type_: &str, state: State, reason: &str, message: String| {
        conditions::set(conditions, type_, state, reason, message, generation, now.wall);
    };
    let stalled = stalled(seen, rows, now);
    let held = held(rows);
    match &held {
        Some((reason, message)) => set("Held", State::True, reason, message.clone()),
        None => set("Held", State::False, "NotHeld", String::new()),
    }
    let waiting = waiting(rows);
    let done = phase == Phase::Recovered;
    let reason = match (&held, &stalled) {
        _ if done => "Recovered",
        (Some((reason, _)), _) => reason,
        (None, Some((reason, _))) => reason.as_str(),
        _ => step_reason(phase, step, &waiting),
    };
    let message = match (&held, &stalled) {
        _ if done => String::new(),
        (Some((_, message)), _) => message.clone(),
        (None, Some((_, message))) => message.clone(),
        _ => waiting.clone().map(|(_, message)| message).unwrap_or_default(),
    };
    set("Ready", done.into(), reason, message.clone());
    let fenced = counts.proved == counts.needed;
    let fenced_reason =
        if fenced { "Proved" } else { waiting.as_ref().map_or("Fencing", |(reason, _)| reason.as_str()) };
    set("Fenced", fenced.into(), fenced_reason, format!("{} of {} volumes proved", counts.proved, counts.needed));
    let released = counts.gone == counts.to_release;
    let released_reason = match (released, counts.to_release) {
        (true, 0) => "NothingToRelease",
        (true, _) => "AllReleased",
        (false, _) if waiting.is_some() => "PodsHeld",
        (false, _) => "Releasing",
    };
    set("Released", released.into(), released_reason, format!("{} of {} pods gone", counts.gone, counts.to_release));
    let detached = counts.detached == counts.needed;
    let detached_reason = match (detached, counts.needed) {
        (true, 0) => "NothingToDetach",
        (true, _) => "AllDetached",
        (false, _) if rows.volumes.iter().any(|row| row.status.refences.unwrap_or(0) > 0) => "Reattached",
        (false, _) => "Detaching",
    };
    set(
        "Detached",
        detached.into(),
        detached_reason,
        format!("{} of {} attachments gone", counts.detached, counts.needed),
    );
    let (clean, clean_reason, clean_message) = node_clean(seen, rows, done);
    set("NodeClean", clean, clean_reason, clean_message);
    match stalled {
        Some((reason, message)) => set("Stalled", State::True, &reason, message),
        None => conditions::remove(&mut status.conditions, "Stalled"),
    }
    if done || status.conditions.iter().any(|condition| condition.type_ == "Stalled") {
        conditions::remove(&mut status.conditions, "Reconciling");
    } else {
        let state = State::True;
        conditions::set(&mut status.conditions, "Reconciling", state, reason_or(phase), message, generation, now.wall);
    }
}

/// Why the whole incident waits.
fn held(rows: &Rows) -> Option<(&'static str, String)> {
    if !rows.is_held() {
        return None;
    }
    if let Some(volume) = &rows.ambiguous {
        return Some(("IdentityAmbiguous", ambiguous(volume)));
    }
    // A calm after an outage is part of it: the reasons of an incident know no Cooldown.
    rows.outage.map(|_| ("CorrelatedOutage", "too many nodes are suspected at once: nothing more is begun".into()))
}

fn ambiguous(volume: &str) -> String {
    format!(
        "the node id that volume {volume} was published to is in doubt (attachment and pod must be younger than the Node, \
         and CSINode must agree): nothing is done"
    )
}

fn reason_or(phase: Phase) -> &'static str {
    match phase {
        Phase::Planned => "Tainting",
        Phase::Fencing => "Fencing",
        Phase::PodsReleased => "Detaching",
        Phase::Detached => "AwaitingNode",
        Phase::Cleaning => "Cleaning",
        Phase::Recovered => "Recovered",
    }
}

fn step_reason<'a>(phase: Phase, step: Option<&Step>, waiting: &'a Option<(String, String)>) -> &'a str {
    match (phase, waiting) {
        (Phase::Fencing | Phase::Planned, Some((reason, _))) => reason,
        (Phase::Fencing, None) if step.is_some_and(|step| step.reason == "Releasing") => "Releasing",
        _ => reason_or(phase),
    }
}

/// Why pods wait: the reason of the first, and all of them by volume or name.
fn waiting(rows: &Rows) -> Option<(String, String)> {
    let waiting: Vec<_> = rows.pods.iter().filter(|row| row.state == PodStatusState::Waiting).collect();
    let first = waiting.first()?;
    let own = first.reason.clone().unwrap_or_else(|| "ProofTooWeak".into());
    let failed = rows.volumes.iter().find(|row| row.needed && row.status.state == VolumeStatusState::Failed);
    let (reason, detail) = match failed.filter(|_| own == "ProofTooWeak") {
        Some(row) => (
            documented(row.status.reason.as_deref()),
            format!(
                "volume {} has proof {:?}, {:?} is required ({}{})",
                row.plan.name,
                row.status.proof,
                row.minimum,
                row.status.reason.as_deref().unwrap_or_default(),
                row.status.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default(),
            ),
        ),
        None => (own, first.message.clone().unwrap_or_default()),
    };
    let more = if waiting.len() > 1 { format!("; {} pods wait", waiting.len()) } else { "; its pod stays".into() };
    Some((reason, format!("{detail}{more}")))
}

/// Conditions speak the documented reasons; a gRPC code or a row's reason is in the message.
fn documented(reason: Option<&str>) -> String {
    match reason {
        Some(reason @ ("FencerMissing" | "Unimplemented")) => reason.into(),
        Some("DeadlineExceeded") => "FenceTimeout".into(),
        _ => "ProofTooWeak".into(),
    }
}

/// Reported once the policy's `giveUpAfter` has passed without proof; retries go on.
fn stalled(seen: &Seen, rows: &Rows, now: Now) -> Option<(String, String)> {
    let patience = seen.policies.iter().map(|policy| policy.spec.fencing.give_up_after.get()).min();
    let patience = patience.unwrap_or(std::time::Duration::from_secs(300));
    let since = now.wall.signed_duration_since(seen.fence.spec.plan.decided_at).to_std().unwrap_or_default();
    let silent = rows.volumes.iter().filter(|row| row.needed && !row.is_cut_off()).any(|row| {
        let asked = row.plan.driver.as_deref().is_some_and(|driver| seen.request(driver).is_some());
        asked && rows::result(seen, row).is_none()
    });
    let certain = waiting(rows)
        .filter(|(reason, _)| matches!(reason.as_str(), "FencerMissing" | "Unimplemented" | "UnknownVolumeKind"));
    match (certain, since >= patience) {
        (Some(known), _) => Some(known),
        (None, false) => None,
        (None, true) if silent => Some(("FencerSilent".into(), "the driver's sidecar has not answered".into())),
        (None, true) => waiting(rows).map(|(_, message)| ("ProofTooWeak".into(), message)).or_else(|| unproved(rows)),
    }
}

/// The first volume that is still tried, with what was answered last.
fn unproved(rows: &Rows) -> Option<(String, String)> {
    let row = rows.volumes.iter().find(|row| row.needed && !row.is_cut_off())?;
    let answer = row.status.reason.as_deref().unwrap_or("no answer yet");
    let detail = row.status.message.as_deref().unwrap_or_default();
    let reason = if answer == "DeadlineExceeded" { "FenceTimeout" } else { "ProofTooWeak" };
    Some((reason.into(), format!("volume {} is not proved: {answer}: {detail}; it is tried again", row.plan.name)))
}

fn node_clean(seen: &Seen, rows: &Rows, done: bool) -> (State, &'static str, String) {
    let committed = rows.volumes.iter().any(|row| row.is_committed());
    if !committed {
        return (State::True, "NoVolumes", "nothing was cut off".into());
    }
    if seen.node.is_none() {
        return if done {
            (State::True, "NodeDeleted", String::new())
        } else {
            (State::Unknown, "NodeAway", String::new())
        };
    }
    if done || rows.node == NodeState::Back && rows::is_clean(seen) {
        return (State::True, "Rebooted", String::new());
    }
    if rows.node == NodeState::Back {
        let message = "the node is back with the same boot id, and its processes may still hold the volumes: reboot it";
        return (State::False, "AgentMissing", message.into());
    }
    (State::Unknown, "NodeAway", String::new())
}
