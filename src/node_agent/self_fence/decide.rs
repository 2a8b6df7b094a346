//! Which pods the agent stops when its node is alone, and which get their access back. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::fencing::PolicyMode;
use crate::api::names;
use crate::api::node_fence::NodeFence;
use crate::api::resiliency_policy::{BarePods, NodeFailureAction, ResiliencyPolicy, Sharers};
use crate::api::slim::Pod;

use super::cut::PodVolume;

/// A pod that is stopped when its node has been alone for so long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protected {
    /// Its uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// For how long.
    pub after: Duration,
}

/// What the API has, as far as it matters here.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Policies.
    pub policies: Vec<Arc<ResiliencyPolicy>>,
    /// Pods bound to the node.
    pub pods: Vec<Arc<Pod>>,
    /// Labels of namespaces. A namespace that is not there has no labels that could be matched.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
}

/// The pods to stop: those that policies with self-fencing would have moved elsewhere, and those that go with them. Only who
/// has a CSI volume here: of anything else there is no second writer.
pub fn protected(known: &Known, volumes: &[PodVolume]) -> Vec<Protected> {
    let mut found = BTreeMap::<String, Protected>::new();
    let mut sharing = BTreeMap::<&str, Duration>::new();
    for pod in &known.pods {
        let Some(uid) = pod.metadata.uid.clone() else { continue };
        let has: Vec<_> = volumes.iter().filter(|volume| volume.pod == uid).collect();
        let Some((after, cleans_sharers)) = deadline(known, pod, &has) else { continue };
        if cleans_sharers {
            for volume in &has {
                let known = sharing.entry(&volume.volume).or_insert(after);
                *known = after.min(*known);
            }
        }
        found.insert(uid, of(pod, after));
    }
    // Nothing makes a bare pod anew: that it shares a volume is no reason to end it.
    for pod in known.pods.iter().filter(|pod| is_movable(pod) && pod.controller_kind().is_some()) {
        let Some(uid) = pod.metadata.uid.clone() else { continue };
        let of_it = volumes.iter().filter(|volume| volume.pod == uid);
        let shared = of_it.filter_map(|volume| sharing.get(volume.volume.as_str())).min().copied();
        if let Some(after) = shared {
            found.entry(uid).or_insert_with(|| of(pod, after));
        }
    }
    found.into_values().collect()
}

/// Its deadline, and whether whoever shares its volumes goes with it; none for a pod that stays as it is.
fn deadline(known: &Known, pod: &Pod, volumes: &[&PodVolume]) -> Option<(Duration, bool)> {
    if volumes.is_empty() || !is_movable(pod) {
        return None;
    }
    let none = BTreeMap::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let of_namespace = known.namespaces.get(namespace).unwrap_or(&none);
    let uses = |driver: &str| volumes.iter().any(|volume| volume.driver == driver);
    let selecting = known.policies.iter().filter(|policy| policy.spec.selector.matches(labels, of_namespace, uses));
    let selecting: Vec<_> = selecting.collect();
    // Of several policies the strictest: what one of them only rehearses, or leaves, or has paused, is not done.
    let acts = |policy: &&Arc<ResiliencyPolicy>| {
        policy.spec.mode != PolicyMode::DryRun
            && policy.spec.triggers.node_failure == NodeFailureAction::Release
            && names::paused(&policy.metadata).is_none()
            && (pod.controller_kind().is_some() || policy.spec.release.bare_pods == BarePods::Delete)
    };
    if !selecting.iter().all(acts) {
        return None;
    }
    let after = selecting.iter().filter_map(|policy| policy.spec.self_fencing.deadline()).min()?;
    Some((after, selecting.iter().all(|policy| policy.spec.sharers == Sharers::CleanAll)))
}

/// Policies never protect these.
fn is_movable(pod: &Pod) -> bool {
    !pod.is_finished() && !pod.is_static() && pod.controller_kind() != Some("DaemonSet")
}

fn of(pod: &Pod, after: Duration) -> Protected {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Protected {
        uid: text(&pod.metadata.uid),
        namespace: text(&pod.metadata.namespace),
        name: text(&pod.metadata.name),
        after,
    }
}

/// Those whose time has come.
pub fn due(protected: &[Protected], alone_for: Option<Duration>) -> Vec<Protected> {
    protected.iter().filter(|pod| alone_for.is_some_and(|alone| alone >= pod.after)).cloned().collect()
}

/// What becomes of a stopped pod once the API answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is gone, or ends: its mounts are the kubelet's and the clean-up's, without covers.
    Gone,
    /// It has ended, and nobody starts it anew: there is nothing to keep stopped.
    HasEnded,
    /// The node has an incident: what is the pod's is decided there.
    Waits,
    /// It is this node's as it was, and nobody has fenced it: it gets its access back.
    GetsItBack,
}

/// The fate of a pod by what the API itself says now: the pods bound to the node, and its NodeFence.
pub fn fate(uid: &str, pods: &[Pod], fence: Option<&NodeFence>) -> Fate {
    let found = pods.iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid));
    match found.filter(|pod| !pod.is_terminating()) {
        None => return Fate::Gone,
        Some(pod) if pod.is_finished() => return Fate::HasEnded,
        Some(_) => {}
    }
    let labels = fence.and_then(|fence| fence.metadata.labels.as_ref());
    match labels.is_some_and(|labels| labels.contains_key(names::ACTIVE_LABEL)) {
        true => Fate::Waits,
        false => Fate::GetsItBack,
    }
}

/// Pods under a cover that nothing else tells of: they are stopped all the same, and given back as all others are.
pub fn unrecorded(covered: &BTreeSet<String>, stopped: &BTreeSet<String>) -> Vec<Protected> {
    let known_by = |uid: &String| Protected {
        uid: uid.clone(),
        namespace: String::new(),
        name: uid.clone(),
        after: Duration::ZERO,
    };
    covered.difference(stopped).map(known_by).collect()
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
