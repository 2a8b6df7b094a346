//! What an answer of the driver is worth.

use std::time::Instant;

use crate::api::fence_request::{FenceOutcome, FenceResult, FencerMethodType, NETWORK_FENCED, RequestedVolume};
use crate::api::fencing::Proof;
use crate::api::time;
use crate::mutants::{self, Mutant};

use super::decide::{Failure, FailureClass, Reading, Seen, Step, told};
use super::methods;

/// What an OK is worth: Acknowledged by itself; Verified when a read that began after it lists the volume without the
/// node, and a read before the first call listed it with the node.
pub(super) fn judge(seen: &Seen, volume: &RequestedVolume, begun: &FenceResult, acknowledged: Instant) -> Step {
    let base = FenceResult { round: volume.round, reason: None, message: None, ..begun.clone() };
    let network = methods::noted(volume, Some(begun));
    let fenced = |proof, reason: &str| FenceResult {
        result: FenceOutcome::Fenced,
        proof,
        method: network.or(Some(FencerMethodType::Unpublish)),
        reason: Some(reason.into()),
        ..base.clone()
    };
    if network.is_some() {
        return Step::Answer(FenceResult { read_back_at: None, ..fenced(Proof::Acknowledged, NETWORK_FENCED) });
    }
    if volume.minimum_proof < Proof::Verified {
        return Step::Answer(FenceResult { read_back_at: None, ..fenced(Proof::Acknowledged, "Acknowledged") });
    }
    if mutants::is_on(Mutant::NoReadBack) {
        let read_back_at = begun.published_before_at;
        return Step::Answer(FenceResult { read_back_at, ..fenced(Proof::Verified, "NotPublished") });
    }
    let Some(reading) = seen.reading.as_ref().filter(|reading| reading.began >= acknowledged) else {
        return Step::Read;
    };
    let read_back_at = Some(time::stamp(reading.ended));
    match look_up(reading, volume) {
        Ok(true) => Step::Answer(FenceResult {
            result: FenceOutcome::Failed,
            proof: Proof::None,
            read_back_at,
            ..told(base, "StillPublished", "the driver said OK and still lists the node as published")
        }),
        Ok(false) if begun.published_before_at.is_some() => {
            Step::Answer(FenceResult { read_back_at, ..fenced(Proof::Verified, "NotPublished") })
        }
        Ok(false) => Step::Answer(FenceResult { read_back_at, ..fenced(Proof::Acknowledged, "NeverPublished") }),
        Err(failure) => Step::Answer(told(fenced(Proof::Acknowledged, failure.code), failure.code, &failure.message)),
    }
}

/// Whether the node is published. A volume that is not listed is no proof of anything.
pub(super) fn look_up(reading: &Reading, volume: &RequestedVolume) -> Result<bool, Failure> {
    let published = reading.published.as_ref().map_err(Clone::clone)?;
    match published.get(&volume.volume_handle) {
        Some(Ok(nodes)) => Ok(nodes.contains(&volume.node_id)),
        Some(Err(failure)) => Err(failure.clone()),
        None => Err(Failure {
            code: "NotListed",
            class: FailureClass::Stop,
            message: format!("the driver does not list volume {}", volume.volume_handle),
        }),
    }
}
