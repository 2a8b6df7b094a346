//! The pure parts, as tables: what is asked, what answers are worth, what is remembered, what is reported.

mod asking;
mod pages;
mod reporting;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};

use crate::api::hysteresis::{Sample, Trouble};
use crate::api::time::{self, Now};
use crate::api::volume::VolumeState;
use crate::api::volume_health_policy::Thresholds;

use super::super::decide::{Failure, FailureClass};
use super::decide::{Attachment, Cause, Problem, Said, Subject, Watched};

const HANDLE: &str = "vol-1";

fn watched() -> Watched {
    Watched {
        interval: Duration::from_secs(60),
        thresholds: Thresholds::default(),
        health: true,
        attached: BTreeMap::new(),
        block: false,
        access_modes: vec!["ReadWriteOnce".into()],
    }
}

fn attached() -> Watched {
    let attachment = Attachment { name: "csi-1".into(), uid: "u1".into(), node_id: "id-1".into() };
    Watched { attached: [("node-1".to_owned(), attachment)].into(), ..watched() }
}

fn problem(state: VolumeState, reason: &str) -> Problem {
    Trouble { state, reason: reason.into(), message: format!("{reason} happened") }
}

fn failure(code: &'static str) -> Failure {
    Failure { code, class: FailureClass::Retry, message: "because".into() }
}

fn well() -> Said {
    Said { health: Some(Vec::new()), nodes: None }
}

fn ill(problem: Problem) -> Said {
    Said { health: Some(vec![problem]), nodes: None }
}

fn on(nodes: &[&str]) -> Said {
    let nodes: BTreeSet<_> = nodes.iter().map(|node| (*node).to_owned()).collect();
    Said { health: None, nodes: Some(nodes) }
}

fn at(seconds: i64) -> Now {
    let start: DateTime<Utc> = DateTime::UNIX_EPOCH;
    let mono = BASE.with(|base| *base) + Duration::from_secs(seconds.unsigned_abs());
    Now { wall: time::stamp(start + TimeDelta::seconds(seconds)), mono }
}

thread_local! {
    static BASE: Instant = Instant::now();
}

fn health(sample: Sample<Cause>) -> Vec<(Subject, Sample<Cause>)> {
    vec![(Subject::Health, sample)]
}
