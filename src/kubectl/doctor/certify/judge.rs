//! What the facts of a certification are worth. Pure: no clock, no client.

use std::time::Duration;

use serde::Serialize;

use crate::api::fence_request::{FenceOutcome, FenceResult};

use super::log::WriterLog;

/// How exactly the writer's times are known: a write that was acknowledged earlier than this after we saw the fencer's answer
/// may have been acknowledged before it.
pub const TOLERANCE: Duration = Duration::from_millis(500);
/// The writer gives a sign of life each half second; one that is older than this at the end of the watch is missed.
const SILENT: Duration = Duration::from_secs(3);

/// What is said of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// Its unpublish takes a node's access away.
    Certified,
    /// It does not, though the driver says so.
    NotCertified,
    /// It was not shown either way.
    Inconclusive,
}

/// Why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// For programs.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// What was seen. Times are since the beginning.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// What the fencer answered, and when we saw it.
    pub fenced: Option<(FenceResult, Duration)>,
    /// What it answered when it was asked again at the end of the watch, and when we asked.
    pub again: Option<(FenceResult, Duration)>,
    /// What the writer said.
    pub log: WriterLog,
    /// Whether the writer's pod ended, when it was asked to.
    pub ended: bool,
    /// The highest number that the other node found.
    pub found: Option<u64>,
    /// What ended the trial before its end.
    pub stopped: Option<Reason>,
}

/// The verdict, with the reason. Never Certified while anything is not known.
pub fn judge(facts: &Facts) -> (Verdict, Reason) {
    let checks = [still_published, writes_arrive, writes_found, writes_lost];
    if let Some(found) = checks.into_iter().find_map(|check| check(facts)) {
        return found;
    }
    if let Some(stopped) = &facts.stopped {
        return write_hangs(facts).unwrap_or_else(|| (Verdict::Inconclusive, stopped.clone()));
    }
    complete(facts)
}

fn not_certified(reason: &'static str, message: String) -> (Verdict, Reason) {
    (Verdict::NotCertified, Reason { reason, message })
}

fn inconclusive(reason: &'static str, message: impl Into<String>) -> (Verdict, Reason) {
    (Verdict::Inconclusive, Reason { reason, message: message.into() })
}

fn is_fenced(row: &FenceResult) -> bool {
    row.result == FenceOutcome::Fenced
}

/// The array's own view: OK, and nothing done.
fn still_published(facts: &Facts) -> Option<(Verdict, Reason)> {
    let (row, _) = facts.fenced.as_ref()?;
    let lists = row.result == FenceOutcome::Failed && row.reason.as_deref() == Some("StillPublished");
    lists.then(|| {
        not_certified(
            "StillPublished",
            "the driver said OK to the unpublish and still lists the node as published".into(),
        )
    })
}

/// The node's view: its writes are acknowledged after the fence.
fn writes_arrive(facts: &Facts) -> Option<(Verdict, Reason)> {
    let (row, at) = facts.fenced.as_ref().filter(|(row, _)| is_fenced(row))?;
    let late: Vec<_> = facts.log.written().filter(|(_, written)| *written > *at + TOLERANCE).collect();
    let last = late.iter().map(|(_, written)| written.saturating_sub(*at)).max()?;
    let told = format!(
        "{} writes of the node that was cut off were acknowledged after the fence (proof {:?}), the last one {:.1} s after it",
        late.len(),
        row.proof,
        last.as_secs_f64()
    );
    Some(match &facts.again {
        // Between the last look at the list and the end of the writer the attacher may have published it again.
        Some((again, asked)) if is_fenced(again) && late.iter().any(|(_, written)| written <= asked) => {
            not_certified("WritesArrive", told)
        }
        Some(_) => published_again(&told),
        None => inconclusive("WritesArrive", format!("{told}; whether the volume was published again is not known")),
    })
}

fn published_again(told: &str) -> (Verdict, Reason) {
    let why = "the attacher published the volume again during the watch, as it does at each re-sync: certify once more";
    inconclusive("PublishedAgain", format!("{told}; {why}"))
}

/// The other node's view: what the volume has of the node that was cut off.
fn writes_found(facts: &Facts) -> Option<(Verdict, Reason)> {
    let (_, at) = facts.fenced.as_ref().filter(|(row, _)| is_fenced(row))?;
    let found = facts.found?;
    let tried = facts.log.tried().find(|(number, _)| *number == found).map(|(_, tried)| tried)?;
    if tried <= *at + TOLERANCE {
        return None;
    }
    let after = tried.saturating_sub(*at).as_secs_f64();
    let told = format!("the other node found number {found}, which was written {after:.1} s after the fence");
    // Also here only what came before the last look at the list speaks against the driver.
    let watched = facts.again.as_ref().is_some_and(|(again, asked)| is_fenced(again) && tried <= *asked);
    Some(if watched { not_certified("WritesFound", told) } else { published_again(&told) })
}

/// A volume that forgets what it acknowledged is no base for a failover.
fn writes_lost(facts: &Facts) -> Option<(Verdict, Reason)> {
    let (found, last) = (facts.found?, facts.log.written().map(|(number, _)| number).max()?);
    (found < last).then(|| {
        not_certified(
            "WritesLost",
            format!("number {last} was acknowledged to be durable, and the other node found {found} to be the last"),
        )
    })
}

/// A disk that queues what it cannot send, instead of failing it, neither lets the writer end nor the volume go. What takes
/// too long once the writer has ended has another cause.
fn write_hangs(facts: &Facts) -> Option<(Verdict, Reason)> {
    let stopped = facts.stopped.as_ref().filter(|stopped| stopped.reason == "TimedOut")?;
    let is_cut_off = facts.fenced.as_ref().is_some_and(|(row, _)| is_fenced(row));
    (is_cut_off && !facts.ended && facts.log.hangs(SILENT)).then(|| {
        let hangs = "a write of the node that was cut off hangs instead of failing, so its pod cannot end, and the volume not go \
                       to the other node. With multipath that is queue_if_no_path: set no_path_retry to fail or to a number for \
                       these disks in multipath.conf, and certify again. What hangs now ends after `dmsetup message MAP 0 \
                       fail_if_no_path` on the node, or with a reboot";
        inconclusive("WriteHangs", format!("{hangs}. What was seen: {}", stopped.message))
    })
}

/// Nothing speaks against it: is all there that speaks for it?
fn complete(facts: &Facts) -> (Verdict, Reason) {
    let Some((row, at)) = &facts.fenced else {
        return inconclusive("NoAnswer", "the driver's sidecar did not answer the FenceRequest");
    };
    if !is_fenced(row) {
        let (reason, message) = (row.reason.as_deref().unwrap_or_default(), row.message.as_deref().unwrap_or_default());
        return inconclusive("NotFenced", format!("the sidecar answered {:?} {reason}: {message}", row.result));
    }
    let Some((_, asked)) = &facts.again else {
        return inconclusive("NotWatched", "the writes were not watched to the end");
    };
    let Some(last) = facts.log.written().map(|(number, _)| number).max() else {
        return inconclusive("NothingWritten", "no write was acknowledged before the fence");
    };
    let tries_on = facts.log.tried().map(|(number, _)| number).max() > Some(last);
    if !tries_on || facts.log.alive().is_none_or(|alive| alive + SILENT < *asked) {
        return inconclusive("WriterSilent", "the writer did not go on trying: that no write arrived shows nothing");
    }
    let Some(found) = facts.found else {
        return inconclusive("NotFound", "the other node did not say what it found");
    };
    let refused = match facts.log.refused() {
        0 => "hangs".to_owned(),
        number => format!("was refused {number} times"),
    };
    let message = format!(
        "proof {:?}; the node that was cut off {refused} during {:.1} s of trying on, and the other node found number {found}, \
         the last one from before",
        row.proof,
        asked.saturating_sub(*at).as_secs_f64()
    );
    (Verdict::Certified, Reason { reason: "Revoked", message })
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
