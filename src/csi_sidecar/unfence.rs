//! The end of a fence: nothing is sent any more, and whom a network fence shut out is let in again.

use std::time::Duration;

use crate::api::fence_request::{FenceOutcome, FenceResult, FencerMethodType, RequestedVolume};

use super::decide::{Call, Decision, Effect, Failure, GATHER, Seen, known, told};

/// csi-addons is not installed.
pub const CSI_ADDONS_MISSING: &str = "CsiAddonsMissing";
/// How soon is looked again whether whom a network fence shut out is let in.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How soon when what is waited for is told already: that may be a person, and each look lists fences and requests.
const LOOK_LATER: Duration = Duration::from_secs(10);

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
    // Without that word nobody has made a NetworkFence, whatever was tried: there is nothing to lift, and nobody to ask.
    if !open.is_empty() && seen.request.shuts_out() {
        match &seen.let_in {
            None => return Decision { let_in: true, ..Decision::default() },
            Some(Err(failure)) => return still_shut_out(seen, failure),
            Some(Ok(())) => {}
        }
    }
    let rows: Vec<_> = open
        .into_iter()
        .map(|volume| {
            let begun = known(&seen.request, volume).and_then(|row| row.started_at);
            FenceResult { started_at: begun, ..FenceResult::of(volume, FenceOutcome::Unfenced) }
        })
        .collect();
    let effects = if rows.is_empty() { Vec::new() } else { vec![Effect::Answer(rows)] };
    Decision { effects, ..Decision::default() }
}

/// Tells what the end of a network fence waits for. What was answered stays: the node is shut out.
fn still_shut_out(seen: &Seen, failure: &Failure) -> Decision {
    let rows = seen.request.status.iter().flat_map(|status| &status.volumes);
    let begun: Vec<_> = rows.filter(|row| row.started_at.is_some() && row.result != FenceOutcome::Unfenced).collect();
    let by_network = |row: &&&FenceResult| row.method == Some(FencerMethodType::NetworkFence);
    let mut shut_out: Vec<_> = begun.iter().filter(by_network).copied().collect();
    // By now they may all be cut off by another method: then the first of them tells it.
    if shut_out.is_empty() {
        shut_out.extend(begun.first());
    }
    let told = shut_out.into_iter().map(|row| (row, told(row.clone(), failure.code, &failure.message)));
    // What a storage says in its message may be another text each time.
    let news: Vec<_> = told.filter(|(row, told)| row.reason != told.reason).map(|(_, told)| told).collect();
    let wait = if news.is_empty() { LOOK_LATER } else { LOOK_AGAIN };
    let effects = if news.is_empty() { Vec::new() } else { vec![Effect::Answer(news)] };
    Decision { effects, look_again: Some(wait), ..Decision::default() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use chrono::DateTime;
    use serde_json::json;

    use crate::api::fence_request::{FenceRequest, SHUT_OUT};
    use crate::api::time::Now;

    use super::super::decide::FailureClass;
    use super::super::status;
    use super::*;

    fn now() -> Now {
        Now { wall: DateTime::from_timestamp(1_700_000_000, 0).unwrap(), mono: std::time::Instant::now() }
    }

    /// A request that was turned round, with a row that this method answered last.
    fn turned_round(method: &str) -> FenceRequest {
        serde_json::from_value(json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "FenceRequest", "metadata": { "name": "n1-x" },
            "spec": {
                "fencerName": "csi.example.com", "nodeName": "n1", "episode": 1, "desired": "Unfenced", "callTimeout": "5s",
                "node": { "uid": "uid-n1" },
                "volumes": [{
                    "episode": 1, "name": "v", "round": 1, "volumeHandle": "h", "nodeID": "id-n1",
                    "minimumProof": "Acknowledged",
                    "methods": [{ "type": "Unpublish" }, { "type": "NetworkFence", "className": "file-fence" }],
                }],
            },
            "status": { "volumes": [{
                "episode": 1, "name": "v", "round": 1, "result": "Fenced", "proof": "Acknowledged", "method": method,
                "startedAt": "2026-01-01T00:00:00Z",
            }] },
        }))
        .unwrap()
    }

    fn decide(request: &FenceRequest, let_in: Option<Result<(), Failure>>) -> Decision {
        let request = Arc::new(request.clone());
        unfence(&Seen { request, calls: BTreeMap::new(), reading: None, busy: None, let_in, holds: None, looked: None })
    }

    fn answer(decision: &Decision) -> Option<(FenceOutcome, &str)> {
        match decision.effects.as_slice() {
            [Effect::Answer(rows)] => rows.first().map(|row| (row.result, row.reason.as_deref().unwrap_or_default())),
            _ => None,
        }
    }

    fn failure() -> Failure {
        let message = "csi-addons: networkfences is forbidden".into();
        Failure { code: "PermissionDenied", class: FailureClass::Stop, message }
    }

    #[test]
    fn where_no_fence_was_made_there_is_nothing_to_lift() {
        let decision = decide(&turned_round("Unpublish"), None);
        assert_eq!(answer(&decision), Some((FenceOutcome::Unfenced, "")), "nobody is asked");
    }

    #[test]
    fn one_that_was_made_is_lifted_first_and_the_wait_is_told_whatever_the_rows_say() {
        for method in ["Unpublish", "NetworkFence"] {
            let request = status::shutting_out(&turned_round(method), now());
            assert!(decide(&request, None).let_in, "{method}");
            let waits = decide(&request, Some(Err(failure())));
            assert_eq!(answer(&waits), Some((FenceOutcome::Fenced, "PermissionDenied")), "{method}");
            assert_eq!(waits.look_again, Some(LOOK_AGAIN), "{method}");
            let [Effect::Answer(rows)] = waits.effects.as_slice() else { panic!("{waits:?}") };
            let mut told = request.clone();
            told.status = Some(status::compute(&request, rows.clone(), now()));
            assert!(told.shuts_out(), "{method}");
            let again = decide(&told, Some(Err(Failure { message: "in other words".into(), ..failure() })));
            assert_eq!((answer(&again), again.look_again), (None, Some(LOOK_LATER)), "{method}: told once");
            let lifted = decide(&told, Some(Ok(())));
            assert_eq!(answer(&lifted), Some((FenceOutcome::Unfenced, "")), "{method}");
            let [Effect::Answer(rows)] = lifted.effects.as_slice() else { panic!("{lifted:?}") };
            told.status = Some(status::compute(&told.clone(), rows.clone(), now()));
            let conditions = told.status.iter().flat_map(|status| &status.conditions);
            assert!(conditions.into_iter().all(|condition| condition.type_ != SHUT_OUT), "{method}");
        }
    }
}
