//! What a FenceRequest reports, from its rows.

use crate::api::conditions::{self, State};
use crate::api::fence_request::{
    Desired, FenceOutcome, FenceRequest, FenceRequestStatus, FenceResult, GOOD_REASONS, SHUT_OUT,
};
use crate::api::fencing::Proof;
use crate::api::proof::{CLASS_NOT_FOUND, CLASS_OF_ANOTHER_CLUSTER, CLASS_OF_ANOTHER_DRIVER, CLASS_TOO_NEW};
use crate::api::time::Now;

use super::unfence::CSI_ADDONS_MISSING;

/// The status with these rows in place of what was there under their keys.
pub fn compute(request: &FenceRequest, answers: Vec<FenceResult>, now: Now) -> FenceRequestStatus {
    let mut status = request.status.clone().unwrap_or_default();
    for answer in answers {
        match status.volumes.iter_mut().find(|row| row.episode == answer.episode && row.name == answer.name) {
            Some(row) => *row = answer,
            None => status.volumes.push(answer),
        }
    }
    let generation = request.metadata.generation.unwrap_or_default();
    status.observed_generation = Some(generation);
    let wanted = match request.spec.desired {
        Desired::Fenced => FenceOutcome::Fenced,
        Desired::Unfenced => FenceOutcome::Unfenced,
    };
    let answered: Vec<_> = request
        .spec
        .volumes
        .iter()
        .map(|volume| {
            let row = status.volumes.iter().find(|row| row.episode == volume.episode && row.name == volume.name);
            (volume, row.filter(|row| row.round == volume.round))
        })
        .collect();
    let good = answered.iter().filter(|(volume, row)| {
        row.is_some_and(|row| {
            row.result == wanted && (wanted == FenceOutcome::Unfenced || row.proof >= volume.minimum_proof)
        })
    });
    let done = good.count();
    status.progress = Some(format!("{done}/{}", answered.len()));
    status.weakest_proof =
        Some(answered.iter().map(|(_, row)| row.map_or(Proof::None, |row| row.proof)).min().unwrap_or(Proof::None));
    let failing = answered.iter().filter_map(|(_, row)| *row).find(|row| {
        row.result == FenceOutcome::Failed
            || row.result == FenceOutcome::Started && row.reason.is_some()
            || row.result == FenceOutcome::Fenced
                && row.reason.as_deref().is_none_or(|reason| !GOOD_REASONS.contains(&reason))
    });
    let all = done == answered.len();
    let (reason, message) = match (all, wanted, failing) {
        (true, FenceOutcome::Unfenced, _) => ("Unfenced", String::new()),
        (true, _, _) => ("Fenced", String::new()),
        (false, FenceOutcome::Unfenced, row) => ("Unfencing", row.map(message_of).unwrap_or_default()),
        (false, _, Some(row)) => (reason_of(row), message_of(row)),
        (false, _, None) => ("Fencing", String::new()),
    };
    conditions::set(&mut status.conditions, "Ready", State::from(all), reason, message.clone(), generation, now.wall);
    if matches!(reason, "Unimplemented" | "NotPermitted" | CLASS_NOT_FOUND) {
        conditions::set(&mut status.conditions, "Stalled", State::True, reason, message, generation, now.wall);
    } else {
        conditions::remove(&mut status.conditions, "Stalled");
    }
    if all && wanted == FenceOutcome::Unfenced {
        conditions::remove(&mut status.conditions, SHUT_OUT);
    }
    status
}

/// The request with the word that a NetworkFence is about to be made for it.
pub fn shutting_out(request: &FenceRequest, now: Now) -> FenceRequest {
    let mut next = request.clone();
    let generation = request.metadata.generation.unwrap_or_default();
    let conditions = &mut next.status.get_or_insert_default().conditions;
    conditions::set(conditions, SHUT_OUT, State::True, "NetworkFence", "", generation, now.wall);
    next
}

/// The documented reason for a row's own.
fn reason_of(row: &FenceResult) -> &'static str {
    match row.reason.as_deref() {
        Some("Unimplemented") => "Unimplemented",
        Some("PermissionDenied" | "Unauthenticated") => "NotPermitted",
        Some("DeadlineExceeded" | "NetworkFencing" | CLASS_TOO_NEW) => "Timeout",
        Some(CLASS_NOT_FOUND | CLASS_OF_ANOTHER_DRIVER | CLASS_OF_ANOTHER_CLUSTER | CSI_ADDONS_MISSING) => {
            CLASS_NOT_FOUND
        }
        Some("AddressClaimed") => "AddressClaimed",
        Some(
            "AddressesUnknown" | "AddressesChanged" | "AddressUnusable" | "ClientsUnknown" | "ClientsElsewhere"
            | "IdentityAmbiguous",
        ) => "AddressesUnknown",
        Some("NetworkFenceFailed" | "NetworkFenceLifted" | "NetworkFenceChanged" | "BeingUnfenced") => {
            "NetworkFenceFailed"
        }
        Some("Unavailable" | "Cancelled") => "DriverUnavailable",
        _ => "ProofTooWeak",
    }
}

fn message_of(row: &FenceResult) -> String {
    format!(
        "volume {}: {}: {}",
        row.name,
        row.reason.as_deref().unwrap_or_default(),
        row.message.as_deref().unwrap_or_default()
    )
}
