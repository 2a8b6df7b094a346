//! How much may be acted on at once, and when the observer must be wrong. Decisions over the whole cluster; every
//! brake is durable: it is computed from NodeFences and the policy's own status.

use chrono::{DateTime, TimeDelta, Utc};

use crate::api::limits::IntOrPercent;
use crate::api::node_fence::{NodeFence, Phase};
use crate::api::resiliency_policy::{Limits, ResiliencyPolicy, Restraint, RestraintType};
use crate::api::time;

/// What the brakes look at.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// All Node objects.
    pub nodes: usize,
    /// Those that are suspected now.
    pub suspected: usize,
}

/// Nodes the policy may act on within its window.
pub fn limit(limits: &Limits, nodes: usize) -> usize {
    let ceiling = usize::try_from(limits.ceiling).unwrap_or(0);
    limits.max_nodes.resolve(nodes).max(1).min(ceiling)
}

/// Nodes that count against the limit.
pub fn acted_on(policy: &ResiliencyPolicy, fences: &[impl AsRef<NodeFence>], now: DateTime<Utc>) -> usize {
    fences.iter().filter(|fence| counts(policy, fence.as_ref(), now)).count()
}

/// Whether the node of that NodeFence counts against the policy's limit already: another episode of it is no further
/// node. One of which nothing is left but that a person says that its machine is off counts by the window alone: no pod goes by
/// it any more, and Nodes of dead machines are deleted as a matter of course.
pub fn counts(policy: &ResiliencyPolicy, fence: &NodeFence, now: DateTime<Utc>) -> bool {
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    let window = TimeDelta::from_std(policy.spec.limits.window.get()).unwrap_or(TimeDelta::MAX);
    let recent = |at: DateTime<Utc>| now.signed_duration_since(at) < window;
    let mut history = fence.status.iter().flat_map(|status| &status.history);
    let is_all_but_over = has_no_pod_left(fence) && fence.waits_for_word_of_its_machine();
    let is_acted_on = in_progress(fence) && !is_all_but_over;
    fence.spec.policies.iter().any(|p| p.name == name)
        && (is_acted_on || recent(fence.spec.plan.decided_at) || history.any(|past| recent(past.decided_at)))
}

/// Whether the NodeFence is not Recovered.
pub fn in_progress(fence: &NodeFence) -> bool {
    phase(fence) != Phase::Recovered
}

/// Whether no pod waits for its volumes any more, or for its end; a fencer that was asked for them may be silent for ever. Of a plan
/// that has grown since the record says nothing.
fn has_no_pod_left(fence: &NodeFence) -> bool {
    let observed = fence.status.as_ref().and_then(|status| status.observed_generation);
    let is_recorded = observed == fence.metadata.generation;
    is_recorded && matches!(phase(fence), Phase::PodsReleased | Phase::Detached | Phase::Cleaning)
}

/// The phase of the episode that is planned. A status that still tells of the one before says nothing about it.
pub fn phase(fence: &NodeFence) -> Phase {
    let status = fence.status.as_ref();
    let decided = status.and_then(|status| status.timeline.as_ref()).and_then(|timeline| timeline.decided_at);
    let phase = status.and_then(|status| status.phase).filter(|_| decided == Some(fence.spec.plan.decided_at));
    phase.unwrap_or(Phase::Planned)
}

/// Whether so many nodes are suspected that the observer or the network must be at fault. All nodes at once always
/// are.
pub fn is_outage(limits: &Limits, cluster: Cluster) -> bool {
    let too_many = match &limits.max_unhealthy {
        IntOrPercent::Int(max) => cluster.suspected > *max as usize,
        IntOrPercent::Percent(text) => {
            let percent: usize = text.strip_suffix('%').and_then(|p| p.parse().ok()).unwrap_or(0);
            cluster.suspected * 100 > percent * cluster.nodes
        }
    };
    cluster.suspected > 0 && (too_many || cluster.suspected >= cluster.nodes)
}

/// The outage brake of a policy: the outage while it lasts, then its cool-down. `exceeded_for` is the time since this
/// process last saw the outage, for the moment before its own status write is visible.
pub fn outage_restraint(
    policy: &ResiliencyPolicy,
    cluster: Cluster,
    exceeded_for: Option<std::time::Duration>,
    now: DateTime<Utc>,
) -> Option<Restraint> {
    let now = time::stamp(now);
    let recorded = policy.status.as_ref().map(|status| status.restraints.as_slice()).unwrap_or_default();
    let recorded = |type_| recorded.iter().find(|restraint| restraint.type_ == type_);
    let outage = recorded(RestraintType::CorrelatedOutage);
    if is_outage(&policy.spec.limits, cluster) {
        let since = outage.map_or(now, |restraint| restraint.since);
        return Some(Restraint { type_: RestraintType::CorrelatedOutage, name: None, since, until: None });
    }
    let cooldown = policy.spec.limits.cooldown.get();
    let length = TimeDelta::from_std(cooldown).unwrap_or(TimeDelta::MAX);
    let until = |from: DateTime<Utc>| from.checked_add_signed(length).unwrap_or(DateTime::<Utc>::MAX_UTC);
    let cooling = |since, until| Restraint { type_: RestraintType::Cooldown, name: None, since, until: Some(until) };
    if outage.is_some()
        || exceeded_for.is_some_and(|passed| passed < cooldown && recorded(RestraintType::Cooldown).is_none())
    {
        return (!cooldown.is_zero()).then(|| cooling(now, until(now)));
    }
    recorded(RestraintType::Cooldown).filter(|restraint| restraint.until.is_some_and(|until| now < until)).cloned()
}

/// The brake on moves for the sake of storage: while volumes of so many nodes are tainted, or so many have lost a path, that
/// the arrays or whoever looks at them must be at fault, and a cool-down after that. Kept in the policy's status like the
/// other.
pub fn array_restraint(
    policy: &ResiliencyPolicy,
    troubled: Option<Cluster>,
    exceeded_for: Option<std::time::Duration>,
    now: DateTime<Utc>,
) -> Option<Restraint> {
    let is_out = troubled.is_some_and(|cluster| is_outage(&policy.spec.limits, cluster));
    array_outage(policy, None, Some(is_out), exceeded_for, policy.spec.limits.cooldown.get(), now)
}

/// The brake of an array, or of all whose volumes are tainted: the outage while it lasts, then a calm. `is_out` is nothing
/// while it is not known; `exceeded_for` is the time since this process last saw the outage, for the moment before its own
/// status write is visible.
pub fn array_outage(
    policy: &ResiliencyPolicy,
    name: Option<&str>,
    is_out: Option<bool>,
    exceeded_for: Option<std::time::Duration>,
    calm: std::time::Duration,
    now: DateTime<Utc>,
) -> Option<Restraint> {
    let now = time::stamp(now);
    let restraints = policy.status.iter().flat_map(|status| &status.restraints);
    let is_ours = |it: &&Restraint| it.type_ == RestraintType::ArrayOutage && it.name.as_deref() == name;
    let recorded = restraints.into_iter().find(is_ours);
    let restraint =
        |since, until| Restraint { type_: RestraintType::ArrayOutage, name: name.map(str::to_owned), since, until };
    if is_out == Some(true) {
        return Some(restraint(recorded.map_or(now, |recorded| recorded.since), None));
    }
    let length = TimeDelta::from_std(calm).unwrap_or(TimeDelta::MAX);
    let until = now.checked_add_signed(length).unwrap_or(DateTime::<Utc>::MAX_UTC);
    match recorded {
        Some(Restraint { until: Some(until), .. }) => recorded.filter(|_| now < *until).cloned(),
        // As long as nobody says that it is over it is not.
        Some(lasting) if is_out.is_none() => Some(lasting.clone()),
        Some(lasting) => (!calm.is_zero()).then(|| restraint(lasting.since, Some(until))),
        None => exceeded_for.filter(|passed| *passed < calm).map(|_| restraint(now, Some(until))),
    }
}
