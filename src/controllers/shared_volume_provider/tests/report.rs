//! What a provider's status says.

use std::sync::Arc;

use serde_json::json;

use super::world::{candidate, link, provider, seen, volume};
use crate::api::conditions;
use crate::api::shared_volume_provider::SharedVolumeProviderStatus;
use crate::controllers::shared_volume_provider::decide::{Effect, Secret, Seen, decide};
use crate::controllers::shared_volume_provider::discovery::Candidate;
use crate::controllers::shared_volume_provider::link::{Failing, Failure, Link, State};
use crate::controllers::testing::{later, now};

fn recorded(seen: &Seen) -> Option<SharedVolumeProviderStatus> {
    decide(seen, now()).effects.into_iter().find_map(|effect| match effect {
        Effect::Record { status, .. } => Some(*status),
        _ => None,
    })
}

fn status(seen: &Seen) -> SharedVolumeProviderStatus {
    recorded(seen).expect("a status")
}

/// Conditions as `Type=Status/Reason`.
fn shown(status: &SharedVolumeProviderStatus) -> Vec<String> {
    let one = |it: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
        format!("{}={}/{}", it.type_, it.status, it.reason)
    };
    status.conditions.iter().map(one).collect()
}

fn failure(reason: &'static str) -> Failure {
    Failure { reason, message: format!("it is {reason}") }
}

fn down(reason: &'static str) -> Link {
    Link { state: State::Down(failure(reason)), ..link(&[]) }
}

/// The same again, with what was recorded.
fn with_status(mut seen: Seen, status: SharedVolumeProviderStatus) -> Seen {
    Arc::make_mut(seen.provider.as_mut().unwrap()).status = Some(status);
    seen
}

#[test]
fn a_provider_that_answers_is_ready_and_writes_nothing_more() {
    let mut seen = seen(provider(&json!({})), link(&["v1", "v9"]));
    (seen.candidates, seen.fed) = (vec![Candidate { is_managed: true, ..candidate(volume()) }], 1);
    let status = status(&seen);
    let expected =
        ["Reachable=True/Answered", "Authenticated=True/LoggedIn", "Discovering=True/Complete", "Ready=True/Polling"];
    assert_eq!(shown(&status), expected);
    assert_eq!(status.endpoint.as_deref(), Some("https://storageos:5705"));
    assert_eq!((status.volumes, status.shared_volumes, status.unmanaged), (Some(2), Some(1), Some(1)));
    assert_eq!(status.observed_generation, Some(3));
    let settled = decide(&with_status(seen, status), later(now(), 3600.0));
    assert!(settled.effects.is_empty(), "{settled:?}");
}

#[test]
fn one_that_is_silent_keeps_what_it_counted() {
    let before = status(&seen(provider(&json!({})), link(&["v1"])));
    for reason in ["Timeout", "ConnectionRefused", "CertificateInvalid"] {
        let seen = with_status(seen(provider(&json!({})), down(reason)), before.clone());
        let status = status(&seen);
        assert!(shown(&status).contains(&format!("Ready=False/{reason}")), "{:?}", shown(&status));
        assert_eq!((status.volumes, &status.endpoint), (Some(1), &before.endpoint));
        assert_eq!(conditions::is_true(&status.conditions, "Stalled"), reason == "CertificateInvalid");
    }
}

#[test]
fn refused_credentials_stall_until_they_are_right() {
    let refused = status(&seen(provider(&json!({})), down("CredentialsRefused")));
    let shown = shown(&refused);
    for expected in [
        "Reachable=True/Answered",
        "Authenticated=False/CredentialsRefused",
        "Ready=False/CredentialsRefused",
        "Stalled=True/CredentialsRefused",
    ] {
        assert!(shown.contains(&expected.to_owned()), "{shown:?}");
    }
    let again = status(&with_status(seen(provider(&json!({})), link(&[])), refused));
    assert!(conditions::is_true(&again.conditions, "Ready") && !conditions::is_true(&again.conditions, "Stalled"));
}

#[test]
fn a_list_that_fails_is_no_silence() {
    let status = status(&seen(provider(&json!({})), down("ServerError")));
    let shown = shown(&status);
    assert!(
        shown.contains(&"Reachable=True/Answered".into()) && shown.contains(&"Ready=False/ListFailed".into()),
        "{shown:?}"
    );
}

#[test]
fn a_missing_secret_says_what_to_do_and_ends_the_poll() {
    for (secret, reason, words) in [
        (Secret::Absent, "SecretNotFound", "create it"),
        (Secret::Unreadable("forbidden".into()), "SecretNotFound", "operator's namespace"),
        (Secret::Incomplete("password"), "SecretIncomplete", "no key password"),
    ] {
        let seen = Seen { secret, ..seen(provider(&json!({})), link(&[])) };
        assert_eq!(decide(&seen, now()).effects[0], Effect::Disconnect);
        let status = status(&seen);
        let stalled = conditions::find(&status.conditions, "Stalled").unwrap();
        assert_eq!(stalled.reason, reason);
        assert!(
            stalled.message.contains(words) && stalled.message.contains("bulkhead-system/api"),
            "{}",
            stalled.message
        );
    }
}

#[test]
fn failing_namespaces_are_named_since_they_fail() {
    let failing = Failing { name: "team-x".into(), failure: failure("Forbidden") };
    let partial = Link { namespaces: 2, failing: [("ns2".to_owned(), failing.clone())].into(), ..link(&[]) };
    let first = status(&seen(provider(&json!({})), partial.clone()));
    assert!(shown(&first).contains(&"Discovering=True/PartialList".into()));
    assert!(conditions::is_true(&first.conditions, "Ready"));
    let since = first.failing_namespaces[0].since;
    let later = decide(&with_status(seen(provider(&json!({})), partial), first), later(now(), 60.0));
    assert!(later.effects.is_empty(), "{later:?}: it fails since {since}");
    let all = Link { failing: [("ns1".to_owned(), failing)].into(), ..link(&[]) };
    assert!(shown(&status(&seen(provider(&json!({})), all))).contains(&"Ready=False/ListFailed".into()));
}

#[test]
fn who_wants_nothing_discovered_is_ready() {
    let provider = provider(&json!({ "discovery": { "mode": "Disabled" } }));
    let status = status(&seen(provider, Link { namespaces: 0, shared: [].into(), ..link(&[]) }));
    let shown = shown(&status);
    assert!(
        shown.contains(&"Discovering=False/Disabled".into()) && shown.contains(&"Ready=True/Polling".into()),
        "{shown:?}"
    );
}

#[test]
fn a_restart_writes_nothing_before_it_knows() {
    let before = status(&seen(provider(&json!({})), link(&["v1"])));
    for link in [Link::default(), Link { namespaces: 4, ..link(&[]) }] {
        let seen = with_status(seen(provider(&json!({})), link), before.clone());
        assert_eq!(recorded(&seen), None);
    }
}

#[test]
fn another_spec_or_secret_begins_another_poll() {
    let current = seen(provider(&json!({})), link(&[]));
    assert!(!decide(&current, now()).effects.contains(&Effect::Connect));
    let mut other = current.clone();
    other.secret = Secret::Usable("s2".into());
    assert!(decide(&other, now()).effects.contains(&Effect::Connect));
    let mut other = current.clone();
    Arc::make_mut(other.provider.as_mut().unwrap()).metadata.generation = Some(4);
    assert!(decide(&other, now()).effects.contains(&Effect::Connect));
    let none = Seen { poll: None, ..current };
    assert_eq!(decide(&none, now()).effects, [Effect::Connect]);
    assert_eq!(decide(&Seen::default(), now()).effects, [Effect::Forget]);
}
