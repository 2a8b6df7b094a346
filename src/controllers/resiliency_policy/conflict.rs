//! Two policies on one pod: the stricter value of each field holds, and of brakes and deadlines the one that comes first. The
//! policy whose value does not is told, with the names of the other and of the fields.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::limits::IntOrPercent;
use crate::api::resiliency_policy::{
    AffinityGroups, BarePods, CheckSwitch, CrashLoopAction, CrashLoopWhen, DetachMode, DriverPluginDown,
    MaintenanceWindow, NodeFailureAction, PodsWithoutVolumes, ResiliencyPolicy, ResiliencyPolicySpec, Sharers,
    StorageDetection, StoragePathLossAction, TaintMatch, TopologyLimit,
};
use crate::api::usage::PodView;

use super::decide::{Seen, effective, may_be_released};

/// Whether the second is stricter than the first.
type IsStricter = fn(&ResiliencyPolicySpec, &ResiliencyPolicySpec) -> bool;

/// The fields of which the strictest value holds for a pod: as [`super::select::Effective`] combines them, as its incident
/// does with those of all its policies, and as each policy's brakes hold its pods.
pub(super) const FIELDS: [(&str, IsStricter); 37] = [
    ("mode", |mine, other| other.mode < mine.mode),
    ("triggers.nodeFailure", |mine, other| {
        mine.triggers.node_failure == NodeFailureAction::Release
            && other.triggers.node_failure == NodeFailureAction::Ignore
    }),
    ("triggers.storagePathLoss", |mine, other| {
        mine.triggers.storage_path_loss == StoragePathLossAction::Release
            && other.triggers.storage_path_loss == StoragePathLossAction::Ignore
    }),
    ("triggers.driverPluginDown", |mine, other| {
        mine.triggers.driver_plugin_down == DriverPluginDown::TaintNode
            && other.triggers.driver_plugin_down == DriverPluginDown::Ignore
    }),
    ("triggers.crashLoop.action", |mine, other| {
        mine.triggers.crash_loop.action == CrashLoopAction::Reschedule
            && other.triggers.crash_loop.action == CrashLoopAction::Ignore
    }),
    ("triggers.crashLoop.when", |mine, other| {
        mine.triggers.crash_loop.when == CrashLoopWhen::Always
            && other.triggers.crash_loop.when == CrashLoopWhen::AfterIncident
    }),
    ("triggers.crashLoop.maxDeletes", |mine, other| {
        other.triggers.crash_loop.max_deletes < mine.triggers.crash_loop.max_deletes
    }),
    ("triggers.crashLoop.window", |mine, other| {
        other.triggers.crash_loop.window.get() > mine.triggers.crash_loop.window.get()
    }),
    ("triggers.volumeTaints", |mine, other| lacks(&other.triggers.volume_taints, &mine.triggers.volume_taints)),
    ("detection.requiredChannels", |mine, other| other.detection.required_channels > mine.detection.required_channels),
    ("detection.decisiveChannels", |mine, other| {
        lacks(&other.detection.decisive_channels, &mine.detection.decisive_channels)
    }),
    ("detection.taints", |mine, other| {
        let covered = |taint: &TaintMatch| other.detection.taints.iter().any(|it| covers(it, taint));
        !mine.detection.taints.iter().all(covered)
    }),
    ("detection.kubelet.decisiveAfter", |mine, other| {
        other.detection.kubelet.decisive_after.get() > mine.detection.kubelet.decisive_after.get()
    }),
    ("detection.agent.suspectAfter", |mine, other| {
        other.detection.agent.suspect_after.get() > mine.detection.agent.suspect_after.get()
    }),
    ("detection.storage.connectivityCheck", |mine, other| {
        mine.detection.storage.connectivity_check == CheckSwitch::Enabled
            && other.detection.storage.connectivity_check == CheckSwitch::Disabled
    }),
    ("detection.storage.lossThreshold", |mine, other| is_more_patient(mine, other, |it| it.loss_threshold)),
    ("detection.storage.recoveryThreshold", |mine, other| is_more_patient(mine, other, |it| it.recovery_threshold)),
    ("detection.storage.ioInProgressCheck", |mine, other| {
        mine.detection.storage.io_in_progress_check == CheckSwitch::Disabled
            && other.detection.storage.io_in_progress_check == CheckSwitch::Enabled
    }),
    ("detection.storage.whenIOInProgress", |mine, other| {
        let stops = |it: &ResiliencyPolicySpec| it.detection.storage.io_in_progress_check == CheckSwitch::Enabled;
        stops(other) && other.detection.storage.when_io_in_progress > mine.detection.storage.when_io_in_progress
    }),
    ("fencing.minimumProof", |mine, other| {
        drivers(mine, other)
            .any(|driver| other.fencing.minimum_proof_for(driver) > mine.fencing.minimum_proof_for(driver))
    }),
    ("fencing.methods", |mine, other| {
        drivers(mine, other).any(|driver| lacks(other.fencing.methods_for(driver), mine.fencing.methods_for(driver)))
    }),
    ("fencing.callTimeout", |mine, other| other.fencing.call_timeout.get() < mine.fencing.call_timeout.get()),
    ("fencing.giveUpAfter", |mine, other| other.fencing.give_up_after.get() < mine.fencing.give_up_after.get()),
    ("sharers", |mine, other| mine.sharers == Sharers::CleanAll && other.sharers == Sharers::Hold),
    ("release.barePods", |mine, other| {
        mine.release.bare_pods == BarePods::Delete && other.release.bare_pods == BarePods::Keep
    }),
    ("release.podsWithoutVolumes", |mine, other| {
        mine.release.pods_without_volumes == PodsWithoutVolumes::Release
            && other.release.pods_without_volumes == PodsWithoutVolumes::Keep
    }),
    ("release.affinityGroups", |mine, other| {
        mine.release.affinity_groups == AffinityGroups::Independent
            && other.release.affinity_groups == AffinityGroups::Together
    }),
    ("release.detach", |mine, other| {
        mine.release.detach == DetachMode::Automatic && other.release.detach == DetachMode::VolumeAttachments
    }),
    ("selfFencing", |mine, other| {
        let other = other.self_fencing.deadline();
        other.is_some_and(|other| mine.self_fencing.deadline().is_none_or(|mine| other < mine))
    }),
    ("recovery.warnAfter", |mine, other| other.recovery.warn_after.get() < mine.recovery.warn_after.get()),
    ("limits.maxNodes", |mine, other| may_be_fewer(&other.limits.max_nodes, &mine.limits.max_nodes)),
    ("limits.ceiling", |mine, other| other.limits.ceiling < mine.limits.ceiling),
    ("limits.window", |mine, other| other.limits.window.get() > mine.limits.window.get()),
    ("limits.topology", |mine, other| {
        let holds_first = |it: &TopologyLimit| {
            let own = mine.limits.topology.iter().find(|own| own.topology_key == it.topology_key);
            own.is_none_or(|own| may_be_fewer(&it.max_nodes, &own.max_nodes))
        };
        other.limits.topology.iter().any(holds_first)
    }),
    ("limits.maxUnhealthy", |mine, other| may_be_fewer(&other.limits.max_unhealthy, &mine.limits.max_unhealthy)),
    ("limits.cooldown", |mine, other| other.limits.cooldown.get() > mine.limits.cooldown.get()),
    ("maintenanceWindows", |mine, other| {
        let is_ours = |it: &MaintenanceWindow| mine.maintenance_windows.iter().any(|own| are_open_together(own, it));
        !other.maintenance_windows.iter().all(is_ours)
    }),
];

/// Names of policies that protect a pod together.
pub(super) type Together<'a> = BTreeSet<(&'a str, &'a str)>;

/// What is said of each policy that asks for less than another one of the same pod: by its name.
pub(super) fn of(seen: &Seen) -> BTreeMap<String, String> {
    let mut together = Together::new();
    seen.pods.values().flatten().for_each(|pod| note(seen, pod, &mut together));
    told(seen, &together)
}

/// Notes which policies protect the pod together.
pub(super) fn note<'a>(seen: &'a Seen, pod: &PodView, together: &mut Together<'a>) {
    if seen.policies.len() < 2 || !may_be_released(pod) {
        return;
    }
    let Some(policies) = effective(seen, pod) else { return };
    for mine in policies.policies() {
        let others = policies.policies().iter().filter(|other| name(other) != name(mine));
        together.extend(others.map(|other| (name(mine), name(other))));
    }
}

/// What is said of policies that protect pods together.
pub(super) fn told(seen: &Seen, together: &Together) -> BTreeMap<String, String> {
    let spec = |wanted: &str| seen.policies.iter().find(|policy| name(policy) == wanted).map(|policy| &policy.spec);
    let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for &(mine, other) in together {
        let (Some(my), Some(others)) = (spec(mine), spec(other)) else { continue };
        let fields: Vec<_> = FIELDS.iter().filter(|(_, is)| is(my, others)).map(|(field, _)| *field).collect();
        if !fields.is_empty() {
            told.entry(mine.to_owned()).or_default().push(format!("policy {other} in {}", fields.join(", ")));
        }
    }
    let say = |stricter: Vec<String>| format!("stricter for pods of this policy: {}", stricter.join("; "));
    told.into_iter().map(|(policy, stricter)| (policy, say(stricter))).collect()
}

fn name(policy: &ResiliencyPolicy) -> &str {
    policy.metadata.name.as_deref().unwrap_or_default()
}

/// Drivers for which one of them differs from its own default, and the default.
fn drivers<'a>(mine: &'a ResiliencyPolicySpec, other: &'a ResiliencyPolicySpec) -> impl Iterator<Item = &'a str> {
    let named = mine.fencing.drivers.iter().chain(&other.fencing.drivers).map(|driver| driver.name.as_str());
    named.chain([""])
}

/// Whether the second wants that many answers over a longer time. A driver is asked at the shortest period of all, and of a
/// policy with a longer one so many more answers count: it is the time that overrules. Nobody's count where one asks nothing.
fn is_more_patient(
    mine: &ResiliencyPolicySpec,
    other: &ResiliencyPolicySpec,
    answers: fn(&StorageDetection) -> i32,
) -> bool {
    let asks = |it: &ResiliencyPolicySpec| it.detection.storage.connectivity_check == CheckSwitch::Enabled;
    let time = |it: &ResiliencyPolicySpec| {
        let storage = &it.detection.storage;
        storage.period.get().saturating_mul(u32::try_from(answers(storage)).unwrap_or(1))
    };
    asks(mine) && asks(other) && time(other) > time(mine)
}

/// Whether the first is the smaller number of nodes. Of a number and a share either may be, as the cluster grows and shrinks:
/// then each policy is told of the other.
fn may_be_fewer(one: &IntOrPercent, other: &IntOrPercent) -> bool {
    match (one, other) {
        (IntOrPercent::Int(one), IntOrPercent::Int(other)) => one < other,
        // Shares of a hundred.
        (IntOrPercent::Percent(_), IntOrPercent::Percent(_)) => one.resolve(100) < other.resolve(100),
        _ => true,
    }
}

/// Whether they are one window, whatever it is called.
fn are_open_together(one: &MaintenanceWindow, other: &MaintenanceWindow) -> bool {
    one.schedule == other.schedule && one.duration.get() == other.duration.get() && one.time_zone == other.time_zone
}

/// Whether the list lacks something of the other.
fn lacks<T: PartialEq>(list: &[T], of: &[T]) -> bool {
    of.iter().any(|it| !list.contains(it))
}

/// Whether whatever the second matches the first does too.
fn covers(wide: &TaintMatch, narrow: &TaintMatch) -> bool {
    (wide.key == "*" || wide.key == narrow.key) && (wide.effect.is_none() || wide.effect == narrow.effect)
}
