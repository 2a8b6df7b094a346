//! What happened on the test array, in the order in which it happened there.
//!
//! Every publish, unpublish, staging, write and refusal is one entry with a monotonic stamp. The ledger only remembers;
//! whether what happened was right is for the [`oracle`](crate::oracle) and the tests.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};

use crate::lock::lock;

/// How often [`Ledger::wait_for`] looks whether something new was written.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A moment on the ledger's own clock: nanoseconds since the ledger was made. Never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Stamp(u64);

impl Stamp {
    /// The beginning of the ledger.
    pub const START: Stamp = Stamp(0);

    /// The moment `since_start` after the ledger was made.
    pub fn new(since_start: Duration) -> Self {
        Stamp(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time between the making of the ledger and this moment.
    pub fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The time from `earlier` to this moment; zero when `earlier` is later.
    pub fn since(self, earlier: Stamp) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Who may write to a volume, as `CreateVolume` asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Access {
    /// One node at a time (ReadWriteOnce, ReadWriteOncePod). The oracle watches these.
    SingleWriter,
    /// Any number of nodes (ReadWriteMany).
    MultiWriter,
    /// Nobody (ReadOnlyMany).
    ReadOnly,
}

/// One thing that happened to a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// The volume was created.
    Created {
        /// Who may write to it.
        access: Access,
    },
    /// The volume was deleted.
    Deleted,
    /// The node was given access.
    Published {
        /// It may only read.
        read_only: bool,
        /// It had access already: nothing changed.
        repeated: bool,
    },
    /// The node's access was taken.
    Unpublished {
        /// It had none: nothing changed.
        repeated: bool,
    },
    /// The node staged the volume.
    Staged,
    /// The node unstaged the volume.
    Unstaged,
    /// A write was accepted.
    Wrote {
        /// The writer's own number of this write.
        sequence: u64,
        /// Who wrote, in the writer's words (a pod's uid).
        #[serde(serialize_with = "text")]
        tag: Arc<str>,
    },
    /// Something was refused.
    Refused {
        /// What was asked for.
        operation: Operation,
        /// Why not.
        reason: Reason,
    },
}

/// What a node can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Operation {
    /// `ControllerPublishVolume`.
    Publish,
    /// `NodeStageVolume`.
    Stage,
    /// A write.
    Write,
    /// A read.
    Read,
}

/// Why the array refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Reason {
    /// The volume does not exist.
    NoVolume,
    /// The node was not given access to the volume, or it was taken.
    NoAccess,
    /// The node or the volume is read-only.
    ReadOnly,
    /// The path between the node and the array is down.
    LinkDown,
    /// Another node has access and the array was told to refuse a second one.
    InUse,
}

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// When, on the ledger's clock.
    #[serde(rename = "nanos")]
    pub at: Stamp,
    /// The CSI volume handle.
    #[serde(serialize_with = "text")]
    pub volume: Arc<str>,
    /// The CSI node id; empty where no node is concerned.
    #[serde(serialize_with = "text")]
    pub node: Arc<str>,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

impl Entry {
    fn concerns(&self, volume: &str, node: &str) -> bool {
        &*self.volume == volume && &*self.node == node
    }
}

fn text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

/// What was waited for did not happen in time.
#[derive(Debug, thiserror::Error)]
#[error("not seen on the array within {limit:?}: {what}")]
pub struct NotSeen {
    what: String,
    limit: Duration,
}

/// The record of one array. Cheap to clone; all clones are the same ledger.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Book>);

#[derive(Debug)]
struct Book {
    started: Instant,
    started_wall: DateTime<Utc>,
    entries: Mutex<Vec<Entry>>,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger(Arc::new(Book { started: Instant::now(), started_wall: Utc::now(), entries: Mutex::new(Vec::new()) }))
    }
}

impl Ledger {
    /// Now, on the ledger's clock.
    pub fn now(&self) -> Stamp {
        Stamp::new(self.0.started.elapsed())
    }

    /// The wall clock time of a stamp, to compare with the audit log.
    pub fn wall(&self, stamp: Stamp) -> DateTime<Utc> {
        chrono::Duration::from_std(stamp.since_start())
            .ok()
            .and_then(|elapsed| self.0.started_wall.checked_add_signed(elapsed))
            .unwrap_or(self.0.started_wall)
    }

    /// Writes one line. Only the array does this, while it holds the lock of what it changes.
    pub(crate) fn record(&self, volume: &Arc<str>, node: &Arc<str>, event: Event) -> Stamp {
        let mut entries = lock(&self.0.entries);
        // The stamp is taken under the lock, so the entries are in the order of their stamps.
        let at = self.now();
        entries.push(Entry { at, volume: volume.clone(), node: node.clone(), event });
        at
    }

    /// Looks at the entries. The array waits meanwhile, so be short.
    pub fn read<R>(&self, look: impl FnOnce(&[Entry]) -> R) -> R {
        look(&lock(&self.0.entries))
    }

    /// A copy of all entries.
    pub fn entries(&self) -> Vec<Entry> {
        self.read(<[Entry]>::to_vec)
    }

    /// How many writes of `node` to `volume` were accepted after `after`.
    pub fn writes(&self, volume: &str, node: &str, after: Stamp) -> usize {
        self.count(volume, node, after, |event| matches!(event, Event::Wrote { .. }))
    }

    /// How many writes of `node` to `volume` were refused after `after`.
    pub fn refused_writes(&self, volume: &str, node: &str, after: Stamp) -> usize {
        self.count(volume, node, after, |event| matches!(event, Event::Refused { operation: Operation::Write, .. }))
    }

    fn count(&self, volume: &str, node: &str, after: Stamp, wanted: impl Fn(&Event) -> bool) -> usize {
        self.read(|entries| {
            let later = entries.iter().rev().take_while(|entry| entry.at > after);
            later.filter(|entry| entry.concerns(volume, node) && wanted(&entry.event)).count()
        })
    }

    /// The first accepted write of `node` to `volume`.
    pub fn first_write(&self, volume: &str, node: &str) -> Option<Stamp> {
        self.read(|entries| {
            entries
                .iter()
                .find(|entry| entry.concerns(volume, node) && matches!(entry.event, Event::Wrote { .. }))
                .map(|entry| entry.at)
        })
    }

    /// The last accepted write of `node` to `volume`.
    pub fn last_write(&self, volume: &str, node: &str) -> Option<Stamp> {
        self.read(|entries| {
            entries
                .iter()
                .rfind(|entry| entry.concerns(volume, node) && matches!(entry.event, Event::Wrote { .. }))
                .map(|entry| entry.at)
        })
    }

    /// Waits until `look` finds what it wants in the entries. `what` says what that is, for the error.
    ///
    /// # Errors
    ///
    /// [`NotSeen`] after `limit`.
    pub async fn wait_for<R>(
        &self,
        what: impl Into<String>,
        limit: Duration,
        mut look: impl FnMut(&[Entry]) -> Option<R>,
    ) -> Result<R, NotSeen> {
        let deadline = Instant::now() + limit;
        let mut seen = None;
        loop {
            let found = self.read(|entries| {
                let news = seen != Some(entries.len());
                seen = Some(entries.len());
                if news { look(entries) } else { None }
            });
            match found {
                Some(found) => return Ok(found),
                None if Instant::now() >= deadline => {
                    return Err(NotSeen { what: what.into(), limit });
                }
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Waits for an accepted write of `node` to `volume` after `after`.
    ///
    /// # Errors
    ///
    /// [`NotSeen`] after `limit`.
    pub async fn wait_for_write(
        &self,
        volume: &str,
        node: &str,
        after: Stamp,
        limit: Duration,
    ) -> Result<Stamp, NotSeen> {
        let what = format!("a write of node {node} to volume {volume}");
        self.wait_for(what, limit, |entries| {
            let mut later = entries.iter().rev().take_while(|entry| entry.at > after);
            later
                .find(|entry| entry.concerns(volume, node) && matches!(entry.event, Event::Wrote { .. }))
                .map(|entry| entry.at)
        })
        .await
    }

    /// Writes all entries as JSON, one per line, each with its wall clock time.
    ///
    /// # Errors
    ///
    /// Whatever `out` answers.
    pub fn write_json_lines(&self, mut out: impl io::Write) -> io::Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            time: DateTime<Utc>,
            #[serde(flatten)]
            entry: &'a Entry,
        }
        for entry in &self.entries() {
            let time = self.wall(entry.at);
            serde_json::to_writer(&mut out, &Line { time, entry })?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrote(sequence: u64) -> Event {
        Event::Wrote { sequence, tag: "pod".into() }
    }

    #[tokio::test]
    async fn queries_count_from_a_stamp_on() {
        let ledger = Ledger::default();
        let (volume, a, b): (Arc<str>, Arc<str>, Arc<str>) = ("v".into(), "a".into(), "b".into());
        let first = ledger.record(&volume, &a, wrote(1));
        let second = ledger.record(&volume, &a, wrote(2));
        ledger.record(&volume, &b, wrote(1));
        assert_eq!(ledger.writes("v", "a", Stamp::START), 2);
        assert_eq!(ledger.writes("v", "a", first), 1);
        assert_eq!(ledger.writes("v", "a", second), 0);
        assert_eq!(ledger.first_write("v", "a"), Some(first));
        assert_eq!(ledger.last_write("v", "a"), Some(second));
        assert_eq!(ledger.first_write("v", "c"), None);
        let wait = ledger.wait_for_write("v", "a", second, Duration::from_millis(20));
        assert!(wait.await.is_err());
    }

    #[test]
    fn a_dump_has_one_json_object_per_line() {
        let ledger = Ledger::default();
        ledger.record(&"v".into(), &"a".into(), wrote(7));
        let mut dump = Vec::new();
        ledger.write_json_lines(&mut dump).expect("dump");
        let line: serde_json::Value = serde_json::from_slice(&dump).expect("one JSON line");
        assert_eq!(line["event"], "wrote");
        assert_eq!(line["sequence"], 7);
        assert_eq!(line["node"], "a");
        assert!(line["time"].is_string() && line["nanos"].is_u64());
    }
}
