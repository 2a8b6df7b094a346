//! One cycle over the nodes: each is asked about once, whatever becomes of the call.

use std::time::Duration;

use futures::StreamExt as _;
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
        let began = Instant::now();
        let mut answers = futures::stream::iter(questions).buffer_unordered(AT_ONCE);
        while let Ok(Some((node, asked, told))) = tokio::time::timeout_at(began + BUDGET, answers.next()).await {
            if matches!(&told, Err(failure) if failure.code == "Unimplemented") {
                return false;
            }
            let answer = decide::answer(told);
            self.metrics.asked(answer);
            memory.add(&node, answer, settings, asked);
        }
        self.metrics.cycle(began.elapsed());
        memory.settle(settings, self.clock.now());
        true
    }
}
