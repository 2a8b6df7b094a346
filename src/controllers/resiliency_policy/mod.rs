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
mod feed;
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

use std::sync::Arc;

use kube::Api;
use kube::api::ListParams;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::api::node_fence::NodeFence;
use crate::controllers::Context;
use crate::error::Result;
use crate::heartbeat::listener::Heartbeats;
use crate::runtime::clock::Now;
use crate::runtime::queue::{self, Next, QueueConfig, UNSEEN_PACE};
use crate::runtime::store::ObjectKey;

use decide::{Decision, Effect};
use evidence::Silence;
use memory::Memory;
use metrics::Metrics;

/// Label of the queue's metrics.
const QUEUE: &str = "resiliency_policy";
/// The only key: a pass is over the cluster.
const CLUSTER: &str = "cluster";

struct Controller {
    cx: Context,
    heartbeats: Heartbeats,
    memory: Mutex<Memory>,
    metrics: Metrics,
}

/// Runs the controller until `cancel`.
pub async fn run(cx: Context, heartbeats: Heartbeats, cancel: CancellationToken) {
    let (queue, receiver) = queue::queue();
    feed::start(&cx, &queue);
    feed::hear(&cx, &heartbeats, &queue, &cancel);
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
            tell::unread(&self.cx, &seen, &decision, &error, now);
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
            None if changed => Ok(Next::After(UNSEEN_PACE)),
            None => Ok(look_again.into()),
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

    /// Metrics and Events of a pass.
    fn report(&self, memory: &mut Memory, decision: &Decision, now: Now) {
        self.metrics.pass(decision, &self.cx.stores.fences.list());
        self.metrics.ready(&self.cx.stores.policies.list());
        tell::passed(&self.cx, memory, decision);
        memory.note(decision, now);
    }
}
