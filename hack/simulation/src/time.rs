//! Virtual time: milliseconds since the world began, and what each clock makes of them.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bulkhead::api::time::Now;
use chrono::{DateTime, TimeDelta, Utc};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};

/// Milliseconds since the world began.
pub type Millis = u64;

/// One second.
pub const SECOND: Millis = 1000;
/// One minute.
pub const MINUTE: Millis = 60 * SECOND;

/// What every wall clock shows when the world begins, in seconds.
const BEGINNING: i64 = 1_800_000_000;

/// The wall clock of a machine whose clock is right.
pub fn wall(at: Millis) -> DateTime<Utc> {
    let millis = TimeDelta::milliseconds(i64::try_from(at).unwrap_or(i64::MAX));
    DateTime::from_timestamp(BEGINNING, 0).unwrap_or_default() + millis
}

/// The monotonic clock of a machine that never slept. The same for all worlds of this process.
pub fn mono(at: Millis) -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_millis(at)
}

/// A stamp of Kubernetes' own types, which have seconds.
pub fn stamp(at: Millis) -> Time {
    bulkhead::api::time::to_k8s(wall(at))
}

/// A stamp with microseconds.
pub fn micro(at: Millis) -> MicroTime {
    MicroTime(Timestamp::from_microsecond(wall(at).timestamp_micros()).unwrap_or_default())
}

/// A duration in milliseconds.
pub fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// The clocks of one process: it may have slept while the world went on, and somebody may have set its wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Clocks {
    /// How long its machine has slept so far.
    pub slept: Millis,
    /// How far its wall clock is ahead, in milliseconds.
    pub ahead: i64,
}

impl Clocks {
    /// What it shows.
    pub fn now(self, at: Millis) -> Now {
        Now { wall: wall(at) + TimeDelta::milliseconds(self.ahead), mono: mono(at.saturating_sub(self.slept)) }
    }
}
