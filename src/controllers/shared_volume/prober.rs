//! Asks NFS servers whether they serve: in this process, only while it leads, and only those that the last decision wanted.
//! What they answer is in memory; a SharedVolume is woken only when the settled answer is another one.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::api::shared_volume::{Probe, ProbeType};
use crate::api::time::jittered;
use crate::nfs::null_call::{NullCallError, null_call};
use crate::runtime::clock::{Clock, monotonic};
use crate::runtime::leader::Leadership;
use crate::runtime::lock::lock;
use crate::runtime::queue::Queue;
use crate::runtime::random_unit;
use crate::runtime::store::ObjectKey;

use super::decide::{Answer, Target};
use super::metrics::{Metrics, ProbeResult};

/// Longest time between two probes of a server that does not answer.
const WHILE_FAILING: Duration = Duration::from_secs(1);

/// All probes. Clones share them.
#[derive(Clone)]
pub struct Prober {
    queue: Queue<ObjectKey>,
    leadership: Leadership,
    clock: Clock,
    metrics: Metrics,
    probed: Arc<Mutex<Probed>>,
}

#[derive(Default)]
struct Probed {
    by_key: HashMap<ObjectKey, BTreeMap<Target, Probing>>,
    started: u64,
}

/// How a server is probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    period: Duration,
    timeout: Duration,
    failure_threshold: u32,
}

impl From<&Probe> for Pace {
    fn from(probe: &Probe) -> Self {
        let (period, timeout) = (probe.period.get(), probe.timeout.get());
        // The schema holds both above these; an object from before it may not.
        let period = period.max(Duration::from_secs(1));
        Self {
            period,
            timeout: timeout.clamp(Duration::from_millis(100), period),
            failure_threshold: probe.failure_threshold,
        }
    }
}

/// One server of one SharedVolume.
struct Probing {
    /// Tells a task that was stopped from the one in its place.
    id: u64,
    pace: Pace,
    answer: Answer,
    settled: Settled,
    task: AbortHandle,
}

impl Drop for Probing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a decision rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    /// Nothing was heard yet.
    Pending,
    Serving,
    /// It has never answered, and not yet failed often enough to be lost.
    Refusing,
    Lost,
}

impl Prober {
    /// No probe yet. `queue` is told of SharedVolumes whose servers answer otherwise than before.
    pub fn new(queue: Queue<ObjectKey>, leadership: Leadership, clock: Clock, metrics: Metrics) -> Self {
        Self { queue, leadership, clock, metrics, probed: Arc::default() }
    }

    /// From now on exactly these servers of a SharedVolume are probed. A new one is probed at once.
    pub fn want(&self, key: &ObjectKey, targets: &[Target], pace: Pace) {
        let mut probed = self.lock();
        let mut before = probed.by_key.remove(key).unwrap_or_default();
        let mut wanted = BTreeMap::new();
        for target in targets {
            let probing = match before.remove(target) {
                Some(probing) if probing.pace == pace => probing,
                // Its answers stay; the pace at which it is asked is new.
                Some(probing) => {
                    self.start(&mut probed.started, key, target, pace, probing.answer.clone(), probing.settled)
                }
                None => {
                    let since = self.clock.now().mono;
                    self.start(&mut probed.started, key, target, pace, Answer::Pending { since }, Settled::Pending)
                }
            };
            wanted.insert(*target, probing);
        }
        if !wanted.is_empty() {
            probed.by_key.insert(key.clone(), wanted);
        }
    }

    /// What the servers of a SharedVolume answered.
    pub fn answers(&self, key: &ObjectKey) -> BTreeMap<Target, Answer> {
        let probed = self.lock();
        let answers = probed.by_key.get(key).into_iter().flatten();
        answers.map(|(target, probing)| (*target, probing.answer.clone())).collect()
    }

    fn start(
        &self,
        started: &mut u64,
        key: &ObjectKey,
        target: &Target,
        pace: Pace,
        answer: Answer,
        settled: Settled,
    ) -> Probing {
        *started += 1;
        let id = *started;
        let asking = self.clone().keep_asking(id, key.clone(), *target, pace);
        Probing { id, pace, answer, settled, task: tokio::spawn(asking).abort_handle() }
    }

    async fn keep_asking(self, id: u64, key: ObjectKey, target: Target, pace: Pace) {
        loop {
            self.leadership.acquired().await;
            let began = monotonic();
            let result = ask(&target, pace.timeout).await;
            self.metrics.probed(result_of(&result), monotonic().saturating_duration_since(began));
            let Some(pause) = self.note(id, &key, &target, result) else { return };
            tokio::time::sleep(pause).await;
        }
    }

    /// Takes an answer in. Returns when to ask again; `None` if nobody wants to know any more.
    fn note(&self, id: u64, key: &ObjectKey, target: &Target, result: Result<(), NullCallError>) -> Option<Duration> {
        let now = self.clock.now();
        let mut probed = self.lock();
        let probing = probed.by_key.get_mut(key)?.get_mut(target).filter(|probing| probing.id == id)?;
        let (answer, settled) = match (result, &probing.answer) {
            (Ok(()), Answer::Serving { .. }) => (probing.answer.clone(), Settled::Serving),
            (Ok(()), _) => (Answer::Serving { since: now.mono, at: now.wall }, Settled::Serving),
            (Err(error), before) => failing(before, probing.settled, &error, now.mono, probing.pace.failure_threshold),
        };
        probing.answer = answer;
        if std::mem::replace(&mut probing.settled, settled) != settled {
            self.queue.add(key.clone());
        }
        let is_failing = matches!(probing.answer, Answer::Failing { .. });
        let pace = probing.pace.period;
        Some(jittered(if is_failing { pace.min(WHILE_FAILING) } else { pace }, random_unit()))
    }

    fn lock(&self) -> MutexGuard<'_, Probed> {
        lock(&self.probed)
    }
}

/// One failure more. A server that served is taken for serving until it is lost.
fn failing(
    before: &Answer,
    settled: Settled,
    error: &NullCallError,
    now: Instant,
    threshold: u32,
) -> (Answer, Settled) {
    let (since, failures) = match before {
        Answer::Failing { since, failures, .. } => (*since, failures.saturating_add(1)),
        Answer::Pending { .. } | Answer::Serving { .. } => (now, 1),
    };
    let settled = match settled {
        _ if failures >= threshold.max(1) => Settled::Lost,
        Settled::Pending => Settled::Refusing,
        settled => settled,
    };
    (Answer::Failing { since, failures, error: error.to_string() }, settled)
}

async fn ask(target: &Target, timeout: Duration) -> Result<(), NullCallError> {
    let server = SocketAddr::new(target.address, target.port);
    match target.probe {
        ProbeType::NFSNull => null_call(server, timeout).await,
        ProbeType::TCP => match tokio::time::timeout(timeout, TcpStream::connect(server)).await {
            Ok(connected) => Ok(connected.map(drop)?),
            Err(_) => Err(NullCallError::TimedOut),
        },
        ProbeType::None => Ok(()),
    }
}

fn result_of(result: &Result<(), NullCallError>) -> ProbeResult {
    match result {
        Ok(()) => ProbeResult::Answered,
        Err(NullCallError::Refused) => ProbeResult::Refused,
        Err(NullCallError::TimedOut) => ProbeResult::TimedOut,
        Err(NullCallError::NotNfs(_)) => ProbeResult::NotNfs,
        Err(NullCallError::Io(_)) => ProbeResult::Failed,
    }
}

#[cfg(test)]
#[path = "prober_tests.rs"]
mod tests;
