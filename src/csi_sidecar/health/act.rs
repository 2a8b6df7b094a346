//! One pass over the volumes that are due: lists first, then what has to be asked for volume by volume.

use std::sync::Mutex;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use tokio::time::Instant;

use crate::api::hysteresis::Sample;
use crate::runtime::clock::Clock;
use crate::runtime::lock::lock;

use super::super::decide::Failure;
use super::decide::{self, Answers, Asks, Attachment, Cause, Lists, Offer, Offers, Subject, Watched};
use super::driver::Health;
use super::memory::{Memory, Volumes};

/// Calls for single volumes under way at once.
const AT_ONCE: usize = 8;
/// Deadline of a call about one volume.
const DEADLINE: Duration = Duration::from_secs(10);
/// The same for a volume that did not answer last time: it must not hold up the others.
const BRIEF: Duration = Duration::from_secs(3);
/// What a pass may take. Volumes that are not reached come first in the next one.
const BUDGET: Duration = Duration::from_secs(300);

/// Asks the driver.
pub struct Sweeper {
    health: Health,
    clock: Clock,
    /// What the driver said last that it offers, and what of this turned out not to be there.
    offered: Offers,
    lacking: Offers,
}

/// What was asked about a volume, and what came.
struct Looked<'a> {
    handle: &'a str,
    watched: &'a Watched,
    answers: Answers,
    /// A call that is not there although it was offered.
    lacking: Option<Offer>,
}

impl Sweeper {
    /// Asks this driver.
    pub fn new(health: Health, clock: Clock) -> Self {
        Self { health, clock, offered: Offers::new(), lacking: Offers::new() }
    }

    /// Asks about the volumes that are due and counts what that gives. Calls `changed` when something is settled; `holds`
    /// says whether an attachment is still there. Returns whether the driver can be asked about volumes at all; nothing
    /// when it does not answer.
    pub async fn sweep(
        &mut self,
        memory: &Mutex<Memory>,
        due: &Volumes,
        holds: impl Fn(&Attachment) -> bool,
        mut changed: impl FnMut(),
    ) -> Option<bool> {
        let mut offers = self.offers().await?;
        let lists = self.lists(&mut offers).await;
        if !decide::is_any(&offers) {
            return Some(false);
        }
        let queued = queued(&self.health, memory, &offers, &lists, due);
        let mut looks = futures::stream::iter(queued).buffer_unordered(AT_ONCE);
        let end = Instant::now() + BUDGET;
        let mut unanswered = Vec::new();
        while let Ok(Some(looked)) = tokio::time::timeout_at(end, looks.next()).await {
            self.lacking.extend(looked.lacking);
            let still = looked.watched.attached.iter().filter(|(_, attachment)| holds(attachment));
            let attached = still.map(|(node, attachment)| (node.clone(), attachment.clone())).collect();
            let samples = decide::samples(&lists, &looked.answers, looked.handle, looked.watched, &attached);
            let is_silence = |(_, sample): &(Subject, Sample<Cause>)| matches!(sample, Sample::NoAnswer(_));
            let (silences, samples): (Vec<_>, Vec<_>) = samples.into_iter().partition(is_silence);
            if !silences.is_empty() {
                unanswered.push((looked.handle, looked.watched, silences));
            }
            if lock(memory).add(looked.handle, &looked.watched.thresholds, samples, self.clock.now()) {
                changed();
            }
        }
        // A driver that is away itself says nothing about its volumes: then the report is not Ready, and that is all.
        if !unanswered.is_empty() && self.health.answers(DEADLINE).await {
            let now = self.clock.now();
            for (handle, watched, silences) in unanswered {
                if lock(memory).add(handle, &watched.thresholds, silences, now) {
                    changed();
                }
            }
        }
        Some(true)
    }

    /// What the driver offers and did not refuse since it last offered something else.
    async fn offers(&mut self) -> Option<Offers> {
        let offered = self.health.offers(DEADLINE).await.ok()?;
        if offered != self.offered {
            tracing::info!(?offered, "what the driver can say about volumes");
            self.lacking.clear();
            self.offered.clone_from(&offered);
        }
        Some(offered.difference(&self.lacking).copied().collect())
    }

    async fn lists(&mut self, offers: &mut Offers) -> Lists {
        let mut lists = Lists::default();
        if decide::lists_health(offers) {
            lists.health = Some(self.health.list_health().await);
        }
        if offers.contains(&Offer::ListVolumes) {
            lists.volumes = Some(self.health.list_volumes(offers).await);
        }
        for (list, offer) in [(&mut lists.health, Offer::ListHealth), (&mut lists.volumes, Offer::ListVolumes)] {
            if matches!(list, Some(Err(failure)) if failure.code == "Unimplemented") {
                *list = None;
                offers.remove(&offer);
                self.lacking.insert(offer);
            }
        }
        lists
    }
}

/// What is to be asked about each volume. Those that did not answer last time come last, and get less time.
fn queued<'a>(
    health: &'a Health,
    memory: &Mutex<Memory>,
    offers: &'a Offers,
    lists: &Lists,
    due: &'a Volumes,
) -> Vec<BoxFuture<'a, Looked<'a>>> {
    let memory = lock(memory);
    let mut order: Vec<_> = due.iter().map(|(handle, watched)| (memory.order(handle), handle, watched)).collect();
    order.sort_by_key(|(order, ..)| *order);
    let looks = order.into_iter().map(|((silent, _), handle, watched)| {
        let asks = decide::asks(offers, lists, handle, watched, memory.suspects(handle));
        look(health, offers, handle, watched, asks, if silent { BRIEF } else { DEADLINE }).boxed()
    });
    looks.collect()
}

/// The calls for one volume, one after the other.
async fn look<'a>(
    health: &Health,
    offers: &Offers,
    handle: &'a str,
    watched: &'a Watched,
    asks: Asks,
    deadline: Duration,
) -> Looked<'a> {
    let mut answers = Answers::new();
    let mut lacking = None;
    let is_missing = |answer: &Result<_, Failure>| matches!(answer, Err(failure) if failure.code == "Unimplemented");
    if asks.health {
        let answer = health.get_health(handle, deadline).await;
        lacking = is_missing(&answer).then_some(Offer::GetHealth);
        answers.push(answer);
    }
    if asks.volume {
        let answer = health.get_volume(offers, handle, deadline).await;
        lacking = lacking.or(is_missing(&answer).then_some(Offer::GetVolume));
        answers.push(answer);
    }
    if asks.validate {
        answers.push(health.validate(handle, watched, deadline).await);
    }
    Looked { handle, watched, answers, lacking }
}
