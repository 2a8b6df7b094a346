//! Events on workloads and Mountpoint Pods: upstream has none, so its users read logs of three programs.

use std::sync::Arc;

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::s3::SWEEP_ACTION;
use crate::api::slim::Pod;
use crate::controllers::{BY_MOUNTPOINT_POD, BY_UID, Context, S3Stores, reference};
use crate::error::Error;
use crate::runtime::events::EventType;

use super::decide::{Decision, Effect, Seen};
use super::volumes;

/// Workloads that are told, at most.
const WORKLOADS: usize = 16;

/// What cannot be served of a workload.
pub fn complain(cx: &Context, pod: &Pod) {
    for note in volumes::complaints(pod, &cx.stores) {
        warn(cx, pod, "VolumeNotSupported", note);
    }
}

/// What is wrong with a volume, to those who wait for it.
pub fn complaint(cx: &Context, seen: &Seen, decision: &Decision) {
    let Some(complaint) = &decision.complaint else { return };
    let volume = &seen.mount.persistent_volume_name;
    let note = format!("PersistentVolume {volume} gets no Mountpoint Pod: {complaint}");
    tracing::warn!(volume, complaint, "no Mountpoint Pod can be made");
    let waiting = seen.workloads.values().filter(|workload| workload.is_starting()).take(WORKLOADS);
    waiting.for_each(|workload| warn(cx, &workload.pod, "MountpointPodInvalid", note.clone()));
}

/// The scheduler's words, to those who wait for a Mountpoint Pod.
pub fn unscheduled(cx: &Context, s3: &S3Stores, pod: &MountpointPod) {
    let Some(words) = pod.why_unscheduled() else { return };
    let note = format!("Mountpoint Pod {} finds no place on the node: {words}", pod.name());
    for attachment in s3.attachments.by_index(BY_MOUNTPOINT_POD, pod.name()) {
        for uid in attachment.spec.workloads().into_iter().take(WORKLOADS) {
            for workload in cx.stores.pods.by_index(BY_UID, uid) {
                warn(cx, &workload, "MountpointPodUnschedulable", note.clone());
            }
        }
    }
}

/// What was done.
pub fn done(cx: &Context, seen: &Seen, effect: &Effect, decision: &Decision) {
    if let Effect::Replace { before, .. } | Effect::Remove(before) = effect {
        cleaned(cx, seen, before, decision);
    }
    match effect {
        Effect::CreatePod { pod, workloads } => {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            tracing::info!(mount = %seen.mount, mountpoint_pod = name, "Mountpoint Pod created");
            let note = format!("Mountpoint Pod {name} mounts {}", seen.mount.persistent_volume_name);
            if let Some(first) = workloads.first() {
                let kind = EventType::Normal;
                cx.events.publish(reference(first.as_ref()), kind, "MountpointPodCreated", "Attach", note);
            }
        }
        Effect::Replace { before, after } => moved(cx, seen, before, after),
        Effect::Retire(pod) | Effect::DeletePod { pod, .. } if decision.orphans.contains(pod.name()) => {
            forgotten(cx, pod);
        }
        Effect::Retire(pod) => tracing::info!(mountpoint_pod = pod.name(), "Mountpoint Pod is to unmount"),
        Effect::DeletePod { pod, why } => tracing::info!(mountpoint_pod = pod.name(), ?why, "Mountpoint Pod deleted"),
        Effect::Create(_) | Effect::Remove(_) | Effect::Record { .. } => {}
    }
}

/// Whoever looks for what the sweep does looks for the word `cleanup`, as in the log of upstream's controller.
fn cleaned(cx: &Context, seen: &Seen, before: &MountpointS3PodAttachment, decision: &Decision) {
    if !decision.stale.is_empty() {
        tracing::info!(mount = %seen.mount, workloads = ?decision.stale, "stale attachment cleanup");
        let uids: Vec<_> = decision.stale.iter().take(WORKLOADS).map(String::as_str).collect();
        let note = format!("no pod has these uids any more, their attachments are removed: {}", uids.join(", "));
        cx.events.publish(reference(before), EventType::Normal, "StaleAttachmentsRemoved", SWEEP_ACTION, note);
    }
    let entries = &before.spec.mountpoint_s3_pod_attachments;
    if entries.is_empty() || entries.values().any(Vec::is_empty) {
        let name = before.metadata.name.as_deref().unwrap_or_default();
        tracing::info!(mount = %seen.mount, name, "empty attachment cleanup");
    }
}

/// A Mountpoint Pod that no attachment names is removed.
pub fn forgotten(cx: &Context, pod: &MountpointPod) {
    tracing::warn!(mountpoint_pod = pod.name(), "forgotten Mountpoint Pod cleanup");
    let note = format!("no attachment names Mountpoint Pod {}: it is unmounted and deleted", pod.name());
    cx.events.publish(reference(pod), EventType::Warning, "OrphanRemoved", SWEEP_ACTION, note);
}

/// Workloads that another Mountpoint Pod serves now.
fn moved(cx: &Context, seen: &Seen, before: &MountpointS3PodAttachment, after: &MountpointS3PodAttachment) {
    let is_moved = |uid: &&str| {
        let old = before.spec.mountpoint_pod_of(uid);
        old.is_some() && old != after.spec.mountpoint_pod_of(uid)
    };
    for uid in after.spec.workloads().into_iter().filter(is_moved).take(WORKLOADS) {
        let (Some(old), Some(new)) = (before.spec.mountpoint_pod_of(uid), after.spec.mountpoint_pod_of(uid)) else {
            continue;
        };
        let Some(workload) = seen.workloads.get(uid) else { continue };
        let note = format!("Mountpoint Pod {new} takes the place of {old}, which {}", ending(seen.pods.get(old)));
        tracing::info!(mount = %seen.mount, old, new, "Mountpoint Pod replaced");
        let kind = EventType::Normal;
        cx.events.publish(reference(workload.pod.as_ref()), kind, "MountpointPodReplaced", "Attach", note);
    }
}

fn ending(pod: Option<&Arc<MountpointPod>>) -> String {
    match pod {
        None => "is gone".to_owned(),
        Some(pod) if pod.has_ended() => {
            format!("ended: {}", pod.trouble().unwrap_or_else(|| "no reason is given".to_owned()))
        }
        Some(pod) if pod.is_terminating() => "is being deleted".to_owned(),
        Some(_) => "is to unmount".to_owned(),
    }
}

/// What the API server did not take. Quotas and admission policies speak here.
pub fn refused(cx: &Context, effect: &Effect, error: &Error) {
    if let Effect::CreatePod { workloads, .. } = effect
        && !error.is_conflict()
    {
        let note = format!("the Mountpoint Pod cannot be created: {error}");
        workloads.iter().take(WORKLOADS).for_each(|pod| warn(cx, pod, "MountpointPodNotCreated", note.clone()));
    }
}

fn warn(cx: &Context, pod: &Pod, reason: &'static str, note: String) {
    cx.events.publish(reference(pod), EventType::Warning, reason, "Attach", note);
}
