//! Carries out what a pass decided, in order, each effect at its own moment of leadership.

use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::names;
use crate::api::slim::PersistentVolume;
use crate::api::volume_health::VolumeHealth;
use crate::api::volume_health_policy::Enforcement;
use crate::controllers::Context;
use crate::error::Result;
use crate::runtime::patch::Edit;
use crate::runtime::store::ObjectKey;
use crate::runtime::writer::Writer;

use super::decide::{Effect, Seen};
use super::metrics::{Metrics, Written};
use super::projection::Marks;
use super::reservation::{self, ClaimRef};
use super::tell;

/// Carries out one effect.
pub async fn act(cx: &Context, metrics: &Metrics, seen: &Seen, effect: Effect) -> Result<()> {
    match effect {
        Effect::Create(health) => {
            cx.writer.create(health.as_ref()).await?;
            metrics.wrote(Written::Create);
        }
        Effect::Own { health, owner } => {
            cx.writer.patch(health.as_ref(), own(&health, json!(owner)).patch()).await?;
            metrics.wrote(Written::Own);
        }
        Effect::Record { health, status } => {
            let before = health.status.clone().unwrap_or_default();
            let written = cx.writer.record(health.as_ref(), *status).await?;
            metrics.wrote(Written::Record);
            let after = written.status.clone().unwrap_or_default();
            metrics.tainted(&before, &after, cx.clock.now().wall);
            tell::transitions(cx, seen, &before, &written);
            tracing::debug!(volume = seen.name, phase = ?after.phase, taints = ?after.taint_summary, "recorded");
        }
        Effect::Delete(health) => {
            let uid = health.uid().unwrap_or_default();
            cx.writer.delete::<VolumeHealth>(&ObjectKey::from(health.as_ref()), &uid, None, None).await?;
            metrics.wrote(Written::Delete);
        }
        Effect::Mark { health, closed, guarded } => {
            mark(&cx.writer, &health, closed, guarded).await?;
            metrics.wrote(Written::Mark);
        }
        Effect::Project { volume, marks } => {
            project(&cx.writer, &volume, &marks).await?;
            metrics.wrote(Written::Project);
            tell::shown(cx, seen, &volume, &marks);
        }
    }
    Ok(())
}

/// Gives a VolumeHealth label and finalizer, or takes them. Returns whether there was something to write.
pub async fn mark(writer: &Writer, health: &VolumeHealth, closed: bool, guarded: bool) -> Result<bool> {
    let edit = Edit::of(&health.metadata)
        .label(names::NO_ATTACH_LABEL, closed.then_some(Enforcement::Enforce.as_str()))
        .finalizer(names::PROJECTION_FINALIZER, guarded);
    Ok(writer.patch(health, edit.patch()).await?.is_some())
}

/// Gives a volume all its marks in one write: nobody sees it tainted and free. Labels are set and taken as they are, not
/// applied: a backup may have brought them back under another manager's name. Returns whether there was something to write.
pub async fn project(writer: &Writer, volume: &PersistentVolume, marks: &Marks) -> Result<bool> {
    const CLAIM_REF: [&str; 2] = ["spec", "claimRef"];
    let edit = Edit::of(&volume.metadata)
        .label(names::TAINTED_LABEL, marks.tainted.map(Enforcement::as_str))
        .label(names::NO_ATTACH_LABEL, marks.no_attach.map(Enforcement::as_str))
        .annotation(names::VOLUME_TAINTS_ANNOTATION, marks.taints.as_deref());
    let edit = match marks.claim_ref {
        ClaimRef::Keep => edit,
        ClaimRef::Reserve => edit.put(&CLAIM_REF, reservation::reserved()),
        ClaimRef::Release => edit.take(&CLAIM_REF),
    };
    let writer = writer.under(names::PROJECTION_MANAGER);
    Ok(writer.patch(volume, edit.patch()).await?.is_some())
}

/// Adds the owner to exactly this version of the object.
fn own(health: &VolumeHealth, owner: Value) -> Edit<'_> {
    const OWNERS: [&str; 2] = ["metadata", "ownerReferences"];
    let edit = Edit::of(&health.metadata);
    if health.owner_references().is_empty() {
        edit.put(&OWNERS, json!([owner]))
    } else {
        edit.put(&["metadata", "ownerReferences", "-"], owner)
    }
}
