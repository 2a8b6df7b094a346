//! By which of its methods a row is tried. A request has them in the order of the policy; the next one has its turn in the
//! round after one that failed.

use crate::api::fence_request::{FenceOutcome, FenceResult, FencerMethod, FencerMethodType, RequestedVolume};

/// The method of the round that is asked for.
pub fn current<'a>(volume: &'a RequestedVolume, known: Option<&FenceResult>) -> Option<&'a FencerMethod> {
    let Some(known) = known else { return volume.methods.first() };
    let last = position(volume, known);
    let failed = match known.result {
        FenceOutcome::Failed => true,
        FenceOutcome::Fenced => known.proof < volume.minimum_proof,
        FenceOutcome::Started | FenceOutcome::Unfenced => false,
    };
    let next = if failed && known.round < volume.round { last + 1 } else { last };
    volume.methods.get(next % volume.methods.len().max(1))
}

/// Where the method of an answer stands in the list. Only those that are not the usual one are written down.
fn position(volume: &RequestedVolume, known: &FenceResult) -> usize {
    let type_ = known.method.unwrap_or(FencerMethodType::Unpublish);
    volume.methods.iter().position(|method| method.type_ == type_).unwrap_or(0)
}

/// The class by which the row is tried, where that is method NetworkFence.
pub fn class<'a>(volume: &'a RequestedVolume, known: Option<&FenceResult>) -> Option<&'a str> {
    let method = current(volume, known)?;
    (method.type_ == FencerMethodType::NetworkFence).then(|| method.class_name.as_deref().unwrap_or_default())
}

/// Whether there is another method for the row.
pub fn has_another(volume: &RequestedVolume) -> bool {
    volume.methods.len() > 1
}

/// What a row says of its method from its first word on.
pub fn noted(volume: &RequestedVolume, known: Option<&FenceResult>) -> Option<FencerMethodType> {
    class(volume, known).map(|_| FencerMethodType::NetworkFence)
}

#[cfg(test)]
mod tests {
    use crate::api::fencing::Proof;

    use super::*;

    fn volume(methods: &[FencerMethodType], round: i32) -> RequestedVolume {
        let methods = methods.iter().map(|type_| {
            let class_name = (*type_ == FencerMethodType::NetworkFence).then(|| "class".to_owned());
            FencerMethod { type_: *type_, class_name }
        });
        RequestedVolume {
            episode: 1,
            name: "v".into(),
            round,
            uid: None,
            volume_handle: "h".into(),
            node_id: "n".into(),
            attachment_uid: None,
            attach_required: None,
            cluster_id: None,
            minimum_proof: Proof::Acknowledged,
            methods: methods.collect(),
        }
    }

    fn answer(round: i32, result: FenceOutcome, method: Option<FencerMethodType>) -> FenceResult {
        let proof = if result == FenceOutcome::Fenced { Proof::Acknowledged } else { Proof::None };
        FenceResult {
            episode: 1,
            name: "v".into(),
            round,
            result,
            proof,
            method,
            started_at: None,
            published_before_at: None,
            read_back_at: None,
            reason: None,
            message: None,
        }
    }

    #[test]
    fn the_next_method_has_its_turn_after_a_round_that_failed() {
        use FenceOutcome::{Failed, Fenced, Started};
        use FencerMethodType::{NetworkFence, Unpublish};
        let both = &[Unpublish, NetworkFence][..];
        for (methods, round, known, expected) in [
            (both, 1, None, Unpublish),
            (both, 1, Some(answer(1, Failed, None)), Unpublish),
            (both, 2, Some(answer(1, Failed, None)), NetworkFence),
            (both, 2, Some(answer(2, Started, Some(NetworkFence))), NetworkFence),
            (both, 3, Some(answer(2, Failed, Some(NetworkFence))), Unpublish),
            (both, 3, Some(answer(2, Fenced, Some(NetworkFence))), NetworkFence),
            (both, 3, Some(answer(2, Started, None)), Unpublish),
            (&[NetworkFence][..], 1, None, NetworkFence),
            (&[NetworkFence][..], 2, Some(answer(1, Failed, Some(NetworkFence))), NetworkFence),
            (&[Unpublish][..], 2, Some(answer(1, Failed, None)), Unpublish),
        ] {
            let volume = volume(methods, round);
            let is = current(&volume, known.as_ref()).map(|method| method.type_);
            assert_eq!(is, Some(expected), "{methods:?} {round} {known:?}");
            assert_eq!(class(&volume, known.as_ref()).is_some(), expected == NetworkFence);
        }
        assert_eq!(current(&volume(&[], 1), None), None);
    }
}
