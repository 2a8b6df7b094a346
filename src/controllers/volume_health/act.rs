//! Carries out what a pass decided, in order, each effect at its own moment of leadership.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, TestOperation};
use kube::ResourceExt;
use serde_json::json;

use crate::api::names;
use crate::api::slim::PersistentVolume;
use crate::api::volume_health::VolumeHealth;
use crate::api::volume_health_policy::Enforcement;
use crate::controllers::Context;
use crate::error::Result;
use crate::runtime::apply::Writer;
use crate::runtime::patch::Edit;
use crate::runtime::store::ObjectKey;

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
            let patch = own(&health, json!(owner));
            cx.writer.json_patch::<VolumeHealth>(&ObjectKey::from(health.as_ref()), patch).await?;
            metrics.wrote(Written::Own);
        }
        Effect::Record { health, status } => {
            let before = health.status.clone().unwrap_or_default();
            let mut next = health.as_ref().clone();
            next.status = Some(*status);
            let written = cx.writer.replace_status(&next).await?;
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
    let Some(patch) = edit.patch() else { return Ok(false) };
    writer.json_patch::<VolumeHealth>(&ObjectKey::from(health), patch).await?;
    Ok(true)
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
    let Some(patch) = edit.patch() else { return Ok(false) };
    let writer = writer.under(names::PROJECTION_MANAGER);
    writer.json_patch::<PersistentVolume>(&ObjectKey::from(volume), patch).await?;
    Ok(true)
}

/// Adds the owner to exactly this version of the object.
fn own(health: &VolumeHealth, owner: serde_json::Value) -> Patch {
    let pointer = |path: &[&str]| PointerBuf::from_tokens(path.iter().copied());
    let test = |path: &[&str], value| PatchOperation::Test(TestOperation { path: pointer(path), value });
    let add = |path: &[&str], value| PatchOperation::Add(AddOperation { path: pointer(path), value });
    let mut operations = vec![
        test(&["metadata", "uid"], json!(health.uid())),
        test(&["metadata", "resourceVersion"], json!(health.resource_version())),
    ];
    operations.push(if health.owner_references().is_empty() {
        add(&["metadata", "ownerReferences"], json!([owner]))
    } else {
        add(&["metadata", "ownerReferences", "-"], owner)
    });
    Patch(operations)
}
