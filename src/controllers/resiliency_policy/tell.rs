//! Events. Of a policy: what people set or ended, what another policy overrules, and whether it could fence now, from one
//! status that was written to the next, so that a restart repeats nothing. Of nodes and pods: what a pass suspects and holds
//! back, from one pass to the next, and what was done.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::api::conditions;
use crate::api::node_fence::{NodeFence, PodAction};
use crate::api::resiliency_policy::{ResiliencyPolicy, Restraint, RestraintType};
use crate::api::slim::Node;
use crate::api::time::Now;
use crate::api::usage::PodView;
use crate::controllers::{Context, reference};
use crate::error::Error;
use crate::runtime::events::EventType;
use crate::runtime::store::ObjectKey;
use crate::runtime::telemetry::Outcome;

use super::QUEUE;
use super::decide::{Decision, Restrained, Seen};
use super::memory::Memory;
use super::volumes::Unmoved;

/// Each change of suspicion or restraint. None of it is written to a status at rest.
pub fn passed(cx: &Context, memory: &Memory, decision: &Decision) {
    let (before, after) = (&memory.suspected, &decision.suspected);
    for node in after.difference(before) {
        of_node(cx, node, EventType::Normal, "NodeSuspected", why_suspected(decision, node).into());
    }
    for node in before.difference(after) {
        of_node(cx, node, EventType::Normal, "SuspicionCleared", "the node is heard of again".into());
    }
    let held: BTreeSet<_> = decision.restrained.iter().cloned().collect();
    held.difference(&memory.restrained).for_each(|held| restrained(cx, held));
    for ((node, fencer), heard) in &decision.contradicted {
        if !memory.contradicted.contains(&(node.clone(), fencer.clone())) {
            tracing::warn!(node, fencer, heard, "a fencer calls a node off that is heard");
            let note = format!("fencer {fencer} says that it has no power, and {heard}: that counts for nothing");
            of_node(cx, node, EventType::Warning, "PowerContradicted", note);
        }
    }
    let stay: BTreeSet<_> = decision.unmoved.iter().cloned().collect();
    stay.difference(&memory.unmoved).for_each(|held| unmoved(cx, held));
    let loops: BTreeSet<_> = decision.crash_loops.held.iter().cloned().collect();
    loops.difference(&memory.crash_loops_held).for_each(|held| looping(cx, held));
}

fn why_suspected(decision: &Decision, node: &str) -> &'static str {
    match decision.lost.contains(node) {
        true => "no heartbeat of its agent is heard any more; its peers are asked, and nothing is done on this alone",
        false => {
            "its kubelet is silent or reports it not ready, or a taint that counts is on it; that it is silent counts when its Lease \
             contradicts no more, by its next renewal"
        }
    }
}

fn restrained(cx: &Context, held: &Restrained) {
    let about = held.about.as_ref().map(|about| format!(" ({about})")).unwrap_or_default();
    let note = format!("nothing is begun for node {}: {}{about}", held.node, held.brake);
    tracing::warn!(node = held.node, policy = held.policy, brake = held.brake, "a brake holds");
    let short = format!("policy {}: {}{about}", held.policy, held.brake);
    of_node(cx, &held.node, EventType::Warning, "FenceHeld", short);
    // What a person has set is told when it begins and when it ends, not for each node.
    let policy = cx.stores.policies.get(&ObjectKey::cluster(&held.policy));
    if let Some(policy) = policy.filter(|_| !matches!(held.brake, "Paused" | "MaintenanceWindow")) {
        cx.events.publish(reference(policy.as_ref()), EventType::Warning, held.brake, "Brake", note);
    }
}

fn unmoved(cx: &Context, held: &Unmoved) {
    let (namespace, pod) = (held.namespace.as_str(), held.name.as_str());
    tracing::warn!(namespace, pod, reason = held.reason, held.message, "a pod stays though its volume is tainted");
    if let Some(pod) = cx.stores.pods.get(&ObjectKey::namespaced(namespace, pod)) {
        let note = format!("{}: {}", held.reason, held.message);
        cx.events.publish(reference(pod.as_ref()), EventType::Warning, "FenceHeld", "Release", note);
    }
}

fn looping(cx: &Context, held: &Unmoved) {
    let (namespace, pod) = (held.namespace.as_str(), held.name.as_str());
    tracing::warn!(namespace, pod, reason = held.reason, held.message, "a pod stays in its crash loop");
    if let Some(pod) = cx.stores.pods.get(&ObjectKey::namespaced(namespace, pod)) {
        let note = format!("{}: in CrashLoopBackOff, and stays: {}", held.reason, held.message);
        cx.events.publish(reference(pod.as_ref()), EventType::Normal, "PodKept", "Reschedule", note);
    }
}

fn of_node(cx: &Context, name: &str, kind: EventType, reason: &'static str, note: String) {
    if let Some(node) = cx.stores.nodes.get(&ObjectKey::cluster(name)) {
        cx.events.publish(reference(node.as_ref()), kind, reason, "Watch", note);
    }
}

/// That a node could not be read is told and counted as a pass that fails is; but the queue lets nobody wait for it.
pub fn unread(cx: &Context, seen: &Seen, decision: &Decision, error: &Error, now: Now) {
    let outcome = Outcome::Failed(error.class());
    cx.telemetry.runtime.reconciled(QUEUE, outcome, now.mono.elapsed());
    let nodes = &decision.unread;
    if nodes.is_subset(&seen.unread) {
        tracing::debug!(?nodes, %error, "still cannot be read; tried again");
    } else {
        tracing::warn!(?nodes, %error, "nodes could not be read; they are tried again, and hold up no other");
    }
}

/// An episode of an incident was begun.
pub fn planned(cx: &Context, fence: &NodeFence) {
    let plan = &fence.spec.plan;
    let release = plan.pods.iter().filter(|pod| pod.action == PodAction::Release).count();
    let evidence: Vec<_> = plan.evidence.iter().filter_map(|evidence| evidence.message.as_deref()).collect();
    let node = fence.name_any();
    // A node whose volumes are in trouble is not declared failed.
    let (reason, kind) = match plan {
        plan if plan.is_by_volume() => ("VolumesTainted", EventType::Normal),
        plan if plan.is_by_path() => ("PathLost", EventType::Warning),
        _ => ("NodeDeclaredFailed", EventType::Normal),
    };
    let (policy, volumes) = (policies(fence), plan.volumes.len());
    tracing::warn!(node, policy, reason, release, volumes, evidence = evidence.join("; "), "planned");
    let note = format!("{}; {release} pods to release once their volumes are fenced", evidence.join("; "));
    cx.events.publish(reference(fence), kind, reason, "Plan", note.clone());
    if let Some(node) = cx.stores.nodes.get(&ObjectKey::cluster(node)) {
        cx.events.publish(reference(node.as_ref()), kind, reason, "Plan", note);
    }
}

/// A plan was written in place of the one of this generation: of the next episode, or grown.
pub fn planned_again(cx: &Context, before: Option<i64>, fence: &NodeFence) {
    let (node, policy) = (fence.name_any(), policies(fence));
    tracing::info!(node, policy, ?before, episode = fence.spec.episode, "plan written again");
    let begun = cx.stores.fences.get(&ObjectKey::from(fence));
    if begun.is_some_and(|known| known.spec.episode != fence.spec.episode) {
        planned(cx, fence);
    } else {
        let note = format!("the plan has grown, digest {}", fence.spec.plan.digest);
        cx.events.publish(reference(fence), EventType::Warning, "PlanGrew", "Plan", note);
    }
}

fn policies(fence: &NodeFence) -> String {
    fence.spec.policies.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>().join(",")
}

/// A taint of a node plugin was set.
pub fn tainted(cx: &Context, node: &Node, taint: &Taint) {
    let note = format!("taint {}:{}: the node plugin of the driver is not ready", taint.key, taint.effect);
    tracing::info!(node = node.name_any(), taint = taint.key, "taint set");
    cx.events.publish(reference(node), EventType::Normal, "NodeTainted", "Taint", note);
}

/// A taint of a node plugin was taken back.
pub fn untainted(cx: &Context, node: &Node, taint: &Taint) {
    let note = format!("taint {}:{} is taken back: its cause is over", taint.key, taint.effect);
    tracing::info!(node = node.name_any(), taint = taint.key, "taint taken back");
    cx.events.publish(reference(node), EventType::Normal, "NodeUntainted", "Untaint", note);
}

/// A pod in its crash loop was deleted.
pub fn rescheduled(cx: &Context, pod: &PodView, note: String) {
    tracing::info!(pod = pod.display(), note, "pod deleted");
    cx.events.publish(reference(pod.pod.as_ref()), EventType::Normal, "PodReleased", "Reschedule", note);
}

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
