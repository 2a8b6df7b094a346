//! Kubernetes Events, off the reconcile path: publishing never waits and never fails. One task sends them;
//! repetitions and floods are dropped and counted. Followers send none.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
pub use kube_runtime::events::EventType;
use kube_runtime::events::{Event, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    clock::monotonic,
    leader::Leadership,
    telemetry::{EventResult, RuntimeMetrics, Telemetry},
};
use crate::error::{Error, ErrorClass, Result};

/// Events that may wait to be sent: those of an incident of 512 pods, the most that a plan has, with some volumes each.
const QUEUE: usize = 4096;
/// The same Event about the same object is not repeated within this time.
const REPEAT: Duration = Duration::from_secs(600);
/// Events per object at once, and the time after which it may have one more.
const BURST: f64 = 25.0;
const REFILL: Duration = Duration::from_secs(30);
/// Longest note the API takes, in bytes.
const NOTE_MAX: usize = 1024;
/// One call to the API.
const CALL: Duration = Duration::from_secs(5);
/// Pauses before an Event is sent again that a slow or busy server did not take: what is told once must not be lost to
/// one bad moment.
const PAUSES: [Duration; 3] = [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1)];

/// Publishes Events; clones share the queue.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Pending>,
    metrics: RuntimeMetrics,
}

/// An Event that waits to be sent.
struct Pending {
    regarding: ObjectReference,
    kind: EventType,
    reason: &'static str,
    action: &'static str,
    note: String,
}

impl Events {
    /// Starts the sending task. `controller` names us in the Events, `instance` this process (the pod).
    pub fn spawn(
        client: Client,
        controller: &str,
        instance: &str,
        leadership: Leadership,
        telemetry: &Telemetry,
        cancel: CancellationToken,
    ) -> Self {
        let (queue, pending) = mpsc::channel(QUEUE);
        let metrics = telemetry.runtime.clone();
        let reporter = Reporter { controller: controller.to_owned(), instance: Some(instance.to_owned()) };
        let sender = Sender { client, reporter, leadership, metrics: metrics.clone(), filter: Filter::default() };
        tokio::spawn(async move { cancel.run_until_cancelled(sender.run(pending)).await });
        Self { queue, metrics }
    }

    /// Queues an Event about `regarding` (with its uid: that is what repetitions are told by). `reason` and
    /// `action` are CamelCase, `note` is a sentence for people. Dropped and counted when the queue is full.
    pub fn publish(
        &self,
        regarding: ObjectReference,
        kind: EventType,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        if self.queue.try_send(Pending { regarding, kind, reason, action, note }).is_err() {
            self.metrics.event(EventResult::DroppedFull);
        }
    }
}

/// A flood of Events leaves a busy server four fifths of its time for what they tell of: the failover itself.
fn pause_after(took: Duration) -> Duration {
    (took * 4).min(Duration::from_millis(500))
}

/// The task that sends.
struct Sender {
    client: Client,
    reporter: Reporter,
    leadership: Leadership,
    metrics: RuntimeMetrics,
    filter: Filter,
}

impl Sender {
    async fn run(mut self, mut pending: mpsc::Receiver<Pending>) {
        while let Some(event) = pending.recv().await {
            let begun = monotonic();
            let result = self.send(event).await;
            self.metrics.event(result);
            tokio::time::sleep(pause_after(monotonic().saturating_duration_since(begun))).await;
        }
    }

    async fn send(&mut self, event: Pending) -> EventResult {
        if self.leadership.remaining().is_none() {
            return EventResult::DroppedNotLeader;
        }
        if let Err(dropped) = self.filter.admit(&event, monotonic()) {
            return dropped;
        }
        let Pending { regarding, kind, reason, action, note } = event;
        let event = Event {
            type_: kind,
            reason: reason.to_owned(),
            action: action.to_owned(),
            note: Some(shortened(note)),
            secondary: None,
        };
        for pause in PAUSES {
            match self.post(&event, &regarding).await {
                Err(error) if passes(&error) => tracing::debug!(%error, reason, ?pause, "Event is sent again"),
                answer => return counted(answer, reason),
            }
            tokio::time::sleep(pause).await;
        }
        counted(self.post(&event, &regarding).await, reason)
    }

    async fn post(&self, event: &Event, regarding: &ObjectReference) -> Result<()> {
        self.leadership.require()?;
        // A new recorder each time: a kept one would count a second note under the text of the first.
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        let answer = tokio::time::timeout(CALL, recorder.publish(event, regarding)).await;
        Ok(answer.map_err(|_| Error::Deadline(CALL))??)
    }
}

/// Whether the same Event may be taken a moment later.
fn passes(error: &Error) -> bool {
    use ErrorClass::{Deadline, Server, Throttled, Transport};
    matches!(error.class(), Deadline | Server | Throttled | Transport)
}

fn counted(answer: Result<()>, reason: &str) -> EventResult {
    match answer {
        Ok(()) => EventResult::Published,
        Err(Error::NotLeader) => EventResult::DroppedNotLeader,
        Err(error) => {
            tracing::warn!(%error, reason, "Event not published");
            EventResult::Failed
        }
    }
}

/// Decides what is worth sending.
#[derive(Default)]
struct Filter {
    /// (object, reason, note) → when it was sent.
    sent: HashMap<(String, &'static str, String), Instant>,
    /// Object → how many it may still have, as of when.
    budget: HashMap<String, (f64, Instant)>,
    cleaned: Option<Instant>,
}

impl Filter {
    fn admit(&mut self, event: &Pending, now: Instant) -> Result<(), EventResult> {
        self.forget_old(now);
        let object = object_id(&event.regarding);
        let repetition = (object.clone(), event.reason, event.note.clone());
        if self.sent.contains_key(&repetition) {
            return Err(EventResult::DroppedRepeated);
        }
        let (tokens, since) = self.budget.get(&object).copied().unwrap_or((BURST, now));
        let earned = now.saturating_duration_since(since).as_secs_f64() / REFILL.as_secs_f64();
        let tokens = (tokens + earned).min(BURST);
        if tokens < 1.0 {
            return Err(EventResult::DroppedRate);
        }
        self.budget.insert(object, (tokens - 1.0, now));
        self.sent.insert(repetition, now);
        Ok(())
    }

    /// What is older than [`REPEAT`] has no say any more; a budget is full again a little later.
    fn forget_old(&mut self, now: Instant) {
        let young = |since: Instant, age: Duration| now.saturating_duration_since(since) < age;
        self.sent.retain(|_, since| young(*since, REPEAT));
        if self.cleaned.is_none_or(|cleaned| !young(cleaned, REPEAT)) {
            self.cleaned = Some(now);
            self.budget.retain(|_, (_, since)| young(*since, REFILL.mul_f64(BURST)));
        }
    }
}

/// The object's uid, or for references without one its kind and name.
fn object_id(object: &ObjectReference) -> String {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    match &object.uid {
        Some(uid) => uid.clone(),
        None => format!("{}/{}/{}", text(&object.kind), text(&object.namespace), text(&object.name)),
    }
}

/// Cuts a note to what the API takes, between two characters.
fn shortened(mut note: String) -> String {
    if note.len() > NOTE_MAX {
        let mark = "…";
        let end = (0..=NOTE_MAX - mark.len()).rev().find(|&at| note.is_char_boundary(at)).unwrap_or_default();
        note.truncate(end);
        note.push_str(mark);
    }
    note
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
