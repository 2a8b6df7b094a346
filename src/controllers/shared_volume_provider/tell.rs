//! Events of a transition from one record to the next. What is told follows from the records alone, so a restart tells
//! nothing twice.

use kube::ResourceExt;

use crate::api::conditions;
use crate::api::shared_volume_provider::{SharedVolumeProvider, SharedVolumeProviderStatus, Transport};
use crate::controllers::{Context, reference};
use crate::runtime::events::EventType;

use super::discovery::Draft;

/// Tells what changed.
pub fn transitions(cx: &Context, before: &SharedVolumeProviderStatus, provider: &SharedVolumeProvider) {
    let Some(after) = &provider.status else { return };
    let tell = |kind, reason, action, note: String| {
        tracing::info!(provider = provider.name_any(), reason, note, "told");
        cx.events.publish(reference(provider), kind, reason, action, note);
    };
    let is = |status: &SharedVolumeProviderStatus, type_: &str, state: &str| {
        conditions::find(&status.conditions, type_).is_some_and(|condition| condition.status == state)
    };
    let becomes = |type_: &str, state: &str| is(after, type_, state) && !is(before, type_, state);
    let message =
        |type_: &str| conditions::find(&after.conditions, type_).map(|it| it.message.clone()).unwrap_or_default();
    let endpoint = after.endpoint.clone().unwrap_or_default();
    if becomes("Authenticated", "True") {
        tell(EventType::Normal, "LoggedIn", "Login", format!("logged in at {endpoint}"));
        if provider.spec.transport == Transport::Plaintext {
            let note = format!("the password went to {endpoint} readable by everybody on the way: use transport TLS");
            tell(EventType::Warning, "PlaintextCredentials", "Login", note);
        }
    }
    if let Some(old) = before.endpoint.as_deref().filter(|old| *old != endpoint) {
        tell(EventType::Normal, "EndpointChanged", "Login", format!("{endpoint} is used instead of {old}"));
    }
    if becomes("Reachable", "False") {
        tell(EventType::Warning, "ProviderUnreachable", "Poll", message("Reachable"));
    }
    let is_refused = |status: &SharedVolumeProviderStatus| {
        let condition = conditions::find(&status.conditions, "Authenticated");
        condition.is_some_and(|condition| condition.reason == "CredentialsRefused")
    };
    if is_refused(after) && !is_refused(before) {
        tell(EventType::Warning, "CredentialsRefused", "Login", message("Authenticated"));
    }
    let is_new = |name: &str| !before.failing_namespaces.iter().any(|it| it.name == name);
    for failing in after.failing_namespaces.iter().filter(|failing| is_new(&failing.name)) {
        let note = format!("namespace {} of the provider cannot be listed: {}", failing.name, failing.reason);
        tell(EventType::Warning, "NamespaceFailing", "Poll", note);
    }
}

/// A SharedVolume was written.
pub fn created(cx: &Context, provider: &SharedVolumeProvider, draft: &Draft, is_hashed: bool) {
    let (namespace, name) = (draft.namespace().unwrap_or_default(), draft.name_any());
    tracing::info!(provider = provider.name_any(), namespace, name, "SharedVolume created");
    let claim = draft.spec.get("claimName").and_then(serde_json::Value::as_str).unwrap_or_default();
    let why = if is_hashed { " (a shorter name: the whole one is no name of a Service)" } else { "" };
    let note = format!("SharedVolume {namespace}/{name}{why} for claim {claim}");
    cx.events.publish(reference(provider), EventType::Normal, "SharedVolumeCreated", "Discover", note);
}
