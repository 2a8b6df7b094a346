//! Self-fencing: an agent that has lost the API and all its neighbours for longer than a policy allows stops the access of the
//! pods that the policy protects, whether their storage answers or not. It is never a proof, and the controller fences all the
//! same; it only makes the time end in which a node that nobody reaches goes on writing.
//!
//! First everything is written to the node's disk: a later process goes on, and knows what to give back. What was stopped stays
//! so until the API itself says that the pod is this node's as before.

pub mod cut;
pub mod decide;
pub mod isolation;
pub mod record;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kube::Api;
use kube::api::ListParams;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::api::node_fence::NodeFence;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::{Namespace, Pod};
use crate::heartbeat::sender::Surroundings;
use crate::runtime::clock::monotonic;
use crate::runtime::store::Store;

use super::Context;
use super::child::{Answer, Task};
use cut::{Done, GiveBack, Order, PodVolume, Stop, Stopped};
use decide::{Fate, Known, Protected};
use isolation::Isolation;
use record::{Record, Told};

/// How often is looked.
const PACE: Duration = Duration::from_millis(250);
/// How often the API is asked while it does not answer, and how long for an answer is waited.
const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK: Duration = Duration::from_secs(1);
/// How long what decides about a stopped pod may take to be read.
const READ: Duration = Duration::from_secs(5);
/// How often is looked which volumes pods have, behind their changes.
const VOLUMES_EVERY: Duration = Duration::from_secs(30);
/// Stopped pods are stopped again this often: the kubelet starts their containers anew.
const AGAIN: Duration = Duration::from_millis(500);
/// Answers of the API in a row before anything is given back.
const ANSWERS: u32 = 3;
/// Deadlines of children.
const STOP: Duration = Duration::from_secs(5);
const SYNC: Duration = Duration::from_secs(5);
/// What the children are about: no name of a volume.
const NODE: &str = "";
const COVERING: &str = "covers of self-fencing";
/// Pods and reasons that are told by name.
const TOLD_MAX: usize = 8;

/// What the agent watches for it.
#[derive(Clone)]
pub struct Sources {
    /// Policies.
    pub policies: Store<ResiliencyPolicy>,
    /// Pods bound to the node.
    pub pods: Store<Pod>,
    /// Namespaces.
    pub namespaces: Namespaces,
}

/// Namespaces, which are watched once a policy asks for their labels, and not before.
#[derive(Clone)]
pub struct Namespaces {
    begin: Arc<dyn Fn() -> Store<Namespace> + Send + Sync>,
    store: Arc<OnceLock<Store<Namespace>>>,
}

impl Namespaces {
    /// `begin` begins to watch.
    pub fn new(begin: impl Fn() -> Store<Namespace> + Send + Sync + 'static) -> Self {
        Self { begin: Arc::new(begin), store: Arc::default() }
    }

    fn store(&self) -> &Store<Namespace> {
        self.store.get_or_init(|| (self.begin)())
    }
}

/// What came of a question to the API.
struct Asked {
    at: Instant,
    answer: JoinHandle<bool>,
}

struct SelfFence {
    cx: Context,
    sources: Sources,
    surroundings: watch::Receiver<Surroundings>,
    isolation: Isolation,
    record: Record,
    /// As it is on the disk, and when it was written.
    written: (Record, Option<Instant>),
    volumes: Vec<PodVolume>,
    volumes_at: Option<Instant>,
    asked: Option<Asked>,
    asked_at: Option<Instant>,
    answers: u32,
    stopped_at: Option<Instant>,
}

/// Works until `cancel`. `earlier` is what a process before wrote down.
pub async fn run(
    cx: Context,
    sources: Sources,
    surroundings: watch::Receiver<Surroundings>,
    earlier: Record,
    cancel: CancellationToken,
) {
    cx.self_fence.send_replace(earlier.told.clone());
    let mut all = SelfFence {
        cx,
        sources,
        surroundings,
        isolation: Isolation::new(earlier.neighbours, monotonic()),
        written: (earlier.clone(), None),
        record: earlier,
        volumes: Vec::new(),
        volumes_at: None,
        asked: None,
        asked_at: None,
        answers: 0,
        stopped_at: None,
    };
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut pods = all.sources.pods.subscribe();
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = pace.tick() => {}
        }
        while pods.try_recv().is_ok() {
            all.volumes_at = None;
        }
        all.turn().await;
    }
}

impl SelfFence {
    async fn turn(&mut self) {
        self.look_outside().await;
        self.learn().await;
        let alone = self.isolation.alone_for(monotonic());
        let stopped = self.record.stopped.iter().flat_map(|stopped| &stopped.pods);
        let stopped: Vec<_> = stopped.map(|pod| pod.uid.clone()).collect();
        let due = decide::due(&self.record.protected, alone);
        let new: Vec<_> = due.into_iter().filter(|pod| !stopped.contains(&pod.uid)).collect();
        if !new.is_empty() {
            self.begin(new, alone.unwrap_or_default()).await;
        }
        if self.record.stopped.is_some() {
            self.keep_stopped().await;
            self.give_back().await;
        }
        self.save(alone.is_some()).await;
    }

    /// Whether anybody answers.
    async fn look_outside(&mut self) {
        let now = monotonic();
        self.isolation.tick(now);
        let heard = self.surroundings.borrow().heard;
        self.isolation.neighbours(heard.at, heard.neighbours);
        if let Some(asked) = self.asked.take_if(|asked| asked.answer.is_finished()) {
            let has_answered = asked.answer.await.unwrap_or(false);
            self.answers = if has_answered { self.answers.saturating_add(1) } else { 0 };
            self.isolation.api(asked.at, has_answered, monotonic());
        }
        let is_due = self.asked_at.is_none_or(|at| now >= at + ASK_EVERY);
        let is_wanted = self.isolation.asks_api(now) || self.record.stopped.is_some();
        if is_wanted && is_due && self.asked.is_none() {
            self.asked_at = Some(now);
            self.asked = Some(Asked { at: now, answer: tokio::spawn(answers(self.cx.clone())) });
        }
    }

    /// Whom to stop, from what is watched; while that has not been heard of yet, from what an earlier process knew.
    async fn learn(&mut self) {
        if !self.sources.policies.synced() || !self.sources.pods.synced() {
            return;
        }
        let policies = self.sources.policies.list();
        let is_on = policies.iter().any(|policy| policy.spec.self_fencing.deadline().is_some());
        if !is_on {
            self.record.protected.clear();
            return;
        }
        let namespaces = self.sources.namespaces.store();
        if !namespaces.synced() {
            return;
        }
        let now = monotonic();
        if self.volumes_at.is_none_or(|at| now >= at + VOLUMES_EVERY) {
            match self.child(Order::Volumes(self.cx.settings.kubelet_root.clone()), STOP).await {
                Ok(Done::Volumes(volumes)) => (self.volumes, self.volumes_at) = (volumes, Some(now)),
                other => tracing::warn!(?other, "which volumes pods have cannot be told; what was known counts"),
            }
        }
        let labels = namespaces.list().into_iter().filter_map(|namespace| {
            Some((namespace.metadata.name.clone()?, namespace.metadata.labels.clone().unwrap_or_default()))
        });
        let known = Known { policies, pods: self.sources.pods.list(), namespaces: labels.collect::<BTreeMap<_, _>>() };
        self.record.protected = decide::protected(&known, &self.volumes);
    }

    /// Writes down whom it stops, before anything is done.
    async fn begin(&mut self, new: Vec<Protected>, alone: Duration) {
        let names = new.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name));
        tracing::error!(
            ?alone,
            pods = names.clone().collect::<Vec<_>>().join(" "),
            "the API and all neighbours are lost: stopping protected pods"
        );
        self.cx.metrics.self_fenced();
        let now = self.cx.clock.now().wall;
        let fresh = || Told { at: now, pods: Vec::new(), left: Vec::new(), is_over: false };
        let mut told = self.record.told.take().filter(|told| !told.is_over).unwrap_or_else(fresh);
        told.pods.extend(names);
        self.record.told = Some(told);
        self.record.stopped.get_or_insert_default().pods.extend(new);
        (self.stopped_at, self.answers) = (None, 0);
        self.save(true).await;
    }

    /// Stops all of them, again and again: the kubelet starts containers anew, and what it starts may not write.
    async fn keep_stopped(&mut self) {
        let now = monotonic();
        if self.stopped_at.is_some_and(|at| now < at + AGAIN) {
            return;
        }
        self.stopped_at = Some(now);
        let Some(pods) = self.record.stopped.as_ref().map(|stopped| decide::uids(&stopped.pods)) else { return };
        self.cx.metrics.self_fenced_pods(pods.len());
        // Where a cover hangs, as on a file server that does not answer, no second one is begun.
        let cover = self.cx.children.hung_of(COVERING) == 0;
        let stop = Stop { kubelet_root: self.cx.settings.kubelet_root.clone(), pods, cover };
        let done = match self.child_about(if cover { COVERING } else { NODE }, Order::Stop(stop), STOP).await {
            Ok(Done::Stopped(done)) => done,
            Ok(other) => Stopped { left: vec![format!("{other:?}")], ..Stopped::default() },
            Err(error) => Stopped { left: vec![error], ..Stopped::default() },
        };
        if done.killed > 0 || !done.covered.is_empty() {
            tracing::warn!(killed = done.killed, covered = done.covered.len(), left = ?done.left, "protected pods are stopped");
        }
        if let Some(told) = &mut self.record.told {
            told.left = done.left.into_iter().take(TOLD_MAX).collect();
        }
        if done.covered.is_empty() {
            return;
        }
        if let Some(stopped) = &mut self.record.stopped {
            stopped.covered.extend(done.covered.iter().cloned());
        }
        self.save(true).await;
        self.sync(done.covered);
    }

    /// What is in memory is written now, or not while the storage is away; nobody waits for that.
    fn sync(&self, paths: Vec<String>) {
        for path in paths {
            let children = self.cx.children.clone();
            tokio::spawn(async move {
                let task = Task::SelfFence(Order::Sync(vec![path.clone()]));
                match children.run(&path, task, SYNC).await {
                    Ok(Answer::SelfFenced(Done::All)) => {}
                    other => {
                        tracing::warn!(path, ?other, "what was in memory of a stopped pod's volume may be unwritten")
                    }
                }
            });
        }
    }

    /// Once the API has answered for a while: it is asked itself about each pod.
    async fn give_back(&mut self) {
        if self.answers < ANSWERS {
            return;
        }
        let (node, reads) = (&self.cx.settings.node_name, &self.cx.clients.reads);
        let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let (fences, pods): (Api<NodeFence>, Api<Pod>) = (Api::all(reads.clone()), Api::all(reads.clone()));
        let asked = async { tokio::try_join!(fences.get_opt(node), pods.list(&bound)) };
        let Ok(Ok((fence, pods))) = tokio::time::timeout(READ, asked).await else {
            self.answers = 0;
            return;
        };
        let Some(mut stopped) = self.record.stopped.clone() else { return };
        let mut kept = Vec::new();
        for pod in std::mem::take(&mut stopped.pods) {
            match decide::fate(&pod.uid, &pods.items, fence.as_ref()) {
                Fate::Waits => kept.push(pod),
                // Also of one that is gone: a cover would be in the way of who cleans up.
                Fate::Gone | Fate::GetsItBack => {
                    let (paths, rest): (Vec<_>, Vec<_>) =
                        stopped.covered.iter().cloned().partition(|path| path.contains(&pod.uid));
                    let kubelet_root = self.cx.settings.kubelet_root.clone();
                    let give_back = GiveBack { kubelet_root, pod: pod.uid.clone(), paths };
                    match self.child(Order::GiveBack(give_back), STOP).await {
                        Ok(Done::All) => stopped.covered = rest,
                        other => {
                            tracing::warn!(pod = pod.name, ?other, "a stopped pod does not get its access back yet");
                            kept.push(pod);
                        }
                    }
                }
            }
        }
        stopped.pods = kept;
        let is_over = stopped.pods.is_empty();
        self.cx.metrics.self_fenced_pods(stopped.pods.len());
        self.record.stopped = Some(stopped).filter(|_| !is_over);
        if let Some(told) = &mut self.record.told {
            told.is_over = is_over;
        }
        if is_over {
            tracing::info!("no pod of this node is stopped any more");
        }
    }

    /// Writes the record where it is new; while the node is not alone, also so that it does not become too old.
    async fn save(&mut self, is_alone: bool) {
        let now = monotonic();
        let is_used = !self.record.protected.is_empty() || self.record.stopped.is_some();
        if !is_alone && is_used {
            let acquaintance = serde_json::to_value(&self.surroundings.borrow().acquaintance);
            self.record.acquaintance = acquaintance.ok();
            self.record.neighbours = self.isolation.witnesses();
        }
        let is_old = !is_alone && is_used && self.written.1.is_none_or(|at| now >= at + record::REFRESH);
        if self.written.0 == self.record && !is_old {
            return;
        }
        self.cx.self_fence.send_if_modified(|told| {
            let is_new = *told != self.record.told;
            told.clone_from(&self.record.told);
            is_new
        });
        match record::write(&self.cx.settings, &self.record).await {
            Ok(()) => self.written = (self.record.clone(), Some(now)),
            // What is to be done is done all the same: a node that is alone has nobody else.
            Err(error) => {
                tracing::warn!(%error, "self-fencing cannot be written down: a restart of the agent would not know of it")
            }
        }
    }

    async fn child(&self, order: Order, deadline: Duration) -> Result<Done, String> {
        self.child_about(NODE, order, deadline).await
    }

    async fn child_about(&self, about: &str, order: Order, deadline: Duration) -> Result<Done, String> {
        match self.cx.children.run(about, Task::SelfFence(order), deadline).await {
            Ok(Answer::SelfFenced(done)) => Ok(done),
            Ok(other) => Err(format!("a child answered {other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Whether the API answers anything at all: who refuses us is there.
async fn answers(cx: Context) -> bool {
    let fences: Api<NodeFence> = Api::all(cx.clients.leases.clone());
    match tokio::time::timeout(ASK, fences.get_opt(&cx.settings.node_name)).await {
        Ok(Ok(_)) | Ok(Err(kube::Error::Api(_))) => true,
        Ok(Err(_)) | Err(_) => false,
    }
}

/// What the report says of it, as condition `SelfFenced`.
pub fn words(told: &Told) -> String {
    let shown = |list: &[String]| {
        let more = list.len().saturating_sub(TOLD_MAX);
        let first = list.iter().take(TOLD_MAX).cloned().collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{first} and {more} more") } else { first }
    };
    let left = if told.left.is_empty() { String::new() } else { format!("; not stopped: {}", shown(&told.left)) };
    let at = told.at.format("%Y-%m-%dT%H:%M:%SZ");
    format!(
        "the API and all neighbours were lost; {} pods were stopped from {at} on: {}{left}",
        told.pods.len(),
        shown(&told.pods)
    )
}

/// Those of an earlier process that heartbeats need.
pub fn acquaintance(record: &Record) -> Option<crate::heartbeat::peers::Acquaintance> {
    serde_json::from_value(record.acquaintance.clone()?).ok()
}
