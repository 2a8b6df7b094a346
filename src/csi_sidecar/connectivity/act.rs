//! One cycle over the nodes: each is asked about once, whatever becomes of the call.

use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::time::Instant;

use crate::runtime::clock::Clock;

use super::super::Context;
use super::decide::{self, Settings};
use super::driver::Extension;
use super::memory::{Memory, Targets};
use super::metrics::Metrics;

/// Calls under way at once.
const AT_ONCE: usize = 16;
/// Deadline of a call: what a driver is allowed (reference: within 10 s).
const DEADLINE: Duration = Duration::from_secs(10);
/// What a cycle may take. Nodes that are not reached come first in the next one.
const BUDGET: Duration = Duration::from_secs(60);

/// Asks the driver.
pub struct Asker {
    extension: Extension,
    clock: Clock,
    metrics: Metrics,
}

impl Asker {
    /// Asks the driver beside us.
    pub fn new(cx: &Context, metrics: Metrics) -> Self {
        Self { extension: Extension::new(cx.driver.clone()), clock: cx.clock.clone(), metrics }
    }

    /// Whether the driver can be asked; nothing while it does not say.
    pub async fn is_supported(&self) -> Option<bool> {
        self.extension.is_supported(DEADLINE).await
    }

    /// Asks about each of the nodes and counts what that gives. Returns whether the driver can be asked at all.
    pub async fn cycle(&self, memory: &mut Memory, settings: &Settings, targets: &Targets) -> bool {
        let mut order: Vec<_> =
            targets.iter().filter_map(|(node, target)| Some((node.clone(), target.node_id.clone()?))).collect();
        order.sort_by_key(|(node, _)| memory.asked(node));
        let questions = order.into_iter().map(|(node, id)| {
            let (extension, clock) = (self.extension.clone(), self.clock.clone());
            async move {
                let asked = clock.now();
                (node, asked, extension.is_connected(&id, DEADLINE).await)
            }
        });
        let (first, began) = (self.clock.now(), Instant::now());
        let mut answers = ask_all(questions);
        while let Ok(Some((node, asked, told))) = tokio::time::timeout_at(began + BUDGET, answers.next()).await {
            if matches!(&told, Err(failure) if failure.code == "Unimplemented") {
                return false;
            }
            let answer = decide::answer(told);
            self.metrics.asked(answer);
            memory.add(&node, answer, settings, asked);
        }
        self.metrics.cycle(began.elapsed());
        memory.end(settings, first);
        memory.settle(settings, self.clock.now());
        true
    }
}

/// The answers as they come: a cycle of a large cluster is no storm for the array.
fn ask_all<F: Future>(questions: impl Iterator<Item = F>) -> impl Stream<Item = F::Output> {
    futures::stream::iter(questions).buffer_unordered(AT_ONCE)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::StreamExt as _;

    use super::{AT_ONCE, ask_all};

    #[tokio::test]
    async fn so_many_are_asked_at_once_and_no_more() {
        let (running, most) = (Cell::new(0_usize), Cell::new(0_usize));
        let (running, most) = (&running, &most);
        let questions = (0..40).map(|_| async move {
            running.set(running.get() + 1);
            most.set(running.get().max(most.get()));
            tokio::task::yield_now().await;
            running.set(running.get() - 1);
        });
        assert_eq!(ask_all(questions).count().await, 40);
        assert_eq!(most.get(), AT_ONCE);
    }
}
