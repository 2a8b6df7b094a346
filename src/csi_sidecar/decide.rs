//! What the sidecar does next for one FenceRequest: which rows begin, which calls are sent, when an answer is judged.
//! A row that has begun is recorded before its first call; nothing here calls anybody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::api::conditions;
use crate::api::fence_request::{Desired, FenceOutcome, FenceRequest, FenceResult, IO_IN_PROGRESS, RequestedVolume};
use crate::api::fencing::Proof;
use crate::api::time::{self, Now};

use super::driver::Published;
use super::io::{self, Busy, Questions, Verdict};
use super::judge::{judge, look_up};
use super::{holding, methods, unfence};

/// A row: episode and volume name.
pub type RowKey = (i64, String);

/// A call that has ended waits this long for others that are about to, so that one read and one write serve them all.
/// A call that hangs delays the others by no more than that.
pub(super) const GATHER: Duration = Duration::from_millis(100);
/// An unpublish that said OK this lately is not repeated when only its answer came too late: it is read again. Long enough for
/// a slow list, and no longer: by its next re-sync the attacher may have published the volume again, and then a list that
/// leaves out the node would be all there is to go by.
const READ_ONLY_FOR: Duration = Duration::from_secs(20);

/// What a driver's refusal is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    /// It may succeed later.
    Retry,
    /// It will not: the answer is Failed.
    Stop,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// gRPC code in CamelCase.
    pub code: &'static str,
    /// Whether to try again.
    pub class: FailureClass,
    /// The driver's words.
    pub message: String,
}

/// ControllerUnpublishVolume for a row, as this process knows it. None: this process has not written the row, and what
/// it reads of it may be old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// None yet; this process has written the row as Started.
    Recorded,
    /// Under way.
    Running,
    /// The driver said OK.
    Acknowledged {
        /// When the answer came.
        at: Instant,
        /// The round it was for.
        round: i32,
    },
    /// It failed.
    Failed {
        /// How.
        failure: Failure,
        /// How often in a row.
        attempts: u32,
        /// When the answer came.
        at: Instant,
        /// The round it was for.
        round: i32,
    },
}

impl Call {
    /// When the answer came.
    fn ended(&self) -> Option<Instant> {
        match self {
            Self::Recorded | Self::Running => None,
            Self::Acknowledged { at, .. } | Self::Failed { at, .. } => Some(*at),
        }
    }
}

/// One look at all published nodes of all volumes, every page read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Before the first page was asked for, monotonic.
    pub began: Instant,
    /// When the last page had come.
    pub ended: DateTime<Utc>,
    /// Published node ids by volume handle; a failure when any page is missing.
    pub published: Result<Published, Failure>,
}

/// What a pass sees.
pub struct Seen {
    /// The request.
    pub request: Arc<FenceRequest>,
    /// Calls of this process, by row.
    pub calls: BTreeMap<RowKey, Call>,
    /// A reading made in this pass, for this very request.
    pub reading: Option<Reading>,
    /// Whom the driver, asked in this pass, says to be doing I/O.
    pub busy: Option<Busy>,
    /// Whether addresses that were shut out are let in again, tried in this pass.
    pub let_in: Option<Result<(), Failure>>,
    /// Whether a network fence that was proved still holds, looked at in this pass.
    pub holds: Option<Result<(), Failure>>,
    /// When this process looked at it last.
    pub looked: Option<Instant>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Write these rows at the request's resourceVersion.
    Answer(Vec<FenceResult>),
    /// Send ControllerUnpublishVolume for these rows, side by side.
    Unpublish(Vec<RequestedVolume>),
    /// Shut the node out for these rows, by the NetworkFenceClass of that name.
    NetworkFence {
        /// The class.
        class: String,
        /// The rows.
        volumes: Vec<RequestedVolume>,
    },
}

/// What a pass decided.
#[derive(Debug, Default, PartialEq)]
pub struct Decision {
    /// Unless empty: read the published nodes of the volumes with these handles and decide again with that.
    pub read: BTreeSet<String>,
    /// Unless empty: ask whether these nodes are doing I/O and decide again with that.
    pub ask: Questions,
    /// Let in again whom a network fence shut out, and decide again with what came of it.
    pub let_in: bool,
    /// Look whether a network fence still holds, and decide again with that.
    pub look: bool,
    /// What to do, in order.
    pub effects: Vec<Effect>,
    /// When to look again though nothing changed.
    pub look_again: Option<Duration>,
}

/// Decides the next step.
pub fn decide(seen: &Seen, now: Now) -> Decision {
    match seen.request.spec.desired {
        Desired::Unfenced => unfence::unfence(seen),
        Desired::Fenced => fence(seen, now),
    }
}

fn fence(seen: &Seen, now: Now) -> Decision {
    let mut steps: Vec<(RequestedVolume, Step)> = Vec::new();
    for volume in &seen.request.spec.volumes {
        steps.push((volume.clone(), next(seen, volume, now)));
    }
    let gathering = gather(seen, &steps, now);
    let unread = steps.iter().filter(|(_, step)| matches!(step, Step::Read));
    let read: BTreeSet<_> = unread.map(|(volume, _)| volume.volume_handle.clone()).collect();
    if gathering.is_none() && seen.reading.is_none() && !read.is_empty() {
        return Decision { read, ..Decision::default() };
    }
    let unasked: Vec<_> =
        steps.iter().filter(|(_, step)| matches!(step, Step::Ask)).map(|(volume, _)| volume).collect();
    // A driver that is slow to say must not make the proofs of others old.
    let is_due = |step: &Step| matches!(step, Step::Call | Step::Answer(_));
    if gathering.is_none() && !unasked.is_empty() && !steps.iter().any(|(_, step)| is_due(step)) {
        return Decision { ask: io::questions(seen, unasked), ..Decision::default() };
    }
    let wait = gathering.or((!unasked.is_empty()).then_some(GATHER));
    let mut decision = Decision { look_again: wait, ..Decision::default() };
    let (mut rows, mut calls) = (Vec::new(), Vec::new());
    let mut shut_out: BTreeMap<String, Vec<RequestedVolume>> = BTreeMap::new();
    for (volume, step) in steps {
        match step {
            Step::Answer(row) if gathering.is_none() => rows.push(row),
            Step::Call => match methods::class(&volume, known(&seen.request, &volume)) {
                Some(class) => shut_out.entry(class.to_owned()).or_default().push(volume),
                None => calls.push(volume),
            },
            Step::Wait(wait) => decision.look_again = shorter(decision.look_again, wait),
            Step::Answer(_) | Step::Read | Step::Ask | Step::Done => {}
        }
    }
    // Calls first: they are for rows that are recorded already, and must not wait for a write.
    if !calls.is_empty() {
        decision.effects.push(Effect::Unpublish(calls));
    }
    let fences = shut_out.into_iter().map(|(class, volumes)| Effect::NetworkFence { class, volumes });
    decision.effects.extend(fences);
    if !rows.is_empty() {
        decision.effects.push(Effect::Answer(rows));
    }
    holding::watch(seen, &mut decision, now);
    decision
}

/// How long what there is to read and to write waits for calls under way; `None` when it need not. Rows without a call
/// do not wait, and take the others with them.
fn gather(seen: &Seen, steps: &[(RequestedVolume, Step)], now: Now) -> Option<Duration> {
    let due = steps.iter().filter(|(_, step)| matches!(step, Step::Read | Step::Ask | Step::Answer(_)));
    let ended: Option<Vec<_>> = due.map(|(volume, _)| seen.calls.get(&key(volume))?.ended()).collect();
    let oldest = ended?.into_iter().min()?;
    let left = GATHER.saturating_sub(now.mono.saturating_duration_since(oldest));
    let others_come = seen.calls.values().any(|call| *call == Call::Running);
    (others_come && !left.is_zero()).then_some(left)
}

pub(super) fn shorter(known: Option<Duration>, wait: Option<Duration>) -> Option<Duration> {
    known.into_iter().chain(wait).min()
}

/// What a row needs next.
pub(super) enum Step {
    /// Send the call.
    Call,
    /// Look at the published nodes.
    Read,
    /// Ask whether the node is doing I/O.
    Ask,
    /// Record an answer, or that the row begins; its call then comes in a later pass.
    Answer(FenceResult),
    /// Something is under way.
    Wait(Option<Duration>),
    /// The round is answered.
    Done,
}

fn next(seen: &Seen, volume: &RequestedVolume, now: Now) -> Step {
    let known = known(&seen.request, volume);
    let this_round = known.filter(|row| row.round == volume.round);
    if this_round.is_some_and(|row| matches!(row.result, FenceOutcome::Fenced | FenceOutcome::Failed)) {
        return Step::Done;
    }
    match known.filter(|row| row.started_at.is_some() && row.result != FenceOutcome::Unfenced) {
        None => begin(seen, volume, now),
        Some(begun) => go_on(seen, volume, begun, now),
    }
}

/// The first call of an episode: the node must be seen among the published nodes before, or nothing can be proved
/// after. A row that cannot begin is answered without `startedAt`: nothing was sent.
fn begin(seen: &Seen, volume: &RequestedVolume, now: Now) -> Step {
    let method = methods::noted(volume, known(&seen.request, volume));
    let started = |published_before_at| {
        let started_at = Some(time::stamp(now.wall));
        FenceResult { started_at, published_before_at, method, ..FenceResult::of(volume, FenceOutcome::Started) }
    };
    let verified = volume.minimum_proof >= Proof::Verified && method.is_none();
    let read_at = match &seen.reading {
        // Whose I/O it is tells the list too.
        None if verified || io::is_wanted(seen) => return Step::Read,
        Some(reading) if verified => match look_up(reading, volume) {
            Ok(true) => Some(time::stamp(reading.ended)),
            Ok(false) => {
                let message = "the driver does not list the node as published";
                return Step::Answer(failed(volume, "NeverPublished", message));
            }
            Err(failure) => return Step::Answer(failed(volume, failure.code, &failure.message)),
        },
        _ => None,
    };
    match io::verdict(seen, volume) {
        Verdict::Ask => Step::Ask,
        Verdict::Veto => {
            Step::Answer(failed(volume, IO_IN_PROGRESS, "the driver says that the node is doing I/O on its volumes"))
        }
        Verdict::Begin => Step::Answer(started(read_at)),
    }
}

fn go_on(seen: &Seen, volume: &RequestedVolume, begun: &FenceResult, now: Now) -> Step {
    let method = methods::noted(volume, Some(begun));
    match seen.calls.get(&key(volume)) {
        // Begun before this process led. The store may be behind: only if the row can be written as it is known, nobody
        // else went on with it.
        None => Step::Answer(FenceResult {
            round: volume.round,
            result: FenceOutcome::Started,
            proof: Proof::None,
            method,
            reason: None,
            message: None,
            ..begun.clone()
        }),
        Some(Call::Running) => Step::Wait(None),
        Some(Call::Recorded) => Step::Call,
        Some(Call::Failed { failure, attempts, at, round }) => {
            let keep = FenceResult { round: volume.round, method, ..begun.clone() };
            if *round != volume.round {
                return Step::Call;
            }
            if failure.class == FailureClass::Stop || methods::has_another(volume) {
                return Step::Answer(FenceResult {
                    result: FenceOutcome::Failed,
                    proof: Proof::None,
                    ..told(keep, failure.code, &failure.message)
                });
            }
            if begun.reason.as_deref() != Some(failure.code) || begun.round != volume.round {
                let row = FenceResult { result: FenceOutcome::Started, proof: Proof::None, ..keep };
                return Step::Answer(told(row, failure.code, &failure.message));
            }
            let left = backoff(*attempts).saturating_sub(now.mono.saturating_duration_since(*at));
            if left.is_zero() { Step::Call } else { Step::Wait(Some(left)) }
        }
        Some(Call::Acknowledged { at, round }) => {
            let recent = now.mono.saturating_duration_since(*at) < READ_ONLY_FOR;
            let came_too_late = begun.result == FenceOutcome::Fenced && recent && method.is_none();
            if *round == volume.round || came_too_late { judge(seen, volume, begun, *at) } else { Step::Call }
        }
    }
}

/// Rises from 250 ms to 10 s: an array that was only busy answers soon.
fn backoff(attempts: u32) -> Duration {
    Duration::from_millis(250 << attempts.min(6)).min(Duration::from_secs(10))
}

pub(super) fn known<'a>(request: &'a FenceRequest, volume: &RequestedVolume) -> Option<&'a FenceResult> {
    let rows = request.status.iter().flat_map(|status| &status.volumes);
    rows.into_iter().find(|row| row.episode == volume.episode && row.name == volume.name)
}

/// The key of a requested volume.
pub fn key(volume: &RequestedVolume) -> RowKey {
    (volume.episode, volume.name.clone())
}

fn failed(volume: &RequestedVolume, reason: &str, message: &str) -> FenceResult {
    told(FenceResult::of(volume, FenceOutcome::Failed), reason, message)
}

pub(super) fn told(row: FenceResult, reason: &str, message: &str) -> FenceResult {
    let mut message = message.to_owned();
    conditions::truncate(&mut message, 512);
    FenceResult { reason: Some(reason.into()), message: Some(message), ..row }
}
