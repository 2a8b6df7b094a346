//! What becomes of a Mountpoint Pod that no attachment names. Pure.

use std::sync::Arc;
use std::time::Duration;

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::time::Now;

use super::decide::{Deleted, Effect, Patience};
use super::plan;

/// What to do with it.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It is on its way.
    Leave,
    /// The attachment that names it may only not be known here yet.
    LookAgain(Duration),
    /// It ended, as every Mountpoint Pod does: nobody forgot it.
    Ended(Effect),
    /// It was forgotten.
    Forgotten(Effect),
}

/// Judges one that nothing names.
pub fn judge(pod: &Arc<MountpointPod>, patience: Patience, now: Now) -> Verdict {
    let age = plan::age(pod.metadata.creation_timestamp.as_ref(), now);
    match idle(pod) {
        Some(why @ Deleted::Ended) => Verdict::Ended(Effect::DeletePod { pod: pod.clone(), why }),
        _ if age < patience.orphan_after => Verdict::LookAgain(patience.orphan_after - age),
        _ if is_to_unmount(pod) => Verdict::Forgotten(Effect::Retire(pod.clone())),
        Some(why) => Verdict::Forgotten(Effect::DeletePod { pod: pod.clone(), why }),
        None => Verdict::Leave,
    }
}

/// Whether something may be mounted by it that is not used any more, and nobody told it so.
pub fn is_to_unmount(pod: &MountpointPod) -> bool {
    pod.has_run() && !pod.has_ended() && !pod.needs_unmount()
}

/// Why it can be deleted, if it can: then nothing is mounted by it.
pub fn idle(pod: &MountpointPod) -> Option<Deleted> {
    match () {
        () if pod.is_terminating() => None,
        () if pod.has_ended() => Some(Deleted::Ended),
        () if !pod.has_run() => Some(Deleted::NeverRan),
        () => None,
    }
}
