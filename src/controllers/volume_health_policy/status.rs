//! What a VolumeHealthPolicy reports. Pure.

use crate::api::conditions::{self, State};
use crate::api::time::Now;
use crate::api::volume_health_policy::{Enforcement, VolumeHealthPolicy, VolumeHealthPolicyStatus};

use super::decide::Counts;

/// The status that the policy should have. Counts change with every volume, so they are written only when `counts_due`;
/// what a policy has never told is told at once.
pub fn compute(
    policy: &VolumeHealthPolicy,
    counts: &Counts,
    can_enforce: bool,
    counts_due: bool,
    now: Now,
) -> VolumeHealthPolicyStatus {
    let mut status = policy.status.clone().unwrap_or_default();
    let generation = policy.metadata.generation.unwrap_or_default();
    let is_new = status.observed_generation != policy.metadata.generation || status.volumes.is_none();
    status.observed_generation = policy.metadata.generation;
    if counts_due || is_new {
        status.volumes = Some(counts.volumes);
        status.unhealthy = Some(counts.unhealthy);
        status.overruled = Some(counts.overruled);
    }
    let (state, reason, message) = ready(policy, counts, can_enforce);
    let mut set = |type_: &str, state, reason: &str, message: String| {
        conditions::set(&mut status.conditions, type_, state, reason, message, generation, now.wall);
    };
    set("Ready", state, reason, message);
    match &counts.rival {
        Some((rival, winner)) => {
            let remedy = "give them different priorities";
            let message = format!("VolumeHealthPolicy {rival} has the same priority; {winner} rules: {remedy}");
            set("Conflict", State::True, "SamePriority", message);
        }
        None => conditions::remove(&mut status.conditions, "Conflict"),
    }
    status
}

/// Whether the counts of the record are these.
pub fn shows(policy: &VolumeHealthPolicy, counts: &Counts) -> bool {
    let shown = policy.status.as_ref().map(|status| (status.volumes, status.unhealthy, status.overruled));
    shown == Some((Some(counts.volumes), Some(counts.unhealthy), Some(counts.overruled)))
}

fn ready(policy: &VolumeHealthPolicy, counts: &Counts, can_enforce: bool) -> (State, &'static str, String) {
    if policy.spec.enforcement == Enforcement::Enforce && !can_enforce {
        let remedy = "taints are only reported: kubectl apply --server-side -k config/policies";
        return (State::False, "AdmissionPolicyMissing", remedy.into());
    }
    match (counts.volumes, counts.overruled) {
        (0, 0) => (State::True, "NothingSelected", "no PersistentVolume is selected now".into()),
        (0, _) => (State::True, "Accepted", "every volume that it selects is ruled by another policy".into()),
        _ => (State::True, "Accepted", "the selected volumes are watched".into()),
    }
}
