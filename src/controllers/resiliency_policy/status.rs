//! What a policy reports. Nothing destructive depends on it, but for the outage brake, which is kept here because it
//! must survive a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::conditions::{self, State};
use crate::api::driver_report::DriverReport;
use crate::api::fencing::PolicyMode;
use crate::api::node_fence::{NodeFence, Phase};
use crate::api::resiliency_policy::{
    CheckSwitch, CrashLoopAction, CrashLoopDelete, DriverPluginDown, NodeFailureAction, ResiliencyPolicy,
    ResiliencyPolicyStatus, Restraint, RestraintType, StoragePathLossAction,
};
use crate::api::time::Now;

use super::fence_ready::{driver_proof, fence_ready};
use super::unmovable::Unmovable;
use super::volumes::Unmoved;
use super::{brakes, modes, windows};

/// What the status is computed from.
pub struct Facts<'a> {
    /// Selected pods.
    pub protected: usize,
    /// `limits.maxNodes`, resolved.
    pub max_nodes: usize,
    /// Nodes that count against it.
    pub acted_on: usize,
    /// Brakes that hold.
    pub restraints: Vec<Restraint>,
    /// All NodeFences.
    pub fences: &'a [Arc<NodeFence>],
    /// What the drivers can answer.
    pub reports: &'a BTreeMap<String, Arc<DriverReport>>,
    /// Drivers whose sidecar, and external fencers which, have not been heard of lately.
    pub silent_fencers: &'a BTreeSet<String>,
    /// External fencers that have no Lease.
    pub missing_fencers: &'a BTreeSet<String>,
    /// Drivers of the selected pods, with the number of pods.
    pub drivers: BTreeMap<String, usize>,
    /// Those of these drivers that attach nothing.
    pub unattached: BTreeSet<String>,
    /// Selected pods that would wait whatever is proved.
    pub unmovable: Unmovable,
    /// Pods that stay though their volumes are tainted.
    pub unmoved: &'a [Unmoved],
    /// Pods that are or were deleted because of their crash loop.
    pub crash_loop_deletes: Vec<CrashLoopDelete>,
    /// What overrules which policy; `None` when it was not looked for.
    pub conflicts: Option<&'a BTreeMap<String, String>>,
    /// Whether counts may be written now: they change with every pod, and are written at most once a minute.
    pub counts_due: bool,
}

/// NodeFences of the policy that still have something destructive to do; its deletion waits for them. A rehearsal has not:
/// without its policy it stays what it is.
pub fn unfinished<'a>(policy: &ResiliencyPolicy, fences: &'a [Arc<NodeFence>]) -> Vec<&'a str> {
    let busy = |fence: &&Arc<NodeFence>| {
        let begins = matches!(brakes::phase(fence), Phase::Planned | Phase::Fencing | Phase::PodsReleased);
        begins && !modes::is_rehearsal(&fence.spec.policies)
    };
    of(policy, fences).filter(busy).filter_map(|fence| fence.metadata.name.as_deref()).collect()
}

fn of<'a>(policy: &ResiliencyPolicy, fences: &'a [Arc<NodeFence>]) -> impl Iterator<Item = &'a Arc<NodeFence>> {
    let name = policy.metadata.name.clone().unwrap_or_default();
    fences.iter().filter(move |fence| fence.spec.policies.iter().any(|p| p.name == name))
}

/// The status a policy should have.
pub fn compute(policy: &ResiliencyPolicy, facts: &Facts, now: Now) -> ResiliencyPolicyStatus {
    let mut status = policy.status.clone().unwrap_or_default();
    let generation = policy.metadata.generation.unwrap_or_default();
    status.observed_generation = Some(generation);
    if facts.counts_due || status.protected_pods.is_none() {
        status.protected_pods = Some(count(facts.protected));
        status.drivers = facts.drivers.keys().map(|driver| driver_proof(policy, driver, facts)).collect();
    }
    status.max_nodes = Some(count(facts.max_nodes));
    status.nodes_acted_on = Some(count(facts.acted_on));
    status.active_fences = of(policy, facts.fences)
        .filter(|fence| brakes::in_progress(fence))
        .filter_map(|fence| fence.metadata.name.clone())
        .take(64)
        .collect();
    status.active_fences.sort();
    status.restraints.clone_from(&facts.restraints);
    status.crash_loop_deletes.clone_from(&facts.crash_loop_deletes);
    let (fence_state, fence_reason, fence_message) = fence_ready(policy, facts);
    // The message counts pods: while the reason stays it is written when counts are.
    let told = conditions::find(&status.conditions, "FenceReady");
    let told = told.filter(|told| !facts.counts_due && told.reason == fence_reason).map(|told| told.message.clone());
    let fence_message = told.unwrap_or(fence_message);
    let conflict = facts.conflicts.map(|all| all.get(policy.metadata.name.as_deref().unwrap_or_default()));
    if conflict == Some(None) {
        conditions::remove(&mut status.conditions, "Conflict");
    }
    let mut set = |type_: &str, state: State, reason: &str, message: String| {
        conditions::set(&mut status.conditions, type_, state, reason, message, generation, now.wall);
    };
    let open = unfinished(policy, facts.fences);
    let mistake = windows::mistake(policy).map(|mistake| format!("{mistake}; until then nothing new is begun"));
    if policy.metadata.deletion_timestamp.is_some() && !open.is_empty() {
        set("Ready", State::False, "FencesOpen", format!("deletion waits for the NodeFences {}", open.join(", ")));
    } else if let Some(mistake) = &mistake {
        set("Ready", State::False, "InvalidSchedule", mistake.clone());
    } else if facts.protected == 0 {
        set("Ready", State::True, "NothingSelected", "no pod with a volume is selected now".into());
    } else {
        let on = other_triggers(policy).map(|on| format!("; {on}")).unwrap_or_default();
        set("Ready", State::True, "Accepted", format!("the selected pods are protected{on}"));
    }
    set("FenceReady", fence_state, fence_reason, fence_message);
    match facts.restraints.first() {
        Some(first) => {
            let all: Vec<_> = facts.restraints.iter().map(describe).collect();
            set("Restrained", State::True, reason_of(first.type_), format!("nothing new is begun: {}", all.join(", ")));
        }
        None => set("Restrained", State::False, "Unrestrained", String::new()),
    }
    if let Some(Some(message)) = conflict {
        set("Conflict", State::True, "StricterPolicyApplies", message.clone());
    }
    // What is there only while it holds. A mistake in the spec goes with a change of the spec alone: to wait is no use.
    let stalled = mistake.map(|mistake| ("InvalidSchedule", mistake));
    for (type_, found) in [("Stalled", stalled), ("VolumesHeld", volumes_held(policy, facts.unmoved))] {
        let conditions = &mut status.conditions;
        match found {
            Some((reason, message)) => {
                conditions::set(conditions, type_, State::True, reason, message, generation, now.wall);
            }
            None => conditions::remove(conditions, type_),
        }
    }
    status
}

/// What a policy that ignores failed nodes does all the same, and how that is turned off: people take `nodeFailure: Ignore` for
/// "off", and two of the others act by default. `None` where it does nothing else.
pub fn other_triggers(policy: &ResiliencyPolicy) -> Option<String> {
    let (spec, triggers) = (&policy.spec, &policy.spec.triggers);
    if triggers.node_failure != NodeFailureAction::Ignore || spec.mode == PolicyMode::DryRun {
        return None;
    }
    let is_asked = spec.detection.storage.connectivity_check == CheckSwitch::Enabled;
    let on = [
        ("storagePathLoss: Ignore", is_asked && triggers.storage_path_loss == StoragePathLossAction::Release),
        ("volumeTaints: []", !triggers.volume_taints.is_empty()),
        // A person who approves is asked about nodes, and not about programs.
        (
            "crashLoop.action: Ignore",
            spec.mode == PolicyMode::Enforce && triggers.crash_loop.action == CrashLoopAction::Reschedule,
        ),
        ("driverPluginDown: Ignore", triggers.driver_plugin_down == DriverPluginDown::TaintNode),
    ];
    let off: Vec<_> = on.into_iter().filter(|(_, is_on)| *is_on).map(|(off, _)| off).collect();
    let off = (!off.is_empty()).then(|| off.join(", "))?;
    Some(format!("nodeFailure is Ignore, and other triggers act on: to turn them off too, set {off}"))
}

/// Pods of the policy that stay though their volumes are tainted, by name: the reason of the first.
fn volumes_held(policy: &ResiliencyPolicy, unmoved: &[Unmoved]) -> Option<(&'static str, String)> {
    const TOLD: usize = 5;
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    let mut ours: Vec<_> = unmoved.iter().filter(|held| held.policies.iter().any(|it| it == name)).collect();
    ours.sort_by_key(|held| (&held.namespace, &held.name));
    let first = ours.first()?;
    let tell = |held: &&Unmoved| format!("{}/{} stays: {}", held.namespace, held.name, held.message);
    let told: Vec<_> = ours.iter().take(TOLD).map(tell).collect();
    let more = ours.len().saturating_sub(TOLD);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Some((first.reason, format!("{}{more}", told.join("; "))))
}

fn describe(restraint: &Restraint) -> String {
    let reason = reason_of(restraint.type_);
    restraint.name.as_ref().map_or_else(|| reason.to_owned(), |name| format!("{reason} ({name})"))
}

/// How the API spells a brake.
pub fn reason_of(brake: RestraintType) -> &'static str {
    match brake {
        RestraintType::Paused => "Paused",
        RestraintType::MaintenanceWindow => "MaintenanceWindow",
        RestraintType::BudgetExhausted => "BudgetExhausted",
        RestraintType::CorrelatedOutage => "CorrelatedOutage",
        RestraintType::Cooldown => "Cooldown",
        RestraintType::ArrayOutage => "ArrayOutage",
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
