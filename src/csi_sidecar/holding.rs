//! A network fence has to hold until the node is clean: who lets its addresses in lets the node write on. So after the proof it is
//! looked at on a slow pace, and told when it was lifted: then the controller asks for the next round, which makes another.

use std::time::Duration;

use crate::api::fence_request::{FenceOutcome, FenceResult, FencerMethodType, RequestedVolume};
use crate::api::fencing::Proof;
use crate::api::time::Now;

use super::decide::{Decision, Effect, Seen, known, shorter, told};

/// How often a fence that was proved is looked at.
const LOOK: Duration = Duration::from_secs(30);

/// Adds to a decision that has nothing else to do whether the fence is looked at, and what came of it.
pub(super) fn watch(seen: &Seen, decision: &mut Decision, now: Now) {
    let held: Vec<_> = seen.request.spec.volumes.iter().filter_map(|volume| shut_out(seen, volume)).collect();
    if held.is_empty() || !decision.effects.is_empty() {
        return;
    }
    let left = seen.looked.map_or(Duration::ZERO, |at| LOOK.saturating_sub(now.mono.saturating_duration_since(at)));
    match &seen.holds {
        Some(Err(failure)) => {
            let failed =
                |row: &FenceResult| FenceResult { result: FenceOutcome::Failed, proof: Proof::None, ..row.clone() };
            let rows = held.into_iter().map(|row| told(failed(row), failure.code, &failure.message)).collect();
            decision.effects.push(Effect::Answer(rows));
        }
        None if left.is_zero() => decision.look = true,
        Some(Ok(())) if left.is_zero() => decision.look_again = shorter(decision.look_again, Some(LOOK)),
        Some(Ok(())) | None => decision.look_again = shorter(decision.look_again, Some(left)),
    }
}

/// The row of a volume from which a network fence keeps the node, as it was answered last.
fn shut_out<'a>(seen: &'a Seen, volume: &RequestedVolume) -> Option<&'a FenceResult> {
    known(&seen.request, volume).filter(|row| {
        row.round == volume.round
            && row.result == FenceOutcome::Fenced
            && row.method == Some(FencerMethodType::NetworkFence)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Instant;

    use chrono::DateTime;
    use serde_json::json;

    use crate::api::fence_request::FenceRequest;

    use super::super::decide::{Failure, FailureClass, decide};
    use super::*;

    fn seen(method: &str, round: i32, looked: Option<Instant>, holds: Option<Result<(), Failure>>) -> Seen {
        let request: FenceRequest = serde_json::from_value(json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "FenceRequest", "metadata": { "name": "n1-x" },
            "spec": {
                "fencerName": "csi.example.com", "nodeName": "n1", "episode": 1, "desired": "Fenced", "callTimeout": "5s",
                "node": { "uid": "uid-n1" },
                "volumes": [{
                    "episode": 1, "name": "v", "round": round, "volumeHandle": "h", "nodeID": "id-n1",
                    "minimumProof": "Acknowledged", "methods": [{ "type": method, "className": "file-fence" }],
                }],
            },
            "status": { "volumes": [{
                "episode": 1, "name": "v", "round": 1, "result": "Fenced", "proof": "Acknowledged", "method": method,
                "startedAt": "2026-01-01T00:00:00Z",
            }] },
        }))
        .unwrap();
        Seen {
            request: Arc::new(request),
            calls: BTreeMap::new(),
            reading: None,
            busy: None,
            let_in: None,
            holds,
            looked,
        }
    }

    #[test]
    fn a_fence_that_was_proved_is_looked_at_slowly_and_one_that_was_lifted_is_told() {
        let mono = Instant::now() + Duration::from_secs(3600);
        let now = Now { wall: DateTime::from_timestamp(1_700_000_000, 0).unwrap(), mono };
        let ago = |seconds| Some(mono - Duration::from_secs(seconds));
        let lifted = || {
            let message = "NetworkFence of-rook lets the same addresses in".into();
            Some(Err(Failure { code: "NetworkFenceLifted", class: FailureClass::Stop, message }))
        };
        for (name, looked, expected) in
            [("never", None, true), ("just now", ago(1), false), ("long ago", ago(30), true)]
        {
            let decision = decide(&seen("NetworkFence", 1, looked, None), now);
            assert_eq!((decision.look, decision.look_again.is_some()), (expected, !expected), "{name}");
            assert_eq!(decision.effects, [], "{name}");
        }
        let holds = decide(&seen("NetworkFence", 1, ago(0), Some(Ok(()))), now);
        assert_eq!((holds.look, holds.look_again, holds.effects), (false, Some(LOOK), Vec::new()));
        let told = decide(&seen("NetworkFence", 1, ago(0), lifted()), now);
        let [Effect::Answer(rows)] = told.effects.as_slice() else { panic!("{told:?}") };
        let row = rows.first().map(|row| (row.result, row.proof, row.reason.as_deref(), row.started_at.is_some()));
        assert_eq!(row, Some((FenceOutcome::Failed, Proof::None, Some("NetworkFenceLifted"), true)));
        for other in [seen("Unpublish", 1, None, lifted()), seen("NetworkFence", 2, None, lifted())] {
            let decision = decide(&other, now);
            assert!(!decision.look, "{:?}", other.request);
            let is_failed = |effect: &Effect| matches!(effect, Effect::Answer(rows) if rows.iter().any(|row| row.result == FenceOutcome::Failed));
            assert!(!decision.effects.iter().any(is_failed), "{decision:?}");
        }
    }
}
