//! The conditions of a VolumeHealth. `Ready` says that the volume is monitored, `Usable` whether it is good; `Observed`
//! neither sets nor clears a taint. Pure.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use crate::api::conditions::{self, State};
use crate::api::volume::{NOT_ATTACHED, NOT_MOUNTED, Source, TaintEffect, VolumeState};
use crate::api::volume_health::{Phase, VolumeHealthStatus, VolumePhase, VolumeTaint};
use crate::api::volume_health_policy::Enforcement;

use super::decide::Seen;
use super::taints;
use super::voices::Voices;

/// Nodes that a message names.
const NAMED: usize = 3;

type Said = (State, &'static str, String);

/// Sets all of them. `status` has everything else already.
pub fn set(seen: &Seen, voices: &Voices, status: &mut VolumeHealthStatus, generation: i64, now: DateTime<Utc>) {
    let observed = observed(voices);
    let enforced = enforced(seen, status);
    let (usable, attached, mounted) = (usable(status, voices), attached(seen, voices), mounted(seen, voices));
    let policy = status.policy.clone().unwrap_or_default();
    let mut say = |type_: &str, (state, reason, message): (State, &str, String)| {
        conditions::set(&mut status.conditions, type_, state, reason, message, generation, now);
    };
    say("Ready", (State::True, "Monitored", format!("VolumeHealthPolicy {policy} rules it")));
    say("Usable", (usable.0, &usable.1, usable.2));
    say("Attached", (attached.0, &attached.1, attached.2));
    say("Mounted", (mounted.0, &mounted.1, mounted.2));
    say("Observed", (observed.0, observed.1, observed.2));
    say("Enforced", (enforced.0, enforced.1, enforced.2));
}

/// What a taint tells a person: where, and what.
pub fn told(taint: &VolumeTaint) -> String {
    let place = match taint.nodes.as_slice() {
        [] => String::new(),
        nodes if nodes.len() > NAMED => format!(" on {} nodes", nodes.len()),
        nodes => format!(" on {}", nodes.join(", ")),
    };
    let message = taint.message.as_deref().map(|message| format!(": {message}")).unwrap_or_default();
    format!("{}{place}{message} ({})", taint.key, taint.reason)
}

fn usable(status: &VolumeHealthStatus, voices: &Voices) -> (State, String, String) {
    let of_programs = status.taints.iter().find(|taint| taint.source != Source::Manual);
    let of_people = status.taints.iter().find(|taint| taint.effect() == TaintEffect::NoAttachOrMount);
    if let Some(taint) = of_programs.or(of_people) {
        return (State::False, taint.reason.clone(), told(taint));
    }
    let degraded = voices.observations.iter().find(|it| it.state >= VolumeState::Degraded);
    match (status.phase, degraded) {
        (Some(Phase::Unknown), _) => (State::Unknown, "NeverObserved".into(), "nobody has looked at it yet".into()),
        (_, Some(why)) => {
            let place = if why.node.is_empty() { String::new() } else { format!(" on {}", why.node) };
            let message = why.message.as_deref().unwrap_or_default();
            (State::True, "Degraded".into(), format!("{}{place}: {message}", why.reason))
        }
        _ => (State::True, "Healthy".into(), String::new()),
    }
}

/// The worst that leads to this key, suppressed or not.
fn worst(voices: &Voices, key: &str) -> Option<(State, String, String)> {
    let of_key =
        |it: &&crate::api::volume_health::Observation| taints::key_of(it).is_some_and(|taint| taint.as_str() == key);
    let worst = voices.observations.iter().find(of_key)?;
    Some((State::False, worst.reason.clone(), worst.message.clone().unwrap_or_default()))
}

fn attached(seen: &Seen, voices: &Voices) -> (State, String, String) {
    worst(voices, NOT_ATTACHED).unwrap_or_else(|| {
        let is_attached = seen.attachments.iter().any(|attachment| attachment.status.attached);
        let reason = if is_attached { "AsPublished" } else { "NotNeeded" };
        (State::True, reason.into(), String::new())
    })
}

fn mounted(seen: &Seen, voices: &Voices) -> (State, String, String) {
    worst(voices, NOT_MOUNTED).unwrap_or_else(|| {
        let is_mounted = seen.is_local() || !seen.users().is_empty();
        let reason = if is_mounted { "AsExpected" } else { "NotNeeded" };
        (State::True, reason.into(), String::new())
    })
}

fn observed(voices: &Voices) -> Said {
    let silent = names(&voices.silent_agents);
    let remedy = format!("no Ready pod of bulkhead-node-agent runs on {silent}");
    if !voices.is_known {
        let message = if silent.is_empty() { "nobody has looked at it yet".into() } else { remedy };
        return (State::Unknown, "NeverObserved", message);
    }
    if !silent.is_empty() {
        return (State::False, "AgentSilent", remedy);
    }
    if voices.driver_silent {
        let message = "the driver does not answer: look at its controller and at bulkhead-csi-sidecar beside it";
        return (State::False, "DriverUnreachable", message.into());
    }
    (State::True, "Fresh", String::new())
}

fn names(nodes: &BTreeSet<String>) -> String {
    let named: Vec<_> = nodes.iter().take(NAMED).map(String::as_str).collect();
    let more = nodes.len().saturating_sub(NAMED);
    if more > 0 { format!("{} and {more} more", named.join(", ")) } else { named.join(", ") }
}

fn enforced(seen: &Seen, status: &VolumeHealthStatus) -> Said {
    if status.enforcement != Some(Enforcement::Enforce) {
        return (State::False, "ObserveOnly", "its policy observes only".into());
    }
    if !seen.can_enforce {
        let message = "the admission policies are not installed: kubectl apply --server-side -k config/policies";
        return (State::False, "AdmissionPolicyMissing", message.into());
    }
    let phase = status.volume.as_ref().and_then(|volume| volume.pv_phase);
    let closed = status.taints.iter().any(|taint| taint.effect() == TaintEffect::NoAttachOrMount);
    let attaches = seen.volume.as_ref().is_some_and(|volume| volume.spec.csi.is_some());
    let reason = match (status.taints.is_empty(), phase) {
        (true, _) => "NothingToEnforce",
        (_, Some(VolumePhase::Available)) => "BindReserved",
        _ if closed && attaches => "AttachBlocked",
        _ if closed => "PodsBlocked",
        _ => "NothingToEnforce",
    };
    (State::True, reason, String::new())
}
