//! Workloads that were seen to go. Only a shortcut: what is forgotten here is found by its age.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long one is remembered: longer than the attachment of a workload takes to come here.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Old ones are looked for when so many came since.
const BATCH: usize = 1024;

/// Uids of pods that are gone.
#[derive(Debug, Default)]
pub struct Departed {
    seen: HashMap<String, Instant>,
    since_cleaned: usize,
}

impl Departed {
    /// A pod is gone.
    pub fn note(&mut self, uid: &str, now: Instant) {
        self.seen.insert(uid.to_owned(), now);
        self.since_cleaned += 1;
        if self.since_cleaned >= BATCH {
            self.since_cleaned = 0;
            self.seen.retain(|_, since| now.saturating_duration_since(*since) < REMEMBERED);
        }
    }

    /// Whether this one is known to be gone.
    pub fn has(&self, uid: &str) -> bool {
        self.seen.contains_key(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_ones_are_forgotten() {
        let (mut departed, start) = (Departed::default(), Instant::now());
        departed.note("old", start);
        assert!(departed.has("old") && !departed.has("other"));
        let later = start + REMEMBERED;
        (0..BATCH).for_each(|n| departed.note(&n.to_string(), later));
        assert!(!departed.has("old") && departed.has("0"));
        assert_eq!(departed.seen.len(), BATCH);
    }
}
