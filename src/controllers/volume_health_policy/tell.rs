//! Events of a policy: whether it works, and which other one is in its way. From one status that was written to the next.

use kube::ResourceExt;

use crate::api::conditions;
use crate::api::volume_health_policy::{VolumeHealthPolicy, VolumeHealthPolicyStatus};
use crate::controllers::{Context, reference};
use crate::runtime::events::EventType;

/// Tells what changed.
pub fn transitions(cx: &Context, before: &VolumeHealthPolicyStatus, after: &VolumeHealthPolicy) {
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
