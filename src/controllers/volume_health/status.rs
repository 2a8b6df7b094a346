//! What a VolumeHealth reports: phase, taints, identity and who uses it. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::api::conditions::{self, State};
use crate::api::slim::PersistentVolume;
use crate::api::time::{self, Now};
use crate::api::volume::{Source, VolumeState};
use crate::api::volume_health::{
    Observation, Phase, SuppressionInForce, VolumeHealth, VolumeHealthStatus, VolumeKind, VolumePhase, VolumeTaint,
    WatchedVolume,
};
use crate::api::volume_health_policy::VolumeHealthPolicy;

use super::decide::Seen;
use super::voices::{self, Voices};
use super::{loss, report_conditions, taints};

/// Nodes and pods that a status may list.
const LISTED: usize = 16;

/// The status that the VolumeHealth should have, and when time alone may change it.
pub fn compute(
    seen: &Seen,
    volume: &PersistentVolume,
    health: &VolumeHealth,
    policy: &VolumeHealthPolicy,
    now: Now,
) -> (VolumeHealthStatus, Option<Duration>) {
    let mut status = health.status.clone().unwrap_or_default();
    let mut voices = voices::gather(seen, &policy.spec, now.wall);
    let uid = volume.metadata.uid.clone().unwrap_or_default();
    let lost = loss::token(&uid, &voices.observations);
    let suppressions = taints::suppressions(&health.spec, &status.suppressions, now.wall);
    let tainted = taints::merge(
        &taints::Sources {
            spec: &health.spec,
            policy: Some(&policy.spec),
            observations: &voices.observations,
            loss_is_acknowledged: lost.is_some() && lost.as_deref() == health.spec.acknowledge_data_loss.as_deref(),
            before: &status.taints,
            suppressed: &in_force(&suppressions, now.wall).map(|it| it.key.as_str()).collect(),
        },
        now.wall,
    );
    voices.is_known |= seen.was_ever_known();
    let phase = phase(&tainted, &voices);
    if status.phase != Some(phase) {
        status.since = Some(time::stamp(now.wall));
    }
    status.observed_generation = health.metadata.generation;
    status.policy = policy.metadata.name.clone();
    status.enforcement = Some(policy.spec.enforcement);
    status.phase = Some(phase);
    status.taint_summary = summary(&tainted);
    status.affected_nodes = affected(&voices);
    status.users = if tainted.is_empty() { Vec::new() } else { first(seen.users()) };
    status.volume = Some(watched(seen, volume, uid));
    status.data_loss_token = lost;
    let look_again = look_again(&voices, &suppressions, now.wall);
    (status.taints, status.suppressions) = (tainted, suppressions);
    report_conditions::set(seen, &voices, &mut status, health.metadata.generation.unwrap_or_default(), now.wall);
    status.observations = voices.observations;
    (status, look_again)
}

/// The status of one whose volume no policy selects, but which holds what a person must not lose: what people want, and
/// what is lost. Nothing is enforced.
pub fn not_selected(health: &VolumeHealth, now: Now) -> VolumeHealthStatus {
    let message = "no VolumeHealthPolicy selects the volume: make one select it, or delete this VolumeHealth";
    let mut status = not_ready(health, "NotSelected", message, now);
    let before = health.status.clone().unwrap_or_default();
    let people = taints::Sources {
        spec: &health.spec,
        policy: None,
        observations: &[],
        loss_is_acknowledged: false,
        before: &before.taints,
        suppressed: &BTreeSet::new(),
    };
    status.taints = taints::merge(&people, now.wall);
    status.taint_summary = summary(&status.taints);
    status.observations = before.observations.into_iter().filter(|it| it.state == VolumeState::DataLoss).collect();
    (status.volume, status.suppressions) = (before.volume, before.suppressions);
    status.data_loss_token = before.data_loss_token;
    status
}

/// The status of one whose volume is not there.
pub fn gone(health: &VolumeHealth, now: Now) -> VolumeHealthStatus {
    let message = "there is no PersistentVolume of this name: create it, or delete this VolumeHealth";
    not_ready(health, "PersistentVolumeGone", message, now)
}

/// Of what there was only the condition is left that says why.
fn not_ready(health: &VolumeHealth, reason: &str, message: &str, now: Now) -> VolumeHealthStatus {
    let mut status = VolumeHealthStatus { observed_generation: health.metadata.generation, ..Default::default() };
    status.conditions = health.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    status.conditions.retain(|condition| condition.type_ == "Ready");
    let generation = health.metadata.generation.unwrap_or_default();
    conditions::set(&mut status.conditions, "Ready", State::False, reason, message, generation, now.wall);
    status
}

fn in_force(listed: &[SuppressionInForce], now: DateTime<Utc>) -> impl Iterator<Item = &SuppressionInForce> {
    listed.iter().filter(move |it| it.effective_until > now)
}

fn phase(taints: &[VolumeTaint], voices: &Voices) -> Phase {
    let is_bad = |it: &Observation| it.state >= VolumeState::Degraded;
    if taints.iter().any(|taint| taint.source != Source::Manual) {
        Phase::Unhealthy
    } else if voices.observations.iter().any(is_bad) {
        Phase::Degraded
    } else if voices.is_known {
        Phase::Healthy
    } else {
        Phase::Unknown
    }
}

fn summary(taints: &[VolumeTaint]) -> Option<String> {
    let keys: Vec<_> = taints.iter().map(|taint| taint.key.as_str()).collect();
    let mut summary = keys.join(",");
    conditions::truncate(&mut summary, 1024);
    Some(summary).filter(|summary| !summary.is_empty())
}

/// `k/n` while something is wrong somewhere.
fn affected(voices: &Voices) -> Option<String> {
    let wrong: Vec<_> = voices.observations.iter().filter(|it| taints::key_of(it).is_some()).collect();
    let named: BTreeSet<_> = wrong.iter().map(|it| &it.node).filter(|node| !node.is_empty()).collect();
    let all: BTreeSet<_> = voices.observers.iter().chain(named.iter().copied()).collect();
    let everywhere = wrong.iter().any(|it| it.node.is_empty());
    let affected = if everywhere { all.len() } else { named.len() };
    (affected > 0).then(|| format!("{affected}/{}", all.len()))
}

fn first(names: BTreeSet<String>) -> Vec<String> {
    names.into_iter().take(LISTED).collect()
}

fn watched(seen: &Seen, volume: &PersistentVolume, uid: String) -> WatchedVolume {
    let spec = &volume.spec;
    let csi = spec.csi.as_ref();
    let source = match () {
        () if spec.local.is_some() => VolumeKind::Local,
        () if csi.is_some() => VolumeKind::CSI,
        () if spec.nfs.is_some() => VolumeKind::NFS,
        () => VolumeKind::Other,
    };
    let hosts = seen.places.iter().filter(|(_, place)| place.is_host).map(|(name, _)| name.clone());
    let attached = seen.attachments.iter().filter(|it| it.status.attached).map(|it| it.spec.node_name.clone());
    WatchedVolume {
        uid,
        source,
        driver: csi.map(|csi| csi.driver.clone()),
        volume_handle: csi.map(|csi| csi.volume_handle.clone()),
        pv_phase: volume.status.phase.as_deref().and_then(pv_phase),
        claim: claim(volume),
        nodes: first(hosts.chain(attached).collect()),
    }
}

fn pv_phase(text: &str) -> Option<VolumePhase> {
    Some(match text {
        "Pending" => VolumePhase::Pending,
        "Available" => VolumePhase::Available,
        "Bound" => VolumePhase::Bound,
        "Released" => VolumePhase::Released,
        "Failed" => VolumePhase::Failed,
        _ => return None,
    })
}

/// `namespace/name` of the claim that the volume is bound to. A mere reservation is none: it has no uid.
pub fn claim(volume: &PersistentVolume) -> Option<String> {
    let claim = volume.spec.claim_ref.as_ref().filter(|claim| claim.uid.is_some())?;
    Some(format!("{}/{}", claim.namespace.as_deref()?, claim.name.as_deref()?))
}

/// Time alone ends a suppression, and lets a node count as failed.
fn look_again(voices: &Voices, suppressions: &[SuppressionInForce], now: DateTime<Utc>) -> Option<Duration> {
    let ends = in_force(suppressions, now).map(|it| it.effective_until);
    let next = ends.chain(voices.node_due).min()?;
    // A moment later: what is due by then is due for sure.
    Some((next - now).to_std().unwrap_or_default() + Duration::from_millis(10))
}
