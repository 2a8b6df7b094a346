//! What a process keeps on the node's disk for the next one, which may start while the API is away: whom to stop, whom to ask,
//! and what was stopped. Only of this boot, and whom to stop only for an hour: what is older may be wrong, and is not acted on.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::super::{Settings, disk};
use super::decide::Protected;

/// Name of the file.
const FILE: &str = "self-fencing.json";
/// How old what is to be done may be.
const AGE_MAX: Duration = Duration::from_secs(3_600);
/// It is written anew when the API was heard so much later though nothing has changed, so that it does not become too old.
pub const REFRESH: Duration = Duration::from_secs(600);

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Pods to stop.
    pub protected: Vec<Protected>,
    /// How many neighbours answered.
    pub neighbours: usize,
    /// What is needed to ask them.
    pub acquaintance: Option<serde_json::Value>,
    /// What was stopped and has not been given back.
    pub stopped: Option<StoppedPods>,
    /// What is told of it, until the next time.
    pub told: Option<Told>,
    /// When the API was heard of whom to stop, in seconds since the boot.
    #[serde(skip)]
    pub learnt: f64,
}

impl Record {
    /// Pods that wait to be given back.
    pub fn stopped_pods(&self) -> impl Iterator<Item = &Protected> {
        self.stopped.iter().flat_map(|stopped| &stopped.pods)
    }

    /// Whether there are such pods.
    pub fn has_stopped_pods(&self) -> bool {
        self.stopped_pods().next().is_some()
    }

    /// Their uids.
    pub fn stopped_uids(&self) -> BTreeSet<String> {
        self.stopped_pods().map(|pod| pod.uid.clone()).collect()
    }
}

/// Pods that were stopped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoppedPods {
    /// The pods.
    pub pods: Vec<Protected>,
    /// Mounts that are covered, or are about to be.
    pub covered: Vec<String>,
    /// Pods that the API has no more, and the kubelet still: their processes are killed, and nothing is covered.
    #[serde(default)]
    pub gone: BTreeSet<String>,
}

impl StoppedPods {
    /// Whether nothing is left to do.
    pub fn is_nothing(&self) -> bool {
        self.pods.is_empty() && self.gone.is_empty()
    }
}

/// What is told of self-fencing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// When the first pod was stopped.
    pub at: DateTime<Utc>,
    /// Pods that were stopped, as namespace/name.
    pub pods: Vec<String>,
    /// What could not be stopped, in words.
    pub left: Vec<String>,
    /// Whether none of them is stopped any more.
    pub is_over: bool,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    boot_id: String,
    /// That of the record, under its first name: agents of either age read the files of the other.
    #[serde(rename = "written")]
    learnt: f64,
    record: Record,
}

/// That of an earlier process; nothing if it cannot be read.
pub async fn read(settings: &Settings) -> Record {
    let settings = settings.clone();
    let read = tokio::task::spawn_blocking(move || load(&settings)).await;
    read.unwrap_or_else(|panic| Err(io::Error::other(panic))).unwrap_or_else(|error| {
        tracing::warn!(%error, "what an earlier agent knew of self-fencing cannot be read: nobody is stopped by it");
        Record::default()
    })
}

/// Replaces it.
pub async fn write(settings: &Settings, record: &Record) -> io::Result<()> {
    let (settings, record) = (settings.clone(), record.clone());
    let written = tokio::task::spawn_blocking(move || {
        let stored = Stored { boot_id: disk::boot_id(&settings.boot_id_file)?, learnt: record.learnt, record };
        disk::write(&settings.host, &settings.kubelet_root, FILE, &serde_json::to_vec(&stored)?)
    });
    written.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

fn load(settings: &Settings) -> io::Result<Record> {
    let Some(text) = disk::read(&settings.host, &settings.kubelet_root, FILE)? else { return Ok(Record::default()) };
    let stored: Stored = serde_json::from_slice(&text)?;
    Ok(still_good(stored, &disk::boot_id(&settings.boot_id_file)?, uptime()?))
}

/// What of it still counts.
fn still_good(stored: Stored, boot_id: &str, now: f64) -> Record {
    if stored.boot_id != boot_id {
        // What was stopped has ended, and what was covered is unmounted.
        return Record::default();
    }
    let age = Duration::try_from_secs_f64(now - stored.learnt);
    let record = Record { learnt: stored.learnt, ..stored.record };
    match age.is_ok_and(|age| age <= AGE_MAX) {
        true => record,
        false => Record { protected: Vec::new(), neighbours: 0, acquaintance: None, ..record },
    }
}

/// Seconds since the boot, suspended or not.
pub fn uptime() -> io::Result<f64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let seconds = text.split_whitespace().next().and_then(|seconds| seconds.parse().ok());
    seconds.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/uptime"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_another_boot_or_too_old_stops_nobody() {
        let pod =
            Protected { uid: "u".into(), namespace: "n".into(), name: "p".into(), after: Duration::from_secs(15) };
        let stopped = Some(StoppedPods { pods: vec![pod.clone()], covered: vec!["/m".into()], gone: BTreeSet::new() });
        let record = Record { protected: vec![pod], neighbours: 3, stopped, ..Record::default() };
        let at = |boot: &str, now| {
            let stored = Stored { boot_id: "this".into(), learnt: 1_000.0, record: record.clone() };
            let good = still_good(stored, boot, now);
            (good.protected.len(), good.neighbours, good.stopped.is_some())
        };
        assert_eq!(at("this", 1_000.0), (1, 3, true));
        assert_eq!(at("this", 4_600.0), (1, 3, true));
        assert_eq!(at("this", 4_601.0), (0, 0, true), "what was stopped is still known");
        assert_eq!(at("this", 999.0), (0, 0, true), "a time to come");
        assert_eq!(at("other", 1_001.0), (0, 0, false));
    }

    #[test]
    fn its_age_is_that_of_what_was_heard_however_often_it_is_written() {
        let record = Record { learnt: 1_000.0, neighbours: 3, ..Record::default() };
        let stored = Stored { boot_id: "this".into(), learnt: record.learnt, record };
        let text = serde_json::to_value(&stored).unwrap();
        assert_eq!(text["written"], 1_000.0, "the name that earlier agents know");
        assert_eq!(text["record"].get("learnt"), None);
        let read = still_good(serde_json::from_value(text).unwrap(), "this", 2_000.0);
        assert_eq!((read.learnt, read.neighbours), (1_000.0, 3));
    }
}
