//! What this process remembers of a request: its calls. Pure, so that the simulator runs the same code. Lost on a
//! restart, and then sent again: they are idempotent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use crate::api::fence_request::{FenceOutcome, FenceResult, RequestedVolume};

use super::decide::{Call, Failure, RowKey, key};

/// What this process remembers of a request.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Calls by row.
    pub calls: BTreeMap<RowKey, Call>,
    /// When a network fence that was proved was looked at last.
    pub looked: Option<Instant>,
    /// The fences of others that were there by the same addresses, by uid.
    pub others: BTreeSet<String>,
}

impl Memory {
    /// Rows were written. One that begins, or that is given back, is a new story: an OK of the last one says nothing
    /// about it.
    pub fn answered(&mut self, rows: &[FenceResult]) {
        for row in rows {
            let key = (row.episode, row.name.clone());
            if row.result == FenceOutcome::Started && row.reason.is_none() {
                self.calls.insert(key, Call::Recorded);
            } else if row.result == FenceOutcome::Unfenced {
                self.calls.remove(&key);
            }
        }
    }

    /// A call is about to be sent. Returns how often in a row it has failed in this round.
    pub fn begins(&mut self, volume: &RequestedVolume) -> u32 {
        match self.calls.insert(key(volume), Call::Running) {
            Some(Call::Failed { attempts, round, .. }) if round == volume.round => attempts,
            _ => 0,
        }
    }

    /// A call of that round has ended, at that moment.
    pub fn ended(&mut self, volume: &RequestedVolume, attempts: u32, outcome: Result<(), Failure>, at: Instant) {
        let round = volume.round;
        let call = match outcome {
            Ok(()) => Call::Acknowledged { at, round },
            Err(failure) => Call::Failed { failure, attempts: attempts + 1, at, round },
        };
        self.calls.insert(key(volume), call);
    }
}
