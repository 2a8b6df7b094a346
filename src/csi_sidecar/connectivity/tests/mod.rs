//! The pure parts, as tables: what an answer is worth, how often is asked, what is remembered, what is reported.

mod counting;
mod reporting;
mod wanting;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};

use crate::api::driver_report::{DriverReportStatus, PathState};
use crate::api::resiliency_policy::StorageDetection;
use crate::api::time::{self, Now};

use super::super::decide::{Failure, FailureClass};
use super::decide::{Answer, Settings, answer};
use super::memory::{Memory, Target, Targets};

const DRIVER: &str = "block.example.com";
const UP: Answer = Answer::Connected;
const DOWN: Answer = Answer::Disconnected("NotConnected");
const DUMB: Answer = Answer::Unknown("Unavailable");

thread_local! {
    static BASE: Instant = Instant::now();
}

fn at(seconds: i64) -> Now {
    let mono = BASE.with(|base| *base) + Duration::from_secs(seconds.unsigned_abs());
    Now { wall: time::stamp(DateTime::<Utc>::UNIX_EPOCH + TimeDelta::seconds(seconds)), mono }
}

fn three() -> Settings {
    Settings { period: Duration::from_secs(10), loss: 3, recovery: 3 }
}

/// Nodes `n0` and so on.
fn targets(count: usize) -> Targets {
    let target = |number| {
        let name = format!("n{number}");
        (name.clone(), Target { uid: format!("uid-{name}"), node_id: Some(format!("id-{name}")) })
    };
    (0..count).map(target).collect()
}

/// A backend whose nodes are asked about in cycles ten seconds apart.
struct Backend {
    memory: Memory,
    targets: Targets,
    settings: Settings,
    seconds: i64,
}

impl Backend {
    fn new(nodes: usize) -> Self {
        let mut backend = Self { memory: Memory::default(), targets: targets(nodes), settings: three(), seconds: 0 };
        backend.memory.keep(&backend.targets, at(0));
        backend
    }

    /// One cycle: an answer for each node, in the order of their names. Those that are left over are not reached.
    fn cycle(&mut self, answers: &[Answer]) {
        self.seconds += 10;
        for (number, (node, answer)) in self.targets.clone().keys().zip(answers).enumerate() {
            let asked = at(self.seconds);
            let asked = Now { mono: asked.mono + Duration::from_millis(number as u64), ..asked };
            self.memory.add(node, *answer, &self.settings, asked);
        }
        self.memory.end(&self.settings, at(self.seconds));
        self.memory.settle(&self.settings, at(self.seconds + 1));
    }

    fn cycles(&mut self, count: usize, answers: &[Answer]) {
        (0..count).for_each(|_| self.cycle(answers));
    }

    fn status(&self) -> DriverReportStatus {
        let mut status = DriverReportStatus::default();
        self.memory.report(DRIVER).write(&mut status);
        status
    }

    /// State and reason by node.
    fn rows(&self) -> BTreeMap<String, (PathState, String)> {
        let rows = self.status().unreachable.into_iter();
        rows.map(|pair| (pair.node, (pair.state, pair.reason.unwrap_or_default()))).collect()
    }

    fn lost(&self) -> Vec<String> {
        let rows = self.rows().into_iter().filter(|(_, (state, _))| *state == PathState::Disconnected);
        rows.map(|(node, _)| node).collect()
    }
}

fn failure(code: &'static str, message: &str) -> Failure {
    Failure { code, class: FailureClass::Retry, message: message.into() }
}

#[test]
fn only_an_answer_says_anything_and_one_error_is_an_answer() {
    let cases: [(&str, Result<bool, Failure>, Answer); 6] = [
        ("connected", Ok(true), UP),
        ("not connected", Ok(false), DOWN),
        ("an error", Err(failure("Internal", "the array is busy")), Answer::Unknown("Internal")),
        ("a deadline", Err(failure("DeadlineExceeded", "no answer in 10 s")), Answer::Unknown("DeadlineExceeded")),
        (
            "no such host",
            Err(failure("Unknown", "rpc: there is no corresponding SDC for node x")),
            Answer::Disconnected("NoSuchHost"),
        ),
        ("no such node", Err(failure("NotFound", "node x")), Answer::Unknown("NotFound")),
    ];
    for (name, told, wanted) in cases {
        assert_eq!(answer(told), wanted, "{name}");
    }
}

#[test]
fn a_loss_takes_its_answers_and_the_first_question() {
    for (period, loss, wanted) in [(1, 2, 2.2), (15, 3, 49.5), (10, 1, 22.0), (60, 20, 1320.0)] {
        let settings = Settings { period: Duration::from_secs(period), loss, recovery: 3 };
        assert_eq!(settings.loss_takes().as_secs_f64(), wanted, "{settings:?}");
    }
}

#[test]
fn nothing_counts_sooner_than_the_most_patient_policy_allows() {
    let policy = |period: u32, loss: i32, recovery: i32| StorageDetection {
        period: time::Duration::seconds(period),
        loss_threshold: loss,
        recovery_threshold: recovery,
        ..StorageDetection::default()
    };
    type Case<'a> = (&'a [StorageDetection], Option<(u64, u32, u32)>);
    let cases: [Case; 5] = [
        (&[], None),
        (&[policy(15, 3, 3)], Some((15, 3, 3))),
        (&[policy(15, 3, 6), policy(15, 5, 2)], Some((15, 5, 6))),
        (&[policy(10, 3, 3), policy(60, 3, 3)], Some((10, 18, 18))),
        (&[policy(10, 2, 2), policy(15, 1, 1)], Some((10, 2, 2))),
    ];
    for (policies, wanted) in cases {
        let found = Settings::of(policies).map(|it| (it.period.as_secs(), it.loss, it.recovery));
        assert_eq!(found, wanted, "{policies:?}");
    }
}
