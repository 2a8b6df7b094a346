//! Carries out what a pass decided.

use crate::api::volume_health_policy::VolumeHealthPolicyStatus;
use crate::controllers::Context;
use crate::error::Result;

use super::decide::Effect;
use super::tell;

/// Carries out one effect. Returns whether other counts were written than before.
pub async fn act(cx: &Context, effect: Effect) -> Result<bool> {
    let Effect::Record { policy, status } = effect;
    let written = cx.writer.record(policy.as_ref(), *status).await?;
    let before = policy.status.clone().unwrap_or_default();
    tell::transitions(cx, &before, &written);
    let counts = |status: &VolumeHealthPolicyStatus| (status.volumes, status.unhealthy, status.overruled);
    Ok(written.status.as_ref().map(counts) != Some(counts(&before)))
}
