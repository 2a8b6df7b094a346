//! The sidecar's decisions, as tables: what is sent, what is recorded before, and what an answer is worth.

mod case;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::DateTime;

use crate::api::fence_request::{Desired, FenceOutcome, FenceResult, RequestedVolume};
use crate::api::fencing::Proof;
use crate::api::time::Now;

use super::decide::{Call, Decision, Effect, Failure, FailureClass, Reading, Seen, decide};
use super::status;

pub(super) use self::case::{Case, HANDLE, NODE};
use self::case::{VOLUME, row};

pub(super) fn sends(decision: &Decision) -> bool {
    decision.effects.iter().any(|effect| matches!(effect, Effect::Unpublish(_)))
}

fn reads(decision: &Decision) -> bool {
    decision.read == BTreeSet::from([HANDLE.to_owned()])
}

#[test]
fn nothing_is_sent_before_the_read_and_the_record() {
    assert!(reads(&Case::new().decide()), "the published nodes are read first");
    let started = Case::new().read(0, &[NODE]).answer();
    assert_eq!(started.result, FenceOutcome::Started);
    assert!(started.started_at.is_some() && started.published_before_at.is_some());
    assert!(!sends(&Case::new().read(0, &[NODE]).decide()), "the call comes in a later pass");
    assert!(sends(&Case::new().begun(1).decide()));
}

#[test]
fn a_volume_that_cannot_be_proved_is_answered_without_a_call() {
    for (case, reason) in [
        (Case::new().read(0, &["another"]), "NeverPublished"),
        (Case { reading: Some(empty_list()), ..Case::new() }, "NotListed"),
        (Case { reading: Some(unreadable()), ..Case::new() }, "Unavailable"),
    ] {
        let answer = case.answer();
        assert_eq!((answer.result, answer.proof), (FenceOutcome::Failed, Proof::None), "{reason}");
        assert_eq!(answer.reason.as_deref(), Some(reason));
        assert_eq!(answer.started_at, None, "{reason}: nothing was sent");
    }
}

#[test]
fn a_volume_that_cannot_be_read_is_no_proof_though_others_are() {
    let failure = Failure { code: "DeadlineExceeded", class: FailureClass::Retry, message: "hangs".into() };
    let published = BTreeMap::from([(HANDLE.to_owned(), Err(failure))]);
    let hangs = |now: Now| Some(Reading { began: now.mono, ended: now.wall, published: Ok(published.clone()) });
    let before = Case { reading: hangs(Case::new().now), ..Case::new() }.answer();
    assert_eq!(
        (before.result, before.reason.as_deref(), before.started_at),
        (FenceOutcome::Failed, Some("DeadlineExceeded"), None)
    );
    let mut after = Case::new().begun(1).acknowledged(5, 1);
    after.reading = hangs(after.now);
    let after = after.answer();
    assert_eq!(
        (after.proof, after.reason.as_deref(), after.read_back_at),
        (Proof::Acknowledged, Some("DeadlineExceeded"), None)
    );
}

fn empty_list() -> Reading {
    Reading {
        began: Instant::now() + Duration::from_secs(3600),
        ended: DateTime::UNIX_EPOCH,
        published: Ok(BTreeMap::new()),
    }
}

fn unreadable() -> Reading {
    let failure = Failure { code: "Unavailable", class: FailureClass::Retry, message: "down".into() };
    Reading { published: Err(failure), ..empty_list() }
}

#[test]
fn verified_needs_the_read_before_the_ok_and_a_read_that_began_after_it() {
    let case = || Case::new().begun(1).acknowledged(5, 1);
    assert!(reads(&case().decide()), "no read yet");
    assert!(case().read(6, &[]).decide().effects.is_empty(), "a read that began before the OK is none");
    let verified = case().read(4, &["another"]).answer();
    assert_eq!((verified.result, verified.proof), (FenceOutcome::Fenced, Proof::Verified));
    assert!(verified.read_back_at.is_some() && verified.started_at.is_some());
    let lie = case().read(4, &[NODE]).answer();
    assert_eq!(
        (lie.result, lie.proof, lie.reason.as_deref()),
        (FenceOutcome::Failed, Proof::None, Some("StillPublished"))
    );
    let mut unseen = case().read(4, &[]);
    unseen.row.as_mut().unwrap().published_before_at = None;
    let weak = unseen.answer();
    assert_eq!((weak.proof, weak.reason.as_deref()), (Proof::Acknowledged, Some("NeverPublished")));
    let unlisted = Case { reading: Some(Reading { began: case().now.mono, ..empty_list() }), ..case() }.answer();
    assert_eq!((unlisted.proof, unlisted.reason.as_deref()), (Proof::Acknowledged, Some("NotListed")));
}

#[test]
fn acknowledged_needs_no_read() {
    let case = || Case { minimum: Proof::Acknowledged, ..Case::new() };
    assert_eq!(case().answer().result, FenceOutcome::Started);
    let fenced = case().begun(1).acknowledged(1, 1).answer();
    assert_eq!((fenced.result, fenced.proof), (FenceOutcome::Fenced, Proof::Acknowledged));
}

#[test]
fn a_raised_round_fences_again_unless_its_ok_only_came_too_late() {
    let asked_again = |result, seconds_ago| {
        let mut case = Case { round: 2, ..Case::new().acknowledged(seconds_ago, 1) };
        case.row = Some(FenceResult { published_before_at: Some(case.now.wall), ..row(result, 1) });
        case
    };
    assert!(reads(&asked_again(FenceOutcome::Fenced, 12).decide()), "a slow array is only read again");
    assert!(sends(&asked_again(FenceOutcome::Fenced, 30).decide()), "an old OK is asked for again");
    assert!(sends(&asked_again(FenceOutcome::Failed, 2).decide()), "a failed fence is tried again");
    let second = Case { round: 2, ..asked_again(FenceOutcome::Failed, 2).acknowledged(1, 2) };
    assert!(!sends(&second.decide()) && reads(&second.decide()), "the OK of this round is judged, not repeated");
}

#[test]
fn after_a_restart_a_begun_row_is_written_again_before_it_is_called() {
    for (known, reason) in
        [(FenceOutcome::Started, None), (FenceOutcome::Started, Some("Unavailable")), (FenceOutcome::Fenced, None)]
    {
        let mut case = Case { round: 2, ..Case::new().begun(1) };
        case.call = None;
        let begun = FenceResult { result: known, reason: reason.map(str::to_owned), ..case.row.take().unwrap() };
        case.row = Some(begun.clone());
        let again = case.answer();
        assert_eq!(
            (again.result, again.proof, again.round, again.reason.clone()),
            (FenceOutcome::Started, Proof::None, 2, None)
        );
        assert_eq!((again.started_at, again.published_before_at), (begun.started_at, begun.published_before_at));
        case.row = Some(again);
        case.call = Some(Call::Recorded);
        assert!(sends(&case.decide()), "what this process has written it may call");
    }
}

/// Two rows; the first call ended so many milliseconds ago, the second is as given.
fn two(ended_ms_ago: u64, second: Option<Call>) -> Decision {
    let case = Case { minimum: Proof::Acknowledged, ..Case::new().begun(1) };
    let mut request = case.request();
    let other =
        RequestedVolume { name: "pv-2".into(), volume_handle: "vol-2".into(), ..request.spec.volumes[0].clone() };
    request.spec.volumes.push(other);
    if second.is_some() {
        let begun = FenceResult { name: "pv-2".into(), ..case.row.clone().unwrap() };
        request.status = Some(status::compute(&request, vec![begun], case.now));
    }
    let at = case.now.mono - Duration::from_millis(ended_ms_ago);
    let first = Some(((1, VOLUME.to_owned()), Call::Acknowledged { at, round: 1 }));
    let calls = first.into_iter().chain(second.map(|call| ((1, "pv-2".to_owned()), call))).collect();
    let request = Arc::new(request);
    let seen = Seen { request, calls, reading: None, busy: None, let_in: None, holds: None, looked: None };
    decide(&seen, case.now)
}

#[test]
fn calls_that_end_together_are_answered_together_and_one_that_hangs_delays_by_a_moment() {
    let rows = |decision: &Decision| match decision.effects.as_slice() {
        [Effect::Answer(rows)] => rows.len(),
        _ => 0,
    };
    let gathering = two(30, Some(Call::Running));
    assert_eq!((rows(&gathering), gathering.look_again), (0, Some(Duration::from_millis(70))));
    assert_eq!(rows(&two(100, Some(Call::Running))), 1, "a call that hangs");
    let at = Case::new().ago(0);
    assert_eq!(rows(&two(30, Some(Call::Acknowledged { at, round: 1 }))), 2, "nothing is under way any more");
    assert_eq!(rows(&two(0, None)), 2, "a row that begins does not wait, and takes the other with it");
}

#[test]
fn grpc_codes_are_answers_or_reasons_to_try_again() {
    let stop = Case::new().begun(1).failed("NotFound", FailureClass::Stop, 0).answer();
    assert_eq!(
        (stop.result, stop.proof, stop.reason.as_deref()),
        (FenceOutcome::Failed, Proof::None, Some("NotFound"))
    );
    let told = Case::new().begun(1).failed("Unavailable", FailureClass::Retry, 0).answer();
    assert_eq!((told.result, told.reason.as_deref()), (FenceOutcome::Started, Some("Unavailable")));
    let mut known = Case::new().begun(1).failed("Unavailable", FailureClass::Retry, 0);
    known.row.as_mut().unwrap().reason = Some("Unavailable".into());
    assert!(known.decide().effects.is_empty() && known.decide().look_again.is_some(), "told once, then waited");
    let known = Case { call: Case::new().failed("Unavailable", FailureClass::Retry, 30).call, ..known };
    assert!(sends(&known.decide()), "and tried again");
}

#[test]
fn unfenced_is_confirmed_once_no_call_is_under_way() {
    let case = |call| Case { desired: Desired::Unfenced, call, ..Case::new().begun(1) };
    assert!(case(Some(Call::Running)).decide().effects.is_empty());
    let answer = case(None).answer();
    assert_eq!(answer.result, FenceOutcome::Unfenced);
    assert!(answer.started_at.is_some(), "that it had begun stays known");
    let untouched = Case { desired: Desired::Unfenced, ..Case::new() }.answer();
    assert_eq!((untouched.result, untouched.started_at), (FenceOutcome::Unfenced, None));
    let confirmed = Case { row: Some(row(FenceOutcome::Unfenced, 1)), ..case(None) };
    assert_eq!(confirmed.decide(), Decision::default(), "nothing is written at rest");
}

#[test]
fn an_answered_round_rests() {
    for result in [FenceOutcome::Fenced, FenceOutcome::Failed] {
        let case = Case { row: Some(row(result, 1)), ..Case::new() };
        assert_eq!(case.decide(), Decision::default(), "{result:?}");
    }
}

#[test]
fn the_conditions_say_what_the_rows_say() {
    let ready = |case: &Case| {
        let status = case.request().status.unwrap();
        let ready = crate::api::conditions::find(&status.conditions, "Ready").unwrap().clone();
        (ready.status, ready.reason, status.progress.unwrap())
    };
    let fenced =
        FenceResult { proof: Proof::Verified, reason: Some("NotPublished".into()), ..row(FenceOutcome::Fenced, 1) };
    let unimplemented = FenceResult { reason: Some("Unimplemented".into()), ..row(FenceOutcome::Failed, 1) };
    let failed = |reason: &str| FenceResult { reason: Some(reason.into()), ..row(FenceOutcome::Failed, 1) };
    for (row, expected) in [
        (fenced, ("True", "Fenced", "1/1")),
        (row(FenceOutcome::Started, 1), ("False", "Fencing", "0/1")),
        (unimplemented, ("False", "Unimplemented", "0/1")),
        (failed("StillPublished"), ("False", "ProofTooWeak", "0/1")),
        (failed("AddressClaimed"), ("False", "AddressClaimed", "0/1")),
        (failed("ClientsUnknown"), ("False", "AddressesUnknown", "0/1")),
        (failed("NetworkFenceFailed"), ("False", "NetworkFenceFailed", "0/1")),
        (failed("ClassOfAnotherDriver"), ("False", "ClassNotFound", "0/1")),
        (failed("ClassTooNew"), ("False", "Timeout", "0/1")),
    ] {
        let (status, reason, progress) = ready(&Case { row: Some(row), ..Case::new() });
        assert_eq!((status.as_str(), reason.as_str(), progress.as_str()), expected);
    }
}
