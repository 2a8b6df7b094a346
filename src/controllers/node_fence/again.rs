//! A further round for what has failed though no pod waits for it any more: the machine must stay cut off, or be shown to be.

use crate::api::fence_request::{FenceOutcome, FenceRequest};
use crate::api::time::Now;

use super::decide::{Effect, Seen};
use super::rows::{Rows, VolumeRow};
use super::{fencers, requests};

/// The request with the next round for each row that counts and has failed long enough ago; `None` where there is none.
pub fn raised(
    seen: &Seen,
    rows: &Rows,
    request: &FenceRequest,
    counts: impl Fn(&VolumeRow) -> bool,
    now: Now,
) -> Option<Effect> {
    let mut next = request.clone();
    next.status = None;
    let mut is_raised = false;
    for volume in &mut next.spec.volumes {
        let mut named = rows.volumes.iter().filter(|row| row.plan.episode == volume.episode);
        let row = named.find(|row| row.plan.name == volume.name);
        if row.is_some_and(|row| counts(row) && is_due(seen, row, request, volume.round, now)) {
            volume.round += 1;
            is_raised = true;
        }
    }
    is_raised.then(|| Effect::AskAgain(Box::new(next)))
}

fn is_due(seen: &Seen, row: &VolumeRow, request: &FenceRequest, round: i32, now: Now) -> bool {
    let fencer = request.spec.fencer_name.as_str();
    let answer = fencers::result(seen, row, fencer).filter(|answer| answer.round >= round);
    let has_failed = answer.is_some_and(|answer| answer.result == FenceOutcome::Failed);
    let asked = fencers::asked(seen, row, fencer).filter(|asked| asked.round == round);
    let passed = asked.map(|asked| now.mono.saturating_duration_since(asked.at));
    has_failed && passed.is_none_or(|passed| passed >= requests::backoff(round))
}
