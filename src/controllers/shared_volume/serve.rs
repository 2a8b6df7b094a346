//! The steps for a claim that is there: Service, endpoints, status, publication. Pure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::ResourceExt;

use crate::api::conditions::State;
use crate::api::provider_volume::Observation;
use crate::api::shared_volume::{ADOPT_ANNOTATION, ClaimIdentity};
use crate::api::slim::network::Service;
use crate::api::time::Now;

use super::choose::{self, Choice};
use super::decide::{Decision, Effect, Note, Seen};
use super::endpoints::{self, Goal, Plan};
use super::failover::{self, Served};
use super::memory::Leaving;
use super::servers::{self, Offer, Server};
use super::service::{self, Step};
use super::status::{self, Finding, Report};
use super::{objects, publish, slices};

/// Pace at which it is looked whether somebody has deleted what others filled: no watch tells of all of it.
const FOREIGN_PACE: Duration = Duration::from_secs(5);

/// The next step.
pub fn of_claim(seen: &Seen, claim: &ClaimIdentity, now: Now) -> Decision {
    let families = seen.service.as_deref().map(service::families).unwrap_or_default();
    let offer = servers::offered(seen, &families);
    let choice = choose::choose(seen, &offer, now);
    let bound = format!("bound to {}", claim.volume_name.as_deref().unwrap_or_default());
    let mut report = Report {
        claim: Some(Finding::yes("Bound", bound)),
        claim_identity: Some(claim.clone()),
        backend: choice.backend.clone(),
        ..Report::default()
    };
    // Nothing is made for a backend that cannot be served; what was made is kept, and its address with it.
    let is_known = seen.service.is_some() || seen.status().is_some_and(|status| status.service.is_some());
    if !is_known && offer.servers.is_empty() && seen.shared_volume.spec.backend.pods.is_none() {
        return Decision::record("BackendNotReady", seen, &report, now);
    }
    let decision = match service::step(seen, claim, &offer.servers, now) {
        Step::Ready => match seen.service.clone() {
            Some(service) => return Pass { seen, now, claim, offer: &offer, choice: &choice, service }.decide(report),
            None => Decision::new("ServiceMissing", seen, Vec::new()),
        },
        Step::Do(decision) => *decision,
        Step::Trouble(finding, again) => {
            // Nobody is asked as long as nobody can be served.
            report = Report { service: Some(finding), backend: None, ..report };
            return Decision::record("ServiceNotReady", seen, &report, now).look_again(again);
        }
        Step::Unseen { look_again, verify, is_late } => {
            let unseen = unseen(seen, report, now, verify, is_late).look_again(Some(look_again));
            let is_told = is_late && unseen.notes.is_empty();
            // Somebody deletes it: it is made again, at the pace at which that is an error.
            match service::create(seen, claim, &offer.servers, now) {
                Step::Do(decision) if is_told => *decision,
                _ => unseen,
            }
        }
    };
    Decision { probes: choice.probes, ..decision }
}

/// The Service was created, and neither watch nor API server shows it.
fn unseen(seen: &Seen, mut report: Report<'_>, now: Now, verify: bool, is_late: bool) -> Decision {
    let mut decision = Decision::new("ServiceNotSeen", seen, Vec::new());
    if is_late {
        let name = objects::service_name(&seen.shared_volume);
        let waited = seen.intervals.create_wait.as_secs_f64();
        let message = format!("Service {name} was created, and is not there {waited} s later: see what deletes it");
        report.waiting = Some(("ServiceNotSeen", message.clone()));
        decision = Decision::record("ServiceNotSeen", seen, &report, now);
        if !decision.effects.is_empty() {
            decision.notes.push(Note::warning("ServiceNotSeen", message));
        }
    }
    decision.effects.extend(verify.then_some(Effect::Verify));
    decision
}

/// A pass with a Service that is as it is to be.
struct Pass<'a> {
    seen: &'a Seen,
    now: Now,
    claim: &'a ClaimIdentity,
    offer: &'a Offer,
    choice: &'a Choice,
    service: Arc<Service>,
}

impl<'a> Pass<'a> {
    fn decide(&self, mut report: Report<'a>) -> Decision {
        let (seen, now) = (self.seen, self.now);
        let foreign = endpoints::foreign(seen);
        let plan = match foreign.as_slice() {
            [] => endpoints::plan(seen, self.choice, !self.offer.is_unknown, now),
            _ => Plan { goal: Goal::Empty, target_since: None, look_again: Some(FOREIGN_PACE) },
        };
        let leaving = failover::leaving(seen, self.choice, now);
        let mut decision = self.switch(&plan, leaving.clone());
        // A server that is asked right now is no news yet: one status tells of the whole switch.
        let is_awaited = plan.target_since.is_some() && plan.look_again.is_some();
        if !decision.effects.is_empty() || is_awaited {
            return decision;
        }
        report.service = Some(self.applied(&foreign));
        report.service_identity = Some(service::identity(&self.service));
        report.mount_endpoints = publish::mount_endpoints(seen, &self.service);
        report.backend = self.backend();
        report.serving = status::serving(seen, self.choice);
        report.leaving = leaving;
        let step = self.publish(&report, foreign.is_empty());
        report.published = step.finding.clone();
        report.acknowledged = step.acknowledged.clone();
        report.served = Some((self.choice, Served::of(seen, self.choice)));
        let again = step.look_again;
        let recorded = Decision::record("Changed", seen, &report, now);
        if !recorded.effects.is_empty() {
            decision.memory.last_switch = last_switch(&recorded, seen, now).or(decision.memory.last_switch);
            decision.notes.extend(recorded.notes);
            return Decision { reason: recorded.reason, effects: recorded.effects, ..decision }.look_again(again);
        }
        if step.effects.is_empty() {
            return self.verify(decision).look_again(again);
        }
        if let Some(endpoint) = step.effects.iter().find_map(publish::endpoint) {
            let text = format!("{endpoint} leads to the server from now on");
            decision.notes.push(Note::normal("Published", text));
        }
        if let Some(published) = step.published {
            decision.memory.published = Some(published);
            decision.memory.publish_failed = None;
        }
        Decision { reason: "Publish", effects: step.effects, ..decision }.look_again(again)
    }

    /// The writes that lead the endpoints to where they are to lead.
    fn switch(&self, plan: &Plan, leaving: Option<Leaving>) -> Decision {
        let effects = endpoints::writes(self.seen, &self.service, self.claim, &plan.goal);
        let mut decision = Decision::new("Switch", self.seen, effects);
        let is_active = self.seen.status().is_some_and(|status| status.active.is_some());
        if let Some(leaving) = leaving.as_ref().filter(|_| is_active && self.seen.memory.leaving.is_none()) {
            let to = self.choice.wanted.as_ref().filter(|wanted| self.choice.active.as_ref() != Some(wanted));
            let to = to.map_or_else(|| "nobody yet".to_owned(), Server::told);
            decision.notes.push(Note::warning("FailoverStarted", format!("{}: {to} is to take over", leaving.reason)));
        }
        decision.memory.created = None;
        decision.memory.target_since.clone_from(&plan.target_since);
        decision.memory.leaving = leaving;
        decision.memory.last_switch = choose::last_switch(self.seen, self.now);
        decision.probes.clone_from(&self.choice.probes);
        decision.look_again(plan.look_again).look_again(self.choice.held).look_again(self.choice.look_again)
    }

    fn applied(&self, foreign: &[String]) -> Finding {
        if !foreign.is_empty() {
            let message = format!(
                "others fill endpoints of the Service, so ours are withdrawn: delete {}, or allow Endpoints to be taken \
                 over with the annotation {ADOPT_ANNOTATION}: \"true\"",
                foreign.join(", ")
            );
            return Finding::no("ForeignEndpoints", message);
        }
        match &self.offer.out_of_family {
            Some(message) if self.offer.servers.is_empty() => {
                let message = format!("{message}: set service.ipFamilies or ipFamilyPolicy so that the Service has it");
                Finding::no("FamilyUnavailable", message)
            }
            _ => Finding::yes("Applied", format!("Service {}", self.service.name_any())),
        }
    }

    /// As long as a provider was not asked, what was said of it last still holds.
    fn backend(&self) -> Option<Finding> {
        let is_asked = !matches!(self.seen.observation, Some(Observation::NotPolled));
        let before = || Finding::before(self.seen, "BackendAvailable").filter(|_| !is_asked);
        before().or_else(|| self.choice.backend.clone())
    }

    fn publish(&self, report: &Report<'_>, may: bool) -> publish::Step {
        let Some(endpoint) = report.mount_endpoints.first() else { return publish::Step::default() };
        let answers = report.serving.as_ref().is_some_and(|finding| finding.state == State::True);
        let serves = answers && slices::written(self.seen).is_some();
        let step = publish::step(self.seen, endpoint, serves, self.now);
        if may { step } else { publish::Step { effects: Vec::new(), ..step } }
    }

    /// A volume of a provider is verified anew some time after it was last found well.
    fn verify(&self, mut decision: Decision) -> Decision {
        decision.reason = "Settled";
        decision.is_settled = true;
        if self.seen.shared_volume.spec.backend.provider.is_none() {
            return decision;
        }
        let age = self.seen.memory.verified.map(|at| self.now.mono.saturating_duration_since(at));
        let left = age.map_or(Some(self.seen.intervals.cache_expiry), |age| {
            self.seen.intervals.cache_expiry.checked_sub(age).filter(|left| !left.is_zero())
        });
        if age.is_none() || left.is_none() {
            decision.memory.verified = Some(self.now.mono);
        }
        if left.is_none() {
            decision.effects.push(Effect::Verify);
        }
        decision.look_again(Some(left.unwrap_or(self.seen.intervals.cache_expiry)))
    }
}

/// The moment of an automatic switch that is recorded only now.
fn last_switch(recorded: &Decision, seen: &Seen, now: Now) -> Option<Instant> {
    let before = seen.status().and_then(|status| status.last_failover.as_ref()).and_then(|last| last.switched_at);
    recorded.effects.iter().find_map(|effect| match effect {
        Effect::Record { status, .. } => {
            let last = status.last_failover.as_ref().filter(|last| choose::is_automatic(&last.reason))?;
            last.switched_at.filter(|at| Some(*at) != before).map(|_| now.mono)
        }
        _ => None,
    })
}
