//! `kubectl bulkhead explain pod`: who protects a pod, what would become of it if its node died, and what holds it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use kube::ResourceExt;
use serde::Serialize;

use crate::api::fencing::{FenceMethod, FenceMethodType, Proof};
use crate::api::node_fence::{NodeFence, PodAction};
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::time::{self, Now};
use crate::api::usage::{PodView, VolumeKind};
use crate::controllers::resiliency_policy::decide::Seen;
use crate::controllers::resiliency_policy::select::{Effective, selects};
use crate::controllers::resiliency_policy::unattached::wrong_class;

use super::incident::{IncidentReport, PodStands};
use super::print::{Page, Report, ago, names, or_dash};
use super::simulate::report::{Said, Simulation};
use super::words;

/// What there is to say about a pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodExplanation {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its node; absent while it is not scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The answer in one sentence.
    pub verdict: String,
    /// Every policy, and whether it selects the pod.
    pub policies: Vec<Selection>,
    /// What would become of it if its node failed now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_failed: Option<Fate>,
    /// Other nodes that could not be read for that: they take no place in the budgets.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub unread: BTreeSet<String>,
    /// Its volumes, without those that live and die with it.
    pub volumes: Vec<VolumeOfPod>,
    /// The last incident that planned something for it, or for one of its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_incident: Option<LastIncident>,
    /// When this was seen.
    pub at: DateTime<Utc>,
}

/// Whether a policy selects a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Selection {
    /// The policy.
    pub name: String,
    /// It does.
    pub selects: bool,
    /// The parts of its selector that do not match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<String>,
}

/// What would become of a pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fate {
    /// Release it or keep it.
    pub action: PodAction,
    /// Why, as the API spells it.
    pub reason: String,
    /// What it would wait for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Said>,
    /// What would hold the incident of its node as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Said>,
    /// Brakes that would hold its node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub brakes: Vec<String>,
}

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeOfPod {
    /// The PersistentVolume, or the pod's uid and the volume's name.
    pub name: String,
    /// Its CSI driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Why no method covers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfenceable: Option<String>,
    /// The proof that its policies require.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_proof: Option<Proof>,
    /// Methods that may be tried.
    pub methods: Vec<FenceMethodType>,
    /// The strongest proof that they can give today.
    pub best_proof: Proof,
    /// Other pods of the same node that use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shared_with: Vec<String>,
}

/// A pod in an incident.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LastIncident {
    /// The node that failed.
    pub node: String,
    /// Its episode.
    pub episode: i64,
    /// When the node was declared failed.
    pub decided_at: DateTime<Utc>,
    /// It was this very pod, not one of the same name before it.
    pub same_pod: bool,
    /// How it stands or ended.
    pub pod: PodStands,
}

/// What is told of a pod.
pub struct Facts<'a> {
    /// The pod.
    pub pod: &'a PodView,
    /// What was seen.
    pub seen: &'a Seen,
    /// What would come of the failure of its node.
    pub simulation: Option<&'a Simulation>,
    /// NodeFences, the latest first.
    pub fences: &'a [Arc<NodeFence>],
}

/// Explains a pod.
pub fn explain(facts: &Facts, now: Now) -> PodExplanation {
    let (pod, seen) = (facts.pod, facts.seen);
    let none = BTreeMap::new();
    let labels = seen.namespaces.get(pod.namespace()).unwrap_or(&none);
    let live = seen.policies.iter().map(Arc::as_ref).filter(|policy| policy.metadata.deletion_timestamp.is_none());
    let effective = Effective::of(pod, labels, live);
    let mut policies: Vec<_> = seen.policies.iter().map(|policy| selection(policy, pod, labels)).collect();
    policies.sort_by(|a, b| (!a.selects, &a.name).cmp(&(!b.selects, &b.name)));
    let if_failed = facts.simulation.and_then(|simulation| fate(pod, simulation));
    let volumes = pod.volumes.iter().map(|volume| {
        let sharers = seen.pods.get(pod.pod.spec.node_name.as_deref().unwrap_or_default()).into_iter().flatten();
        let shares =
            |other: &&PodView| other.uid() != pod.uid() && other.volumes.iter().any(|it| it.name == volume.name);
        let shared_with = sharers.filter(shares).map(PodView::display).collect();
        volume_of(&volume.name, &volume.kind, effective.as_ref(), seen, shared_with)
    });
    PodExplanation {
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        node: pod.pod.spec.node_name.clone(),
        verdict: verdict(pod, effective.as_ref(), if_failed.as_ref()),
        policies,
        if_failed,
        unread: facts.simulation.map(|simulation| simulation.unread.clone()).unwrap_or_default(),
        volumes: volumes.collect(),
        last_incident: last_incident(pod, facts.fences),
        at: time::stamp(now.wall),
    }
}

fn selection(policy: &ResiliencyPolicy, pod: &PodView, namespace: &BTreeMap<String, String>) -> Selection {
    let selector = &policy.spec.selector;
    let none = BTreeMap::new();
    let labels = pod.pod.metadata.labels.as_ref().unwrap_or(&none);
    let mut mismatches = Vec::new();
    if selector.namespace_selector.as_ref().is_some_and(|it| !it.matches(namespace)) {
        mismatches.push(format!("namespaceSelector does not match the labels of namespace {}", pod.namespace()));
    }
    if selector.pod_selector.as_ref().is_some_and(|it| !it.matches(labels)) {
        mismatches.push("podSelector does not match the pod's labels".into());
    }
    if !selector.drivers.is_empty() && !pod.drivers().any(|driver| selector.drivers.iter().any(|it| it == driver)) {
        mismatches.push(format!("none of its volumes is of a driver in drivers: {}", selector.drivers.join(", ")));
    }
    if policy.metadata.deletion_timestamp.is_some() {
        mismatches.push("the policy is being deleted".into());
    }
    let selects = selects(policy, pod, namespace) && mismatches.is_empty();
    Selection { name: policy.name_any(), selects, mismatches }
}

fn fate(pod: &PodView, simulation: &Simulation) -> Option<Fate> {
    let row = simulation.pods.iter().find(|row| row.plan.uid == pod.uid())?;
    let holding = simulation.brakes.iter().filter(|brake| brake.holds);
    Some(Fate {
        action: row.plan.action,
        reason: row.plan.reason.clone(),
        waits: row.waits.clone(),
        held: simulation.held.clone(),
        brakes: holding.map(|brake| format!("{} of policy {}", brake.type_, brake.policy)).collect(),
    })
}

fn volume_of(
    name: &str,
    kind: &VolumeKind,
    policies: Option<&Effective>,
    seen: &Seen,
    shared_with: Vec<String>,
) -> VolumeOfPod {
    let methods = match kind {
        VolumeKind::Csi(csi) => policies.map(|it| it.methods(&csi.driver)),
        VolumeKind::Unattached(unattached) => policies.map(|it| it.unattached_methods(unattached)),
        VolumeKind::Local | VolumeKind::Unknown(_) => None,
    };
    let methods = methods.unwrap_or_default();
    let (driver, unfenceable) = match kind {
        VolumeKind::Csi(csi) => (Some(csi.driver.clone()), None),
        VolumeKind::Unattached(unattached) => {
            let driver = unattached.csi.as_ref().map(|csi| csi.driver.clone());
            (driver, methods.is_empty().then(|| unattached.why_uncovered()))
        }
        VolumeKind::Local => (None, Some("it lives on the node and cannot move".to_owned())),
        VolumeKind::Unknown(what) => (None, Some(format!("{what}: no fence method covers it"))),
    };
    let minimum_proof = policies.map(|policies| match kind {
        VolumeKind::Unattached(unattached) => policies.unattached_minimum(unattached),
        _ => policies.minimum_proof(driver.as_deref().unwrap_or_default()),
    });
    let fencers = seen.fencers(driver.as_deref().unwrap_or_default());
    // A class of another cluster gives none.
    let is_of_use = |method: &&FenceMethod| match kind {
        VolumeKind::Unattached(unattached) => wrong_class(seen, unattached, method).is_none(),
        _ => true,
    };
    VolumeOfPod {
        name: name.to_owned(),
        minimum_proof,
        best_proof: fencers.best_proof(methods.iter().filter(is_of_use).cloned()).proof,
        methods: methods.iter().map(|method| method.type_).collect(),
        driver,
        unfenceable,
        shared_with,
    }
}

fn last_incident(pod: &PodView, fences: &[Arc<NodeFence>]) -> Option<LastIncident> {
    let found = fences.iter().find_map(|fence| {
        let report = IncidentReport::new(fence);
        let rows = || report.pods.iter().filter(|row| row.namespace == pod.namespace());
        let row = rows().find(|row| row.uid == pod.uid()).or_else(|| rows().find(|row| row.name == pod.name()))?;
        Some((row.clone(), report.clone()))
    });
    found.map(|(row, report)| LastIncident {
        node: report.node,
        episode: report.episode,
        decided_at: report.decided_at,
        same_pod: row.uid == pod.uid(),
        pod: row,
    })
}

fn verdict(pod: &PodView, policies: Option<&Effective>, fate: Option<&Fate>) -> String {
    let pod_name = format!("pod {}", pod.display());
    let Some(node) = &pod.pod.spec.node_name else { return format!("{pod_name} runs on no node yet") };
    let Some(fate) = fate else {
        return match policies {
            None => format!("{pod_name} is protected by no policy: if node {node} failed, it would stay"),
            Some(_) => format!("{pod_name}: nothing would be planned for it if node {node} failed"),
        };
    };
    if let Some(brake) = fate.brakes.first() {
        return format!("{pod_name} would stay if node {node} failed now: {brake}");
    }
    if let Some(held) = &fate.held {
        return format!("{pod_name} would wait if node {node} failed now: {}: {}", held.reason, held.message);
    }
    match (&fate.waits, fate.action) {
        (Some(waits), _) => {
            format!("{pod_name} would wait if node {node} failed now: {}: {}", waits.reason, waits.message)
        }
        (None, PodAction::Release) => {
            format!("{pod_name} would be released if node {node} failed now, once its volumes are cut off")
        }
        (None, PodAction::Keep) => {
            format!("{pod_name} would stay if node {node} failed now: {}", words::pod(&fate.reason))
        }
    }
}

impl Report for PodExplanation {
    fn text(&self) -> String {
        let page = Page::default().line(&self.verdict);
        let page = words::unread(&self.unread).iter().fold(page, Page::line);
        let page = match &self.last_incident {
            None => page,
            Some(last) => {
                let before = if last.same_pod { "" } else { ", a pod of this name before it" };
                let reason = words::pod(&last.pod.reason);
                page.line(format!(
                    "Last incident: node {} episode {}, {} ago{before}: {:?}: {reason}",
                    last.node,
                    last.episode,
                    ago(last.decided_at, self.at),
                    last.pod.state
                ))
            }
        };
        page.table("POLICIES", ["NAME", "SELECTS IT", "WHY NOT"], self.policies.iter().map(policy_columns).collect())
            .table(
                "VOLUMES",
                ["NAME", "DRIVER", "REQUIRED", "BEST TODAY", "METHODS", "SHARED WITH", "WHY NOT"],
                self.volumes.iter().map(volume_columns).collect(),
            )
            .end()
    }
}

fn policy_columns(policy: &Selection) -> [String; 3] {
    let selects = if policy.selects { "yes" } else { "no" };
    [policy.name.clone(), selects.to_owned(), or_dash(Some(policy.mismatches.join("; ")).filter(|it| !it.is_empty()))]
}

fn volume_columns(volume: &VolumeOfPod) -> [String; 7] {
    let methods: Vec<_> = volume.methods.iter().map(|method| format!("{method:?}")).collect();
    [
        volume.name.clone(),
        or_dash(volume.driver.as_ref()),
        volume.minimum_proof.map_or_else(|| "-".to_owned(), |proof| format!("{proof:?}")),
        format!("{:?}", volume.best_proof),
        names(&methods),
        names(&volume.shared_with),
        or_dash(volume.unfenceable.as_ref()),
    ]
}
