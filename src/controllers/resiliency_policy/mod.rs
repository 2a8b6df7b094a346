//! Protects the pods that policies select: opens a NodeFence, with its plan, when a node is declared failed. One
//! serial pass over the whole cluster, because brakes are decisions over a set.

pub mod act;
pub mod brakes;
mod candidates;
pub mod conflict;
pub mod crash_loops;
pub mod cron;
pub mod decide;
pub mod episodes;
pub mod evidence;
mod fence_ready;
mod growth;
pub mod heartbeat;
mod holding;
mod identity;
pub mod kubevirt;
pub mod lately;
mod machines;
pub mod memory;
pub(crate) mod metrics;
pub mod modes;
mod movers;
pub mod observe;
pub mod pauses;
pub mod plan;
pub mod plugins;
pub mod policies;
mod policy_brakes;
pub mod power;
pub mod read;
pub mod scope;
pub mod select;
mod sharers;
pub mod silence;
pub mod status;
pub mod storage;
mod tell;
#[cfg(test)]
mod tests;
pub mod topology;
pub mod unattached;
mod unhealthy;
mod unmovable;
mod volumeless;
pub mod volumes;
pub mod windows;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::api::names;
use crate::api::node_fence::NodeFence;
use crate::api::slim::Node;
use crate::controllers::{Context, reference};
use crate::error::{Error, Result};
use crate::heartbeat::listener::{Heartbeats, Sources, Wish};
use crate::runtime::clock::Now;
use crate::runtime::events::EventType;
use crate::runtime::queue::{self, Next, Queue, QueueConfig};
use crate::runtime::store::{Change, ObjectKey};
use crate::runtime::telemetry::Outcome;

use decide::{Decision, Effect, Seen};
use evidence::Silence;
use memory::Memory;
use metrics::Metrics;
use volumes::Unmoved;

/// Label of the queue's metrics.
const QUEUE: &str = "resiliency_policy";
/// The only key: a pass is over the cluster.
const CLUSTER: &str = "cluster";
/// Pods change all the time and decide little: their changes are gathered for this long.
const POD_PACE: Duration = Duration::from_millis(500);
/// Changes that are taken at once.
const BATCH: usize = 1024;
/// How often is looked whether the store has caught up.
const UNSEEN_PACE: Duration = Duration::from_millis(100);
struct Controller {
    cx: Context,
    heartbeats: Heartbeats,
    memory: Mutex<Memory>,
    metrics: Metrics,
}

/// Runs the controller until `cancel`.
pub async fn run(cx: Context, heartbeats: Heartbeats, cancel: CancellationToken) {
    let (queue, receiver) = queue::queue();
    feed(&cx, &queue);
    hear(&cx, &heartbeats, &queue, &cancel);
    let metrics = Metrics::register(&cx.telemetry);
    let leadership = cx.writer.leadership().clone();
    let telemetry = cx.telemetry.clone();
    let receiver = receiver.after(cx.stores.wait_synced());
    let controller = Arc::new(Controller { cx, heartbeats, memory: Mutex::default(), metrics });
    let config = QueueConfig::new(QUEUE, "", 1);
    let reconcile = move |_: &'static str| {
        let controller = controller.clone();
        async move { controller.pass().await }
    };
    queue::run(config, receiver, &telemetry, cancel, Some(leadership), reconcile).await;
}

fn feed(cx: &Context, queue: &Queue<&'static str>) {
    let stores = &cx.stores;
    on_change(stores.policies.subscribe(), queue, None);
    on_node_change(stores.nodes.subscribe(), queue);
    on_change(stores.fences.subscribe(), queue, None);
    on_change(stores.reports.subscribe(), queue, None);
    on_change(stores.healths.subscribe(), queue, Some(POD_PACE));
    on_change(stores.namespaces.subscribe(), queue, Some(POD_PACE));
    on_change(stores.pods.subscribe(), queue, Some(POD_PACE));
    queue.add(CLUSTER);
}

/// While it leads, peers are asked about nodes that are silent; what they say is worth a pass.
fn hear(cx: &Context, heartbeats: &Heartbeats, queue: &Queue<&'static str>, cancel: &CancellationToken) {
    let Some(mut changes) = heartbeats.changes() else { return };
    let sources = Sources { nodes: cx.stores.nodes.clone(), reports: cx.stores.node_reports.clone() };
    let (policies, leadership) = (cx.stores.policies.clone(), cx.writer.leadership().clone());
    let wish = move || {
        let policies = if leadership.remaining().is_some() { policies.list() } else { Vec::new() };
        let introduce = policies.iter().any(|policy| policy.spec.self_fencing.deadline().is_some());
        Wish { ask_after: heartbeat::suspect_after(policies.iter().map(Arc::as_ref)), introduce }
    };
    tokio::spawn(heartbeats.clone().run(sources, wish, cancel.clone()));
    let queue = queue.clone();
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            queue.add(CLUSTER);
        }
    });
}

fn on_change<K: Send + Sync + 'static>(
    mut changes: mpsc::UnboundedReceiver<Change<K>>,
    queue: &Queue<&'static str>,
    pace: Option<Duration>,
) {
    let queue = queue.clone();
    tokio::spawn(async move {
        // The first list of a large cluster comes by the ten thousand: one look is for all that are there.
        let mut batch = Vec::new();
        while changes.recv_many(&mut batch, BATCH).await > 0 {
            batch.clear();
            match pace {
                None => queue.add(CLUSTER),
                Some(pace) => queue.add_after(CLUSTER, pace),
            }
        }
    });
}

/// Kubelets write their Node's status every few minutes and more; only what decisions rest on is worth a pass.
fn on_node_change(mut changes: mpsc::UnboundedReceiver<Change<Node>>, queue: &Queue<&'static str>) {
    let queue = queue.clone();
    tokio::spawn(async move {
        while let Some(change) = changes.recv().await {
            let view = |node: &Arc<Node>| {
                let taints = node.taints().to_vec();
                let paused = names::paused(&node.metadata).map(str::to_owned);
                let boot_id = node.status.node_info.boot_id.clone();
                (node.metadata.uid.clone(), node.ready().to_owned(), taints, boot_id, paused)
            };
            if change.old.as_ref().map(view) != change.new.as_ref().map(view) {
                queue.add(CLUSTER);
            }
        }
    });
}

impl Controller {
    async fn pass(&self) -> Result<Next> {
        let mut memory = self.memory.lock().await;
        if !self.sees_every_fence(&mut memory).await? {
            return Ok(Next::After(UNSEEN_PACE));
        }
        let now = self.cx.clock.now();
        let mut seen = observe::cluster(&self.cx, &self.heartbeats, &mut memory, now).await;
        let (cx, heartbeats) = (&self.cx, &self.heartbeats);
        let look = move |name: String, silence: Silence| async move {
            read::in_time(observe::live(cx, heartbeats, &name, silence)).await
        };
        let (decision, unread) = read::decided(&mut seen, now, look).await;
        self.report(&mut memory, &decision, now);
        if let Some(error) = unread {
            if read::is_blind(&seen, &decision) {
                return Err(error);
            }
            self.tell_unread(&seen, &decision, &error, now);
        }
        let look_again = decision.look_again;
        let (mut failed, mut changed) = (None, false);
        for effect in decision.effects {
            let reschedules = matches!(effect, Effect::Reschedule { .. });
            match act::act(&self.cx, effect).await {
                Ok(_) if reschedules => self.metrics.rescheduled(),
                Ok(Some(fence)) => {
                    self.metrics.planned(&fence, &seen);
                    memory.wrote(&fence);
                }
                Ok(None) => {}
                // Somebody wrote in between, or deleted the policy: what was decided on is gone, so decide anew.
                Err(error) if error.is_conflict() || error.is_not_found() => changed = true,
                // One node whose plan is refused holds up no other.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) => Err(error),
            None if changed => Ok(Next::After(Duration::from_millis(100))),
            None => Ok(look_again.map_or(Next::Await, Next::After)),
        }
    }

    /// A pass counts NodeFences for the brakes, so it must not run before it sees all of them: those it opened itself,
    /// and, at the start of a term, those that the last leader opened while our watch may have lagged.
    async fn sees_every_fence(&self, memory: &mut Memory) -> Result<bool> {
        let api: Api<NodeFence> = Api::all(self.cx.clients.reads.clone());
        let term = self.cx.writer.leadership().term();
        if memory.is_new_term(term) {
            memory.begin_term(term, &api.list(&ListParams::default()).await?.items);
        }
        let store = &self.cx.stores.fences;
        // One that was removed meanwhile will never be seen.
        for name in memory.unseen(|name| store.get(&ObjectKey::cluster(name))) {
            if api.get_opt(&name).await?.is_none() {
                memory.is_gone(&name);
            }
        }
        Ok(memory.sees_every_fence())
    }

    /// Metrics, and an Event for each change of suspicion or restraint. None of it is written to a status at rest.
    fn report(&self, memory: &mut Memory, decision: &Decision, now: Now) {
        self.metrics.pass(decision, &self.cx.stores.fences.list());
        self.metrics.ready(&self.cx.stores.policies.list());
        let (before, after) = (&memory.suspected, &decision.suspected);
        for node in after.difference(before) {
            self.tell_node(node, EventType::Normal, "NodeSuspected", why_suspected(decision, node).into());
        }
        for node in before.difference(after) {
            self.tell_node(node, EventType::Normal, "SuspicionCleared", "the node is heard of again".into());
        }
        let restrained: BTreeSet<_> = decision.restrained.iter().cloned().collect();
        for held in restrained.difference(&memory.restrained) {
            let about = held.about.as_ref().map(|about| format!(" ({about})")).unwrap_or_default();
            let note = format!("nothing is begun for node {}: {}{about}", held.node, held.brake);
            tracing::warn!(node = held.node, policy = held.policy, brake = held.brake, "a brake holds");
            self.tell_node(
                &held.node,
                EventType::Warning,
                "FenceHeld",
                format!("policy {}: {}{about}", held.policy, held.brake),
            );
            // What a person has set is told when it begins and when it ends, not for each node.
            let policy = self.cx.stores.policies.get(&ObjectKey::cluster(&held.policy));
            if let Some(policy) = policy.filter(|_| !matches!(held.brake, "Paused" | "MaintenanceWindow")) {
                self.cx.events.publish(reference(policy.as_ref()), EventType::Warning, held.brake, "Brake", note);
            }
        }
        for ((node, fencer), heard) in &decision.contradicted {
            if !memory.contradicted.contains(&(node.clone(), fencer.clone())) {
                tracing::warn!(node, fencer, heard, "a fencer calls a node off that is heard");
                let note = format!("fencer {fencer} says that it has no power, and {heard}: that counts for nothing");
                self.tell_node(node, EventType::Warning, "PowerContradicted", note);
            }
        }
        let unmoved: BTreeSet<_> = decision.unmoved.iter().cloned().collect();
        unmoved.difference(&memory.unmoved).for_each(|held| self.tell_unmoved(held));
        let looping: BTreeSet<_> = decision.crash_loops.held.iter().cloned().collect();
        looping.difference(&memory.crash_loops_held).for_each(|held| self.tell_looping(held));
        memory.note(decision, now);
    }

    /// That a node could not be read is told and counted as a pass that fails is; but the queue lets nobody wait for it.
    fn tell_unread(&self, seen: &Seen, decision: &Decision, error: &Error, now: Now) {
        let outcome = Outcome::Failed(error.class());
        self.cx.telemetry.runtime.reconciled(QUEUE, outcome, now.mono.elapsed());
        let nodes = &decision.unread;
        if nodes.is_subset(&seen.unread) {
            tracing::debug!(?nodes, %error, "still cannot be read; tried again");
        } else {
            tracing::warn!(?nodes, %error, "nodes could not be read; they are tried again, and hold up no other");
        }
    }

    fn tell_unmoved(&self, held: &Unmoved) {
        let (namespace, pod) = (held.namespace.as_str(), held.name.as_str());
        tracing::warn!(namespace, pod, reason = held.reason, held.message, "a pod stays though its volume is tainted");
        if let Some(pod) = self.cx.stores.pods.get(&ObjectKey::namespaced(namespace, pod)) {
            let note = format!("{}: {}", held.reason, held.message);
            self.cx.events.publish(reference(pod.as_ref()), EventType::Warning, "FenceHeld", "Release", note);
        }
    }

    fn tell_looping(&self, held: &Unmoved) {
        let (namespace, pod) = (held.namespace.as_str(), held.name.as_str());
        tracing::warn!(namespace, pod, reason = held.reason, held.message, "a pod stays in its crash loop");
        if let Some(pod) = self.cx.stores.pods.get(&ObjectKey::namespaced(namespace, pod)) {
            let note = format!("{}: in CrashLoopBackOff, and stays: {}", held.reason, held.message);
            self.cx.events.publish(reference(pod.as_ref()), EventType::Normal, "PodKept", "Reschedule", note);
        }
    }

    fn tell_node(&self, name: &str, kind: EventType, reason: &'static str, note: String) {
        if let Some(node) = self.cx.stores.nodes.get(&ObjectKey::cluster(name)) {
            self.cx.events.publish(reference(node.as_ref()), kind, reason, "Watch", note);
        }
    }
}

fn why_suspected(decision: &Decision, node: &str) -> &'static str {
    match decision.lost.contains(node) {
        true => "no heartbeat of its agent is heard any more; its peers are asked, and nothing is done on this alone",
        false => "its kubelet is silent or reports it not ready, or a taint that counts is on it",
    }
}
