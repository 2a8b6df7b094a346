//! What a SharedVolumeProvider reports. It changes only with what it describes: when polls were made is a metric.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::conditions::{self, State::False, State::True, State::Unknown};
use crate::api::shared_volume_provider::{
    DiscoveryMode, FailingNamespace, SharedVolumeProvider, SharedVolumeProviderStatus,
};
use crate::api::text::printable;
use crate::api::time::{self, Now};

use super::decide::{Secret, Seen};
use super::link::{Failing, Failure, Link, State};

/// Failing namespaces that are named, at most.
const NAMED: usize = 64;
/// What a failure may be that somebody has to mend.
const STALLED: [&str; 4] = ["SecretNotFound", "SecretIncomplete", "CredentialsRefused", "CertificateInvalid"];
/// Failures of a provider that did not answer at all.
const SILENT: [&str; 3] = ["Timeout", "ConnectionRefused", "CertificateInvalid"];

/// The status as it should be; `None` while nothing is known yet, so that a restart changes nothing.
pub fn compute(
    provider: &SharedVolumeProvider,
    seen: &Seen,
    fed: usize,
    now: Now,
) -> Option<SharedVolumeProviderStatus> {
    let mut writer = Writer::of(provider, now);
    match (&seen.secret, seen.poll.as_ref().map(|poll| &poll.link)) {
        (Secret::Usable(_), None | Some(Link { state: State::Pending, .. })) => return None,
        (Secret::Usable(_), Some(link)) => match &link.state {
            State::Down(failure) => writer.down(failure, link),
            State::Pending | State::Up => {
                // Or counts would go through zero after each restart.
                if !link.is_complete() {
                    return None;
                }
                writer.up(link, provider.spec.discovery.mode);
                writer.counts(seen, link, fed);
            }
        },
        (secret, _) => writer.locked_out(&unusable(provider, secret)),
    }
    Some(writer.finish())
}

fn unusable(provider: &SharedVolumeProvider, secret: &Secret) -> Failure {
    let reference = &provider.spec.credentials_ref;
    let name = format!("Secret {}/{}", reference.namespace, reference.name);
    let (reason, message) = match secret {
        Secret::Incomplete(key) => {
            ("SecretIncomplete", format!("{name} has no key {key}: give it username and password"))
        }
        Secret::Unreadable(why) => (
            "SecretNotFound",
            format!("{name} cannot be read: put it into the operator's namespace, or let the operator read it ({why})"),
        ),
        Secret::Absent | Secret::Usable(_) => {
            ("SecretNotFound", format!("there is no {name}: create it with the keys username and password"))
        }
    };
    Failure { reason, message }
}

struct Writer {
    status: SharedVolumeProviderStatus,
    generation: i64,
    now: Now,
}

impl Writer {
    fn of(provider: &SharedVolumeProvider, now: Now) -> Self {
        let generation = provider.metadata.generation.unwrap_or_default();
        let mut status = provider.status.clone().unwrap_or_default();
        status.observed_generation = Some(generation);
        Self { status, generation, now }
    }

    fn set(&mut self, type_: &str, state: conditions::State, reason: &str, message: &str) {
        let conditions = &mut self.status.conditions;
        conditions::set(conditions, type_, state, reason, printable(message), self.generation, self.now.wall);
    }

    fn up(&mut self, link: &Link, mode: DiscoveryMode) {
        self.set("Reachable", True, "Answered", "");
        self.set("Authenticated", True, "LoggedIn", "");
        self.status.endpoint.clone_from(&link.endpoint);
        self.failing(link);
        let failing: Vec<_> = link.failing.values().map(told).collect();
        let words = shortened(&failing);
        match mode {
            DiscoveryMode::Disabled => {
                self.set(
                    "Discovering",
                    False,
                    "Disabled",
                    "nothing is listed: only the volumes that SharedVolumes name are read",
                );
            }
            _ if failing.is_empty() => self.set("Discovering", True, "Complete", ""),
            _ if failing.len() < link.namespaces => self.set("Discovering", True, "PartialList", &words),
            _ => self.set("Discovering", False, "ListFailed", &words),
        }
    }

    fn down(&mut self, failure: &Failure, link: &Link) {
        if SILENT.contains(&failure.reason) {
            self.set("Reachable", False, failure.reason, &failure.message);
        } else {
            self.set("Reachable", True, "Answered", "");
            self.status.endpoint = link.endpoint.clone().or(self.status.endpoint.take());
            if failure.reason == "CredentialsRefused" {
                self.set("Authenticated", False, failure.reason, &failure.message);
            }
            self.set("Discovering", False, "ListFailed", &failure.message);
        }
    }

    fn locked_out(&mut self, failure: &Failure) {
        self.set("Authenticated", False, failure.reason, &failure.message);
        if conditions::find(&self.status.conditions, "Discovering").is_some() {
            self.set("Discovering", Unknown, "ListFailed", "there are no credentials to log in with");
        }
    }

    fn counts(&mut self, seen: &Seen, link: &Link, fed: usize) {
        let managed: BTreeSet<_> =
            seen.candidates.iter().filter(|it| it.is_managed).map(|it| it.volume.id.as_str()).collect();
        let shared: BTreeSet<_> = link.shared.values().flatten().map(String::as_str).collect();
        let all = shared.union(&managed).count().max(fed);
        self.status.volumes = Some(size(all));
        self.status.shared_volumes = Some(size(fed));
        self.status.unmanaged = Some(size(all - fed));
    }

    /// Who failed before fails since then.
    fn failing(&mut self, link: &Link) {
        let before = std::mem::take(&mut self.status.failing_namespaces);
        let since = |name: &str| before.iter().find(|it| it.name == name).map(|it| it.since);
        let mut failing: Vec<_> = link.failing.values().filter(|failing| !failing.name.is_empty()).collect();
        failing.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        failing.dedup_by(|a, b| a.name == b.name);
        let failing = failing.into_iter().take(NAMED).map(|failing| FailingNamespace {
            name: failing.name.clone(),
            reason: failing.failure.reason.to_owned(),
            since: since(&failing.name).unwrap_or(time::stamp(self.now.wall)),
        });
        self.status.failing_namespaces = failing.collect();
    }

    /// The conditions that follow from the others.
    fn finish(mut self) -> SharedVolumeProviderStatus {
        match self.first_false() {
            Some((reason, message)) => {
                self.set("Ready", False, &reason, &message);
                if STALLED.contains(&reason.as_str()) {
                    self.set("Stalled", True, &reason, &message);
                } else {
                    conditions::remove(&mut self.status.conditions, "Stalled");
                }
            }
            None => {
                let words = conditions::find(&self.status.conditions, "Discovering");
                let words = words.map(|condition| condition.message.clone()).unwrap_or_default();
                self.set("Ready", True, "Polling", &words);
                conditions::remove(&mut self.status.conditions, "Stalled");
            }
        }
        self.status
    }

    fn first_false(&self) -> Option<(String, String)> {
        let is_bad = |condition: &&Condition| {
            // Who wants nothing discovered is content.
            condition.status == False.as_str() && condition.reason != "Disabled"
        };
        let conditions = ["Reachable", "Authenticated", "Discovering"].into_iter();
        let bad = conditions.filter_map(|type_| conditions::find(&self.status.conditions, type_)).find(is_bad);
        bad.map(|condition| (condition.reason.clone(), condition.message.clone()))
    }
}

/// A namespace that fails, for people.
pub fn told(failing: &Failing) -> String {
    format!("{}: {}", failing.name, failing.failure.message)
}

fn shortened(failing: &[String]) -> String {
    const TOLD: usize = 5;
    let told = failing.iter().take(TOLD).cloned().collect::<Vec<_>>().join("; ");
    let rest = failing.len().saturating_sub(TOLD);
    if rest == 0 { told } else { format!("{told}; and {rest} more") }
}

fn size(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
