//! Carries out what a pass decided, and tells what changed.

use kube::ResourceExt;

use crate::api::conditions;
use crate::api::volume_health_policy::{VolumeHealthPolicy, VolumeHealthPolicyStatus};
use crate::controllers::{Context, reference};
use crate::error::Result;
use crate::runtime::events::EventType;

use super::decide::Effect;

/// Carries out one effect. Returns whether other counts were written than before.
pub async fn act(cx: &Context, effect: Effect) -> Result<bool> {
    let Effect::Record { policy, status } = effect;
    let mut next = policy.as_ref().clone();
    next.status = Some(*status);
    let written = cx.writer.replace_status(&next).await?;
    let before = policy.status.clone().unwrap_or_default();
    tell(cx, &before, &written);
    let counts = |status: &VolumeHealthPolicyStatus| (status.volumes, status.unhealthy, status.overruled);
    Ok(written.status.as_ref().map(counts) != Some(counts(&before)))
}

fn tell(cx: &Context, before: &VolumeHealthPolicyStatus, after: &VolumeHealthPolicy) {
    let now = after.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    for (type_, told) in [("Ready", ["Accepted", "AdmissionPolicyMissing"].as_slice()), ("Conflict", &["SamePriority"])]
    {
        let was = conditions::find(&before.conditions, type_).map(|condition| condition.reason.as_str());
        let Some(is) = conditions::find(now, type_).filter(|is| was != Some(is.reason.as_str())) else { continue };
        if !told.contains(&is.reason.as_str()) {
            continue;
        }
        let (kind, reason) = match is.reason.as_str() {
            "Accepted" => (EventType::Normal, "PolicyAccepted"),
            "SamePriority" => (EventType::Warning, "SamePriority"),
            _ => (EventType::Warning, "AdmissionPolicyMissing"),
        };
        tracing::info!(policy = after.name_any(), reason, "told");
        cx.events.publish(reference(after), kind, reason, "Select", is.message.clone());
    }
}
