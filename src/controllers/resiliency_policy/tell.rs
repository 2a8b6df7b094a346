//! Events of a policy: what people set or ended, what another policy overrules, and whether it could fence now. From one
//! status that was written to the next, so that a restart repeats nothing.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::conditions;
use crate::api::resiliency_policy::{ResiliencyPolicy, Restraint, RestraintType};
use crate::controllers::{Context, reference};
use crate::runtime::events::EventType;

/// The status of a policy was written.
pub fn recorded(cx: &Context, before: &ResiliencyPolicy, after: &ResiliencyPolicy) {
    let publish = |kind, reason, note| cx.events.publish(reference(after), kind, reason, "Brake", note);
    let (old, new) = (restraints(before), restraints(after));
    for restraint in new.iter().filter(|restraint| !contains(old, restraint)) {
        if let Some((reason, note)) = begins(restraint) {
            publish(EventType::Normal, reason, note);
        }
    }
    for restraint in old.iter().filter(|restraint| !contains(new, restraint)) {
        if let Some((reason, note)) = ends(restraint) {
            publish(EventType::Normal, reason, note);
        }
    }
    if let Some(note) = overruled(after).filter(|note| overruled(before) != Some(note)) {
        publish(EventType::Warning, "StricterPolicyApplies", note.to_owned());
    }
    if let Some((kind, reason, note)) = readiness(before, after) {
        cx.events.publish(reference(after), kind, reason, "Watch", note);
    }
}

/// Whether the policy could fence now, where that changed: also when it could not, and cannot for another reason.
pub(super) fn readiness(
    before: &ResiliencyPolicy,
    after: &ResiliencyPolicy,
) -> Option<(EventType, &'static str, String)> {
    let old = unready(before).map(|lacking| lacking.reason.as_str());
    match (old, unready(after)) {
        (old, Some(lacking)) if old != Some(lacking.reason.as_str()) => {
            Some((EventType::Warning, "FenceNotReady", format!("{}: {}", lacking.reason, lacking.message)))
        }
        (Some(old), None) => Some((EventType::Normal, "FenceReady", format!("{old} is over"))),
        _ => None,
    }
}

/// Condition FenceReady where it is False.
pub(super) fn unready(policy: &ResiliencyPolicy) -> Option<&Condition> {
    let ready = conditions::find(&policy.status.as_ref()?.conditions, "FenceReady")?;
    (ready.status == "False").then_some(ready)
}

fn restraints(policy: &ResiliencyPolicy) -> &[Restraint] {
    policy.status.as_ref().map(|status| status.restraints.as_slice()).unwrap_or_default()
}

/// A pause whose reason is edited is the same pause.
fn contains(restraints: &[Restraint], wanted: &Restraint) -> bool {
    let is_same = |known: &Restraint| {
        known.type_ == wanted.type_ && (known.type_ == RestraintType::Paused || known.name == wanted.name)
    };
    restraints.iter().any(is_same)
}

fn begins(restraint: &Restraint) -> Option<(&'static str, String)> {
    let name = restraint.name.as_deref().unwrap_or_default();
    match restraint.type_ {
        RestraintType::Paused => Some(("Paused", format!("nothing new is begun: {name}"))),
        RestraintType::MaintenanceWindow => {
            let until = restraint.until.map(|until| format!(" until {}", until.to_rfc3339())).unwrap_or_default();
            Some(("MaintenanceStarted", format!("window {name}: no new fence is opened{until}")))
        }
        _ => None,
    }
}

fn ends(restraint: &Restraint) -> Option<(&'static str, String)> {
    let name = restraint.name.as_deref().unwrap_or_default();
    match restraint.type_ {
        RestraintType::Paused => Some(("Resumed", format!("it was paused: {name}"))),
        RestraintType::MaintenanceWindow => Some(("MaintenanceEnded", format!("window {name} is over"))),
        _ => None,
    }
}

fn overruled(policy: &ResiliencyPolicy) -> Option<&str> {
    let status = policy.status.as_ref()?;
    let conflict = conditions::find(&status.conditions, "Conflict").filter(|conflict| conflict.status == "True");
    conflict.map(|conflict| conflict.message.as_str())
}
