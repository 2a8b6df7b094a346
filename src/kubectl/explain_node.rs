//! `kubectl bulkhead explain node`: what is known of a node, whether that is enough to act, what would be done, and what was.

#[path = "explain_node_unheard.rs"]
mod unheard;
#[path = "explain_node_why.rs"]
mod why;

use chrono::{DateTime, TimeDelta, Utc};
use kube::ResourceExt;
use serde::Serialize;

use crate::api::names;
use crate::api::node_fence::{Evidence, NodeFence, PlannedPod, PodAction};
use crate::api::slim::{Lease, Node};
use crate::api::time::{self, Now};
use crate::controllers::resiliency_policy::brakes::in_progress;
use crate::controllers::resiliency_policy::decide::effective;
use crate::controllers::resiliency_policy::evidence;
use crate::controllers::resiliency_policy::storage::Paths;

use super::foresee::Foreseen;
use super::incident::IncidentReport;
use super::print::{Page, Report, names as joined};
use super::simulate;
use super::simulate::report::{BRAKE_COLUMNS, Brake, Outcome, PodRow, Simulation, brake_columns};
use super::words;

use self::unheard::Unheard;

/// What there is to say about a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeExplanation {
    /// The node.
    pub node: String,
    /// The answer in one sentence.
    pub verdict: String,
    /// Why, and why not.
    pub why: Vec<String>,
    /// What to do.
    pub next: String,
    /// What the node looks like; absent when its object is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<NodeSeen>,
    /// It gives reason for suspicion, as far as can be seen without watching its Lease.
    pub suspected: bool,
    /// What declares it failed for at least one protected pod; empty: nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
    /// Brakes that hold the node, and those that policies of its pods report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub brakes: Vec<Brake>,
    /// Its pods and what would become of them if it failed now.
    pub pods: Vec<PodOfNode>,
    /// What would come of a failure now, in a sentence.
    pub if_failed: String,
    /// Its incident, open or recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incident: Option<IncidentReport>,
    /// When this was seen.
    pub at: DateTime<Utc>,
}

/// What a node looks like.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSeen {
    /// Status of its Ready condition.
    pub ready: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_since: Option<DateTime<Utc>>,
    /// Its taints, as `key=value:effect`.
    pub taints: Vec<String>,
    /// When its kubelet renewed its Lease last, by the kubelet's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_renewed_at: Option<DateTime<Utc>>,
    /// Why it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<String>,
}

/// A pod of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodOfNode {
    /// Every policy that selects it.
    pub selected_by: Vec<String>,
    /// What would become of it.
    #[serde(flatten)]
    pub row: PodRow,
}

/// What is told of a node.
pub struct Facts<'a> {
    /// Its name.
    pub name: &'a str,
    /// The node.
    pub node: Option<&'a Node>,
    /// Its kubelet's Lease.
    pub lease: Option<&'a Lease>,
    /// Its NodeFence.
    pub fence: Option<&'a NodeFence>,
    /// What is decided as things are.
    pub present: &'a Foreseen,
    /// What would be decided if it failed.
    pub failure: &'a Foreseen,
    /// The same, told.
    pub simulation: &'a Simulation,
}

/// Explains a node. `renewed`: how long ago a fencer renewed its Lease, where there is one.
pub fn explain_by_leases(facts: &Facts, renewed: impl Fn(&str) -> Option<TimeDelta>, now: Now) -> NodeExplanation {
    let unheard = unheard::unheard(facts, renewed);
    let believed = unheard::believed(facts, &unheard, now);
    let facts = &Facts { present: believed.as_ref().unwrap_or(facts.present), ..*facts };
    let incident = facts.fence.map(IncidentReport::new);
    let evidence = declared(facts, now);
    let suspected = facts.present.decision.suspected.contains(facts.name);
    let brakes = brakes(facts);
    let known = Known { evidence: &evidence, suspected, brakes: &brakes, unheard: &unheard };
    let (verdict, next) = verdict(facts, incident.as_ref(), &known);
    let mut why = why::sentences(facts, &evidence, now);
    let of_interest = unheard.iter().filter(|it| it.is_of_interest());
    why.extend(of_interest.map(|it| format!("{}; nothing is done for what it says", it.told())));
    why.extend(held_back(facts, &known, now));
    let selected_by = |row: &PodRow| {
        let pods = facts.failure.live.iter().flat_map(|live| &live.pods);
        let pod = pods.into_iter().find(|pod| pod.uid() == row.plan.uid);
        let policies = pod.and_then(|pod| effective(&facts.failure.seen, pod));
        policies
            .map(|policies| policies.policies().iter().map(|policy| policy.name_any()).collect())
            .unwrap_or_default()
    };
    let pods = facts.simulation.pods.iter().map(|row| PodOfNode { selected_by: selected_by(row), row: row.clone() });
    NodeExplanation {
        node: facts.name.to_owned(),
        verdict,
        why,
        next,
        seen: facts.node.map(|node| seen(node, facts.lease)),
        suspected,
        evidence,
        brakes,
        pods: pods.collect(),
        if_failed: facts.simulation.message.clone(),
        incident,
        at: time::stamp(now.wall),
    }
}

/// Those that hold the node as things are, and those that the policies of its pods report. Other ones hold a node that is well, and
/// whose pods are to move for the sake of their storage, than would if it failed.
fn brakes(facts: &Facts) -> Vec<Brake> {
    let mut brakes = facts.simulation.brakes.clone();
    brakes.iter_mut().for_each(|brake| brake.holds = false);
    for held in facts.present.decision.restrained.iter().filter(|held| held.node == facts.name) {
        match brakes.iter_mut().find(|brake| brake.policy == held.policy && brake.type_ == held.brake) {
            Some(brake) => brake.holds = true,
            None => brakes.push(simulate::brake(&held.policy, held.brake, true)),
        }
    }
    brakes
}

fn seen(node: &Node, lease: Option<&Lease>) -> NodeSeen {
    let taint =
        |taint: &k8s_openapi::api::core::v1::Taint| match taint.value.as_deref().filter(|value| !value.is_empty()) {
            Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
            None => format!("{}:{}", taint.key, taint.effect),
        };
    NodeSeen {
        ready: node.ready().to_owned(),
        ready_since: node.ready_since(),
        taints: node.taints().iter().map(taint).collect(),
        lease_renewed_at: lease.and_then(Lease::renewed_at),
        paused: names::paused(&node.metadata).map(str::to_owned),
    }
}

/// What declares the node failed now for the first of its pods that could be released.
fn declared(facts: &Facts, now: Now) -> Vec<Evidence> {
    let Some(live) = &facts.present.live else { return Vec::new() };
    let seen = &facts.present.seen;
    let paths = Paths::unrestrained(seen, now);
    let declares = |pod| {
        let policies = effective(seen, pod)?;
        let outside = paths.outside(&live.node, live.silence, &live.reports, pod, &policies);
        evidence::declares(&live.node, live.silence, &pod.pod, &policies, outside, now)
    };
    live.pods.iter().find_map(declares).unwrap_or_default()
}

/// What the verdict rests on.
struct Known<'a> {
    /// What declares the node failed.
    evidence: &'a [Evidence],
    suspected: bool,
    brakes: &'a [Brake],
    /// Fencers that nobody hears of.
    unheard: &'a [Unheard<'a>],
}

impl Known<'_> {
    /// The brake that holds the node, or some of its pods.
    fn holding(&self) -> Option<&Brake> {
        self.brakes.iter().find(|brake| brake.holds)
    }
}

/// The answer in one sentence, and what to do.
fn verdict(facts: &Facts, incident: Option<&IncidentReport>, known: &Known) -> (String, String) {
    let name = facts.name;
    if let Some(open) = incident.filter(|incident| incident.open) {
        let verdict =
            format!("node {name} has an open incident, phase {:?}, which waits for {}", open.phase, open.reason);
        return (verdict, open.next.clone());
    }
    if let Some(begun) = about_to_begin(facts, known) {
        return begun;
    }
    let silent = known.unheard.iter().find(|it| it.speaks);
    match (facts.node, silent) {
        (None, _) => (format!("the Node object of {name} is gone"), "nothing".into()),
        (Some(_), _) if why::is_renewing(facts) && facts.simulation.outcome != Outcome::Nothing => (
            format!(
                "Kubernetes has given node {name} up, and its kubelet renews its Lease, by the kubelet's clock: nothing is done until \
                 the next renewal is overdue"
            ),
            "nothing: the node lifecycle controller catches up, or the node is declared failed. If it lasts: does \
             kube-controller-manager keep up, and is the node's clock right?"
                .into(),
        ),
        (Some(_), _) if known.suspected => (
            format!("node {name} is suspected, and not declared failed: nothing is done"),
            "nothing, unless you expected more: see why".into(),
        ),
        (Some(_), Some(silent)) => {
            (format!("nothing is done for node {name}: {}", silent.told()), silent.next().into())
        }
        (Some(_), None) => (format!("node {name} is well: nothing is done"), "nothing".into()),
    }
}

/// What begins now, or a brake holds.
fn about_to_begin(facts: &Facts, known: &Known) -> Option<(String, String)> {
    let name = facts.name;
    // What is to be done about a node that has not failed is done for the sake of its pods' storage.
    let (what, whose) = match known.evidence {
        [] => (format!("pods of node {name} are to move, for a lost path to storage or a tainted volume"), "their"),
        _ => (format!("node {name} has failed"), "its"),
    };
    let begins = format!("{what}, and {whose} incident is about to begin");
    let next = "if no NodeFence appears within seconds: does bulkhead-controller run and lead?".to_owned();
    let is_begun = !facts.present.written.is_empty();
    let is_due = facts.node.is_some() && !known.evidence.is_empty();
    match known.holding() {
        // The brake of one policy may hold some of the pods, and not the others.
        Some(brake) if is_begun => {
            let held = format!("nothing is begun for others of its pods: {} of policy {}", brake.type_, brake.policy);
            Some((format!("{begins}; {held}"), next))
        }
        Some(brake) => {
            let verdict = format!("{what}, and nothing is begun: {} of policy {}", brake.type_, brake.policy);
            Some((verdict, words::of_incident(&brake.type_).map_or("", |words| words.next).to_owned()))
        }
        None => (is_begun || is_due).then_some((begins, next)),
    }
}

/// The pods that are to move for the sake of their storage, and that a brake holds: of a node that is well no table has them.
fn held_back(facts: &Facts, known: &Known, now: Now) -> Option<String> {
    let is_open = facts.fence.is_some_and(in_progress);
    let is_for_storage = known.evidence.is_empty() && facts.present.written.is_empty() && !is_open;
    let brake = known.holding().filter(|_| is_for_storage)?;
    let planned = simulate::drafted(facts.name, facts.present, facts.fence, now)?;
    let moves = |pod: &&PlannedPod| pod.action == PodAction::Release;
    let named = |pod: &PlannedPod| format!("{}/{} ({})", pod.namespace, pod.name, pod.reason);
    let pods: Vec<_> = planned.spec.plan.pods.iter().filter(moves).map(named).collect();
    Some(format!("when {} of policy {} lets go, these pods move: {}", brake.type_, brake.policy, joined(&pods)))
}

impl Report for NodeExplanation {
    fn text(&self) -> String {
        let mut page = Page::default().line(&self.verdict).list(&self.why);
        if let Some(seen) = &self.seen {
            page = page.line(format!("Taints: {}", joined(&seen.taints)));
            if let Some(paused) = &seen.paused {
                page = page.line(format!("Paused: {paused}"));
            }
        }
        page = page.line(format!("What to do: {}", self.next));
        page = match self.incident.as_ref() {
            Some(incident) => incident.page(page, self.at),
            None => page,
        };
        // The rows of an open incident say more than what would become of a pod.
        let is_open = self.incident.as_ref().is_some_and(|incident| incident.open);
        if !is_open {
            let columns = ["NAMESPACE", "NAME", "SELECTED BY", "IF IT FAILED", "WHY"];
            page = page.line("").line(&self.if_failed);
            page = page.table("PODS", columns, self.pods.iter().map(pod_columns).collect());
        }
        page.table("BRAKES", BRAKE_COLUMNS, self.brakes.iter().map(brake_columns).collect()).end()
    }
}

fn pod_columns(pod: &PodOfNode) -> [String; 5] {
    let plan = &pod.row.plan;
    let (action, why) = match &pod.row.waits {
        Some(waits) => ("Release, waits".to_owned(), format!("{}: {}", waits.reason, waits.message)),
        None => (format!("{:?}", plan.action), words::pod(&plan.reason)),
    };
    [plan.namespace.clone(), plan.name.clone(), joined(&pod.selected_by), action, why]
}

#[cfg(test)]
#[path = "explain_node_tests.rs"]
mod tests;
