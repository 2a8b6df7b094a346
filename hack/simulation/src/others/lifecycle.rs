//! The node lifecycle controller: a silent kubelet makes Ready Unknown and brings the `unreachable` taints; the taint
//! eviction deletes pods after their 300 s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead::api::names;
use bulkhead::api::slim::{Lease, Node, Pod};
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;

use crate::chance::{Chance, Choice};
use crate::time::{Millis, SECOND, stamp, wall};
use crate::world::{Task, World};

use super::Actor;
use super::kubelet::set_condition;

/// `--node-monitor-period`.
const PERIOD: Millis = 5 * SECOND;
/// `--node-monitor-grace-period`.
const GRACE: Millis = 40 * SECOND;
/// What pods tolerate of the NoExecute taint.
const TOLERATED: Millis = 300 * SECOND;
/// A kubelet tells its status so often.
const STATUS: Millis = 10 * SECOND;

/// What the controller remembers.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle {
    /// What it saw last of each kubelet, and when that changed.
    seen: BTreeMap<String, (Option<MicroTime>, Millis)>,
    /// When it set the NoExecute taint.
    evicts_from: BTreeMap<String, Millis>,
    /// Nodes of whose Leases it hears nothing: its watch lags behind. In truth that is so of all at once, where the brakes hold
    /// whatever comes of it.
    pub(crate) unheard: BTreeSet<String>,
}

impl Lifecycle {
    /// The controller-manager starts again: it has heard of every node just now.
    pub fn restart(&mut self) {
        self.seen.clear();
    }
}

impl World {
    pub(crate) fn lifecycle(&mut self, chance: &mut dyn Chance) {
        let now = self.now;
        self.wake(Actor::Lifecycle, now + PERIOD);
        if self.api.down {
            // Its own Lease runs out with the API, and it starts again.
            return self.others.lifecycle.restart();
        }
        let names: Vec<String> = self.api.nodes.iter().map(|(name, _)| name.clone()).collect();
        self.others.lifecycle.seen.retain(|name, _| names.contains(name));
        self.others.lifecycle.evicts_from.retain(|name, _| names.contains(name));
        for name in names {
            let renewed = self.api.get::<Lease>(&name).and_then(|lease| lease.spec.renew_time.clone());
            let is_ready = self.api.get::<Node>(&name).is_some_and(|node| node.ready() == "True");
            let Lifecycle { seen, evicts_from, unheard } = &mut self.others.lifecycle;
            let known = seen.entry(name.clone()).or_insert_with(|| (renewed.clone(), now));
            if !unheard.contains(&name) {
                if known.0 != renewed {
                    *known = (renewed, now);
                }
            } else if is_ready && evicts_from.contains_key(&name) {
                // The kubelet says so since it was given up: its status is a sign of life too.
                known.1 = now;
            }
            let silent = now - known.1 > GRACE;
            self.look_after(&name, silent, chance);
        }
    }

    fn look_after(&mut self, name: &str, silent: bool, chance: &mut dyn Chance) {
        let now = self.now;
        let Some(node) = self.api.get::<Node>(name) else { return };
        if silent && node.ready() != "Unknown" {
            self.tell(|| format!("{name} is unreachable"));
            self.api.update::<Node>(name, |node| set_condition(&mut node.status.conditions, "Ready", "Unknown", now));
            self.pods_not_ready(name, chance);
            self.contradicts_later(name, chance);
            // NoExecute is rate-limited.
            let later = now + chance.between(Choice::Others, 0, 10_000);
            self.others.lifecycle.evicts_from.insert(name.to_owned(), later);
        }
        if !silent && node.ready() == "True" {
            self.others.lifecycle.evicts_from.remove(name);
        }
        let Some(node) = self.api.get::<Node>(name) else { return };
        let unreachable = node.ready() == "Unknown";
        let from = self.others.lifecycle.evicts_from.get(name).copied();
        let evicts = unreachable && from.is_some_and(|from| from <= now);
        set_taint(self, name, "NoSchedule", unreachable);
        set_taint(self, name, "NoExecute", evicts);
        if evicts && from.is_some_and(|from| from + TOLERATED <= now) {
            self.evict(name);
        }
    }

    /// A kubelet that lives does not know that it was given up for want of its Lease. It tells its status in its own time, and is
    /// beyond doubt again only from then on.
    fn contradicts_later(&mut self, name: &str, chance: &mut dyn Chance) {
        if !self.others.lifecycle.unheard.contains(name) {
            return;
        }
        let Some(machine) = self.machines.get_mut(name).filter(|machine| machine.well_since.is_some()) else { return };
        machine.tells_ready_at = self.now + chance.between(Choice::Lifecycle, SECOND, STATUS);
        machine.well_since = Some(machine.tells_ready_at);
        self.counts.given_up_alive += 1;
    }

    /// One after the other: its pods are released meanwhile.
    fn pods_not_ready(&mut self, name: &str, chance: &mut dyn Chance) {
        let bound = self.api.pods.values().filter(|pod| pod.spec.node_name.as_deref() == Some(name));
        let pods: Vec<_> = bound.map(|pod| (pod.name_any(), pod.uid())).collect();
        for (pod, uid) in pods {
            match chance.between(Choice::Lifecycle, 0, SECOND) {
                0 => self.pod_not_ready(&pod, uid.as_deref()),
                later => self.schedule(self.now + later, Task::PodNotReady(pod, uid)),
            }
        }
    }

    /// It is written by uid: one that was made anew is not meant.
    pub(crate) fn pod_not_ready(&mut self, name: &str, uid: Option<&str>) {
        let now = self.now;
        let is_meant = |pod: &Arc<Pod>| pod.is("Ready") && pod.metadata.uid.as_deref() == uid;
        if self.api.get::<Pod>(name).as_ref().is_some_and(is_meant) {
            self.api.update::<Pod>(name, |pod| set_condition(&mut pod.status.conditions, "Ready", "False", now));
        }
    }

    fn evict(&mut self, name: &str) {
        let now = self.now;
        let bound = self.api.pods.values().filter(|pod| pod.spec.node_name.as_deref() == Some(name));
        // Each pod tolerates it for so long, from when it came there.
        let old = |pod: &Pod| {
            let created = pod.metadata.creation_timestamp.as_ref().map(bulkhead::api::time::from_k8s);
            created.is_some_and(|created| (wall(now) - created).num_milliseconds().unsigned_abs() >= TOLERATED)
        };
        let evicted =
            bound.filter(|pod| !pod.is_terminating() && pod.controller_kind() != Some("DaemonSet") && old(pod));
        for pod in evicted.map(|pod| pod.name_any()).collect::<Vec<_>>() {
            self.tell(|| format!("{pod} is evicted from {name}"));
            self.api.delete_pod(&pod, None, now);
        }
    }
}

fn set_taint(world: &mut World, name: &str, effect: &str, wanted: bool) {
    let now = world.now;
    let there = world.api.nodes.get(name).is_some_and(|node| node.taint(names::UNREACHABLE_TAINT, effect).is_some());
    if there == wanted {
        return;
    }
    let added = Taint {
        key: names::UNREACHABLE_TAINT.into(),
        value: None,
        effect: effect.into(),
        time_added: Some(stamp(now)),
    };
    world.api.update::<Node>(name, |node| {
        let mut taints = node.spec.taints.take().unwrap_or_default();
        if wanted {
            taints.push(added);
        } else {
            taints.retain(|it| it.key != names::UNREACHABLE_TAINT || it.effect != effect);
        }
        node.spec.taints = (!taints.is_empty()).then_some(taints);
    });
}
