//! Self-fencing: an agent that has lost the API and all its neighbours for longer than a policy allows stops the access of the
//! pods that the policy protects, whether their storage answers or not. It is never a proof, and the controller fences all the
//! same; it only makes the time end in which a node that nobody reaches goes on writing.
//!
//! First everything is written to the node's disk: a later process goes on, and knows what to give back. What was stopped stays
//! so until the API itself says that the pod is this node's as before.

mod act;
mod asking;
mod covers;
pub mod cut;
pub mod decide;
pub mod isolation;
mod looks;
mod observe;
pub mod record;
mod writing;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::Api;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::api::node_fence::NodeFence;
use crate::api::slim::Pod;
use crate::heartbeat::sender::Surroundings;
use crate::runtime::clock::monotonic;
use crate::runtime::lock::lock;
use crate::runtime::store::Change;

use super::Context;
use super::child::{Answer, Task};
use super::children::Children;
use asking::Asking;
use covers::Covers;
use cut::{Done, Order, PodVolume};
use isolation::Isolation;
use looks::Looks;
pub use observe::{Namespaces, Sources};
use record::{Record, Told};
use writing::Writing;

/// How often is looked.
const PACE: Duration = Duration::from_millis(250);
/// How often the API is asked while it does not answer, and how long for an answer is waited.
const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK: Duration = Duration::from_secs(1);
/// Deadline of a child, and of one that itself waits until processes have ended.
const CHILD: Duration = Duration::from_secs(5);
const STOP: Duration = Duration::from_secs(15);
/// What children are about that are of the whole node: no name of a volume.
const NODE: &str = "";
/// Pods and reasons that are told by name.
const TOLD_MAX: usize = 8;

/// What an agent that sends heartbeats goes by.
pub struct Watching {
    /// What it watches.
    pub sources: Sources,
    /// What it hears of its neighbours.
    pub surroundings: watch::Receiver<Surroundings>,
}

/// What came of a question to the API.
struct Asked {
    at: Instant,
    answer: JoinHandle<bool>,
}

struct SelfFence {
    cx: Context,
    /// None where no heartbeats are sent: then nothing is begun.
    watching: Option<Watching>,
    isolation: Arc<Mutex<Isolation>>,
    record: Record,
    /// As it is on the disk.
    written: Record,
    /// A write that the disk has not answered yet.
    writing: Option<Writing<Record>>,
    /// When the API was heard last by this process, and by whichever in seconds since the boot.
    heard: Option<Instant>,
    learnt: f64,
    volumes: Vec<PodVolume>,
    looks: Looks,
    asked: Option<Asked>,
    asked_at: Option<Instant>,
    answers: u32,
    stopped_at: Option<Instant>,
    covers: Covers,
    /// Until covers were looked for, where nothing is written down of any.
    finding: Option<Looks>,
    /// When the API is asked about stopped pods.
    asking: Asking,
}

/// Works until `cancel`. `earlier` is what a process before wrote down. Without heartbeats it only ends what that one began.
pub async fn run(cx: Context, watching: Option<Watching>, earlier: Record, cancel: CancellationToken) {
    let earlier = match &watching {
        Some(_) => earlier,
        None => Record { protected: Vec::new(), neighbours: 0, acquaintance: None, ..earlier },
    };
    cx.self_fence.send_replace(earlier.told.clone());
    let isolation = Arc::new(Mutex::new(Isolation::new(earlier.neighbours, monotonic())));
    tokio::spawn(cancel.clone().run_until_cancelled_owned(pulse(isolation.clone())));
    let mut pods = watching.as_ref().map(|watching| watching.sources.pods.subscribe());
    let mut all = SelfFence {
        cx,
        watching,
        isolation,
        written: earlier.clone(),
        writing: None,
        heard: None,
        learnt: earlier.learnt,
        finding: (!earlier.has_stopped_pods()).then(Looks::default),
        record: earlier,
        volumes: Vec::new(),
        looks: Looks::default(),
        asked: None,
        asked_at: None,
        answers: 0,
        stopped_at: None,
        covers: Covers::default(),
        asking: Asking::default(),
    };
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = pace.tick() => {}
        }
        while let Some(change) = pods.as_mut().and_then(|pods| pods.try_recv().ok()) {
            all.has_changed(&change);
        }
        all.turn().await;
        if all.watching.is_none() && all.finding.is_none() && all.record.stopped.is_none() {
            return;
        }
    }
}

/// Time goes on while a child, the disk or the API is waited for. Only time in which the whole process did not run is taken for
/// nobody's silence.
async fn pulse(isolation: Arc<Mutex<Isolation>>) {
    loop {
        tokio::time::sleep(PACE).await;
        lock(&isolation).tick(monotonic());
    }
}

impl SelfFence {
    async fn turn(&mut self) {
        self.find_covers(monotonic()).await;
        self.learn().await;
        self.look_outside().await;
        // Nothing is waited for between what was heard and what follows from it.
        let alone = lock(&self.isolation).alone_for(monotonic());
        let stopped = self.record.stopped_uids();
        let due = decide::due(&self.record.protected, alone);
        let new: Vec<_> = due.into_iter().filter(|pod| !stopped.contains(&pod.uid)).collect();
        if !new.is_empty() {
            self.begin(new, alone.unwrap_or_default()).await;
        }
        if self.record.stopped.is_some() {
            self.take_covers().await;
            // Before more is covered: no pod is given back while it is.
            self.give_back().await;
            self.keep_stopped().await;
        }
        self.save(alone.is_some()).await;
    }

    fn has_changed(&mut self, change: &Change<Pod>) {
        self.looks.changed(monotonic());
        let is_stopped = |pod: &Pod| {
            self.record.stopped_pods().any(|stopped| pod.metadata.uid.as_deref() == Some(stopped.uid.as_str()))
        };
        if change.old.iter().chain(&change.new).any(|pod| is_stopped(pod)) {
            self.asking.changed();
        }
    }

    /// Whether anybody answers.
    async fn look_outside(&mut self) {
        let answered = match self.asked.take_if(|asked| asked.answer.is_finished()) {
            Some(asked) => Some((asked.at, asked.answer.await.unwrap_or(false))),
            None => None,
        };
        let now = monotonic();
        let mut isolation = lock(&self.isolation);
        isolation.tick(now);
        if let Some(watching) = &self.watching {
            let heard = watching.surroundings.borrow().heard;
            isolation.neighbours(heard.at, heard.neighbours);
        }
        if let Some((asked, has_answered)) = answered {
            self.answers = if has_answered { self.answers.saturating_add(1) } else { 0 };
            isolation.api(asked, has_answered, now);
        }
        let is_due = self.asked_at.is_none_or(|at| now >= at + ASK_EVERY);
        // Once it has answered often enough it is asked about the pods themselves.
        let is_wanted = isolation.asks_api(now) || self.record.has_stopped_pods() && self.answers < act::ANSWERS;
        if is_wanted && is_due && self.asked.is_none() {
            self.asked_at = Some(now);
            self.asked = Some(Asked { at: now, answer: tokio::spawn(answers(self.cx.clone())) });
        }
    }

    /// Writes the record where it is new, and so that it does not become too old while the API is heard.
    async fn save(&mut self, is_alone: bool) {
        if let Some(writing) = self.writing.take_if(|writing| writing.has_ended()) {
            self.has_written(writing).await;
        }
        let is_used = !self.record.protected.is_empty() || self.record.stopped.is_some();
        if let Some(watching) = self.watching.as_ref().filter(|_| !is_alone && is_used) {
            let acquaintance = serde_json::to_value(&watching.surroundings.borrow().acquaintance);
            self.record.acquaintance = acquaintance.ok();
            self.record.neighbours = lock(&self.isolation).witnesses();
        }
        let is_old = is_used && self.learnt - self.record.learnt >= record::REFRESH.as_secs_f64();
        if self.written == self.record && !is_old {
            return;
        }
        self.record.learnt = self.learnt;
        self.cx.self_fence.send_if_modified(|told| {
            let is_new = *told != self.record.told;
            told.clone_from(&self.record.told);
            is_new
        });
        if self.writing.is_none() {
            let (settings, record) = (self.cx.settings.clone(), self.record.clone());
            let write = async move { record::write(&settings, &record).await };
            self.has_written(Writing::begin(self.record.clone(), write)).await;
        }
    }

    /// What is to be done is done all the same: a node that is alone has nobody else.
    async fn has_written(&mut self, writing: Writing<Record>) {
        match writing.ended().await {
            Ok((written, Ok(()))) => self.written = written,
            Ok((_, Err(error))) => {
                tracing::warn!(%error, "self-fencing cannot be written down: a restart of the agent would not know of it");
            }
            Err(writing) => {
                tracing::warn!("the disk does not answer: self-fencing is written down when it does");
                self.writing = Some(writing);
            }
        }
    }

    async fn child(&self, about: &str, order: Order) -> Result<Done, String> {
        told_by_child(&self.cx.children, about, order).await
    }
}

async fn told_by_child(children: &Children, about: &str, order: Order) -> Result<Done, String> {
    let deadline = match order {
        Order::Stop(_) | Order::Cover(_) | Order::GiveBack(_) => STOP,
        Order::Volumes(_) | Order::Covered(_) | Order::Sync(_) => CHILD,
    };
    match children.run(about, Task::SelfFence(order), deadline).await {
        Ok(Answer::SelfFenced(done)) => Ok(done),
        Ok(other) => Err(format!("a child answered {other:?}")),
        Err(error) => Err(error.to_string()),
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
