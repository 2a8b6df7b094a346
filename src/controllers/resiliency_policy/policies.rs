//! What a pass writes to the policies themselves: our finalizer, and their status.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::names;
use crate::api::resiliency_policy::{
    CheckSwitch, CrashLoopDelete, ResiliencyPolicy, ResiliencyPolicyStatus, Restraint, RestraintType,
};
use crate::api::time::{self, Now};
use crate::api::usage::PodView;

use super::decide::{Decision, Effect, Seen};
use super::policy_brakes::PolicyBrakes;
use super::scope::{self, Scope};
use super::{conflict, crash_loops, status};

/// Puts our finalizer on policies, and takes it off those that are deleted and have nothing left to do.
pub(super) fn guard(seen: &Seen, decision: &mut Decision) {
    for policy in &seen.policies {
        let guarded = is_guarded(policy);
        let deleted = policy.metadata.deletion_timestamp.is_some();
        if !deleted && !guarded {
            decision.effects.insert(0, Effect::AddFinalizer(policy.clone()));
        } else if deleted && guarded && status::unfinished(policy, &seen.fences).is_empty() {
            decision.effects.push(Effect::RemoveFinalizer(policy.clone()));
        }
    }
}

fn is_guarded(policy: &ResiliencyPolicy) -> bool {
    policy.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == names::POLICY_FINALIZER)
}

/// Writes the status of every policy that has another than it should.
pub(super) fn record_all(seen: &Seen, brakes: &BTreeMap<&str, PolicyBrakes>, decision: &mut Decision, now: Now) {
    let (conflicts, counts) = (conflicts(seen), scope::counts(seen));
    // A policy that gets its finalizer in this pass is another version afterwards: its status comes with the next.
    for policy in seen.policies.iter().filter(|policy| is_guarded(policy)) {
        let Some(brake) = policy.metadata.name.as_deref().and_then(|name| brakes.get(name)) else { continue };
        let counted = policy.metadata.name.as_ref().and_then(|name| counts.get(name)).cloned().unwrap_or_default();
        let facts = status::Facts {
            protected: counted.protected,
            max_nodes: brake.limit,
            acted_on: brake.acted_on,
            restraints: restraints(policy, brake, now),
            fences: &seen.fences,
            reports: &seen.reports,
            silent_fencers: &seen.silent_fencers,
            missing_fencers: &seen.missing_fencers,
            drivers: counted.drivers,
            unattached: counted.unattached,
            unmovable: counted.unmovable,
            unmoved: &decision.unmoved,
            crash_loop_deletes: crash_loop_deletes(seen, policy, decision, now),
            conflicts: conflicts.as_ref(),
            counts_due: seen.counts_due,
        };
        let wanted = status::compute(policy, &facts, now);
        if policy.status.as_ref() != Some(&wanted) {
            decision.effects.push(record(policy, wanted));
        }
    }
    decision.counts = counts;
}

fn crash_loop_deletes(seen: &Seen, policy: &ResiliencyPolicy, decision: &Decision, now: Now) -> Vec<CrashLoopDelete> {
    let new = policy.metadata.name.as_ref().and_then(|name| decision.crash_loops.recorded.get(name));
    crash_loops::rows(seen, policy, new.map(Vec::as_slice).unwrap_or_default(), now)
}

/// What overrules which policy: looked for when policies have changed, else as often as pods are counted.
fn conflicts(seen: &Seen) -> Option<BTreeMap<String, String>> {
    let is_new = |policy: &ResiliencyPolicy| {
        let observed = policy.status.as_ref().and_then(|status| status.observed_generation);
        observed != policy.metadata.generation || policy.metadata.deletion_timestamp.is_some()
    };
    let due = seen.counts_due || seen.policies.iter().any(|policy| is_new(policy));
    let here = || (seen.scope == Scope::All).then(|| conflict::of(seen));
    if due { seen.conflicts.clone().or_else(here) } else { None }
}

fn record(policy: &ResiliencyPolicy, status: ResiliencyPolicyStatus) -> Effect {
    let mut policy = policy.clone();
    policy.status = Some(status);
    Effect::Record(Box::new(policy))
}

/// `maxItems` of `status.restraints`.
const RESTRAINTS_MAX: usize = 16;

fn restraints(policy: &ResiliencyPolicy, brake: &PolicyBrakes, now: Now) -> Vec<Restraint> {
    let mut restraints: Vec<_> =
        brake.people.iter().chain(&brake.outage).chain(&brake.array).chain(&brake.backends).cloned().collect();
    for domain in &brake.exhausted {
        let is_it = |known: &&Restraint| known.type_ == RestraintType::BudgetExhausted && known.name == *domain;
        let recorded = policy.status.iter().flat_map(|status| &status.restraints).find(is_it);
        let since = recorded.map_or_else(|| time::stamp(now.wall), |known| known.since);
        let name = domain.clone();
        restraints.push(Restraint { type_: RestraintType::BudgetExhausted, name, since, until: None });
    }
    restraints.truncate(RESTRAINTS_MAX);
    restraints
}

/// Drivers that the policy's pods use, where it lets what their arrays say count. What was counted may be older than a pod:
/// those in sight, on which alone this pass can decide anything, are looked at themselves.
pub(super) fn drivers_in_use(seen: &Seen, policy: &ResiliencyPolicy) -> BTreeSet<String> {
    if policy.spec.detection.storage.connectivity_check != CheckSwitch::Enabled {
        return BTreeSet::new();
    }
    let in_sight = seen.pods.values().chain(seen.live.values().map(|live| &live.pods)).flatten();
    let ours = in_sight.filter(|pod| scope::is_protected(seen, policy, pod));
    let used = ours.flat_map(PodView::drivers).map(str::to_owned);
    // Where the pods of all nodes are in sight, to count them adds none.
    let counted = match seen.scope {
        Scope::Nodes(_) => scope::counted(seen, policy).drivers,
        Scope::All => BTreeMap::new(),
    };
    counted.into_keys().chain(used).collect()
}
