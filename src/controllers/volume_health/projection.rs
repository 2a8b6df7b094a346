//! What the record of a VolumeHealth shows elsewhere: labels and an annotation on the PersistentVolume with its
//! reservation, and on the VolumeHealth itself the label that makes it a parameter of the admission policies. All follows
//! from the record alone, so whoever comes later finds what is left to do. Pure.
//!
//! The record comes first. Then the VolumeHealth gets finalizer and label, then the volume all its marks in one write;
//! taken back in the opposite order. So there is never a mark that no finalizer guards, and no volume that shows a taint
//! and can be bound.

use std::sync::Arc;

use serde::Serialize;

use crate::api::names;
use crate::api::slim::{PersistentVolume, Pod};
use crate::api::volume::TaintEffect;
use crate::api::volume_health::{TaintValue, VolumeHealth, VolumeTaint};
use crate::api::volume_health_policy::Enforcement;

use super::decide::{Effect, Seen, named};
use super::reservation::{self, ClaimRef};

/// What a tainted volume shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    /// The level in force.
    pub level: Enforcement,
    /// A taint keeps new users off.
    pub blocks: bool,
    /// The taints as compact JSON.
    pub taints: String,
}

/// The marks of a PersistentVolume, as they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Value of the label of a volume with any taint.
    pub tainted: Option<Enforcement>,
    /// Value of the label of a volume with a taint that keeps new users off.
    pub no_attach: Option<Enforcement>,
    /// The annotation.
    pub taints: Option<String>,
    /// What happens to the claim it is for.
    pub claim_ref: ClaimRef,
}

/// A taint as the annotation has it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    key: &'a str,
    value: TaintValue,
    effect: TaintEffect,
    time_added: chrono::DateTime<chrono::Utc>,
}

impl<'a> From<&'a VolumeTaint> for Shown<'a> {
    fn from(taint: &'a VolumeTaint) -> Self {
        Self { key: &taint.key, value: taint.value, effect: taint.effect(), time_added: taint.time_added }
    }
}

impl Projection {
    /// What a VolumeHealth shows; nothing while it has no taint, or when it is on its way out.
    pub fn of(health: &VolumeHealth) -> Option<Self> {
        let status = health.status.as_ref().filter(|_| health.metadata.deletion_timestamp.is_none())?;
        let shown: Vec<Shown> = status.taints.iter().map(Shown::from).collect();
        (!shown.is_empty()).then(|| Self {
            level: status.enforcement.unwrap_or_default(),
            blocks: status.taints.iter().any(|taint| taint.effect() == TaintEffect::NoAttachOrMount),
            taints: serde_json::to_string(&shown).unwrap_or_default(),
        })
    }

    /// Whether new attachments and pods are kept off.
    pub fn is_closed(&self) -> bool {
        self.level == Enforcement::Enforce && self.blocks
    }
}

/// Whether a volume shows a taint.
pub fn is_marked(volume: &Arc<PersistentVolume>) -> bool {
    of_volume(volume, None).is_some()
}

/// What is left to do so that everything shows the record.
pub fn steps(seen: &Seen) -> Vec<Effect> {
    let shown = seen.health.as_deref().and_then(Projection::of);
    let volume = seen.volume.as_ref().and_then(|volume| of_volume(volume, shown.as_ref()));
    let held = seen.pods.iter().any(|pod| is_waiting(pod) && !is_left_to_others(seen, pod));
    let health = seen.health.as_ref().and_then(|health| of_health(health, shown.as_ref(), held));
    let (first, then) = if shown.is_some() { (health, volume) } else { (volume, health) };
    first.into_iter().chain(then).collect()
}

fn is_waiting(pod: &Pod) -> bool {
    pod.is_held() && !pod.is_terminating()
}

/// A VolumeHealth that leaves does not wait for other volumes to become good: theirs lets the pod go.
fn is_left_to_others(seen: &Seen, pod: &Pod) -> bool {
    let leaves = seen.health.as_ref().is_some_and(|health| health.metadata.deletion_timestamp.is_some());
    leaves && seen.held_elsewhere.contains(&named(pod))
}

fn of_volume(volume: &Arc<PersistentVolume>, shown: Option<&Projection>) -> Option<Effect> {
    let level = shown.map(|shown| shown.level);
    let marks = Marks {
        tainted: level,
        no_attach: level.filter(|_| shown.is_some_and(|shown| shown.blocks)),
        taints: shown.map(|shown| shown.taints.clone()),
        claim_ref: reservation::next(volume, level == Some(Enforcement::Enforce)),
    };
    (!marks.are_on(volume)).then(|| Effect::Project { volume: volume.clone(), marks })
}

/// The finalizer stays until the last pod is let go: then nothing is left behind when our controller goes too.
fn of_health(health: &Arc<VolumeHealth>, shown: Option<&Projection>, held: bool) -> Option<Effect> {
    let meta = &health.metadata;
    let closed = shown.is_some_and(Projection::is_closed);
    let has_finalizer = is_guarded(health);
    // None can be added to what is being deleted.
    let guarded = shown.is_some() || has_finalizer && held;
    let label = meta.labels.as_ref().and_then(|labels| labels.get(names::NO_ATTACH_LABEL)).map(String::as_str);
    let is_done = label == closed.then_some(Enforcement::Enforce.as_str()) && has_finalizer == guarded;
    (!is_done).then(|| Effect::Mark { health: health.clone(), closed, guarded })
}

/// Whether our finalizer is on a VolumeHealth.
pub fn is_guarded(health: &VolumeHealth) -> bool {
    let finalizers = health.metadata.finalizers.as_deref().unwrap_or_default();
    finalizers.iter().any(|it| it == names::PROJECTION_FINALIZER)
}

impl Marks {
    /// None of ours on this volume.
    pub fn none(volume: &PersistentVolume) -> Self {
        Self { tainted: None, no_attach: None, taints: None, claim_ref: reservation::next(volume, false) }
    }

    fn are_on(&self, volume: &PersistentVolume) -> bool {
        let meta = &volume.metadata;
        let label = |key| meta.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
        let taints = meta.annotations.as_ref().and_then(|it| it.get(names::VOLUME_TAINTS_ANNOTATION));
        label(names::TAINTED_LABEL) == self.tainted.map(Enforcement::as_str)
            && label(names::NO_ATTACH_LABEL) == self.no_attach.map(Enforcement::as_str)
            && taints == self.taints.as_ref()
            && self.claim_ref == ClaimRef::Keep
    }
}
