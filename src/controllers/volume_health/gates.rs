//! Which pods that wait at our scheduling gate may go. It is asked of the pod, not of a volume: its claim may have been
//! deleted, or be bound to another volume, and then no volume would lead to it. Pure.

use crate::api::slim::Pod;
use crate::api::volume_health::{VolumeHealth, VolumePhase};

use super::projection::Projection;

/// Whether a pod waits at our gate, and for none of the VolumeHealths that name a claim of it.
pub fn may_go<'a>(pod: &Pod, healths: impl IntoIterator<Item = &'a VolumeHealth>) -> bool {
    pod.is_held() && !pod.is_terminating() && !healths.into_iter().any(holds)
}

/// The rule of the admission policies that add the gate, so that no pod that goes would be held again. A volume whose
/// claim was deleted holds nobody: a claim of that name has another volume.
pub fn holds(health: &VolumeHealth) -> bool {
    let volume = health.status.as_ref().and_then(|status| status.volume.as_ref());
    let has_claim =
        !matches!(volume.and_then(|volume| volume.pv_phase), Some(VolumePhase::Released | VolumePhase::Failed));
    has_claim && Projection::of(health).is_some_and(|shown| shown.is_closed())
}
