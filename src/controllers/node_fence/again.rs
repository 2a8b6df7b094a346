//! A further round for what has failed, or is proved too weakly, though no pod waits for it any more: the machine must stay cut off, or be
//! shown to be.

use crate::api::fence_request::{FenceRequest, FenceResult};
use crate::api::time::Now;

use super::decide::{Effect, Seen};
use super::rows::{Rows, VolumeRow};
use super::{fencers, requests};

/// The request with the next round for each row whose answer is not what is wanted, and was asked for long enough ago; `None` where there
/// is none.
pub fn raised(
    seen: &Seen,
    rows: &Rows,
    request: &FenceRequest,
    is_short: impl Fn(&VolumeRow, &FenceResult) -> bool,
    now: Now,
) -> Option<Effect> {
    let mut next = request.clone();
    next.status = None;
    let mut is_raised = false;
    for volume in &mut next.spec.volumes {
        let mut named = rows.volumes.iter().filter(|row| row.plan.episode == volume.episode);
        let row = named.find(|row| row.plan.name == volume.name);
        if row.is_some_and(|row| is_due(seen, row, request, volume.round, now, &is_short)) {
            volume.round += 1;
            is_raised = true;
        }
    }
    is_raised.then(|| Effect::AskAgain(Box::new(next)))
}

fn is_due(
    seen: &Seen,
    row: &VolumeRow,
    request: &FenceRequest,
    round: i32,
    now: Now,
    is_short: impl Fn(&VolumeRow, &FenceResult) -> bool,
) -> bool {
    let fencer = request.spec.fencer_name.as_str();
    let answer = fencers::result_in(seen, row, fencer, round);
    let passed = fencers::asked_since(seen, row, fencer, round, now);
    answer.is_some_and(|answer| is_short(row, answer)) && passed.is_none_or(|passed| passed >= requests::backoff(round))
}
