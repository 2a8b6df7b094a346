//! Carries out what a pass decided, in order, each effect at its own moment of leadership.

use kube::ResourceExt;

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::s3::{FINALIZER, NEEDS_UNMOUNT};
use crate::controllers::Context;
use crate::error::Result;
use crate::runtime::patch::Edit;
use crate::runtime::store::ObjectKey;
use crate::runtime::writer::Writer;

use super::decide::Effect;

/// Carries out one effect.
pub async fn act(cx: &Context, effect: &Effect) -> Result<()> {
    let writer = &cx.writer;
    match effect {
        Effect::Retire(pod) => retire(writer, pod).await,
        Effect::Create(attachment) => writer.create(attachment.as_ref()).await.map(drop),
        Effect::Replace { after, .. } => writer.replace(after.as_ref()).await.map(drop),
        Effect::Remove(attachment) => remove(writer, attachment).await,
        Effect::CreatePod { pod, .. } => writer.create(pod.as_ref()).await.map(drop),
        Effect::DeletePod { pod, .. } => delete(writer, pod).await,
        Effect::Record { before, status } => writer.record(before.as_ref(), status.as_ref().clone()).await.map(drop),
    }
}

async fn retire(writer: &Writer, pod: &MountpointPod) -> Result<()> {
    let edit = Edit::of(&pod.metadata).annotation(NEEDS_UNMOUNT, Some("true"));
    writer.patch(pod, edit.patch()).await.map(drop)
}

/// The pod leaves with its own grace: what holds it for longer is not ours to cut short.
async fn delete(writer: &Writer, pod: &MountpointPod) -> Result<()> {
    let version = pod.metadata.resource_version.as_deref();
    writer.delete::<MountpointPod>(&ObjectKey::from(pod), pod.uid(), version, None).await
}

/// Uid, entry and finalizer go in one write: whoever reads the object sees it used, or free to go.
async fn remove(writer: &Writer, attachment: &MountpointS3PodAttachment) -> Result<()> {
    let mut after = attachment.clone();
    after.spec.mountpoint_s3_pod_attachments.clear();
    after.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
    let is_same = after.finalizers() == attachment.finalizers() && after.spec == attachment.spec;
    let emptied = if is_same { after } else { writer.replace(&after).await? };
    // The last finalizer of one that is being deleted takes it along.
    if emptied.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let (uid, version) = (emptied.uid().unwrap_or_default(), emptied.resource_version());
    writer.delete::<MountpointS3PodAttachment>(&ObjectKey::from(&emptied), &uid, version.as_deref(), None).await
}
