//! What the answers of fencers are worth for a row: which of them counts, until when, and what the others say.

use std::time::Instant;

use crate::api::conditions;
use crate::api::fence_request::{Desired, FenceOutcome, FenceResult, FencerMethodType};
use crate::api::fencing::{FenceMethodType, Proof};
use crate::api::node_fence::VolumeStatusState;
use crate::api::time::{self, Now};
use crate::mutants::{self, Mutant};

use super::decide::{Asked, PROOF_LIFETIME, Seen};
use super::fencers::{self, Answer};
use super::rows::VolumeRow;
use super::shut_out;

/// What an answer is worth. Ordered: a later one counts for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// It is no proof.
    Weak,
    /// It is, but of another round than this process asked for last.
    OfAnotherRound,
    /// It is, but of the machine that failed, and another one may have its name by now.
    OfAnotherMachine,
    /// It is, but came too late.
    TooLate,
    /// It is, but something was being attached.
    InFlight,
    /// It is a proof that counts.
    Proof,
}

/// Takes in what the fencers have answered for a row. Where several were asked, a proof that counts is told, that of whoever is
/// recorded already if his does; without one, what the last of them says.
pub fn take(seen: &Seen, row: &mut VolumeRow, now: Now) {
    let plan = row.clone();
    let answers = fencers::answers(seen, &plan);
    for answer in &answers {
        commit(row, answer);
    }
    let judged = answers.into_iter().map(|answer| (worth(seen, row, &answer, now), answer));
    let counts = |worth: Worth, answer: &Answer| (worth, worth == Worth::Proof && is_recorded(row, answer.result));
    let Some((worth, answer)) = judged.max_by_key(|(worth, answer)| counts(*worth, answer)) else { return };
    row.fresh = worth == Worth::Proof;
    row.counts_until = if row.fresh { counts_until(seen, row, &answer, now) } else { None };
    match worth {
        Worth::OfAnotherMachine => tell_another_machine(seen, row),
        _ => tell(seen, row, worth, answer.result, now),
    }
}

/// Whether a row names the method of an answer.
fn is_recorded(row: &VolumeRow, result: &FenceResult) -> bool {
    row.status.method == result.method.map(FenceMethodType::from)
}

/// The method that a row names when this answer proves it: that of the answer, for on whose proof it is depends what must not be given
/// back. Where pods may have gone on a network fence it stays that one: by it somebody's lift is answered. That an external fencer has
/// proved the row is on record beside it; but not in a record of before `externalProof`, where the method stays for that.
fn method_of(seen: &Seen, row: &VolumeRow, result: &FenceResult) -> Option<FenceMethodType> {
    let recorded = row.status.method;
    let tells_more = match recorded {
        Some(FenceMethodType::NetworkFence) => true,
        Some(FenceMethodType::External) => row.status.external_proof.is_none(),
        _ => false,
    };
    let stays = tells_more && row.status.proved_at.is_some() && seen.fence.may_have_gone(&row.plan);
    if stays { recorded } else { result.method.map(FenceMethodType::from) }
}

/// The fencer's record is the point of no return. Also where the request was turned round since: the call may have been sent.
fn commit(row: &mut VolumeRow, answer: &Answer) {
    let first = fencers::methods_of(row, answer.fencer).next().map(|method| method.type_);
    if row.status.committed_at.is_none() && answer.result.started_at.is_some() {
        row.status.committed_at = answer.result.started_at;
        row.status.method = answer.result.method.map(FenceMethodType::from).or(first);
    }
}

fn worth(seen: &Seen, row: &VolumeRow, answer: &Answer, now: Now) -> Worth {
    let result = answer.result;
    if !is_proof(row, answer) {
        return Worth::Weak;
    }
    if fencers::is_of_another_machine(seen, row, result) {
        return Worth::OfAnotherMachine;
    }
    let just_now = Asked { round: result.round, at: now.mono, wall: now.wall };
    let asked = fencers::asked(seen, row, answer.fencer);
    let asked = if mutants::is_on(Mutant::StaleProof) { Some(just_now) } else { asked };
    // Another process may have asked again since: a machine that was paused as a whole, its clock with it, learns of it
    // here, if of nothing else.
    let is_last = fencers::round(answer.request, row).is_none_or(|round| round == result.round);
    let Some(asked) = asked.filter(|asked| asked.round == result.round) else { return Worth::OfAnotherRound };
    // A node without power writes nothing, whatever is being attached to it, for as long as its fencer holds it off.
    if result.proof == Proof::PowerOff {
        let held = is_last && answer.request.spec.desired == Desired::Fenced && is_still_off(seen, asked.at);
        return if held || mutants::is_on(Mutant::PowerBelieved) { Worth::Proof } else { Worth::OfAnotherRound };
    }
    // Whoever is let in again may be in already, whatever the row says until that is told.
    let by_network = result.method.map(FenceMethodType::from) == Some(FenceMethodType::NetworkFence);
    if by_network && answer.request.spec.desired != Desired::Fenced {
        return Worth::OfAnotherRound;
    }
    // A machine that slept does not know it by its monotonic clock. A wall clock that was set back proves nothing.
    let by_wall = now.wall.signed_duration_since(asked.wall).to_std().unwrap_or_default();
    let passed = now.mono.saturating_duration_since(asked.at).max(by_wall);
    let in_time = is_last && passed <= PROOF_LIFETIME;
    match (is_settled(seen, row, asked.at), in_time) {
        (true, true) => Worth::Proof,
        (true, false) => Worth::TooLate,
        (false, _) => Worth::InFlight,
    }
}

/// Whether nothing says that the node had power since it was asked: it has not come back, and is no other machine or boot.
/// Else its fencer is asked anew, whatever it has answered; what it answers then counts.
fn is_still_off(seen: &Seen, asked: Instant) -> bool {
    seen.node_changed_at.is_none_or(|changed| asked >= changed)
}

/// Whether it says enough at all. A fencer that did not write Started first passed no point of no return: that is no answer.
/// Nor is one by a method that was not asked for, or stronger than that can give; nor, of a volume that is not attached, an external
/// fencer's that the node has power.
pub fn is_proof(row: &VolumeRow, answer: &Answer) -> bool {
    let result = answer.result;
    let by = result.method.map(FenceMethodType::from);
    let asked_for = fencers::methods_of(row, answer.fencer).any(|method| Some(method.type_) == by);
    let can_give = by.is_some_and(|by| result.proof <= by.best_proof());
    let is_external = by == Some(FenceMethodType::External);
    let is_enough = !row.plan.is_unattached() || !is_external || result.proof == Proof::PowerOff;
    result.result == FenceOutcome::Fenced
        && result.proof >= row.minimum
        && result.started_at.is_some()
        && asked_for
        && can_give
        && is_enough
}

/// Whether all that is attached was so before it was asked.
fn is_settled(seen: &Seen, row: &VolumeRow, asked: Instant) -> bool {
    seen.attachments_of(&row.plan.name).all(|attachment| {
        let uid = attachment.metadata.uid.as_deref().unwrap_or_default();
        attachment.status.attached && seen.attached_since.get(uid).is_some_and(|since| *since <= asked)
    })
}

/// When a proof is too old to act on. One of power does not age, and counts for as long as what was seen of the node does.
fn counts_until(seen: &Seen, row: &VolumeRow, answer: &Answer, now: Now) -> Option<Now> {
    if mutants::is_on(Mutant::StaleProof) {
        return None;
    }
    let asked = || fencers::asked(seen, row, answer.fencer).map(|asked| Now { wall: asked.wall, mono: asked.at });
    let from = if answer.result.proof == Proof::PowerOff { Some(now) } else { asked() };
    from.map(|from| from.after(PROOF_LIFETIME))
}

fn tell(seen: &Seen, row: &mut VolumeRow, worth: Worth, result: &FenceResult, now: Now) {
    // That somebody else was there is kept until a proof that counts, or the first one is there: of a Node that is deleted nothing
    // else tells it.
    let is_of_another_machine = shut_out::is_told(row) && shut_out::is_of_another_machine(seen, row);
    let method = method_of(seen, row, result);
    // What goes from here on rests on this proof, also where all had moved that was planned before.
    let is_in_use = match row.status.state {
        VolumeStatusState::Fenced => true,
        VolumeStatusState::Detached => row.needed,
        _ => false,
    };
    let is_by_another = is_in_use && row.status.method != method;
    let status = &mut row.status;
    if worth == Worth::Proof && result.method == Some(FencerMethodType::External) {
        status.external_proof = Some(result.proof);
    }
    let begun = result.result == FenceOutcome::Started && status.state == VolumeStatusState::Failed;
    if begun || status.state == VolumeStatusState::Pending && status.committed_at.is_some() {
        status.state = VolumeStatusState::Fencing;
    }
    let open =
        matches!(status.state, VolumeStatusState::Pending | VolumeStatusState::Fencing | VolumeStatusState::Failed);
    // A later round may say that the proof of an earlier one holds no more.
    let is_taken_back = match (status.state, result.result) {
        (VolumeStatusState::Fenced, FenceOutcome::Failed | FenceOutcome::Fenced) => true,
        // What is detached is not published again; but addresses that were let in need no publish.
        (VolumeStatusState::Detached, FenceOutcome::Failed) => status.method == Some(FenceMethodType::NetworkFence),
        _ => false,
    };
    match worth {
        Worth::Proof if open || is_by_another => {
            if open {
                status.state = VolumeStatusState::Fenced;
            }
            status.proof = result.proof;
            status.method = method;
            // Power is off now as it was then: what was attached in between was attached to nothing.
            let read_back_at = result.read_back_at.filter(|_| result.proof != Proof::PowerOff);
            status.proved_at = Some(read_back_at.unwrap_or(time::stamp(now.wall)));
            status.reason.clone_from(&result.reason);
            status.message = None;
        }
        Worth::Weak if open || is_taken_back => tell_failure(row, result, is_of_another_machine),
        Worth::InFlight if open => status.reason = Some("AttachInFlight".into()),
        Worth::TooLate if open && !is_of_another_machine => {
            status.reason = Some("AnswerTooLate".into());
            status.message = Some("the proof came more than 10 s after it was asked for; it is read again".into());
        }
        _ => {}
    }
}

/// It was cut off, and by now somebody else may write there: neither a pod nor an attachment goes for it.
fn tell_another_machine(seen: &Seen, row: &mut VolumeRow) {
    if row.status.state != VolumeStatusState::Detached {
        let (reason, message) = shut_out::another_machine(seen);
        row.status.state = VolumeStatusState::Failed;
        row.status.proof = Proof::None;
        row.status.reason = Some(reason.into());
        row.status.message = Some(message);
    }
}

fn tell_failure(row: &mut VolumeRow, result: &FenceResult, keeps_reason: bool) {
    let failed = matches!(result.result, FenceOutcome::Failed | FenceOutcome::Fenced);
    if failed {
        row.status.state = VolumeStatusState::Failed;
    }
    if !keeps_reason && (failed || result.reason.is_some()) {
        row.status.reason = result.reason.clone().or_else(|| Some("ProofTooWeak".into()));
        row.status.message = result.message.clone().map(|mut message| {
            conditions::truncate(&mut message, 512);
            message
        });
    }
    row.status.proof = if result.result == FenceOutcome::Fenced { result.proof } else { Proof::None };
}
