//! How soon a Mountpoint Pod that failed is replaced. On a node that is short of disk the kubelet turns each away the moment
//! it is bound (kubernetes#65240 is this for DaemonSets), and what is made as fast as it fails floods the API server. How often
//! it failed is written on the pods, so a restart forgets nothing. Pure.

use std::time::Duration;

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::s3::{FAILURES_ANNOTATION, VOLUME_UID_ANNOTATION};
use crate::api::time::Now;

use super::decide::Seen;
use super::plan;

/// From the making of the first replacement to that of the second; doubled with each further one.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause: the kubelet's for containers.
const LONGEST: Duration = Duration::from_secs(300);
/// What fails at this age did not fail for what its predecessors failed for.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// How many Mountpoint Pods of the mount failed in a row, if the last of them is still there.
pub fn failures(seen: &Seen, now: Now) -> u32 {
    let count = |pod: &MountpointPod| {
        let is_old = plan::age(pod.metadata.creation_timestamp.as_ref(), now) >= FORGOTTEN;
        if is_old { 1 } else { before(pod).saturating_add(1) }
    };
    failed(seen).map(count).max().unwrap_or(0)
}

/// How long to wait until another is made. The first is replaced at once: its workloads need it.
pub fn pause(seen: &Seen, now: Now) -> Duration {
    let left = |pod: &MountpointPod| {
        let Some(doublings) = before(pod).checked_sub(1) else { return Duration::ZERO };
        let whole = FIRST.saturating_mul(2u32.saturating_pow(doublings)).min(LONGEST);
        whole.saturating_sub(plan::age(pod.metadata.creation_timestamp.as_ref(), now))
    };
    failed(seen).map(left).max().unwrap_or_default()
}

/// Those that ended though nobody told them to. A volume of before has nothing to do with this one.
fn failed(seen: &Seen) -> impl Iterator<Item = &MountpointPod> {
    let volume = seen.volume_uid();
    let is_failure = move |pod: &&MountpointPod| {
        pod.has_ended() && !pod.needs_unmount() && pod.annotation(VOLUME_UID_ANNOTATION) == volume
    };
    seen.pods.values().map(AsRef::as_ref).filter(is_failure)
}

/// How many failed before it.
fn before(pod: &MountpointPod) -> u32 {
    pod.annotation(FAILURES_ANNOTATION).and_then(|count| count.parse().ok()).unwrap_or(0)
}
