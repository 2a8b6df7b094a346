//! What an answer of the driver is worth, and how often and how long to ask. Nothing here calls anybody.

use std::time::Duration;

use crate::api::resiliency_policy::StorageDetection;
use crate::api::time::jittered;

use super::super::decide::Failure;

/// What drivers for one array say of a host that it does not know, as an error. It is an answer all the same, and the one
/// error that is: the host is not connected.
const NO_SUCH_HOST: &str = "there is no corresponding SDC";

/// What is known of a path by one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The array says that the node is connected.
    Connected,
    /// It says that the node is not.
    Disconnected(&'static str),
    /// It was not told, and why: an error or a deadline. It says nothing about the path.
    Unknown(&'static str),
}

/// What the driver's answer is worth.
pub fn answer(told: Result<bool, Failure>) -> Answer {
    match told {
        Ok(true) => Answer::Connected,
        Ok(false) => Answer::Disconnected("NotConnected"),
        Err(failure) if failure.message.contains(NO_SUCH_HOST) => Answer::Disconnected("NoSuchHost"),
        Err(failure) => Answer::Unknown(failure.code),
    }
}

/// How a driver is asked: once for all policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between two questions about a node.
    pub period: Duration,
    /// Answers "disconnected" in a row that make a loss.
    pub loss: u32,
    /// Answers "connected" in a row that end it.
    pub recovery: u32,
}

impl Settings {
    /// The settings that satisfy every policy; `None` where nobody wants to know. The shortest period, and so many answers
    /// that nothing counts as lost, or as back, sooner than the most patient policy allows: three answers a minute apart
    /// are eighteen ten seconds apart.
    pub fn of<'a>(policies: impl IntoIterator<Item = &'a StorageDetection> + Clone) -> Option<Self> {
        let period = policies.clone().into_iter().map(|policy| policy.period.get()).min()?.max(Duration::from_secs(1));
        let answers = |policy: &StorageDetection, threshold: i32| {
            let threshold = u32::try_from(threshold).unwrap_or(1).max(1);
            let questions = policy.period.get().as_secs_f64() / period.as_secs_f64() * f64::from(threshold);
            // At most 20 times 10 minutes by the second: far below what fits.
            (questions.ceil() as u32).max(threshold)
        };
        let most = |threshold: fn(&StorageDetection) -> i32| {
            policies.clone().into_iter().map(|policy| answers(policy, threshold(policy))).max().unwrap_or(1)
        };
        Some(Self { period, loss: most(|it| it.loss_threshold), recovery: most(|it| it.recovery_threshold) })
    }

    /// How long after the array knows of it a loss is settled at the latest, where every call is answered at once: the first
    /// question comes up to a period later. One answer alone waits for the next cycle, which asks about all others too.
    pub fn loss_takes(&self) -> Duration {
        jittered(self.period, 1.0) * self.loss.max(2)
    }
}
