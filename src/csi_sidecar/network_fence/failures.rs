//! Why a step of a network fence waits, or cannot be done: reasons and words of the rows of a FenceRequest. Pure.

use chrono::{DateTime, Utc};
use kube::ResourceExt as _;

use super::super::decide::{Failure, FailureClass};
use crate::api::network_fence::{CACHE_LAG, NetworkFence};
use crate::api::proof::CLASS_TOO_NEW;

/// It is tried again.
pub(super) fn wait(code: &'static str, message: String) -> Failure {
    Failure { code, class: FailureClass::Retry, message }
}

/// It is not tried again in this round.
pub(super) fn stop(code: &'static str, message: String) -> Failure {
    Failure { code, class: FailureClass::Stop, message }
}

/// csi-addons has not said yet how it ended.
pub(super) fn fencing(fence: &NetworkFence) -> Failure {
    wait("NetworkFencing", format!("csi-addons has not fenced {} yet", fence.name_any()))
}

/// csi-addons could not shut the node out.
pub(super) fn fencing_failed(fence: &NetworkFence, message: &str) -> Failure {
    stop("NetworkFenceFailed", format!("{}: {message}", fence.name_any()))
}

/// The object of this round's name is there, and does not count.
pub(super) fn changed(name: &str) -> Failure {
    let message = format!(
        "somebody deleted or changed NetworkFence {name}, or its class, or it was made too soon after that: the next round \
         makes another"
    );
    stop("NetworkFenceChanged", message)
}

/// What was proved does not hold any more.
pub(super) fn lifted(class: &str) -> Failure {
    let message = format!("no NetworkFence of ours of class {class} holds any more: another one is made");
    stop("NetworkFenceLifted", message)
}

/// Both times are told: where the clock here is behind, it takes longer.
pub(super) fn too_new(class: &str, made: DateTime<Utc>, now: DateTime<Utc>) -> Failure {
    let message = format!(
        "NetworkFenceClass {class} was made at {made}, and it is {now} here: for {} s csi-addons may still go by one that \
         was there before",
        CACHE_LAG.num_seconds()
    );
    wait(CLASS_TOO_NEW, message)
}

/// Somebody else lets the same addresses in.
pub(super) fn being_lifted(rival: &NetworkFence) -> Failure {
    let name = rival.name_any();
    wait("BeingUnfenced", format!("NetworkFence {name} lets the same addresses in: it must be gone first"))
}

/// csi-addons has not let the node in yet.
pub(super) fn lifting(fence: &NetworkFence) -> Failure {
    let name = fence.name_any();
    match fence.failure() {
        Some(message) => wait("NetworkUnfenceFailed", format!("{name}: {message}")),
        None => wait("NetworkUnfencing", format!("csi-addons has not said yet that NetworkFence {name} is lifted")),
    }
}
