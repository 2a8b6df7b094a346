//! Reports that the controller does not believe, since whoever writes them is silent. It has to listen for a while to know that, and
//! we look once: so we go by the time in the fencer's Lease, as the doctor does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use kube::ResourceExt;

use crate::api::driver_report::{DriverReport, PathState};
use crate::api::node_fence::NodeFence;
use crate::api::resiliency_policy::{ResiliencyPolicy, RestraintType};
use crate::api::time::{self, Now};
use crate::api::usage::PodView;
use crate::controllers::resiliency_policy::decide::{Effect, Seen, decide};

use super::super::foresee::Foreseen;
use super::super::print::span;
use super::Facts;

/// A fencer renews its Lease every 5 s; clocks differ.
const SILENT_AFTER: i64 = 60;

/// A fencer that has not renewed its Lease for long.
pub struct Unheard<'a> {
    fencer: &'a str,
    silent_for: TimeDelta,
    /// It answers for its policies under its own name, not for a driver.
    is_external: bool,
    /// It says something bad of the node.
    pub speaks: bool,
    /// Pods of the node have volumes of that driver.
    is_used: bool,
}

impl Unheard<'_> {
    /// Whether somebody who asks about the node wants to know.
    pub fn is_of_interest(&self) -> bool {
        self.speaks || self.is_used
    }

    /// What is not believed, and why.
    pub fn told(&self) -> String {
        let who = if self.is_external { "that fencer" } else { "its sidecar" };
        let (fencer, age) = (self.fencer, span(self.silent_for));
        format!(
            "the report of {fencer} is not believed, since {who} is silent: its Lease was renewed {age} ago, by its own clock"
        )
    }

    /// What to do.
    pub fn next(&self) -> &'static str {
        if self.is_external {
            "look at the program that answers for that fencer: docs/fencers.md"
        } else {
            "look at the sidecar's pod and log: does it run and lead, is the driver's socket there?"
        }
    }
}

/// The silent ones among those whose reports are there. `renewed`: how long ago a fencer renewed its Lease; where there is none it
/// tells nothing.
pub fn unheard<'a>(facts: &Facts<'a>, renewed: impl Fn(&str) -> Option<TimeDelta>) -> Vec<Unheard<'a>> {
    let (present, node) = (facts.present, facts.name);
    let found = present.seen.reports.iter().filter_map(|(fencer, report)| {
        let silent_for = renewed(fencer).filter(|age| age.num_seconds() > SILENT_AFTER)?;
        Some(Unheard {
            fencer,
            silent_for,
            is_external: is_external(&present.seen, fencer),
            speaks: speaks_of(report, node),
            is_used: is_used(present, fencer),
        })
    });
    found.collect()
}

fn is_external(seen: &Seen, fencer: &str) -> bool {
    seen.policies.iter().any(|policy| policy.spec.fencing.external_fencers().any(|named| named == fencer))
}

fn speaks_of(report: &DriverReport, node: &str) -> bool {
    let is_lost = report.paths_of(node).any(|pair| pair.state == PathState::Disconnected);
    is_lost || report.powered_off().any(|row| row.node == node)
}

fn is_used(present: &Foreseen, driver: &str) -> bool {
    let pods = present.live.iter().flat_map(|live| &live.pods);
    pods.flat_map(PodView::drivers).any(|used| used == driver)
}

/// What is decided by who does not believe them, by the controller's own rules; `None` where everybody is heard.
pub fn believed(facts: &Facts, unheard: &[Unheard], now: Now) -> Option<Foreseen> {
    if unheard.is_empty() {
        return None;
    }
    let seen = without(facts, unheard, now);
    let decision = decide(&seen, now);
    let written = decision.effects.iter().filter_map(|effect| match effect {
        Effect::Open(fence) | Effect::Replan(fence) if fence.name_any() == facts.name => {
            Some((Duration::ZERO, NodeFence::clone(fence)))
        }
        _ => None,
    });
    let written: Vec<_> = written.collect();
    let fence = written.last().map(|(_, fence)| fence).or(facts.fence).cloned().map(Arc::new);
    let (live, unread) = (facts.present.live.clone(), facts.present.unread.clone());
    Some(Foreseen { live, seen, decision, fence, written, unread })
}

/// What was seen, with these silent.
fn without(facts: &Facts, unheard: &[Unheard], now: Now) -> Seen {
    let Foreseen { seen, live, .. } = facts.present;
    let silent = unheard.iter().map(|it| it.fencer.to_owned());
    // An earlier pass of ours may have opened one that is not to be.
    let others = seen.fences.iter().filter(|fence| fence.name_any() != facts.name).cloned();
    // It was not looked at where a brake held it.
    let read = live.iter().map(|live| (facts.name.to_owned(), live.clone()));
    Seen {
        policies: seen.policies.iter().map(|policy| without_new_outages(policy, now)).collect(),
        fences: others.chain(facts.fence.map(|fence| Arc::new(fence.clone()))).collect(),
        silent_fencers: seen.silent_fencers.iter().cloned().chain(silent).collect(),
        live: seen.live.clone().into_iter().chain(read).collect(),
        // Outages that such a pass has seen may be none, and what it has looked for says nothing.
        outage_seen: BTreeMap::new(),
        array_outage_seen: BTreeMap::new(),
        backend_outage_seen: BTreeMap::new(),
        looked_for_volumeless: BTreeSet::new(),
        ..seen.clone()
    }
}

/// The policy without the outages of arrays that our own look has recorded: it may have believed what is not to be believed. Those
/// that last are found again.
fn without_new_outages(policy: &Arc<ResiliencyPolicy>, now: Now) -> Arc<ResiliencyPolicy> {
    let mut policy = policy.clone();
    let begun = time::stamp(now.wall);
    if let Some(status) = &mut Arc::make_mut(&mut policy).status {
        status.restraints.retain(|it| it.type_ != RestraintType::ArrayOutage || it.since < begun);
    }
    policy
}
