//! Channel Storage: what the arrays say of the nodes, through their drivers (docs/adr/0022). A lost path moves the pods with
//! volumes on that backend, and who hangs together with them, though the node is well; a backend that is out for everyone moves
//! nobody. `Unknown` never counts, nor what a sidecar says that is not heard of, nor what a driver says of a node that is well
//! while its own plugin there is away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};

use crate::api::driver_report::{DriverReport, PathState, UnreachablePair};
use crate::api::node_fence::{Channel, EVIDENCE_OF_STORAGE_MAX, Evidence, EvidenceState, NodeFence, STORAGE_PATH_LOSS};
use crate::api::resiliency_policy::{ResiliencyPolicy, Restraint, StorageEvidence};
use crate::api::slim::Node;
use crate::api::time::{self, Now};
use crate::api::usage::PodView;
use crate::mutants::{self, Mutant};

use super::decide::{Seen, effective};
use super::evidence::{Outside, Silence};
use super::movers::{self, Trouble};
use super::plan::{Draft, Drafting, LiveNode, PodDecision};
use super::plugins::{self, Plugin};
use super::policy_brakes::PolicyBrakes;
use super::select::Effective;
use super::volumes::{Mover, OnNode, obstacle};
use super::{brakes, policies, power};

/// Reports by driver.
pub type Reports = BTreeMap<String, Arc<DriverReport>>;

/// The paths that count as lost on one node, by driver.
pub type Lost = BTreeMap<String, Evidence>;

/// Plugins that were away when they were seen last, by node and driver, with the moment of that.
pub type PluginsAway = BTreeMap<(String, String), Instant>;

/// How long after the last pod of a plugin was seen it is still taken to be between two pods. Whoever makes the pods of a DaemonSet
/// tries again after 17 minutes at the latest (1000 s), and whoever installs a driver anew seldom needs longer. Too long only delays
/// what a lost path moves off a node that is well; too short moves it for nothing. That the CSINode names the driver no more is no
/// end: its registrar takes it out in every upgrade.
pub(super) const REMOVED_AFTER: Duration = Duration::from_secs(30 * 60);

/// What the arrays say, as far as it may be believed.
pub struct Paths<'a> {
    seen: &'a Seen,
    now: DateTime<Utc>,
    /// Policies and the backends on which none of their decisions may rest now.
    restrained: BTreeSet<(String, String)>,
}

/// The nodes whose path to some backend is lost by what the stores show: only these need a look.
pub fn nodes(seen: &Seen) -> BTreeSet<&str> {
    seen.reports.values().flat_map(|report| disconnected(report)).collect()
}

/// The nodes whose path to some backend is lost by that report.
pub(super) fn disconnected(report: &DriverReport) -> impl Iterator<Item = &str> {
    let pairs = report.status.iter().flat_map(|status| &status.unreachable);
    pairs.filter(|pair| pair.state == PathState::Disconnected).map(|pair| pair.node.as_str())
}

/// Of the paths that are lost by these reports those whose plugin was away when it was last seen on the node. Between two of
/// its pods there is none for a moment: what was known `before` holds on. One that does not come again was removed.
pub(super) fn plugins_away(
    before: &PluginsAway,
    reports: &Reports,
    pods: &BTreeMap<String, Vec<PodView>>,
    now: Instant,
) -> PluginsAway {
    let lost = reports
        .iter()
        .flat_map(|(driver, report)| disconnected(report).map(move |node| (node.to_owned(), driver.clone())));
    let lately = |seen: &Instant| now.saturating_duration_since(*seen) < REMOVED_AFTER;
    let seen_away = |path: &(String, String)| {
        let (node, driver) = path;
        match plugins::plugin(pods.get(node).map(Vec::as_slice).unwrap_or_default(), driver) {
            Plugin::Unknown => before.get(path).copied().filter(lately),
            Plugin::Away => Some(now),
            Plugin::Ready(_) => None,
        }
    };
    lost.filter_map(|path| seen_away(&path).map(|seen| (path, seen))).collect()
}

/// Backends that are out for everyone.
pub fn outages(seen: &Seen) -> BTreeSet<String> {
    let believed = seen.reports.iter().filter(|(driver, report)| is_believed(seen, driver, report));
    believed.flat_map(|(_, report)| out_of(report)).map(str::to_owned).collect()
}

fn out_of(report: &DriverReport) -> impl Iterator<Item = &str> {
    let backends = report.status.iter().flat_map(|status| &status.backends);
    backends.map(|backend| backend.name.as_str()).filter(|backend| report.is_out(backend))
}

/// Whether what the report says is of now, and means anything.
fn is_believed(seen: &Seen, driver: &str, report: &DriverReport) -> bool {
    report.tells_connectivity() && !seen.silent_fencers.contains(driver)
}

/// Whether an array can say which nodes reach it.
pub fn support(report: Option<&DriverReport>, is_silent: bool) -> StorageEvidence {
    match report {
        Some(report) if report.is_ready() && !is_silent => {
            if report.tells_connectivity() {
                StorageEvidence::Supported
            } else {
                StorageEvidence::Unsupported
            }
        }
        _ => StorageEvidence::Unknown,
    }
}

/// The brakes of a policy on backends that are out for everyone: while that lasts, and a calm after it. Those that recover
/// first must not make the others look lost. Kept in the policy's status like the other brakes.
pub fn restraints(policy: &ResiliencyPolicy, seen: &Seen, now: DateTime<Utc>) -> Vec<Restraint> {
    /// So that other brakes find room in the status.
    const MOST: usize = 8;
    let backends = seen.reports.iter().flat_map(|(driver, report)| {
        backends(report, driver).into_iter().map(move |backend| (driver, report, backend))
    });
    let mut restraints: Vec<_> = backends
        .filter_map(|(driver, report, backend)| {
            let is_out = is_believed(seen, driver, report).then(|| report.is_out(&backend));
            let outage_for = seen.backend_outage_seen.get(&backend).copied();
            Some((driver, brakes::array_outage(policy, Some(&backend), is_out, outage_for, calm(policy), now)?))
        })
        .collect();
    // Only where there is one its pods are looked at.
    if !restraints.is_empty() {
        let used = policies::drivers_in_use(seen, policy);
        restraints.retain(|(driver, _)| used.contains(*driver));
    }
    restraints.into_iter().map(|(_, restraint)| restraint).take(MOST).collect()
}

/// The backends of a driver, and the one that it has when it tells none.
fn backends(report: &DriverReport, driver: &str) -> BTreeSet<String> {
    let told = report.status.iter().flat_map(|status| &status.backends).map(|backend| backend.name.clone());
    told.chain([driver.to_owned()]).collect()
}

/// How long after an outage nothing rests on that backend: long enough for every node to be told of again.
fn calm(policy: &ResiliencyPolicy) -> Duration {
    let storage = &policy.spec.detection.storage;
    let answers = u32::try_from(storage.loss_threshold.max(storage.recovery_threshold)).unwrap_or(1);
    policy.spec.limits.cooldown.get().max(storage.period.get().saturating_mul(answers.saturating_add(2)))
}

impl<'a> Paths<'a> {
    /// What may be believed now.
    pub(super) fn new(seen: &'a Seen, brakes: &BTreeMap<&str, PolicyBrakes>, now: Now) -> Self {
        let restrained = brakes.iter().flat_map(|(policy, brake)| {
            let backends = brake.backends.iter().filter_map(|restraint| restraint.name.clone());
            backends.map(|backend| ((*policy).to_owned(), backend))
        });
        Self { seen, now: now.wall, restrained: restrained.collect() }
    }

    /// What may be believed where no brake is asked.
    pub fn unrestrained(seen: &'a Seen, now: Now) -> Self {
        Self { seen, now: now.wall, restrained: BTreeSet::new() }
    }

    /// The paths of a node that are lost, by these reports, whether or not their backend is out for everyone.
    fn disconnected<'r>(
        &self,
        node: &Node,
        reports: &'r Reports,
    ) -> Vec<(&'r str, &'r DriverReport, &'r UnreachablePair)> {
        let Some(name) = node.metadata.name.as_deref() else { return Vec::new() };
        // What was said before this Node was there was said of another.
        let created = node.metadata.creation_timestamp.as_ref().map(time::from_k8s);
        let counts = |pair: &&UnreachablePair| {
            pair.node == name && pair.state == PathState::Disconnected && created.is_some_and(|at| pair.since >= at)
        };
        let believed = reports.iter().filter(|(driver, report)| is_believed(self.seen, driver, report));
        let rows = believed.flat_map(|(driver, report)| {
            let pairs = report.status.iter().flat_map(|status| &status.unreachable).filter(counts);
            pairs.map(move |pair| (driver.as_str(), report.as_ref(), pair))
        });
        rows.collect()
    }

    /// The paths of a node that count as lost for a pod under these policies, by driver.
    pub fn lost(&self, node: &Node, reports: &Reports, policies: &Effective) -> Lost {
        if !policies.counts_storage() {
            return Lost::new();
        }
        let rows = self.disconnected(node, reports).into_iter();
        let counts = rows.filter(|(driver, report, pair)| {
            let is_restrained = report.is_out(&pair.backend) || self.restraining(policies, &pair.backend).is_some();
            (!is_restrained || mutants::is_on(Mutant::ArrayOutageIgnored))
                && !self.is_plugin_away(node, driver, policies)
        });
        counts.map(|(driver, _, pair)| (driver.to_owned(), evidence(pair))).collect()
    }

    /// Whether the driver cannot see a node that is well, or could not until a moment ago: some drivers ask their own plugin
    /// there, and say "not connected" where it does not answer. Of a node that is not Ready nothing is known of its pods, and
    /// of one whose kubelet has just died the plugin is shown as it was: both count.
    fn is_plugin_away(&self, node: &Node, driver: &str, policies: &Effective) -> bool {
        let Some(name) = node.metadata.name.as_deref().filter(|_| node.ready() == "True") else { return false };
        let live = self.seen.live.get(name).map(|live| &live.pods);
        let pods = live.or_else(|| self.seen.pods.get(name)).map(Vec::as_slice).unwrap_or_default();
        let settles = TimeDelta::from_std(policies.storage_settles_after()).unwrap_or(TimeDelta::MAX);
        match plugins::plugin(pods, driver) {
            Plugin::Unknown => self.seen.plugins_away.contains_key(&(name.to_owned(), driver.to_owned())),
            Plugin::Away => true,
            Plugin::Ready(since) => self.now.signed_duration_since(since) < settles,
        }
    }

    /// Nodes whose path counts as lost to a backend that the policy's pods use, whoever still runs there, where it would move
    /// them: when these are too many, it is the arrays, or whoever looks at them, that are at fault.
    pub(super) fn nodes(&self, policy: &ResiliencyPolicy) -> BTreeSet<String> {
        let alone = Effective::alone(policy);
        let told = nodes(self.seen);
        let all = self.seen.nodes.iter().filter_map(|(node, _)| Some((node.metadata.name.clone()?, node)));
        let told = all.filter(|(name, _)| alone.releases_on_path_loss() && told.contains(name.as_str()));
        let mut lost: Vec<_> = told.map(|(name, node)| (name, self.lost(node, &self.seen.reports, &alone))).collect();
        // Only where there is one its pods are looked at.
        if !lost.is_empty() {
            let used = policies::drivers_in_use(self.seen, policy);
            lost.retain(|(_, lost)| lost.keys().any(|driver| used.contains(driver)));
        }
        lost.into_iter().map(|(name, _)| name).collect()
    }

    /// What the array says of a node to a pod: the first of its backends that says that the path is lost.
    fn evidence(&self, node: &Node, reports: &Reports, pod: &PodView, policies: &Effective) -> Option<Evidence> {
        let lost = self.lost(node, reports, policies);
        pod.drivers().find_map(|driver| lost.get(driver).cloned())
    }

    /// What others than the node say of it to a pod: the arrays of its volumes, and who sees its power.
    pub fn outside(
        &self,
        node: &Node,
        silence: Silence,
        reports: &Reports,
        pod: &PodView,
        policies: &Effective,
    ) -> Outside {
        let power = power::evidence(self.seen, node, silence, reports, policies);
        Outside { storage: self.evidence(node, reports, pod, policies), power }
    }

    /// What the lost paths of a node mean for these pods of it.
    pub fn on_node<'p>(&self, node: &Node, pods: &'p [PodView], reports: &Reports) -> (OnNode<'p>, Vec<String>)
    where
        'a: 'p,
    {
        let (mut movers, mut held, mut restrained) = (Vec::new(), Vec::new(), Vec::new());
        let rows = self.disconnected(node, reports);
        if rows.is_empty() || node.metadata.deletion_timestamp.is_some() {
            return (OnNode::default(), restrained);
        }
        let uses = |pod: &PodView, driver: &str| pod.drivers().any(|used| used == driver);
        for pod in pods.iter().filter(|pod| !pod.pod.is_finished()) {
            let Some(policies) = effective(self.seen, pod).filter(Effective::releases_on_path_loss) else { continue };
            let mut ours = rows.iter().filter(|(driver, ..)| uses(pod, driver)).peekable();
            if ours.peek().is_none() {
                continue;
            }
            let lost = self.lost(node, reports, &policies);
            let Some(evidence) = pod.drivers().find_map(|driver| lost.get(driver).cloned()) else {
                restrained.extend(ours.filter_map(|(_, _, pair)| self.restraining(&policies, &pair.backend)));
                continue;
            };
            match obstacle(self.seen, pod, &policies) {
                Some(stays) => held.push((pod, policies, stays)),
                None => movers.push(Mover { pod, policies, evidence, sake: pod }),
            }
        }
        let moves = |pod: &PodView, policies: &Effective| {
            let lost = self.lost(node, reports, policies);
            policies.releases_on_path_loss() && pod.drivers().any(|driver| lost.contains_key(driver))
        };
        // Nor does one go along whose own array is out for everyone: of that none can be cut off.
        let may_go = |pod: &PodView, policies: &Effective| {
            let lost = self.lost(node, reports, policies);
            let mut ours = rows.iter().filter(|(driver, ..)| uses(pod, driver));
            ours.all(|(driver, ..)| lost.contains_key(*driver)) && obstacle(self.seen, pod, policies).is_none()
        };
        let trouble = Trouble { reason: STORAGE_PATH_LOSS, moves: &moves, may_go: &may_go };
        (movers::settle(self.seen, &trouble, movers, held, pods), restrained)
    }

    /// The plan that moves pods off the node; `None` when there is none to move.
    pub fn draft(&self, live: &LiveNode, episode: i64, now: Now) -> Option<Draft> {
        let (found, _) = self.on_node(&live.node, &live.pods, &live.reports);
        let mut drafting = Drafting::new(live, episode);
        let mut evidence: Vec<Evidence> = Vec::new();
        for mover in &found.movers {
            drafting.add_pod(mover.pod, Some(&mover.policies), &PodDecision::Move(STORAGE_PATH_LOSS));
            if evidence.len() < EVIDENCE_OF_STORAGE_MAX && !evidence.contains(&mover.evidence) {
                evidence.push(mover.evidence.clone());
            }
        }
        (!evidence.is_empty()).then(|| drafting.finish(evidence, now))
    }

    /// The policy of these whose brake holds on a backend.
    fn restraining(&self, policies: &Effective, backend: &str) -> Option<String> {
        let names = policies.policies().iter().filter_map(|policy| policy.metadata.name.clone());
        names.into_iter().find(|name| self.restrained.contains(&(name.clone(), backend.to_owned())))
    }
}

/// The incident that moves pods off this node for a lost path, until it is Recovered.
pub fn running(fence: Option<&NodeFence>) -> Option<&NodeFence> {
    fence.filter(|fence| fence.spec.plan.is_by_path() && brakes::in_progress(fence))
}

fn evidence(pair: &UnreachablePair) -> Evidence {
    let why = pair.reason.as_deref().unwrap_or("PathLost");
    Evidence {
        channel: Channel::Storage,
        state: EvidenceState::Failed,
        backend: Some(pair.backend.clone()),
        since: time::stamp(pair.since),
        reason: "PathLost".into(),
        message: Some(format!("node {} does not reach storage backend {} ({why})", pair.node, pair.backend)),
    }
}
