//! Time as a value: a pass reads the clock once and hands [`Now`] to `decide`, which has no clock.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use chrono::Utc;

use super::lock::lock;
pub use crate::api::time::Now;

/// Where [`Now`] comes from: the machine, or a test.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Arc<Mutex<Now>>>);

impl Clock {
    /// The machine's clocks.
    pub fn system() -> Self {
        Self(None)
    }

    /// A clock that moves only by [`Clock::advance`], for tests and simulators.
    pub fn manual(start: Now) -> Self {
        Self(Some(Arc::new(Mutex::new(start))))
    }

    /// Reads both clocks.
    pub fn now(&self) -> Now {
        match &self.0 {
            Some(manual) => *lock(manual),
            None => Now { wall: Utc::now(), mono: monotonic() },
        }
    }

    /// Moves a manual clock forward; the machine's clocks are left alone.
    pub fn advance(&self, by: Duration) {
        if let Some(manual) = &self.0 {
            let mut now = lock(manual);
            *now = now.after(by);
        }
    }
}

/// The monotonic clock, through tokio, so that paused tests control it.
pub fn monotonic() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_both_times_together() {
        let start = Clock::system().now();
        let clock = Clock::manual(start);
        clock.clone().advance(Duration::from_secs(90));
        let now = clock.now();
        assert_eq!(now.mono - start.mono, Duration::from_secs(90));
        assert_eq!((now.wall - start.wall).num_seconds(), 90);
    }
}
