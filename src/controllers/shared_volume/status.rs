//! What a SharedVolume tells of itself: conditions, phase and identity. Pure.

use crate::api::conditions::{self, State};
use crate::api::shared_volume::{
    ClaimIdentity, ObservedVolume, ProbeType, ServiceIdentity, SharedVolumePhase, SharedVolumeStatus,
};
use crate::api::time::Now;

use super::choose::Choice;
use super::decide::Leaving;
use super::decide::{Answer, Note, Seen};
use super::failover::{self, Served};
use super::servers::{Health, health};

/// Reasons with which only a person can go on.
const STALLED: [&str; 6] =
    ["ServiceConflict", "DuplicateClaim", "ClaimReplaced", "ClusterIPLost", "ForeignEndpoints", "BackendInvalid"];

/// What there is to be said under one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether it holds.
    pub state: State,
    /// In a word.
    pub reason: String,
    /// In a sentence, which changes only when the matter does.
    pub message: String,
}

impl Finding {
    /// It holds.
    pub fn yes(reason: &str, message: String) -> Self {
        Self { state: State::True, reason: reason.to_owned(), message }
    }

    /// It does not.
    pub fn no(reason: &str, message: String) -> Self {
        Self { state: State::False, reason: reason.to_owned(), message }
    }

    /// It cannot be told.
    pub fn unknown(reason: &str, message: String) -> Self {
        Self { state: State::Unknown, reason: reason.to_owned(), message }
    }

    /// What the status says now.
    pub fn before(seen: &Seen, type_: &str) -> Option<Self> {
        let condition = conditions::find(&seen.status()?.conditions, type_)?;
        let state = match condition.status.as_str() {
            "True" => State::True,
            "False" => State::False,
            _ => State::Unknown,
        };
        Some(Self { state, reason: condition.reason.clone(), message: condition.message.clone() })
    }
}

/// What a pass found.
#[derive(Default)]
pub struct Report<'a> {
    /// Another SharedVolume has the claim.
    pub duplicate: Option<Finding>,
    /// ClaimBound.
    pub claim: Option<Finding>,
    /// ServiceReady.
    pub service: Option<Finding>,
    /// BackendAvailable.
    pub backend: Option<Finding>,
    /// Serving.
    pub serving: Option<Finding>,
    /// Published.
    pub published: Option<Finding>,
    /// The phase, where it follows from the object itself.
    pub phase: Option<SharedVolumePhase>,
    /// What is waited for, where no condition says so.
    pub waiting: Option<(&'static str, String)>,
    /// The claim, to be pinned.
    pub claim_identity: Option<ClaimIdentity>,
    /// The Service, to be pinned.
    pub service_identity: Option<ServiceIdentity>,
    /// What clients mount.
    pub mount_endpoints: Vec<String>,
    /// What the provider has.
    pub acknowledged: Option<String>,
    /// The choice among the servers, and who is served by now.
    pub served: Option<(&'a Choice, Served)>,
    /// Why the active one is left.
    pub leaving: Option<Leaving>,
}

/// The status that the SharedVolume should have.
pub fn compute(seen: &Seen, report: &Report<'_>, now: Now) -> SharedVolumeStatus {
    let mut status = seen.status().cloned().unwrap_or_default();
    let generation = seen.shared_volume.metadata.generation;
    status.observed_generation = generation;
    status.claim = report.claim_identity.clone().or(status.claim);
    if let Some(service) = &report.service_identity {
        status.service = Some(service.clone());
        status.mount_endpoint = report.mount_endpoints.first().cloned();
        status.mount_endpoints.clone_from(&report.mount_endpoints);
    }
    status.published_endpoint = report.acknowledged.clone().or(status.published_endpoint);
    if let Some((_, served)) = &report.served {
        failover::record(&mut status, seen, served, report.leaving.as_ref(), now);
    }
    // What is not this claim's volume is not shown to those who named it.
    status.observed = match &report.claim {
        Some(claim) if claim.state == State::True => observed(seen).or(status.observed),
        Some(_) => None,
        None => status.observed,
    };
    let phase = report.phase.unwrap_or_else(|| phase(&status, report));
    status.phase = Some(phase);
    set_conditions(&mut status, report, phase, generation.unwrap_or_default(), now);
    status
}

/// What the provider reports. Texts come from outside.
fn observed(seen: &Seen) -> Option<ObservedVolume> {
    let report = seen.observation.as_ref()?.last()?;
    let short = |text: &str| {
        let mut text = text.to_owned();
        conditions::truncate(&mut text, 64);
        Some(text).filter(|text| !text.is_empty())
    };
    Some(ObservedVolume {
        endpoint: report.endpoint.as_deref().and_then(short),
        volume_version: short(&report.version),
        health: short(&report.health),
    })
}

/// Whether two statuses say the same. The version of a provider's volume moves with every write there, also with ours: it
/// is no reason for a write here.
pub fn is_same(before: Option<&SharedVolumeStatus>, after: &SharedVolumeStatus) -> bool {
    let Some(before) = before else { return false };
    let mut after = after.clone();
    if let (Some(before), Some(after)) = (&before.observed, &mut after.observed) {
        after.volume_version.clone_from(&before.volume_version);
    }
    *before == after
}

/// Whether the server answers. As long as that is not settled, what was said of it last still holds.
pub fn serving(seen: &Seen, choice: &Choice) -> Option<Finding> {
    let server = choice.wanted.as_ref()?;
    if server.target.probe == ProbeType::None {
        return Some(Finding::yes("NotProbed", "probe.type is None".to_owned()));
    }
    let before = Finding::before(seen, "Serving");
    let is_same = |finding: &Finding| finding.message.starts_with(&server.told());
    match (health(seen, server), seen.answers.get(&server.target)) {
        (Health::Serving, _) => Some(Finding::yes("ProbeSucceeded", format!("{} answers", server.told()))),
        (Health::Lost, Some(Answer::Failing { error, .. })) => {
            let same = before.filter(|finding| finding.reason == "ProbeFailed" && is_same(finding));
            let anew = || Finding::no("ProbeFailed", format!("{} does not answer: {error}", server.told()));
            Some(same.unwrap_or_else(anew))
        }
        _ => Some(before.filter(is_same).unwrap_or_else(|| {
            Finding::unknown("FirstProbePending", format!("{} has not answered yet", server.told()))
        })),
    }
}

fn findings<'r>(report: &'r Report<'_>) -> [(&'static str, Option<&'r Finding>); 5] {
    [
        ("ClaimBound", report.claim.as_ref()),
        ("ServiceReady", report.service.as_ref()),
        ("BackendAvailable", report.backend.as_ref()),
        ("Serving", report.serving.as_ref()),
        ("Published", report.published.as_ref()),
    ]
}

/// The first that is not as it should be: what is wrong comes before what is not known.
fn trouble<'r>(report: &'r Report<'_>) -> Option<&'r Finding> {
    let all = || report.duplicate.as_ref().into_iter().chain(findings(report).into_iter().filter_map(|(_, it)| it));
    all()
        .find(|finding| finding.state == State::False)
        .or_else(|| all().find(|finding| finding.state == State::Unknown))
}

fn is_false(finding: Option<&Finding>) -> bool {
    finding.is_some_and(|finding| finding.state == State::False)
}

fn phase(status: &SharedVolumeStatus, report: &Report<'_>) -> SharedVolumePhase {
    let is_open = status.last_failover.as_ref().is_some_and(|last| last.switched_at.is_none());
    let is_held = report.served.as_ref().is_some_and(|(choice, _)| choice.held.is_some());
    let was_told =
        status.published_endpoint.is_some() || report.published.as_ref().is_some_and(|it| it.state == State::True);
    match () {
        () if report.service_identity.is_none() => SharedVolumePhase::Pending,
        () if is_held => SharedVolumePhase::Degraded,
        () if status.active.is_none() && (is_open || was_told && status.last_failover.is_some()) => {
            SharedVolumePhase::FailingOver
        }
        () if status.active.is_none() => SharedVolumePhase::Publishing,
        () if is_false(report.serving.as_ref()) => SharedVolumePhase::FailingOver,
        () if trouble(report).is_none() => SharedVolumePhase::Ready,
        () if !was_told => SharedVolumePhase::Publishing,
        () => SharedVolumePhase::Degraded,
    }
}

fn set_conditions(
    status: &mut SharedVolumeStatus,
    report: &Report<'_>,
    phase: SharedVolumePhase,
    generation: i64,
    now: Now,
) {
    let mut conditions = std::mem::take(&mut status.conditions);
    let mut set = |type_: &str, finding: &Finding| {
        let Finding { state, reason, message } = finding;
        conditions::set(&mut conditions, type_, *state, reason, message.as_str(), generation, now.wall);
    };
    let ready = ready(status, report, phase);
    set("Ready", &ready);
    let stalled = (ready.state == State::False && STALLED.contains(&ready.reason.as_str())).then_some(&ready);
    let reconciling = reconciling(report, phase).filter(|_| stalled.is_none());
    reconciling.iter().for_each(|finding| set("Reconciling", finding));
    stalled.iter().for_each(|finding| set("Stalled", &Finding { state: State::True, ..(*finding).clone() }));
    findings(report)
        .into_iter()
        .for_each(|(type_, finding)| finding.into_iter().for_each(|finding| set(type_, finding)));
    let said = findings(report).into_iter().filter(|(_, finding)| finding.is_some()).map(|(type_, _)| type_);
    let mut said: Vec<_> = said.chain(["Ready"]).collect();
    said.extend(reconciling.is_some().then_some("Reconciling"));
    said.extend(stalled.is_some().then_some("Stalled"));
    // What is being deleted or suspended is not looked at: what was said last stays.
    let keeps = matches!(phase, SharedVolumePhase::Suspended | SharedVolumePhase::Terminating);
    let is_summary = |type_: &str| matches!(type_, "Reconciling" | "Stalled");
    conditions.retain(|it| said.contains(&it.type_.as_str()) || keeps && !is_summary(&it.type_));
    conditions.sort_by_key(|condition| ORDER.iter().position(|type_| *type_ == condition.type_));
    status.conditions = conditions;
}

/// The summary first.
const ORDER: [&str; 8] =
    ["Ready", "Reconciling", "Stalled", "ClaimBound", "ServiceReady", "BackendAvailable", "Serving", "Published"];

fn ready(status: &SharedVolumeStatus, report: &Report<'_>, phase: SharedVolumePhase) -> Finding {
    if phase == SharedVolumePhase::Suspended {
        return Finding::yes("Suspended", "mode is Suspended: what is published stays as it is".to_owned());
    }
    let waiting = report.waiting.as_ref().map(|(reason, message)| Finding::no(reason, message.clone()));
    let trouble = trouble(report).cloned();
    let no = |finding: Finding| Finding { state: State::False, ..finding };
    if let Some(finding) = trouble.clone().filter(|finding| finding.state == State::False) {
        return finding;
    }
    if let Some(waiting) = waiting {
        return waiting;
    }
    if phase == SharedVolumePhase::FailingOver {
        return Finding::no("FailingOver", trouble.map(|finding| finding.message).unwrap_or_default());
    }
    let serves = report.serving.clone().filter(|finding| finding.state == State::True && status.active.is_some());
    match (serves, trouble) {
        (Some(serving), trouble) if trouble.as_ref().is_none_or(|it| it.reason == "ProviderUnreachable") => {
            Finding::yes("Serving", serving.message)
        }
        (_, Some(trouble)) => no(trouble),
        (_, None) => Finding::no("FirstProbePending", "the endpoints are about to be written".to_owned()),
    }
}

/// Whether there is something on its way.
fn reconciling(report: &Report<'_>, phase: SharedVolumePhase) -> Option<Finding> {
    let reason = match phase {
        SharedVolumePhase::Pending => "Pending",
        SharedVolumePhase::Publishing => "Publishing",
        SharedVolumePhase::FailingOver => "FailingOver",
        SharedVolumePhase::Terminating => "Terminating",
        SharedVolumePhase::Ready | SharedVolumePhase::Degraded | SharedVolumePhase::Suspended => return None,
    };
    let waiting = report.waiting.as_ref().map(|(_, message)| message.clone());
    let message = waiting.or_else(|| trouble(report).map(|finding| finding.message.clone())).unwrap_or_default();
    Some(Finding::yes(reason, message))
}

/// What people are told when this status takes the place of the one before.
pub fn notes(before: Option<&SharedVolumeStatus>, after: &SharedVolumeStatus) -> Vec<Note> {
    let mut notes = Vec::new();
    let condition = |status: Option<&SharedVolumeStatus>, type_: &str| {
        let found = conditions::find(&status?.conditions, type_)?;
        Some((found.status == "False", found.reason.clone(), found.message.clone()))
    };
    for type_ in ["ClaimBound", "ServiceReady", "BackendAvailable", "Serving", "Published"] {
        let is = condition(Some(after), type_);
        let was = condition(before, type_);
        let Some((true, reason, message)) = is else { continue };
        if was.is_some_and(|(was_false, was_reason, _)| was_false && was_reason == reason) {
            continue;
        }
        notes.extend(warning(&reason, before).map(|reason| Note::warning(reason, message)));
    }
    notes.extend(completed(before, after));
    notes.dedup_by(|a, b| a.reason == b.reason);
    notes
}

/// What is told of a condition that turned false for that reason.
fn warning(reason: &str, before: Option<&SharedVolumeStatus>) -> Option<&'static str> {
    let was_active = before.is_some_and(|before| before.active.is_some());
    Some(match reason {
        "ServiceConflict" | "ForeignEndpoints" => "ServiceConflict",
        "ClusterIPLost" => "ClusterIPLost",
        "ClaimReplaced" => "ClaimReplaced",
        "BackendInvalid" | "FamilyUnavailable" => "BackendInvalid",
        "ProviderError" | "VersionConflict" => "ProviderError",
        "NoCandidateServes" | "NoPodReady" | "ProviderVolumeGone" | "NodeFenced" | "ProbeFailed" if was_active => {
            "BackendLost"
        }
        _ => return None,
    })
}

fn completed(before: Option<&SharedVolumeStatus>, after: &SharedVolumeStatus) -> Option<Note> {
    let last = after.last_failover.as_ref().filter(|last| last.switched_at.is_some())?;
    let was = before.and_then(|before| before.last_failover.as_ref());
    if was.is_some_and(|was| was.switched_at == last.switched_at) {
        return None;
    }
    let (from, to) = (last.from.as_deref().unwrap_or("nobody"), last.to.as_deref().unwrap_or("nobody"));
    let took = last.switched_at.map(|at| at - last.detected_at).unwrap_or_default().num_milliseconds();
    if from == to {
        return Some(Note::normal("FailoverCompleted", format!("{to} serves again; the address is the same")));
    }
    let text = format!("{to} took over from {from} ({}) after {took} ms; the address is the same", last.reason);
    Some(Note::normal("FailoverCompleted", text))
}
