//! What an attachment says of itself. Pure.

use crate::api::conditions::{self, State};
use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::{
    MountpointPodState, MountpointPodStatus, MountpointS3PodAttachment, MountpointS3PodAttachmentStatus,
};
use crate::api::time::Now;

use super::decide::Seen;

/// Mountpoint Pods that are listed, at most.
const PODS: usize = 256;

/// The status that describes what is seen.
pub fn status(seen: &Seen, attachment: &MountpointS3PodAttachment, now: Now) -> MountpointS3PodAttachmentStatus {
    let entries = &attachment.spec.mountpoint_s3_pod_attachments;
    let pods: Vec<_> = entries
        .iter()
        .map(|(name, workloads)| MountpointPodStatus {
            name: name.clone(),
            uid: seen.pods.get(name).map(|pod| pod.uid().to_owned()),
            state: state(seen, name),
            workloads: count(workloads.len()),
        })
        .take(PODS)
        .collect();
    let mut conditions = attachment.status.clone().unwrap_or_default().conditions;
    let (state, reason, message) = ready(seen, &pods);
    let generation = attachment.metadata.generation.unwrap_or_default();
    conditions::set(&mut conditions, "Ready", state, reason, message, generation, now.wall);
    MountpointS3PodAttachmentStatus {
        observed_generation: attachment.metadata.generation,
        conditions,
        workloads: Some(count(attachment.spec.workloads().len())),
        oldest_attachment: entries.values().flatten().map(|it| it.attachment_time).min(),
        mountpoint_pods: pods,
    }
}

/// The worst of the Mountpoint Pods decides.
fn ready(seen: &Seen, pods: &[MountpointPodStatus]) -> (State, &'static str, String) {
    let told = |wanted: MountpointPodState, words: &dyn Fn(&MountpointPod) -> Option<String>| {
        let mut found = pods.iter().filter(|pod| pod.state == wanted).peekable();
        found.peek()?;
        let words = found.filter_map(|pod| Some(format!("{}: {}", pod.name, words(seen.pods.get(&pod.name)?)?)));
        Some(words.collect::<Vec<_>>().join("; "))
    };
    if let Some(words) = told(MountpointPodState::Failed, &|pod| pod.trouble()) {
        return (State::False, "MountpointPodFailed", words);
    }
    let unscheduled = told(MountpointPodState::Pending, &|pod| pod.why_unscheduled().map(str::to_owned));
    if let Some(words) = unscheduled.filter(|words| !words.is_empty()) {
        return (State::False, "MountpointPodUnschedulable", words);
    }
    if let Some(words) = told(MountpointPodState::Pending, &|pod| pod.trouble()) {
        return (State::False, "MountpointPodPending", words);
    }
    if let Some(words) = told(MountpointPodState::Draining, &|pod| pod.trouble()) {
        return (State::False, "Draining", words);
    }
    (State::True, "Serving", String::new())
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn state(seen: &Seen, name: &str) -> MountpointPodState {
    match seen.pods.get(name) {
        None => MountpointPodState::Pending,
        Some(pod) if pod.has_ended() => MountpointPodState::Failed,
        Some(pod) if pod.is_terminating() || pod.needs_unmount() => MountpointPodState::Draining,
        Some(pod) if pod.status.phase.as_deref() == Some("Running") => MountpointPodState::Serving,
        Some(_) => MountpointPodState::Pending,
    }
}
