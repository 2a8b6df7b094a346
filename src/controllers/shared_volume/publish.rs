//! Who is told the mount endpoint, and when: not before it answers, and only on change. Pure.

use std::net::SocketAddr;
use std::time::Duration;

use kube::ResourceExt;

use crate::api::provider_volume::{Observation, ProviderVolume};
use crate::api::shared_volume::{MOUNT_ENDPOINT_ANNOTATION, ProbeGate, ProviderBackend, PublishHost, PublishTarget};
use crate::api::slim::network::Service;
use crate::api::time::Now;

use super::claim;
use super::decide::{Acknowledged, Effect, Seen};
use super::service;
use super::status::Finding;

/// Pauses between attempts grow up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What clients mount, for every family.
pub fn mount_endpoints(seen: &Seen, service: &Service) -> Vec<String> {
    let Some(port) = seen.shared_volume.spec.mount_service_port() else { return Vec::new() };
    match seen.shared_volume.spec.publish.host {
        PublishHost::ClusterIP => {
            let addresses = service::addresses(service).into_iter();
            addresses.map(|address| SocketAddr::new(address, port.port).to_string()).collect()
        }
        PublishHost::DNS => {
            let namespace = seen.shared_volume.namespace().unwrap_or_default();
            vec![format!("{}.{namespace}.svc.{}:{}", service.name_any(), seen.cluster_domain, port.port)]
        }
    }
}

/// What there is to tell, and what was told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Whom to tell now.
    pub effects: Vec<Effect>,
    /// What is to be remembered once they are told.
    pub published: Option<Acknowledged>,
    /// How it stands.
    pub finding: Option<Finding>,
    /// What the provider has.
    pub acknowledged: Option<String>,
    /// When to try again.
    pub look_again: Option<Duration>,
}

/// What is to be told now. `serves`: the server behind the address answers.
pub fn step(seen: &Seen, endpoint: &str, serves: bool, now: Now) -> Step {
    let spec = &seen.shared_volume.spec;
    let told = seen.status().is_some_and(|status| status.published_endpoint.is_some());
    let is_open = serves || told || spec.probe.gate == ProbeGate::Never;
    let targets = spec.targets();
    let mut step = Step::default();
    if let Some(provider) = &spec.backend.provider
        && targets.contains(&PublishTarget::Provider)
    {
        tell_provider(&mut step, seen, provider, endpoint, is_open, now);
    }
    annotate(&mut step, seen, targets.contains(&PublishTarget::ClaimAnnotation).then_some(endpoint), is_open);
    if targets.is_empty() {
        step.finding = Some(Finding::yes("NoTarget", "publish.targets names nobody".to_owned()));
    }
    step
}

fn tell_provider(step: &mut Step, seen: &Seen, provider: &ProviderBackend, endpoint: &str, is_open: bool, now: Now) {
    let before = seen.status().and_then(|status| status.published_endpoint.as_deref());
    let acknowledged = || Some(Finding::yes("Acknowledged", format!("{} has {endpoint}", provider.name)));
    let report = match &seen.observation {
        Some(Observation::Reported(report)) => report,
        _ if before == Some(endpoint) => {
            step.finding = acknowledged();
            return;
        }
        _ => {
            let message = format!("SharedVolumeProvider {} cannot be told now: see its conditions", provider.name);
            step.finding = Some(Finding::no("ProviderError", message));
            return;
        }
    };
    if told(seen, report) == endpoint {
        step.acknowledged = Some(endpoint.to_owned());
        step.finding = acknowledged();
    } else if !is_open {
        step.finding = Some(closed());
    } else if let Some((finding, left)) = failure(seen, endpoint, now) {
        step.finding = Some(finding);
        step.look_again = left;
        if left.is_none() {
            publish(step, seen, provider, report, endpoint);
        }
    } else {
        step.finding = Some(Finding::before(seen, "Published").unwrap_or_else(closed));
        publish(step, seen, provider, report, endpoint);
    }
}

fn closed() -> Finding {
    Finding::no("GateClosed", "the address is told once the server behind it answers".to_owned())
}

fn publish(step: &mut Step, seen: &Seen, provider: &ProviderBackend, report: &ProviderVolume, endpoint: &str) {
    step.effects.push(effect(provider, namespace(seen, report), endpoint));
    step.published = Some(Acknowledged { endpoint: endpoint.to_owned(), over: report.version.clone() });
}

fn namespace(seen: &Seen, report: &ProviderVolume) -> String {
    let wanted = seen.shared_volume.spec.backend.provider.as_ref().and_then(|it| it.volume_namespace.clone());
    wanted.unwrap_or_else(|| report.namespace_id.clone())
}

/// The call that tells a provider.
pub fn effect(provider: &ProviderBackend, namespace: String, endpoint: &str) -> Effect {
    Effect::Publish {
        provider: provider.name.clone(),
        namespace,
        volume: provider.volume_id.clone(),
        endpoint: endpoint.to_owned(),
    }
}

/// The mount endpoint that an effect tells somebody.
pub fn endpoint(effect: &Effect) -> Option<&str> {
    match effect {
        Effect::Publish { endpoint, .. } => Some(endpoint),
        Effect::AnnotateClaim { endpoint, .. } => endpoint.as_deref(),
        _ => None,
    }
}

/// What the provider has. Right after a call the report is that of before.
pub fn told<'a>(seen: &'a Seen, report: &'a ProviderVolume) -> &'a str {
    match &seen.memory.published {
        Some(published) if published.over == report.version => &published.endpoint,
        _ => &report.mount_endpoint,
    }
}

/// What went wrong with this endpoint, and how long to wait before it is tried again.
pub fn failure(seen: &Seen, endpoint: &str, now: Now) -> Option<(Finding, Option<Duration>)> {
    let failure = seen.memory.publish_failed.as_ref().filter(|failure| failure.endpoint == endpoint)?;
    let pause =
        Duration::from_secs(1).saturating_mul(1 << failure.failures.saturating_sub(1).min(6)).min(LONGEST_PAUSE);
    let left = pause.checked_sub(now.mono.saturating_duration_since(failure.at)).filter(|left| !left.is_zero());
    let reason = if failure.is_conflict { "VersionConflict" } else { "ProviderError" };
    Some((Finding::no(reason, failure.error.clone()), left))
}

/// Gives the claim its annotation; takes one that says what we say when nobody wants it any more.
fn annotate(step: &mut Step, seen: &Seen, wanted: Option<&str>, is_open: bool) {
    let Some(claim) = &seen.claim else { return };
    let present = claim::annotation(claim, MOUNT_ENDPOINT_ANNOTATION);
    match wanted {
        Some(endpoint) if present == Some(endpoint) => {
            let finding = Finding::yes("Acknowledged", format!("the claim is annotated with {endpoint}"));
            step.finding.get_or_insert(finding);
        }
        Some(_) if !is_open => step.finding = Some(closed()),
        Some(endpoint) => {
            step.finding = Some(Finding::before(seen, "Published").unwrap_or_else(closed));
            step.effects.push(Effect::AnnotateClaim { claim: claim.clone(), endpoint: Some(endpoint.to_owned()) });
        }
        None => step.effects.extend(unannotate(seen)),
    }
}

/// Takes the annotation of the claim, if it is ours.
pub fn unannotate(seen: &Seen) -> Option<Effect> {
    let claim = seen.claim.clone()?;
    let present = claim::annotation(&claim, MOUNT_ENDPOINT_ANNOTATION)?;
    let is_ours = seen.status().is_some_and(|status| status.mount_endpoint.as_deref() == Some(present));
    is_ours.then_some(Effect::AnnotateClaim { claim, endpoint: None })
}
