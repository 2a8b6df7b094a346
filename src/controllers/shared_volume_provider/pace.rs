//! How long a poll waits for the next. Pure.

use std::time::Duration;

use crate::api::time::jittered;

/// The longest pause after failures, unless polls are rarer anyhow.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// From the beginning of a poll to that of the next, after that many failures in a row. `random` is in 0..1.
pub fn pause(interval: Duration, failures: u32, random: f64) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else {
        return jittered(interval, random);
    };
    let longest = PAUSE_MAX.max(interval);
    let pause = 2_u32.checked_pow(doublings).and_then(|factor| interval.checked_mul(factor)).unwrap_or(longest);
    pause.min(longest).mul_f64(0.5 + 0.5 * random)
}
