//! The end of a fence: nothing is sent any more, and whom a network fence shut out is let in again.

use std::time::Duration;

use crate::api::fence_request::{FenceOutcome, FenceResult, FencerMethodType, RequestedVolume};
use crate::api::fencing::Proof;

use super::decide::{Call, Decision, Effect, Failure, GATHER, Seen, known, row, told};
use super::methods;

/// csi-addons is not installed.
pub const CSI_ADDONS_MISSING: &str = "CsiAddonsMissing";
/// How soon is looked again whether whom a network fence shut out is let in.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Nothing is sent any more. Access is given back by Kubernetes' own publish, so Unfenced confirms that no call of
/// ours is under way.
pub fn unfence(seen: &Seen) -> Decision {
    if seen.calls.values().any(|call| *call == Call::Running) {
        return Decision { look_again: Some(GATHER), ..Decision::default() };
    }
    let is_open = |volume: &&RequestedVolume| {
        known(&seen.request, volume).is_none_or(|row| row.result != FenceOutcome::Unfenced || row.round != volume.round)
    };
    let open: Vec<_> = seen.request.spec.volumes.iter().filter(is_open).collect();
    if !open.is_empty() && methods::may_have_fenced_addresses(&seen.request) {
        match &seen.let_in {
            None => return Decision { let_in: true, ..Decision::default() },
            Some(Err(failure)) if !is_nothing_to_lift(seen, failure) => return still_shut_out(seen, failure),
            Some(_) => {}
        }
    }
    let rows: Vec<_> = open
        .into_iter()
        .map(|volume| {
            let begun = known(&seen.request, volume).and_then(|row| row.started_at);
            FenceResult { started_at: begun, ..row(volume, FenceOutcome::Unfenced, Proof::None) }
        })
        .collect();
    let effects = if rows.is_empty() { Vec::new() } else { vec![Effect::Answer(rows)] };
    Decision { effects, ..Decision::default() }
}

/// Without csi-addons nothing was ever shut out for rows that it did not confirm.
fn is_nothing_to_lift(seen: &Seen, failure: &Failure) -> bool {
    let mut rows = seen.request.status.iter().flat_map(|status| &status.volumes);
    let confirmed =
        |row: &FenceResult| row.method == Some(FencerMethodType::NetworkFence) && row.result != FenceOutcome::Failed;
    failure.code == CSI_ADDONS_MISSING && !rows.any(|row| row.started_at.is_some() && confirmed(row))
}

/// Tells what the end of a network fence waits for. What was answered stays: the node is shut out.
fn still_shut_out(seen: &Seen, failure: &Failure) -> Decision {
    let rows = seen.request.status.iter().flat_map(|status| &status.volumes);
    let shut_out = rows.filter(|row| row.method == Some(FencerMethodType::NetworkFence) && row.started_at.is_some());
    let told = shut_out
        .filter(|row| row.result != FenceOutcome::Unfenced)
        .map(|row| (row, told(row.clone(), failure.code, &failure.message)));
    let news: Vec<_> = told.filter(|(row, told)| *row != told).map(|(_, told)| told).collect();
    let effects = if news.is_empty() { Vec::new() } else { vec![Effect::Answer(news)] };
    Decision { effects, look_again: Some(LOOK_AGAIN), ..Decision::default() }
}
