//! Which sidecars are heard of, by their leader Leases. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use crate::api::slim::Lease;
use crate::api::time::Now;

/// A sidecar renews its Lease every 5 s. It is given time to start anew: of each of its volumes it is told that it is
/// silent, and that it is not any more.
pub const SILENT_AFTER: Duration = Duration::from_secs(60);

/// When each Lease moved last.
#[derive(Debug, Default)]
pub struct Beats(HashMap<String, Beat>);

#[derive(Debug)]
struct Beat {
    renewed: Option<MicroTime>,
    moved: Instant,
    /// As it was told last.
    was_heard: bool,
    /// Its age is known: it was seen to move, or its holder's clock says that it is young.
    is_trusted: bool,
}

impl Beat {
    fn is_heard(&self, now: Now) -> bool {
        self.is_trusted && now.mono.saturating_duration_since(self.moved) < SILENT_AFTER
    }
}

impl Beats {
    /// Takes in what the store holds now.
    pub fn note(&mut self, name: &str, lease: Option<&Lease>, now: Now) {
        let Some(lease) = lease else {
            // Told as silent at the next look, then forgotten.
            if let Some(beat) = self.0.get_mut(name) {
                beat.is_trusted = false;
            }
            return;
        };
        let renewed = lease.spec.renew_time.clone();
        match self.0.get_mut(name) {
            Some(beat) if beat.renewed == renewed => {}
            Some(beat) => (beat.renewed, beat.moved, beat.is_trusted) = (renewed, now.mono, true),
            None => {
                let is_trusted = renewed.as_ref().is_some_and(|renewed| is_young(renewed, now));
                self.0.insert(name.to_owned(), Beat { renewed, moved: now.mono, was_heard: false, is_trusted });
            }
        }
    }

    /// Whether the holder of this Lease is heard of.
    pub fn is_heard(&self, name: &str, now: Now) -> bool {
        self.0.get(name).is_some_and(|beat| beat.is_heard(now))
    }

    /// Leases whose holders came to be heard of, or fell silent, since this was asked last.
    pub fn turned(&mut self, now: Now) -> Vec<String> {
        let mut turned = Vec::new();
        for (name, beat) in &mut self.0 {
            let is_heard = beat.is_heard(now);
            if is_heard != beat.was_heard {
                beat.was_heard = is_heard;
                turned.push(name.clone());
            }
        }
        turned
    }
}

/// What was found and not seen to move is judged by the stamp that its holder wrote: nothing else tells its age.
fn is_young(renewed: &MicroTime, now: Now) -> bool {
    let age = TimeDelta::seconds(now.wall.timestamp() - renewed.0.as_second());
    age.abs().to_std().is_ok_and(|age| age < SILENT_AFTER)
}
