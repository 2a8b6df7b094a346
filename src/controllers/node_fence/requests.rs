//! FenceRequests: who is asked to cut the node off from which volumes, in which round; and method Detach, where the
//! deletion of the attachment is itself the fence call.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::api::ObjectMeta;

use crate::api::fence_request::{
    Desired, FenceOutcome, FenceRequest, FenceRequestSpec, FenceResult, FencerMethod, RequestedVolume,
};
use crate::api::fencing::FenceMethodType;
use crate::api::names;
use crate::api::node_fence::{Phase, PodStatus, PodStatusState, VolumeStatusState};
use crate::api::time::{self, Now};
use crate::api::usage::PodView;
use crate::mutants::{self, Mutant};

use super::decide::{Effect, NodeState, PROOF_LIFETIME, Seen, Step, is_settled};
use super::fencers::{self, Answer};
use super::rows::{Rows, VolumeRow};
use super::{answers, clean, external, io, pods, volumes};

/// How long all others wait for the first answer to the first wave: a driver that hangs must not hold them up.
const FIRST_WAVE_PATIENCE: Duration = Duration::from_secs(1);

/// How soon is looked again for a machine whose Node was deleted. What is known of it changes with an object that is watched.
const LOOK_FOR_MACHINE: Duration = Duration::from_secs(30);

/// Asks for what is needed and not proved: new rows, new rounds, and attachments to delete.
pub fn ask(seen: &Seen, rows: &Rows, now: Now) -> Option<Step> {
    if rows.node == NodeState::Back || mutants::is_on(Mutant::NoFence) {
        return None;
    }
    let first = first_wave(seen, rows, now);
    let mut effects = Vec::new();
    let mut wanted: BTreeMap<&str, Vec<&VolumeRow>> = BTreeMap::new();
    let open = rows
        .volumes
        .iter()
        .filter(|row| row.needed)
        .filter(|row| rows.outage.is_none() || row.is_committed())
        .filter(|row| first.as_ref().is_none_or(|first| first.contains(row.plan.name.as_str())));
    for row in open {
        // In an outage who has begun goes on, and nobody else begins.
        let may_ask = |fencer: &&str| rows.outage.is_none() || fencers::has_begun(seen, row, fencer);
        for fencer in fencers::to_ask(seen, row, now).into_iter().filter(may_ask) {
            wanted.entry(fencer).or_default().push(row);
        }
    }
    for (fencer, wanted) in wanted {
        effects.extend(ask_fencer(seen, rows, fencer, &wanted, now));
    }
    if effects.is_empty() { None } else { Step::new("Fencing", effects) }
}

/// The volumes that are asked for before all others: those of the pods with the highest priority that a fencer can help,
/// until one of them is answered. `None` when all may be asked for.
fn first_wave<'a>(seen: &'a Seen, rows: &Rows, now: Now) -> Option<BTreeSet<&'a str>> {
    let size = seen.settings.first_wave;
    let helps = |volume: &String| {
        let row = rows.volume(volume).filter(|row| row.needed);
        row.is_some_and(|row| !fencers::to_ask(seen, row, now).is_empty())
    };
    let waits = |row: &PodStatus| !is_settled(row.state) && !pods::is_blocked(row);
    let pods = rows.pods.iter().zip(&seen.fence.spec.plan.pods);
    let mut waiting: Vec<_> = pods
        .filter(|(row, planned)| waits(row) && planned.volumes.iter().any(helps))
        .map(|(_, planned)| planned)
        .collect();
    if waiting.len() <= 2 * size || !is_first_wave_due(seen, now) {
        return None;
    }
    waiting.sort_by_key(|planned| Reverse(planned.priority.unwrap_or_default()));
    Some(waiting.into_iter().take(size).flat_map(|planned| &planned.volumes).map(String::as_str).collect())
}

/// Nothing was asked in this episode, or this process asked just now and nothing is answered. What another process asked
/// has had its time.
fn is_first_wave_due(seen: &Seen, now: Now) -> bool {
    let episode = seen.fence.spec.episode;
    let answers = seen.requests.iter().flat_map(|request| &request.status).flat_map(|status| &status.volumes);
    if answers.into_iter().any(|answer| answer.episode == episode && answer.result != FenceOutcome::Started) {
        return false;
    }
    let asked = seen.asked.iter().filter(|((_, of, _), _)| *of == episode).map(|(_, asked)| asked.at).min();
    match asked {
        Some(at) => now.mono.saturating_duration_since(at) < FIRST_WAVE_PATIENCE,
        None => seen.requests.iter().all(|request| request.spec.episode != episode),
    }
}

fn ask_fencer(seen: &Seen, rows: &Rows, fencer: &str, wanted: &[&VolumeRow], now: Now) -> Option<Effect> {
    let Some(request) = seen.request(fencer) else {
        let volumes: Vec<_> = wanted.iter().filter_map(|row| requested(seen, row, fencer, 1)).collect();
        return (!volumes.is_empty()).then(|| Effect::Ask(Box::new(new_request(seen, fencer, volumes, now))));
    };
    let mut next = FenceRequest::clone(request);
    next.status = None;
    // A new episode, or a node that failed again while its request was being withdrawn: everything is asked anew.
    let anew = next.spec.episode != seen.fence.spec.episode || next.spec.desired != Desired::Fenced;
    if anew {
        if wanted.is_empty() {
            return None;
        }
        // It only rises by one: a driver that an episode did not need is two behind.
        next.spec.episode = seen.fence.spec.episode.min(next.spec.episode + 1);
        next.spec.node = seen.fence.spec.node.clone();
        next.spec.desired = Desired::Fenced;
    }
    let check = io::check(seen, fencer, now);
    let mut changed = anew || next.spec.io_in_progress_check != check && !wanted.is_empty();
    next.spec.io_in_progress_check = check;
    for row in wanted {
        let known = next.spec.volumes.iter_mut().find(|v| v.episode == row.plan.episode && v.name == row.plan.name);
        match known {
            None => {
                next.spec.volumes.extend(requested(seen, row, fencer, 1));
                changed = true;
            }
            Some(volume) => {
                let further = further_methods(seen, row, fencer, volume);
                changed |= !further.is_empty();
                volume.methods.extend(further);
                if anew || needs_new_round(seen, rows, (row, request), volume.round, now) {
                    volume.round += 1;
                    changed = true;
                }
            }
        }
    }
    changed.then(|| Effect::AskAgain(Box::new(next)))
}

/// An answer that is too old, or from before a restart, is asked for again; a failure after a growing wait. A round
/// that is still being worked on is left alone.
fn needs_new_round(
    seen: &Seen,
    rows: &Rows,
    (row, request): (&VolumeRow, &FenceRequest),
    round: i32,
    now: Now,
) -> bool {
    let fencer = request.spec.fencer_name.as_str();
    let Some(result) = fencers::result_in(seen, row, fencer, round) else { return false };
    let passed = fencers::asked_since(seen, row, fencer, round, now);
    let strong = answers::is_proof(row, &Answer { fencer, request, result });
    match result.result {
        FenceOutcome::Started => false,
        _ if strong && fencers::is_of_another_machine(seen, row, result) => false,
        _ if strong => {
            let ending = seen.pods.iter().filter(|pod| volumes::is_ending(seen, pod, now));
            let ending: BTreeSet<_> = ending.map(PodView::uid).collect();
            let is_ending = |uid: &str| ending.contains(uid);
            // The pods it was for may all be on their way, or wait for another volume that cannot be proved now: then
            // nobody is served by a new proof.
            let waited_for = !row.is_cut_off()
                || rows.pods.iter().zip(&seen.fence.spec.plan.pods).any(|(pod, planned)| {
                    matches!(pod.state, PodStatusState::Pending | PodStatusState::Waiting | PodStatusState::Releasing)
                        && !is_ending(&pod.uid)
                        && planned.volumes.contains(&row.plan.name)
                        && planned.volumes.iter().all(|name| rows.volume(name).is_some_and(|other| !is_failed(other)))
                });
            let in_flight = seen.attachments_of(&row.plan.name).any(|attachment| !attachment.status.attached);
            waited_for
                && !row.fresh
                && !in_flight
                && passed.is_none_or(|passed| passed > PROOF_LIFETIME || is_unsettled(row))
        }
        // Somebody else has proved it.
        _ if row.fresh => false,
        _ if io::is_veto(result) => io::is_due(seen, row, passed, backoff(round), now),
        _ => passed.is_none_or(|passed| passed >= backoff(round)),
    }
}

fn is_failed(row: &VolumeRow) -> bool {
    row.status.state == VolumeStatusState::Failed
}

/// The answer came in time but an attachment was in flight: it is asked for again at once, now that it is not.
fn is_unsettled(row: &VolumeRow) -> bool {
    row.status.reason.as_deref() == Some("AttachInFlight")
}

/// How long a failure waits for the next round.
pub fn backoff(round: i32) -> Duration {
    let exponent = u32::try_from(round).unwrap_or(0).min(6);
    Duration::from_secs(1 << exponent).min(Duration::from_secs(60))
}

/// What a fencer is asked for, each type once: its answers name the type.
fn methods(seen: &Seen, row: &VolumeRow, fencer: &str) -> Vec<FencerMethod> {
    let mut methods: Vec<FencerMethod> = Vec::new();
    for method in fencers::to_request(seen, row, fencer).filter_map(|method| FencerMethod::try_from(method).ok()) {
        if !methods.iter().any(|known| known.type_ == method.type_) {
            methods.push(method);
        }
    }
    methods
}

/// Methods that have come into question since a row was asked for: an incident of some volumes has become one of the node.
/// What was asked for stays in the list.
fn further_methods(seen: &Seen, row: &VolumeRow, fencer: &str, asked: &RequestedVolume) -> Vec<FencerMethod> {
    let is_asked = |method: &FencerMethod| asked.methods.iter().any(|known| known.type_ == method.type_);
    methods(seen, row, fencer).into_iter().filter(|method| !is_asked(method)).collect()
}

fn requested(seen: &Seen, row: &VolumeRow, fencer: &str, round: i32) -> Option<RequestedVolume> {
    // NFS in-tree has no handle.
    let name_for_handle = || row.plan.is_unattached().then(|| row.plan.name.clone());
    Some(RequestedVolume {
        episode: row.plan.episode,
        name: row.plan.name.clone(),
        round,
        uid: row.plan.uid.clone(),
        volume_handle: row.plan.volume_handle.clone().or_else(name_for_handle)?,
        node_id: row.plan.node_id.clone()?,
        attachment_uid: row.plan.attachment_uid.clone(),
        attach_required: row.plan.attach_required,
        cluster_id: row.plan.cluster_id.clone(),
        minimum_proof: fencers::minimum(row, fencer),
        methods: methods(seen, row, fencer),
    })
}

fn new_request(seen: &Seen, fencer: &str, volumes: Vec<RequestedVolume>, now: Now) -> FenceRequest {
    let node = seen.fence.metadata.name.clone().unwrap_or_default();
    let timeout =
        seen.policies.iter().map(|policy| &policy.spec.fencing.call_timeout).min_by_key(|timeout| timeout.get());
    let spec = FenceRequestSpec {
        fencer_name: fencer.into(),
        node_name: node.clone(),
        episode: seen.fence.spec.episode,
        node: seen.fence.spec.node.clone(),
        desired: Desired::Fenced,
        call_timeout: timeout.cloned().unwrap_or(time::Duration::seconds(30)),
        io_in_progress_check: io::check(seen, fencer, now),
        volumes,
    };
    let mut request = FenceRequest::new(&names::fence_request(&node, fencer), spec);
    request.metadata = ObjectMeta {
        finalizers: Some(vec![names::FENCE_OPEN_FINALIZER.into()]),
        owner_references: kube::Resource::controller_owner_ref(seen.fence.as_ref(), &()).map(|owner| vec![owner]),
        ..request.metadata
    };
    request
}

/// Whether the fencer may still begin with a row. What it has begun is recorded, and its pods go in any case.
pub fn may_be_undone(request: &FenceRequest) -> bool {
    let is_begun =
        |volume: &RequestedVolume| request.result_of(volume.episode, &volume.name).is_some_and(FenceResult::is_begun);
    request.spec.desired == Desired::Fenced && !request.spec.volumes.iter().all(is_begun)
}

/// Whether the fencer has begun with anything of it. What it did in an earlier episode is no beginning of this one.
pub fn has_begun(request: &FenceRequest) -> bool {
    let results = request.status.iter().flat_map(|status| &status.volumes);
    results.into_iter().any(|row| row.is_begun() && row.episode == request.spec.episode)
}

/// Whether a request is taken back while nothing more may begin: its fencer has not begun with any of it. What an earlier episode has
/// begun is brought to its end too: turned round with the rest of its request, it would be asked for again, and so on for ever.
pub fn is_taken_back(seen: &Seen, rows: &Rows, request: &FenceRequest) -> bool {
    let fencer = request.spec.fencer_name.as_str();
    let mut needed = rows.volumes.iter().filter(|row| row.needed);
    may_be_undone(request) && !has_begun(request) && !needed.any(|row| fencers::has_begun(seen, row, fencer))
}

/// Turns every open request round that `is_unwanted` holds of; but none that shuts the node out: with it all volumes would be let
/// in, those too that were begun. Nor one that would let in processes whose pods have gone.
pub fn turn_round(seen: &Seen, rows: &Rows, is_unwanted: impl Fn(&FenceRequest) -> bool) -> Vec<Effect> {
    let open = seen.requests.iter().filter(|it| it.spec.desired == Desired::Fenced && !it.shuts_out());
    let open = open.filter(|it| is_unwanted(it) && !external::lets_processes_in(seen, &rows.pods, it));
    open.map(|request| Effect::AskAgain(Box::new(unfenced(request)))).collect()
}

/// The request turned round: give access back, or confirm that nothing was sent.
pub fn unfenced(request: &FenceRequest) -> FenceRequest {
    let mut request = request.clone();
    request.status = None;
    request.spec.desired = Desired::Unfenced;
    request
}

/// Takes the requests back: first turned to Unfenced, then, once the fencer has confirmed every row it began, removed.
pub fn withdraw(seen: &Seen, pods: &[PodStatus]) -> Option<Step> {
    let (kept, free): (Vec<_>, Vec<_>) = seen.requests.iter().partition(|request| keeps_shut_out(seen, pods, request));
    let fenced: Vec<_> = free.iter().filter(|request| request.spec.desired == Desired::Fenced).collect();
    if !fenced.is_empty() {
        let effects = fenced.into_iter().map(|request| Effect::AskAgain(Box::new(unfenced(request)))).collect();
        return Step::new("Unfencing", effects);
    }
    if seen.requests.is_empty() {
        return None;
    }
    let answered = |request: &&std::sync::Arc<FenceRequest>| {
        let results = request.status.iter().flat_map(|status| &status.volumes);
        results.into_iter().all(|result| result.result == FenceOutcome::Unfenced || result.started_at.is_none())
    };
    let is_only_kept = free.is_empty() && !kept.is_empty();
    let done: Vec<_> = free.into_iter().filter(answered).map(|request| Effect::Withdraw(request.clone())).collect();
    if !done.is_empty() {
        return Step::new("Unfencing", done);
    }
    if is_only_kept {
        Step::wait("AwaitingMachine", LOOK_FOR_MACHINE)
    } else {
        Step::wait("Unfencing", Duration::from_secs(1))
    }
}

/// Whether a request is not turned round, since that would let a machine in that may write on.
pub fn keeps_shut_out(seen: &Seen, pods: &[PodStatus], request: &FenceRequest) -> bool {
    let is_open = request.spec.desired == Desired::Fenced && clean::may_write_on(seen);
    is_open && (request.shuts_out() || external::lets_processes_in(seen, pods, request))
}

/// A node that was switched off has lost all that ran there, and nobody but its fencer may bring it back: when everything of
/// it has moved, and what comes back was watched for, the fencer may give it its power again. One that has power and is only cut off
/// waits until it is clean.
pub fn give_power_back(seen: &Seen, rows: &Rows, now: Now) -> Option<Step> {
    let moved = rows.pods.iter().all(|row| is_settled(row.state) || pods::is_blocked(row));
    let detached = seen.phase() == Some(Phase::Detached) || is_detached_beyond_phases(seen, rows, now);
    if rows.node != NodeState::Away || !moved || !detached || rows.volumes.iter().any(|row| row.needed) {
        return None;
    }
    let effects = turn_round(seen, rows, FenceRequest::is_external);
    if effects.is_empty() { None } else { Step::live("GivingPowerBack", effects) }
}

/// An incident with pods that no proof can move never comes to phase Detached, nor does one whose node was back once. Nobody
/// needs the node more than such pods do.
fn is_detached_beyond_phases(seen: &Seen, rows: &Rows, now: Now) -> bool {
    let timeline = seen.fence.status.as_ref().and_then(|status| status.timeline.as_ref());
    let Some(timeline) = timeline else { return false };
    let beyond = timeline.returned_at.is_some() || rows.pods.iter().any(pods::is_blocked);
    let passed = timeline.fenced_at.and_then(|at| now.wall.signed_duration_since(at).to_std().ok());
    let is_attached = |row: &VolumeRow| row.is_committed() && seen.attachments_of(&row.plan.name).next().is_some();
    beyond && passed.is_some_and(|passed| passed >= seen.settings.resync) && !rows.volumes.iter().any(is_attached)
}

/// Method Detach: the attacher had completed the attachment when its deletion was recorded; it is the proof that the
/// attachment is gone and none has come in its place.
pub fn advance_detach(seen: &Seen, row: &mut VolumeRow, now: Now) {
    let gone = seen.attachments_of(&row.plan.name).next().is_none();
    row.fresh = gone && row.is_committed() && FenceMethodType::Detach.best_proof() >= row.minimum;
    if row.fresh && row.status.state == VolumeStatusState::Fencing {
        row.status.state = VolumeStatusState::Fenced;
        row.status.proof = FenceMethodType::Detach.best_proof();
        row.status.proved_at = Some(time::stamp(now.wall));
        row.status.reason = Some("AttachmentGone".into());
    }
}

/// Method Detach: the deletion is the fence call, right after plan and taint. It is recorded first (`committedAt`).
pub fn detach_as_fence(seen: &Seen, rows: &Rows) -> Option<Step> {
    // A kubelet that is back unmounts first; then attach/detach detaches.
    if rows.node == NodeState::Back {
        return None;
    }
    let committed = |row: &&VolumeRow| row.needed && row.is_committed() && fencers::has_begun_detach(row);
    let effects: Vec<_> = rows
        .volumes
        .iter()
        .filter(committed)
        .flat_map(|row| seen.attachments_of(&row.plan.name))
        .filter(|attachment| attachment.status.attached && attachment.has_attacher_finalizer())
        .filter(|attachment| attachment.metadata.deletion_timestamp.is_none())
        .map(|attachment| Effect::DeleteAttachment(attachment.clone()))
        .collect();
    if effects.is_empty() { None } else { Step::live("Fencing", effects) }
}
