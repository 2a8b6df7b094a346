//! What the controller would decide, with the controller's own `decide` on what was read once: as things are, or as if a
//! node had just failed. Nothing here writes.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Taint;
use kube::ResourceExt;

use crate::api::names;
use crate::api::node_fence::NodeFence;
use crate::api::resiliency_policy::{PodsWithoutVolumes, ResiliencyPolicy};
use crate::api::slim::{KUBELET_LEASE, Lease, Node, Pod, StatusCondition};
use crate::api::time::{self, Now};
use crate::api::usage::PodView;
use crate::controllers::resiliency_policy::decide::{Decision, Effect, Seen};
use crate::controllers::resiliency_policy::evidence::Silence;
use crate::controllers::resiliency_policy::memory::{Found, Memory, VOLUMELESS_PACE};
use crate::controllers::resiliency_policy::plan::LiveNode;
use crate::controllers::resiliency_policy::read::decided;
use crate::error::{Error, Result};

/// How often a pass is foreseen again at the same moment, where it could not read all.
const AGAIN: usize = 2;

/// Nothing is listed again while we look.
pub const EPOCH: (u64, u64) = (0, 0);

/// What would be decided.
pub struct Foreseen {
    /// What the last pass saw, and of policies what they report after it: the incident goes by that.
    pub seen: Seen,
    /// What the last pass decided.
    pub decision: Decision,
    /// The node that was asked for, as the API has it; as failed if that was asked for.
    pub live: Option<LiveNode>,
    /// Its NodeFence, as the passes would leave it.
    pub fence: Option<Arc<NodeFence>>,
    /// The NodeFences that the passes would write for it, in order, with the time from the first pass.
    pub written: Vec<(Duration, NodeFence)>,
    /// Other nodes that were to be read for a pass and could not be.
    pub unread: BTreeSet<String>,
}

/// Decides as the controller would if the node failed now: passes at each moment at which that may matter, each on what the
/// one before would have written.
pub async fn failure(found: Found, name: &str, now: Now, look: impl Look) -> Result<Foreseen> {
    let found = with_failed(found, name, now);
    let moments = moments(&found.policies);
    let look = async |node: &str, silence: Silence| {
        let live = look.look(node, silence).await?;
        Ok::<_, Error>(if node == name { live.map(|live| failed_live(live, now)) } else { live })
    };
    Passes { fails: true, ..Passes::new(found, name, now) }.run(moments, look).await
}

/// When after the failure a pass may decide what the one before did not: when a policy's `decisiveAfter` has passed, and, for
/// pods without volumes, when the node is looked at for them, last before that and next.
fn moments(policies: &[Arc<ResiliencyPolicy>]) -> BTreeSet<Duration> {
    let waits = policies.iter().map(|policy| policy.spec.detection.kubelet.decisive_after.get());
    let waits: BTreeSet<_> = waits.chain([Duration::ZERO]).collect();
    let asks = |policy: &Arc<ResiliencyPolicy>| policy.spec.release.pods_without_volumes == PodsWithoutVolumes::Release;
    if !policies.iter().any(asks) {
        return waits;
    }
    let looks = |wait: &Duration| {
        let number = u32::try_from(wait.as_millis() / VOLUMELESS_PACE.as_millis()).unwrap_or(u32::MAX);
        let before = VOLUMELESS_PACE.saturating_mul(number);
        [before, if before < *wait { before.saturating_add(VOLUMELESS_PACE) } else { before }]
    };
    let looks: Vec<_> = waits.iter().flat_map(looks).collect();
    waits.into_iter().chain(looks).collect()
}

/// Decides as the controller does now.
pub async fn present(found: Found, name: &str, now: Now, look: impl Look) -> Result<Foreseen> {
    Passes::new(found, name, now).run([Duration::ZERO], look).await
}

/// Reads a node from the API.
pub trait Look {
    /// The node as it is now; `None` when there is none.
    fn look(&self, name: &str, silence: Silence) -> impl Future<Output = Result<Option<LiveNode>>>;
}

impl<F: AsyncFn(&str, Silence) -> Result<Option<LiveNode>>> Look for F {
    async fn look(&self, name: &str, silence: Silence) -> Result<Option<LiveNode>> {
        self(name, silence).await
    }
}

/// Passes over the same cluster, one after the other.
struct Passes<'a> {
    name: &'a str,
    found: Found,
    memory: Memory,
    begun: Now,
    /// The node fails when they begin.
    fails: bool,
    /// What was read of nodes.
    read: Read,
}

/// What was read of nodes: each once.
type Read = RefCell<BTreeMap<String, Option<LiveNode>>>;

impl<'a> Passes<'a> {
    fn new(found: Found, name: &'a str, begun: Now) -> Self {
        Self { name, found, memory: Memory::default(), begun, fails: false, read: Read::default() }
    }

    async fn run(mut self, moments: impl IntoIterator<Item = Duration>, look: impl Look) -> Result<Foreseen> {
        let mut written = Vec::new();
        let mut unread: BTreeSet<String> = BTreeSet::new();
        let mut last = None;
        let mut moments: VecDeque<_> = moments.into_iter().map(|after| (after, AGAIN)).collect();
        while let Some((after, again)) = moments.pop_front() {
            let now = self.begun.after(after);
            let (seen, decision) = self.pass(now, &look).await?;
            // Where a node cannot be read the next pass comes soon, and that node takes no place in it.
            if !decision.unread.is_empty() && again > 0 {
                moments.push_front((after, again - 1));
            }
            for effect in decision.effects.clone() {
                if let Effect::Open(fence) | Effect::Replan(fence) = &effect
                    && fence.name_any() == self.name
                {
                    written.push((after, NodeFence::clone(fence)));
                }
                apply(&mut self.found, effect);
            }
            unread.extend(decision.unread.iter().cloned());
            last = Some((seen, decision));
        }
        unread.retain(|node| !self.read.borrow().contains_key(node));
        let (mut seen, decision) = last.unwrap_or_default();
        seen.policies.clone_from(&self.found.policies);
        let silence = seen.silence(self.name);
        // A node that is gone cannot be read; its NodeFence outlives it.
        let is_there = self.found.nodes.iter().any(|node| node.name_any() == self.name);
        let live = if is_there { read_once(&self.read, self.name, silence, &look).await? } else { None };
        let fence = self.found.fences.iter().find(|fence| fence.name_any() == self.name).cloned();
        Ok(Foreseen { seen, decision, live, fence, written, unread })
    }

    async fn pass(&mut self, now: Now, look: &impl Look) -> Result<(Seen, Decision)> {
        let mut seen = self.memory.look(self.found.clone(), EPOCH, now);
        self.judge_silence(&mut seen);
        let read = &self.read;
        let one = move |name: String, silence: Silence| async move { read_once(read, &name, silence, look).await };
        let (decision, failed) = decided(&mut seen, now, one).await;
        // All that is foreseen rests on this node; of others on the brakes that they count for.
        if let Some(error) = failed.filter(|_| decision.unread.contains(self.name)) {
            return Err(error);
        }
        self.memory.note(&decision, now);
        Ok((seen, decision))
    }

    /// The memory knows of no time before the first pass, and for it all Leases stand still from one to the next, since they are
    /// listed once.
    fn judge_silence(&self, seen: &mut Seen) {
        let leases =
            self.found.leases.iter().filter_map(|lease| Some((lease.metadata.name.as_deref()?, lease.as_ref())));
        let leases: BTreeMap<&str, &Lease> = leases.collect();
        for (node, silence) in &mut seen.nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let fails = self.fails && name == self.name;
            *silence = silence_told(*silence, node, leases.get(name).copied(), fails, self.begun);
        }
        seen.silent_fencers.clear();
    }
}

/// How silent a kubelet is by what the API says, where nobody has watched it: unreachable since its condition says so, and silent
/// since it renewed its Lease, by its own clock. Of a node that is well nothing is known to have stood still.
fn silence_told(silence: Silence, node: &Node, lease: Option<&Lease>, fails: bool, begun: Now) -> Silence {
    if !node.is_unreachable() {
        return Silence { still_for: silence.still_for.map(|_| Duration::ZERO), ..silence };
    }
    let before = |at: DateTime<Utc>| begun.wall.signed_duration_since(at).to_std().unwrap_or_default();
    let renewed = lease.and_then(Lease::renewed_at);
    // By the time that Kubernetes gives a failed node up the next renewal of its Lease is overdue.
    let overdue = KUBELET_LEASE.max(silence.next_renewal);
    let (unreachable, still) = match fails {
        true => (Duration::ZERO, overdue),
        false => (node.ready_since().map(before).unwrap_or_default(), renewed.map_or(overdue, before)),
    };
    // Whoever renews it as ever is taken to go on.
    let renews = Silence { still_for: Some(still), ..silence }.may_renew();
    let stood = |passed: Duration| if renews { still } else { still.saturating_add(passed) };
    Silence {
        still_for: silence.still_for.map(stood),
        unreachable_for: silence.unreachable_for.map(|passed| passed.saturating_add(unreachable)),
        ..silence
    }
}

async fn read_once(read: &Read, name: &str, silence: Silence, look: &impl Look) -> Result<Option<LiveNode>> {
    let known = read.borrow().get(name).cloned();
    let found = match known {
        Some(found) => found,
        None => {
            let found = look.look(name, silence).await?;
            read.borrow_mut().insert(name.to_owned(), found.clone());
            found
        }
    };
    Ok(found.map(|live| {
        let silence = silence.read_live(&live.node);
        // A Lease that moved since it was listed was renewed this moment.
        let still_for = silence.still_for.map(|still| if live.lease_is_still { still } else { Duration::ZERO });
        LiveNode { silence: Silence { still_for, ..silence }, ..live }
    }))
}

/// What the controller would have written.
fn apply(found: &mut Found, effect: Effect) {
    match effect {
        Effect::Open(fence) => found.fences.push(Arc::from(fence)),
        Effect::Replan(fence) => {
            if let Some(known) = found.fences.iter_mut().find(|known| known.metadata.name == fence.metadata.name) {
                Arc::make_mut(known).spec = fence.spec;
            }
        }
        Effect::Record(policy) => {
            if let Some(known) = found.policies.iter_mut().find(|known| known.metadata.name == policy.metadata.name) {
                Arc::make_mut(known).status = policy.status;
            }
        }
        // Who selects and what is released does not depend on finalizers.
        Effect::AddFinalizer(_) | Effect::RemoveFinalizer(_) => {}
        // Nor on what is done to programs that fail and to plugins that are down: the failed node has neither any more.
        Effect::Reschedule { .. } | Effect::AddTaint { .. } | Effect::RemoveTaint { .. } => {}
    }
}

fn with_failed(mut found: Found, name: &str, now: Now) -> Found {
    for node in found.nodes.iter_mut().filter(|node| node.name_any() == name) {
        *node = Arc::new(failed(node, now));
    }
    for pod in found.pods.iter_mut().filter(|pod| pod.pod.spec.node_name.as_deref() == Some(name)) {
        *pod = not_ready(pod.clone());
    }
    found
}

fn failed_live(live: LiveNode, now: Now) -> LiveNode {
    let node = Arc::new(failed(&live.node, now));
    LiveNode {
        silence: live.silence.read_live(&node),
        node,
        lease_is_still: true,
        pods: live.pods.into_iter().map(not_ready).collect(),
        ..live
    }
}

/// The node as the node lifecycle controller has it once its kubelet is silent.
pub(super) fn failed(node: &Node, now: Now) -> Node {
    let mut node = node.clone();
    if node.is_unreachable() {
        return node;
    }
    let ready = StatusCondition {
        type_: "Ready".into(),
        status: "Unknown".into(),
        last_transition_time: Some(time::to_k8s(now.wall)),
    };
    node.status.conditions.retain(|condition| condition.type_ != "Ready");
    node.status.conditions.push(ready);
    let taints = node.spec.taints.get_or_insert_default();
    taints.retain(|taint| taint.key != names::NOT_READY_TAINT && taint.key != names::UNREACHABLE_TAINT);
    taints.push(Taint {
        key: names::UNREACHABLE_TAINT.into(),
        effect: "NoSchedule".into(),
        value: None,
        time_added: Some(time::to_k8s(now.wall)),
    });
    node
}

/// The pod as the node lifecycle controller has it then.
fn not_ready(mut view: PodView) -> PodView {
    let ready = |condition: &&mut StatusCondition| condition.type_ == "Ready" && condition.status == "True";
    let pod: &mut Pod = Arc::make_mut(&mut view.pod);
    if let Some(condition) = pod.status.conditions.iter_mut().find(ready) {
        condition.status = "False".into();
    }
    view
}

#[cfg(test)]
#[path = "foresee_silence_tests.rs"]
mod silence_tests;
#[cfg(test)]
#[path = "foresee_tests.rs"]
pub(super) mod tests;
