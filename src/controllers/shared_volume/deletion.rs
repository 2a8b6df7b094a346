//! The end of a SharedVolume: what was told is taken back, what was made is deleted or left to the claim. Pure.

use std::time::Duration;

use kube::ResourceExt;

use crate::api::provider_volume::{Observation, ProviderVolume};
use crate::api::shared_volume::{
    DeletionPolicy, PublishTarget, SKIP_UNPUBLISH_ANNOTATION, SharedVolumePhase, UNPUBLISH_FINALIZER,
};
use crate::api::time::Now;

use super::decide::{Acknowledged, Decision, Effect, Seen};
use super::objects;
use super::publish;
use super::slices::{self, FAMILIES};
use super::status::{Finding, Report};

/// How long it is tried to un-publish at a provider that does not answer.
pub const UNPUBLISH: Duration = Duration::from_secs(30);
/// Pace at which a provider that does not answer is looked at again.
const PACE: Duration = Duration::from_secs(1);

/// The next step.
pub fn step(seen: &Seen, now: Now) -> Decision {
    if !is_guarded(seen) {
        return Decision::new("Released", seen, Vec::new());
    }
    let is_kept = seen.shared_volume.spec.deletion_policy == DeletionPolicy::Retain;
    // An address that stays is told on.
    if !is_kept && let Some(decision) = unpublish(seen, now) {
        return decision;
    }
    let effects = if is_kept { leave(seen) } else { remove(seen) };
    if !effects.is_empty() {
        return Decision::new(if is_kept { "LeftToTheClaim" } else { "Removed" }, seen, effects);
    }
    Decision::new("Unguarded", seen, vec![Effect::RemoveFinalizer])
}

/// Whether our finalizer is there.
pub fn is_guarded(seen: &Seen) -> bool {
    seen.shared_volume.finalizers().iter().any(|finalizer| finalizer == UNPUBLISH_FINALIZER)
}

/// Takes back what the provider and the claim were told; nothing when that is done, or given up.
fn unpublish(seen: &Seen, now: Now) -> Option<Decision> {
    if let Some(effect) = publish::unannotate(seen) {
        return Some(Decision::new("Unannotate", seen, vec![effect]));
    }
    let spec = &seen.shared_volume.spec;
    let published = seen.status().and_then(|status| status.published_endpoint.clone());
    // One that is no target any more may still have what it was told.
    let is_told = published.is_some() || spec.targets().contains(&PublishTarget::Provider);
    let provider = spec.backend.provider.as_ref().filter(|_| is_told)?;
    let gives_up = seen.shared_volume.annotations().get(SKIP_UNPUBLISH_ANNOTATION).is_some_and(|value| value == "true");
    let since = seen.memory.releasing_since.unwrap_or(now.mono);
    let left = UNPUBLISH.checked_sub(now.mono.saturating_duration_since(since)).filter(|left| !left.is_zero());
    if gives_up || left.is_none() {
        return None;
    }
    let failure = publish::failure(seen, "", now);
    let pause = failure.as_ref().and_then(|(_, left)| *left);
    let mut decision = match &seen.observation {
        Some(Observation::Gone) => return None,
        Some(Observation::Reported(report)) if !is_ours(seen, report, published.as_deref()) => return None,
        Some(Observation::Reported(report)) if pause.is_none() => {
            let namespace = spec.backend.provider.as_ref().and_then(|it| it.volume_namespace.clone());
            let namespace = namespace.unwrap_or_else(|| report.namespace_id.clone());
            let mut decision = Decision::new("Unpublish", seen, vec![publish::effect(provider, namespace, "")]);
            decision.memory.published = Some(Acknowledged { endpoint: String::new(), over: report.version.clone() });
            decision.memory.publish_failed = None;
            decision
        }
        // It may never have been told anything.
        _ if published.is_none() && !matches!(seen.observation, Some(Observation::Reported(_))) => return None,
        _ => {
            let why = failure.map(|(finding, _)| finding.message);
            let why = why.unwrap_or_else(|| "it cannot be told now".to_owned());
            let message = format!(
                "un-publishing at SharedVolumeProvider {}: {why}; given up after {} s, or at once with the annotation \
                 {SKIP_UNPUBLISH_ANNOTATION}: \"true\"",
                provider.name,
                UNPUBLISH.as_secs()
            );
            let report = Report {
                phase: Some(SharedVolumePhase::Terminating),
                published: Some(Finding::no("ProviderError", message)),
                ..Report::default()
            };
            Decision::record("Unpublishing", seen, &report, now)
        }
    };
    decision.memory.releasing_since = Some(since);
    decision.look_again = Some(pause.unwrap_or(PACE)).min(left);
    Some(decision)
}

/// Whether what the provider has is the address that we told it. What others told it stays.
fn is_ours(seen: &Seen, report: &ProviderVolume, published: Option<&str>) -> bool {
    let told = publish::told(seen, report);
    let mounted = seen.status().and_then(|status| status.mount_endpoint.as_deref());
    !told.is_empty() && (Some(told) == published || Some(told) == mounted)
}

/// Endpoints first: nothing may lead anywhere once the Service is another's.
fn remove(seen: &Seen) -> Vec<Effect> {
    let going = |meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| meta.deletion_timestamp.is_some();
    let endpoints = seen.endpoints.iter().filter(|it| objects::is_ours(&it.metadata, &seen.shared_volume));
    let endpoints = endpoints.filter(|it| !going(&it.metadata)).cloned().map(Effect::DeleteEndpoints);
    let strays = slices::strays(seen);
    let ours = slices::ours(seen).filter(|slice| !strays.contains(slice)).cloned();
    let slices: Vec<_> = ours.chain(strays.iter().cloned()).filter(|slice| !going(&slice.metadata)).collect();
    let service = seen.service.iter().filter(|it| objects::is_our_service(&it.metadata, &seen.shared_volume));
    let service = service.filter(|it| !going(&it.metadata)).cloned().map(Effect::DeleteService);
    endpoints.chain(slices.into_iter().map(Effect::DeleteSlice)).chain(service).collect()
}

/// What stays keeps leading where it leads, and nobody changes it any more.
fn leave(seen: &Seen) -> Vec<Effect> {
    // Without our label there is nothing to take off.
    let ours = seen.service.as_ref().filter(|it| objects::is_ours(&it.metadata, &seen.shared_volume));
    let Some(service) = ours else { return Vec::new() };
    let slices = FAMILIES.into_iter().filter_map(|family| slices::disown(seen, service, family));
    slices.chain(slices::disown_endpoints(seen, service)).chain([Effect::DisownService(service.clone())]).collect()
}
