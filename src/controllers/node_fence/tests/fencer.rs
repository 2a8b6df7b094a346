//! How fencers answer, and what the definition of FenceRequest refuses.

use crate::api::conditions::{self, State};
use crate::api::fence_request::{
    Desired, FenceOutcome, FenceRequest, FenceResult, FencerMethodType, RequestedVolume, SHUT_OUT,
};
use crate::api::fencing::Proof;

/// How a fencer behaves.
#[derive(Clone, Debug)]
pub enum Fencer {
    /// Answers with this proof.
    Proves(Proof),
    /// Never writes anything.
    Silent,
    /// Writes Started, then hangs.
    Hangs,
    /// Proves this volume, and never writes anything of the others.
    BeginsOnly(&'static str),
    /// Proves this volume with this proof, and hangs with the others.
    HangsBut(&'static str, Proof),
    /// Writes Started, then why it does not go on yet.
    Waits(&'static str),
    /// Calls, and fails with this reason.
    Fails(&'static str),
    /// Refuses before any call.
    Refuses(&'static str),
}

/// The next thing a fencer writes for a row; `None` while it has nothing to write.
pub fn answer(
    fencer: &Fencer,
    desired: Desired,
    asked: &RequestedVolume,
    known: Option<&FenceResult>,
    now: chrono::DateTime<chrono::Utc>,
) -> Option<FenceResult> {
    let row = known.cloned().unwrap_or_else(|| FenceResult::of(asked, FenceOutcome::Unfenced));
    let begun = known.is_some_and(|it| it.round == asked.round && it.result == FenceOutcome::Started);
    let done = known.is_some_and(|it| it.round == asked.round && it.result != FenceOutcome::Started);
    let round = asked.round;
    if desired == Desired::Unfenced {
        let unfenced = FenceResult { result: FenceOutcome::Unfenced, proof: Proof::None, round, ..row };
        return (known.map(|it| it.result) != Some(FenceOutcome::Unfenced)).then_some(unfenced);
    }
    match fencer {
        Fencer::Silent => None,
        Fencer::BeginsOnly(volume) if asked.name != *volume => None,
        _ if done && known.is_some_and(|it| it.result != FenceOutcome::Unfenced) => None,
        Fencer::Refuses(reason) => {
            Some(FenceResult { result: FenceOutcome::Failed, reason: Some((*reason).into()), round, ..row })
        }
        _ if !begun => {
            let started_at = row.started_at.or(Some(now));
            Some(FenceResult { result: FenceOutcome::Started, proof: Proof::None, started_at, round, ..row })
        }
        Fencer::Hangs => None,
        Fencer::HangsBut(volume, _) if asked.name != *volume => None,
        Fencer::Waits(reason) => {
            let waits = row.reason.as_deref() == Some(reason);
            (!waits).then(|| FenceResult { reason: Some((*reason).into()), ..row })
        }
        Fencer::BeginsOnly(_) => answer(&Fencer::Proves(Proof::Verified), desired, asked, known, now),
        Fencer::Fails(reason) => {
            Some(FenceResult { result: FenceOutcome::Failed, reason: Some((*reason).into()), round, ..row })
        }
        Fencer::HangsBut(_, proof) | Fencer::Proves(proof) => Some(FenceResult {
            result: FenceOutcome::Fenced,
            proof: *proof,
            method: asked.methods.first().map(|method| method.type_),
            published_before_at: Some(now),
            read_back_at: Some(now),
            reason: Some("NotPublished".into()),
            ..row
        }),
    }
}

/// What a sidecar says of a request beside its rows: whether a NetworkFence may shut the node out.
pub fn tell_shut_out(request: &mut FenceRequest, now: chrono::DateTime<chrono::Utc>) {
    let Some(status) = &mut request.status else { return };
    let by_network = |row: &FenceResult| row.method == Some(FencerMethodType::NetworkFence);
    if request.spec.desired == Desired::Fenced && status.volumes.iter().any(by_network) {
        conditions::set(&mut status.conditions, SHUT_OUT, State::True, "NetworkFence", "", 0, now);
    }
    if status.volumes.iter().all(|row| row.result == FenceOutcome::Unfenced) {
        conditions::remove(&mut status.conditions, SHUT_OUT);
    }
}

/// What the definition of FenceRequest refuses.
pub fn check_request(before: &FenceRequest, after: &FenceRequest) {
    let (old, new) = (&before.spec, &after.spec);
    assert!(new.episode == old.episode || new.episode == old.episode + 1, "episode only rises, by one");
    assert!(new.episode > old.episode || new.node == old.node, "the frozen identity is immutable");
    for row in &old.volumes {
        let now = new.volumes.iter().find(|it| (it.episode, &it.name) == (row.episode, &row.name));
        let now = now.unwrap_or_else(|| panic!("requested volume {} was removed", row.name));
        assert!(now.round >= row.round, "round only rises");
        assert!(row.methods.iter().all(|method| now.methods.contains(method)), "methods become more, and never fewer");
        let same = RequestedVolume { round: row.round, methods: row.methods.clone(), ..now.clone() };
        assert_eq!(same, *row, "a requested volume cannot be changed");
    }
}
