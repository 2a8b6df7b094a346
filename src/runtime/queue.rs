//! The work queue: any key, each key once at a time, a bounded number of keys at once. A reconcile that
//! fails, hangs or panics costs its own key a pause and nobody else anything.
//!
//! kube-runtime's `scheduler` orders the keys by time; unlike `Controller`, nothing here requires that
//! the key's object exists.

use std::{
    any::Any,
    collections::{HashMap, HashSet},
    fmt::Display,
    future::Future,
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, channel::mpsc as stream, future::BoxFuture};
use kube_runtime::scheduler::{ScheduleRequest, Scheduler, scheduler};
use tokio::{
    sync::mpsc,
    task::{Id, JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

pub use super::feed::Queue;
use super::{
    feed::Request,
    leader::Leadership,
    logs,
    progress::Progress,
    random_unit,
    telemetry::{Outcome, QueueLabel, Telemetry},
};
use crate::error::{Error, ErrorClass, Result};

/// A change makes a failed key run again, but never sooner than this after the failure: our own writes
/// are changes too. A quarter of the backoff, within these bounds.
const FLOOR: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// The longest backoff, unless the error itself asks for more.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Longer delays are cut to this: nobody waits so long, and adding them to a time could overflow.
const DELAY_MAX: Duration = Duration::from_secs(30 * 86400);
/// How long running reconciles may go on after `cancel`; with the rest of the shutdown this fits in 5 s.
pub const DRAIN: Duration = Duration::from_secs(3);

/// How soon a key is looked at again when somebody wrote in between, or when the store does not show our own write yet.
pub const UNSEEN_PACE: Duration = Duration::from_millis(100);
/// The same where somebody waits for a mount.
pub const UNSEEN_PACE_OF_MOUNTS: Duration = Duration::from_millis(50);
/// The same where pods wait for a fence, or for a clean node.
pub const UNSEEN_PACE_OF_FENCES: Duration = Duration::from_millis(20);

/// What a queue can carry.
pub trait Key: Clone + Eq + Hash + Display + Send + Sync + 'static {}
impl<T: Clone + Eq + Hash + Display + Send + Sync + 'static> Key for T {}

/// When to look at a key again after success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When it is added again.
    Await,
    /// After this time, or when it is added again.
    After(Duration),
}

impl From<Option<Duration>> for Next {
    fn from(look_again: Option<Duration>) -> Self {
        look_again.map_or(Self::Await, Self::After)
    }
}

/// How a queue works.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// Label of its metrics and spans.
    pub name: &'static str,
    /// Kind of the object that a key names, for logs; empty where a key names none.
    pub kind: &'static str,
    /// How many keys are worked on at once; at least one.
    pub concurrency: usize,
    /// How long one reconcile may take before it is given up as [`Error::Deadline`].
    pub deadline: Duration,
}

impl QueueConfig {
    /// A queue whose reconciles take a minute at most.
    pub const fn new(name: &'static str, kind: &'static str, concurrency: usize) -> Self {
        Self { name, kind, concurrency, deadline: Duration::from_secs(60) }
    }
}

#[cfg(test)]
impl QueueConfig {
    /// A queue of a test.
    pub(crate) const fn test(name: &'static str) -> Self {
        Self { name, kind: "", concurrency: 4, deadline: Duration::from_secs(30) }
    }
}

/// The side that [`run`] works off.
pub struct QueueReceiver<K> {
    requests: mpsc::UnboundedReceiver<Request<K>>,
    first: BoxFuture<'static, ()>,
}

impl<K> QueueReceiver<K> {
    /// Nothing is called before `first` is over, such as the first lists of the stores; keys are kept. In a large cluster they
    /// take longer than a reconcile may, which would be told as one that hangs.
    #[must_use]
    pub fn after(self, first: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { first: Box::pin(first), ..self }
    }
}

/// A new, empty queue.
pub fn queue<K>() -> (Queue<K>, QueueReceiver<K>) {
    let (sender, requests) = mpsc::unbounded_channel();
    (Queue(sender), QueueReceiver { requests, first: Box::pin(std::future::ready(())) })
}

/// Works the queue until `cancel`, then lets running reconciles finish for a moment.
///
/// With `leadership`, nothing is called while another replica leads; keys are kept, and all of them run
/// when leadership comes.
pub async fn run<K, F, Fut>(
    config: QueueConfig,
    QueueReceiver { mut requests, mut first }: QueueReceiver<K>,
    telemetry: &Telemetry,
    cancel: CancellationToken,
    leadership: Option<Leadership>,
    reconcile: F,
) where
    K: Key,
    F: Fn(K) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Next>> + Send,
{
    let leadership = leadership.unwrap_or_else(Leadership::always);
    let reconcile = Arc::new(reconcile);
    let mut runner = Runner::new(config, telemetry);
    let mut begun = false;
    loop {
        let leading = leadership.remaining().is_some();
        runner.report(leading && begun);
        let free = runner.tasks.len() < config.concurrency.max(1);
        tokio::select! {
            // In this order: after `cancel` nothing starts, and a change is known before its key starts.
            biased;
            () = cancel.cancelled() => break,
            () = &mut first, if !begun => begun = true,
            Some(done) = runner.tasks.join_next_with_id() => runner.finished(done),
            Some(request) = requests.recv() => runner.requested(request),
            Some(key) = runner.due.next(), if leading && begun && free => runner.start(key, &reconcile),
            () = leadership.acquired(), if !leading => {}
        }
    }
    let drained = async { while runner.tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        tracing::warn!(queue = config.name, "reconciles still ran at shutdown; they are stopped");
    }
}

/// State of a queue; only the loop in [`run`] touches it.
struct Runner<K> {
    config: QueueConfig,
    telemetry: Telemetry,
    schedule: stream::UnboundedSender<ScheduleRequest<K>>,
    due: Scheduler<K, stream::UnboundedReceiver<ScheduleRequest<K>>>,
    /// Keys that should run now and have not started.
    waiting: HashSet<K>,
    tasks: JoinSet<Result<Next>>,
    running: HashMap<Id, Running<K>>,
    /// Keys that run, and whether they were wanted again meanwhile.
    again: HashMap<K, bool>,
    failures: HashMap<K, Failure>,
    /// When a reconcile last ended by itself, or no key waited.
    moved: Instant,
}

struct Running<K> {
    key: K,
    since: Instant,
    span: Span,
}

/// Failures in a row of one key.
struct Failure {
    count: u32,
    /// The key does not run before this.
    not_before: Instant,
    /// What a change may bring `not_before` down to.
    floor: Instant,
}

impl<K: Key> Runner<K> {
    fn new(config: QueueConfig, telemetry: &Telemetry) -> Self {
        let (schedule, requests) = stream::unbounded();
        Self {
            config,
            telemetry: telemetry.clone(),
            schedule,
            due: scheduler(requests),
            waiting: HashSet::new(),
            tasks: JoinSet::new(),
            running: HashMap::new(),
            again: HashMap::new(),
            failures: HashMap::new(),
            moved: Instant::now(),
        }
    }

    fn requested(&mut self, Request { key, after }: Request<K>) {
        // Its time has come, and nothing brings it sooner. A follower takes up nothing, and would gather requests for weeks.
        if self.waiting.contains(&key) && !self.failures.contains_key(&key) {
            return;
        }
        match after {
            Some(delay) => self.schedule_after(key, delay),
            None => self.wanted(key),
        }
    }

    /// A change: run now, after the run that is under way, or at the floor of its backoff.
    fn wanted(&mut self, key: K) {
        if let Some(again) = self.again.get_mut(&key) {
            *again = true;
            return;
        }
        if let Some(failure) = self.failures.get_mut(&key) {
            failure.not_before = failure.not_before.min(failure.floor);
        }
        self.waiting.insert(key.clone());
        self.schedule_at(key, Instant::now());
    }

    fn schedule_after(&self, key: K, delay: Duration) {
        self.schedule_at(key, Instant::now() + delay.min(DELAY_MAX));
    }

    fn schedule_at(&self, message: K, run_at: Instant) {
        // Cannot fail: the receiving end is in `self.due`.
        let _ = self.schedule.unbounded_send(ScheduleRequest { message, run_at });
    }

    /// The time of a key has come.
    fn start<F, Fut>(&mut self, key: K, reconcile: &Arc<F>)
    where
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Next>> + Send,
    {
        if let Some(again) = self.again.get_mut(&key) {
            *again = true;
            return;
        }
        if let Some(failure) = self.failures.get(&key)
            && failure.not_before > Instant::now()
        {
            return self.schedule_at(key, failure.not_before);
        }
        self.waiting.remove(&key);
        self.again.insert(key.clone(), false);
        let span = self.span(&key);
        let deadline = self.config.deadline;
        let work = {
            let (key, reconcile) = (key.clone(), reconcile.clone());
            async move {
                let work = async { reconcile(key).await };
                tokio::time::timeout(deadline, work).await.unwrap_or(Err(Error::Deadline(deadline)))
            }
        };
        let id = self.tasks.spawn(work.instrument(span.clone())).id();
        self.running.insert(id, Running { key, since: Instant::now(), span });
    }

    /// What every line of a reconcile carries.
    fn span(&self, key: &K) -> Span {
        let text = key.to_string();
        let QueueConfig { name: queue, kind, .. } = self.config;
        let (namespace, name) = text.split_once('/').map_or((None, text.as_str()), |(it, name)| (Some(it), name));
        let is_object = !kind.is_empty();
        let span = tracing::info_span!(
            "reconcile",
            queue,
            key = text,
            object_kind = is_object.then_some(kind),
            object_namespace = namespace.filter(|_| is_object),
            object_name = is_object.then_some(name),
            policy = tracing::field::Empty,
            trace_id = tracing::field::Empty,
        );
        logs::note_trace(&span);
        span
    }

    fn finished(&mut self, done: std::result::Result<(Id, Result<Next>), JoinError>) {
        let (id, result) = match done {
            Ok(done) => done,
            Err(error) => (error.id(), Err(Error::Panic(panic_text(error)))),
        };
        let Some(Running { key, since, span }) = self.running.remove(&id) else {
            return;
        };
        let again = self.again.remove(&key).unwrap_or_default();
        let outcome = result.as_ref().map_or_else(|error| Outcome::Failed(error.class()), |_| Outcome::Ok);
        self.telemetry.runtime.reconciled(self.config.name, outcome, since.elapsed());
        if outcome != Outcome::Failed(ErrorClass::Deadline) {
            self.moved = Instant::now();
        }
        match result {
            Ok(next) => self.succeeded(key, next, again),
            Err(error) => span.in_scope(|| self.failed(key, &error, again)),
        }
    }

    fn succeeded(&mut self, key: K, next: Next, again: bool) {
        self.failures.remove(&key);
        match next {
            _ if again => self.wanted(key),
            Next::After(delay) => self.schedule_after(key, delay),
            Next::Await => {}
        }
    }

    fn failed(&mut self, key: K, error: &Error, again: bool) {
        let count = self.failures.get(&key).map_or(0, |failure| failure.count) + 1;
        let pause = backoff(error.retry_after(), count, random_unit());
        let queue = self.config.name;
        match error.class() {
            ErrorClass::Conflict | ErrorClass::NotLeader => {
                tracing::debug!(queue, %key, %error, ?pause, "will look again");
            }
            _ => {
                tracing::warn!(queue, %key, %error, ?pause, count, "reconcile failed; it is tried again")
            }
        }
        let now = Instant::now();
        let floor = now + (pause / 4).clamp(FLOOR.0, FLOOR.1);
        let not_before = now + pause;
        self.failures.insert(key.clone(), Failure { count, not_before, floor });
        self.schedule_at(key.clone(), not_before);
        if again {
            self.wanted(key);
        }
    }

    /// How much there is to do, and whether it is done, if it is to be done yet.
    fn report(&mut self, works: bool) {
        let (label, metrics) = (QueueLabel { queue: self.config.name }, &self.telemetry.runtime);
        let size = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        metrics.queue_depth.get_or_create(&label).set(size(self.waiting.len()));
        metrics.queue_running.get_or_create(&label).set(size(self.tasks.len()));
        let waiting = if works { self.waiting.len() } else { 0 };
        if waiting == 0 {
            self.moved = Instant::now();
        }
        let progress = Progress {
            deadline: self.config.deadline,
            waiting,
            oldest: self.running.values().map(|it| it.since.into_std()).min(),
            moved: self.moved.into_std(),
        };
        self.telemetry.queue_moves(self.config.name, progress);
    }
}

/// The pause after `count` failures in a row: doubles from `first`, up to a quarter longer by `jitter` (0..1).
fn backoff(first: Duration, count: u32, jitter: f64) -> Duration {
    let doubled = first.saturating_mul(1 << count.saturating_sub(1).min(16));
    doubled.min(BACKOFF_MAX.max(first)).mul_f64(1.0 + 0.25 * jitter)
}

/// What a panic said.
fn panic_text(error: JoinError) -> String {
    let payload: Box<dyn Any + Send> = match error.try_into_panic() {
        Ok(payload) => payload,
        Err(error) => return error.to_string(),
    };
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast::<&'static str>().map_or("no text".to_owned(), |text| (*text).to_owned()),
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
