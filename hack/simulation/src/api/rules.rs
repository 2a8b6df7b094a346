//! Rules of our own kinds' schemas (their CEL): what a write must not do to what is stored.

use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::node_fence::{NodeFence, VolumeStatusState};

use super::Refusal;

type Checked = Result<(), Refusal>;

fn demand(holds: bool, rule: &str) -> Checked {
    if holds { Ok(()) } else { Err(Refusal::Invalid(rule.to_owned())) }
}

/// The spec of a NodeFence: the plan only grows within an episode, and what people wrote is left
/// alone (admission policy `nodefence-approval`).
pub(super) fn fence_spec(old: &NodeFence, new: &NodeFence) -> Checked {
    let (old, new) = (&old.spec, &new.spec);
    demand(new.episode == old.episode || new.episode == old.episode + 1, "episode only rises, by one")?;
    let dropped = new.episode > old.episode && new.approval.is_none();
    demand(new.hold == old.hold && (new.approval == old.approval || dropped), "people approve and hold")?;
    if new.episode > old.episode {
        return Ok(());
    }
    demand(new.node == old.node, "the frozen identity is immutable within an episode")?;
    demand(new.plan.decided_at == old.plan.decided_at, "decidedAt is immutable within an episode")?;
    demand(
        old.plan.evidence.iter().all(|it| new.plan.evidence.contains(it)),
        "evidence is only added within an episode",
    )?;
    demand(old.policies.iter().all(|policy| new.policies.contains(policy)), "a recorded policy is immutable")?;
    demand(old.plan.pods.iter().all(|row| new.plan.pods.contains(row)), "a planned pod cannot be changed or removed")?;
    demand(old.plan.volumes.iter().all(|row| new.plan.volumes.contains(row)), "a planned volume cannot be changed")
}

/// The status of a NodeFence.
pub(super) fn fence_status(new: &NodeFence) -> Checked {
    let rows = new.status.iter().flat_map(|status| &status.volumes);
    let whole = rows.into_iter().all(|row| {
        let cut_off = matches!(row.state, VolumeStatusState::Fenced | VolumeStatusState::Detached);
        !cut_off || row.proved_at.is_some() && row.method.is_some() && row.committed_at.is_some()
    });
    demand(whole, "a fenced volume needs committedAt, provedAt and method")?;
    let boots = || new.status.iter().flat_map(|status| &status.failed_boot_ids);
    demand(boots().count() <= 16 && boots().all(|id| (1..=64).contains(&id.len())), "16 boots, of 64 characters")
}

/// The spec of a FenceRequest.
pub(super) fn request_spec(old: &FenceRequest, new: &FenceRequest) -> Checked {
    let (old, new) = (&old.spec, &new.spec);
    demand(new.episode == old.episode || new.episode == old.episode + 1, "episode only rises, by one")?;
    demand(new.fencer_name == old.fencer_name && new.node_name == old.node_name, "names are immutable")?;
    if new.episode == old.episode {
        demand(new.node == old.node, "the frozen identity is immutable within an episode")?;
        demand(new.volumes.len() >= old.volumes.len(), "requested volumes cannot be removed within an episode")?;
    }
    for before in &old.volumes {
        let after = new.volumes.iter().find(|it| (it.episode, &it.name) == (before.episode, &before.name));
        let Some(after) = after else { continue };
        demand(after.round >= before.round, "round only rises")?;
        let (round, methods) = (before.round, before.methods.clone());
        let same = bulkhead::api::fence_request::RequestedVolume { round, methods, ..after.clone() };
        let keeps = before.methods.iter().all(|method| after.methods.contains(method));
        demand(same == *before && keeps, "only the round of a requested volume can rise, and its methods become more")?;
    }
    Ok(())
}

/// The answers of a FenceRequest.
pub(super) fn request_status(old: &FenceRequest, new: &FenceRequest) -> Checked {
    use bulkhead::api::fence_request::FenceOutcome;
    use bulkhead::api::fencing::Proof;
    for row in new.status.iter().flat_map(|status| &status.volumes) {
        let proved = row.proof != Proof::None && row.method.is_some();
        demand(row.result != FenceOutcome::Fenced || proved, "a fenced volume needs proof and method")?;
        demand(row.proof != Proof::Verified || row.read_back_at.is_some(), "proof Verified needs readBackAt")?;
        let before = old.status.iter().flat_map(|status| &status.volumes);
        let before = before.into_iter().find(|it| (it.episode, &it.name) == (row.episode, &row.name));
        demand(before.is_none_or(|before| row.round >= before.round), "round only rises")?;
    }
    Ok(())
}
