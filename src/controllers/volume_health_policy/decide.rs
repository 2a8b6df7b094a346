//! What the policies report. One pass over all of them: which one rules a volume is a question among policies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use crate::api::slim::PersistentVolume;
use crate::api::time::Now;
use crate::api::volume_health::Phase;
use crate::api::volume_health_policy::{VolumeHealthPolicy, VolumeHealthPolicyStatus, ruling};

use super::status;

/// What a pass sees.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// All policies.
    pub policies: Vec<Arc<VolumeHealthPolicy>>,
    /// All volumes.
    pub volumes: Vec<Arc<PersistentVolume>>,
    /// Phases of the VolumeHealths, by name.
    pub phases: BTreeMap<String, Phase>,
    /// The admission policies that enforce a taint are in force.
    pub can_enforce: bool,
    /// When counts may be written again; at once if zero. They change with every volume.
    pub counts_due_in: Duration,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Write the status at the resourceVersion of the policy.
    Record {
        /// The policy as it was seen.
        policy: Arc<VolumeHealthPolicy>,
        /// The status that it should have.
        status: Box<VolumeHealthPolicyStatus>,
    },
}

/// What to do next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// What to do, in order.
    pub effects: Vec<Effect>,
    /// When time alone may change the decision.
    pub look_again: Option<Duration>,
}

/// What a policy has to do with the volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// It rules them.
    pub volumes: u32,
    /// Of these, Unhealthy.
    pub unhealthy: u32,
    /// It selects them, and another rules them.
    pub overruled: u32,
    /// A policy of the same priority that selects some of its volumes too, and the one of both that wins.
    pub rival: Option<(String, String)>,
}

/// Says what each policy should report.
pub fn decide(seen: &Seen, now: Now) -> Decision {
    let counts = count(seen);
    let live = seen.policies.iter().filter(|policy| policy.metadata.deletion_timestamp.is_none());
    let mut decision = Decision::default();
    for policy in live {
        let counts = counts.get(&policy.name_any()).cloned().unwrap_or_default();
        let due = seen.counts_due_in.is_zero();
        let wanted = status::compute(policy, &counts, seen.can_enforce, due, now);
        if policy.status.as_ref() != Some(&wanted) {
            decision.effects.push(Effect::Record { policy: policy.clone(), status: Box::new(wanted) });
        } else if !due && !status::shows(policy, &counts) {
            decision.look_again = Some(seen.counts_due_in);
        }
    }
    decision
}

/// Goes through the volumes once.
fn count(seen: &Seen) -> BTreeMap<String, Counts> {
    let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
    for volume in &seen.volumes {
        let policies = seen.policies.iter().map(Arc::as_ref);
        let selecting: Vec<_> = policies
            .filter(|policy| policy.metadata.deletion_timestamp.is_none() && policy.spec.selector.matches(volume))
            .collect();
        let Some(first) = ruling(selecting.iter().copied(), volume) else { continue };
        let unhealthy = seen.phases.get(&volume.name_any()) == Some(&Phase::Unhealthy);
        for policy in &selecting {
            let is_rival = |other: &&&VolumeHealthPolicy| {
                other.spec.priority == policy.spec.priority && other.name_any() != policy.name_any()
            };
            let rival = selecting.iter().find(is_rival).map(|other| other.name_any());
            let of_policy = counts.entry(policy.name_any()).or_default();
            if policy.name_any() == first.name_any() {
                of_policy.volumes += 1;
                of_policy.unhealthy += u32::from(unhealthy);
            } else {
                of_policy.overruled += 1;
            }
            if of_policy.rival.is_none() {
                of_policy.rival = rival.map(|rival| {
                    let winner = rival.clone().min(policy.name_any());
                    (rival, winner)
                });
            }
        }
    }
    counts
}
