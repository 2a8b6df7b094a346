//! Node plugins of CSI drivers that are not ready (docs/adr/0020). While that lasts a taint of ours keeps new pods off the
//! node, where a policy asks for it. It is no evidence, releases nobody, and goes with its cause: the plugin is ready again,
//! or is not to run there any more. What a driver says of a path meanwhile is none either (docs/adr/0022).
//!
//! The plugin of a driver is known by what every one must have: it is a pod of a DaemonSet, and mounts the folder where
//! plugins register with the kubelet, and one that is named after the driver, as CSI demands of its socket's place, or that
//! is known to be its.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Taint;

use crate::api::names;
use crate::api::plugin_folder;
use crate::api::resiliency_policy::{DriverPluginDown, ResiliencyPolicy};
use crate::api::slim::{Node, Pod, StatusCondition, VolumeSource};
use crate::api::time::{self, Now};
use crate::api::usage::PodView;

use super::brakes::{self, Cluster};
use super::decide::{self, Decision, Effect, Seen};

/// Where plugins register with the kubelet.
const REGISTRATION_FOLDER: &str = "plugins_registry";

/// Sets and takes back the taints of plugins that are not ready.
pub(super) fn taint(seen: &Seen, decision: &mut Decision, now: Now) {
    let asked = asked(seen);
    let tainted: BTreeSet<_> = seen.nodes.iter().flat_map(|(node, _)| drivers_of_taints(node)).collect();
    let drivers: BTreeSet<_> = asked.iter().map(String::as_str).chain(tainted).collect();
    if drivers.is_empty() {
        return;
    }
    let is_asked = asking(seen).next().is_some();
    for driver in drivers {
        let down = nodes_with_plugin_down(seen, driver);
        let too_many = is_outage(seen, down.len());
        for (node, _) in &seen.nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let present = node.taint(&names::driver_down_taint(driver), "NoSchedule");
            match (present, down.contains(name)) {
                (Some(taint), is_down) if !is_down || !is_asked => {
                    decision.effects.push(Effect::RemoveTaint { taint: taint.clone(), node: node.clone() });
                }
                (None, true) if asked.contains(driver) && !too_many && node.ready() == "True" => {
                    decision.effects.push(Effect::AddTaint { taint: new_taint(driver, now), node: node.clone() });
                }
                _ => {}
            }
            decision.plugins_down += usize::from(present.is_some());
        }
    }
}

fn new_taint(driver: &str, now: Now) -> Taint {
    Taint {
        key: names::driver_down_taint(driver),
        value: None,
        effect: "NoSchedule".into(),
        time_added: Some(time::to_k8s(now.wall)),
    }
}

/// Drivers of protected pods whose policies, all of them, want their nodes tainted.
fn asked(seen: &Seen) -> BTreeSet<String> {
    if asking(seen).next().is_none() {
        return BTreeSet::new();
    }
    let protected = seen.pods.values().flatten().filter(|pod| decide::may_be_released(pod));
    let protected = protected.filter(|pod| decide::effective(seen, pod).is_some_and(|it| it.taints_for_plugins()));
    protected.flat_map(PodView::drivers).map(str::to_owned).collect()
}

/// The drivers that the taints of a node are about.
fn drivers_of_taints(node: &Arc<Node>) -> impl Iterator<Item = &str> {
    node.taints().iter().filter_map(|taint| taint.key.strip_prefix(names::DRIVER_DOWN_PREFIX))
}

/// Nodes where a pod of the driver's plugin runs, or should, and none is Ready.
fn nodes_with_plugin_down<'a>(seen: &'a Seen, driver: &str) -> BTreeSet<&'a str> {
    let mut ready: BTreeMap<&str, bool> = BTreeMap::new();
    for (node, pods) in &seen.pods {
        for pod in pods.iter().filter(|pod| !pod.pod.is_finished() && is_plugin(&pod.pod, driver)) {
            *ready.entry(node.as_str()).or_default() |= pod.pod.is("Ready");
        }
    }
    ready.into_iter().filter(|(_, ready)| !ready).map(|(node, _)| node).collect()
}

/// Whether the pod is one of the driver's node plugin.
pub fn is_plugin(pod: &Pod, driver: &str) -> bool {
    let mounts = |component: &str| {
        pod.spec.volumes.iter().any(|volume| match &volume.source {
            VolumeSource::HostPath(path) => Path::new(path).components().any(|it| it.as_os_str() == component),
            _ => false,
        })
    };
    let mounts_its_own = || mounts(driver) || plugin_folder::of(driver).is_some_and(mounts);
    pod.controller_kind() == Some("DaemonSet") && mounts(REGISTRATION_FOLDER) && mounts_its_own()
}

/// What is known of a driver's plugin on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plugin {
    /// No pod of it is known there.
    Unknown,
    /// Those that are there are not Ready, or on their way out: nobody can ask them.
    Away,
    /// One is Ready since then.
    Ready(DateTime<Utc>),
}

/// What these pods of a node show of the driver's plugin there.
pub(super) fn plugin(pods: &[PodView], driver: &str) -> Plugin {
    let plugins = || pods.iter().map(|pod| pod.pod.as_ref()).filter(|pod| is_plugin(pod, driver));
    let stays = plugins().filter(|pod| !pod.is_finished() && !pod.is_terminating());
    let ready = stays.filter_map(|pod| pod.condition("Ready").filter(|ready| ready.status == "True"));
    let since = |ready: &StatusCondition| ready.last_transition_time.as_ref().map(time::from_k8s);
    match ready.map(|ready| since(ready).unwrap_or(DateTime::<Utc>::MIN_UTC)).min() {
        Some(since) => Plugin::Ready(since),
        None if plugins().next().is_some() => Plugin::Away,
        None => Plugin::Unknown,
    }
}

/// A plugin that is down nearly everywhere is a bad release, or the observer: to keep every pod off every node helps nobody.
fn is_outage(seen: &Seen, down: usize) -> bool {
    let cluster = Cluster { nodes: seen.nodes.len(), suspected: down };
    asking(seen).any(|policy| brakes::is_outage(&policy.spec.limits, cluster))
}

/// Policies that want nodes tainted while a plugin is down.
fn asking(seen: &Seen) -> impl Iterator<Item = &ResiliencyPolicy> {
    let asks = |policy: &&ResiliencyPolicy| policy.spec.triggers.driver_plugin_down == DriverPluginDown::TaintNode;
    decide::live_policies(seen).filter(asks)
}
