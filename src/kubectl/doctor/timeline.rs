//! How long a failover takes with these settings: computed from the policies, from what was measured
//! (docs/performance.md), and from Kubernetes' own defaults. Nothing of it was measured in this cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use serde::Serialize;

use crate::api::driver_report::DriverReport;
use crate::api::fencing::PolicyMode;
use crate::api::names;
use crate::api::resiliency_policy::{
    CheckSwitch, NodeFailureAction, ResiliencyPolicy, StorageEvidence, WhenIoInProgress,
};
use crate::api::time::Now;
use crate::controllers::resiliency_policy::storage;
use crate::csi_sidecar::connectivity::decide::Settings;
use crate::kubectl::gather::Gathered;
use crate::kubectl::print::Page;
use crate::runtime::store::ObjectKey;

use super::attachers::{self, Attacher};
use super::declared::{Declared, GRACE_PERIOD, Tellers, UNREACHABLE, declared};
use super::{drivers, fencers, heartbeats, protected_drivers};

/// Median and slowest of 30 runs with 110 pods, fence 50 ms: from the taint to the first pod gone.
const FIRST_RELEASED: f64 = 1.3;
/// The same to all pods gone and every attachment gone or marked deleted.
const HANDED_OVER: f64 = 4.1;

/// The computed timeline of a policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyTimeline {
    /// The policy.
    pub policy: String,
    /// What happens, in order; ahead of it by what the node is declared failed sooner.
    pub steps: Vec<TimelineStep>,
}

/// A step of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimelineStep {
    /// What has happened then.
    pub step: String,
    /// Seconds after the last sign of life of the node, at most. Absent where nobody knows, or where it does not happen by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_seconds: Option<f64>,
    /// Where the number comes from, or why there is none.
    pub from: String,
}

/// What the timeline of a policy rests on, beside the policy.
#[derive(Clone, Debug, Default)]
struct Facts {
    /// Who may tell of a dead node.
    tellers: Tellers,
    /// A driver can be asked for I/O in progress.
    tells_io: bool,
    /// What the busiest node's attachments take: seconds, and how many there are; none where the attacher is not known.
    detach: Option<(f64, usize)>,
}

/// One for each policy.
pub fn of(gathered: &Gathered, attachers: &[Attacher]) -> Vec<PolicyTimeline> {
    let mut policies = gathered.stores.policies.list();
    policies.sort_by_key(|policy| policy.name_any());
    let protected = protected_drivers(gathered);
    let detach = Detach { attachers, all: drivers(gathered), most: attachers::busiest(gathered) };
    let heartbeats = heartbeats::are_sent(gathered);
    let timeline = |policy: &Arc<ResiliencyPolicy>| {
        let name = policy.name_any();
        let ours = protected.iter().filter(|(known, ..)| *known == name);
        let used: Vec<_> = ours.map(|(_, driver, _)| driver.as_str()).collect();
        let tellers = Tellers {
            heartbeats,
            array: used.iter().filter_map(|driver| loss_takes(gathered, policy, driver, &protected)).max(),
            fencer: policy.spec.fencing.external_fencers().any(|fencer| reports_power(gathered, fencer)),
        };
        let tells_io = used.iter().any(|driver| report(gathered, driver).is_some_and(|report| report.tells_io()));
        let facts = Facts { tellers, tells_io, detach: detach.slowest(&used) };
        PolicyTimeline { steps: steps(policy, &facts, gathered.now), policy: name }
    };
    policies.iter().map(timeline).collect()
}

/// Who detaches, and how much of it there may be.
struct Detach<'a> {
    attachers: &'a [Attacher<'a>],
    all: Vec<String>,
    most: BTreeMap<String, usize>,
}

impl Detach<'_> {
    /// Of these drivers the one that takes longest: seconds, and for how many attachments; `None` where nobody is known to do it.
    fn slowest(&self, used: &[&str]) -> Option<(f64, usize)> {
        let takes = used.iter().map(|driver| {
            let attachments = self.most.get(*driver).copied().unwrap_or_default();
            let serving = attachers::serving(self.attachers, driver, &self.all);
            let slowest = serving.iter().map(|it| it.seconds(attachments)).fold(0.0, f64::max);
            (slowest, attachments, !serving.is_empty())
        });
        let (seconds, attachments, is_known) = takes.max_by(|a, b| a.0.total_cmp(&b.0))?;
        is_known.then_some((seconds, attachments))
    }
}

fn report(gathered: &Gathered, name: &str) -> Option<Arc<DriverReport>> {
    gathered.stores.reports.get(&ObjectKey::cluster(name))
}

/// Whether a fencer may tell of a node without power: one that does has a report of its own.
fn reports_power(gathered: &Gathered, fencer: &str) -> bool {
    let is_there = gathered.operator_lease_age(&names::fencer_lease(fencer)).is_some();
    let is_heard = is_there && !fencers::is_silent(gathered, fencer);
    is_heard && report(gathered, fencer).is_some_and(|report| report.is_ready())
}

/// How long after the array knows of it the driver's sidecar tells of a lost path; `None` where that is not told, or does not count.
fn loss_takes(
    gathered: &Gathered,
    policy: &ResiliencyPolicy,
    driver: &str,
    protected: &[(String, String, usize)],
) -> Option<Duration> {
    let is_asked = |policy: &ResiliencyPolicy| policy.spec.detection.storage.connectivity_check == CheckSwitch::Enabled;
    let support = storage::support(report(gathered, driver).as_deref(), fencers::is_silent(gathered, driver));
    if support != StorageEvidence::Supported || !is_asked(policy) {
        return None;
    }
    let using: BTreeSet<_> = protected.iter().filter(|(_, used, _)| used == driver).map(|(name, ..)| name).collect();
    let mut policies = gathered.stores.policies.list();
    policies.retain(|policy| using.contains(&policy.name_any()) && is_asked(policy));
    Settings::of(policies.iter().map(|policy| &policy.spec.detection.storage)).map(|settings| settings.loss_takes())
}

fn steps(policy: &ResiliencyPolicy, facts: &Facts, now: Now) -> Vec<TimelineStep> {
    const DECLARED: &str = "declared failed";
    if policy.spec.triggers.node_failure == NodeFailureAction::Ignore {
        return vec![step(DECLARED, None, "triggers.nodeFailure Ignore: does not act by itself on a failed node")];
    }
    let alone = declared(policy, Tellers::default(), now);
    let mut steps = sooner(policy, facts, alone.as_ref(), now);
    steps.push(step("unreachable", Some(UNREACHABLE.as_secs_f64()), format!("{GRACE_PERIOD}, at most")));
    let by = alone.as_ref().map_or_else(
        || {
            let channels = policy.spec.detection.required_channels;
            format!("not on Kubernetes' word alone: only once {channels} channels agree (detection.requiredChannels)")
        },
        |it| it.by.clone(),
    );
    let alone = alone.map(|it| it.after.as_secs_f64());
    steps.push(step(DECLARED, alone, by));
    let idle = idle(policy, facts.tells_io);
    let mut released = |name: &str, takes: f64, from: &str| {
        steps.push(match idle {
            Some(why) => step(name, None, why),
            None => step(name, alone.map(|it| it + takes), format!("{takes:.1} s after that: {from}")),
        });
    };
    released("first pod released", FIRST_RELEASED, "slowest of 30 measured runs, fence 50 ms");
    released("all pods released", HANDED_OVER, "slowest of 30 measured runs, 110 pods");
    let (seconds, from) = match facts.detach {
        Some((seconds, attachments)) => {
            (seconds, format!("{attachments} attachments of the busiest node at the attacher's --kube-api-qps"))
        }
        None => (0.0, "the attacher's settings are not known".to_owned()),
    };
    released("attachments gone", HANDED_OVER + seconds, &from);
    steps
}

/// By what the node is declared failed before Kubernetes' word alone does it.
fn sooner(policy: &ResiliencyPolicy, facts: &Facts, alone: Option<&Declared>, now: Now) -> Vec<TimelineStep> {
    let Tellers { heartbeats, array, fencer } = facts.tellers;
    let ways = [
        (array.is_some(), Tellers { fencer: false, ..facts.tellers }),
        (fencer, Tellers { array: None, ..facts.tellers }),
        (heartbeats, Tellers { heartbeats, ..Tellers::default() }),
    ];
    let told = ways.into_iter().filter(|(is_there, _)| *is_there).filter_map(|(_, tellers)| {
        let found = declared(policy, tellers, now)?;
        let is_sooner = alone.is_none_or(|alone| found.after < alone.after);
        is_sooner.then(|| {
            let from = format!("{}{}{}", found.by, beside(tellers, &found), while_it_writes(policy, facts, alone));
            step(format!("declared failed by {}", tellers.named()), Some(found.after.as_secs_f64()), from)
        })
    });
    told.collect()
}

/// What those who tell take that we do not know, or who is too slow.
fn beside(tellers: Tellers, found: &Declared) -> String {
    match tellers.array {
        Some(lost) if lost > found.after => format!("; the array's word takes {:.1} s", lost.as_secs_f64()),
        Some(_) => "; from when the array knows of it".into(),
        None if tellers.fencer => "; from when the fencer sees it".into(),
        None => String::new(),
    }
}

/// Whether what is declared sooner waits for I/O of the node.
fn while_it_writes(policy: &ResiliencyPolicy, facts: &Facts, alone: Option<&Declared>) -> &'static str {
    let storage = &policy.spec.detection.storage;
    let is_asked = facts.tells_io && storage.io_in_progress_check == CheckSwitch::Enabled;
    match alone {
        _ if !is_asked || storage.when_io_in_progress == WhenIoInProgress::Veto => "",
        Some(_) => "; a node that still writes is cut off only when Kubernetes' word is enough (whenIOInProgress)",
        None => "; a node that still writes is not cut off (whenIOInProgress)",
    }
}

/// Why nothing need happen, however long ago the node was declared failed.
fn idle(policy: &ResiliencyPolicy, tells_io: bool) -> Option<&'static str> {
    let storage = &policy.spec.detection.storage;
    let is_vetoed = storage.io_in_progress_check == CheckSwitch::Enabled
        && storage.when_io_in_progress == WhenIoInProgress::Veto
        && tells_io;
    match policy.spec.mode {
        PolicyMode::DryRun => Some("mode DryRun: does not act by itself; the plan is only recorded"),
        PolicyMode::RequireApproval => Some("mode RequireApproval: does not act by itself; a person approves the plan"),
        PolicyMode::Enforce if is_vetoed => Some("whenIOInProgress Veto: waits as long as the node still writes"),
        PolicyMode::Enforce => None,
    }
}

fn step(step: impl Into<String>, at_seconds: Option<f64>, from: impl Into<String>) -> TimelineStep {
    let at_seconds = at_seconds.map(|seconds| (seconds * 10.0).round() / 10.0);
    TimelineStep { step: step.into(), at_seconds, from: from.into() }
}

impl PolicyTimeline {
    /// The table of it.
    pub fn page(&self, page: Page) -> Page {
        let at = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s"));
        let rows = self.steps.iter().map(|it| [it.step.clone(), at(it.at_seconds), it.from.clone()]);
        let title = format!("FAILOVER UNDER POLICY {}, COMPUTED (nothing of it was measured here)", self.policy);
        page.table(&title, ["STEP", "AT MOST", "FROM"], rows.collect())
    }
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
