//! Time in our API: `chrono` stamps, durations as text, and the one place where Kubernetes' own `jiff` times are
//! converted.

use std::borrow::Cow;
use std::fmt;

use chrono::{DateTime, SubsecRound, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The moment of a decision: the wall clock for stamps, the monotonic clock for every measured span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Wall clock; may jump.
    pub wall: DateTime<Utc>,
    /// Monotonic clock.
    pub mono: std::time::Instant,
}

impl Now {
    /// So much later, by both clocks.
    pub fn after(self, span: std::time::Duration) -> Self {
        Self { wall: self.wall + span, mono: self.mono + span }
    }

    /// Whether that moment has come by either clock: that the machine slept only the wall clock knows, and that one may be set back.
    pub fn has_reached(self, limit: Self) -> bool {
        self.mono >= limit.mono || self.wall >= limit.wall
    }
}

/// Up to ten per cent shorter or longer, so that those who wait alike do not fall into step. `unit` is random in 0..1.
pub fn jittered(pause: std::time::Duration, unit: f64) -> std::time::Duration {
    const SHARE: f64 = 0.1;
    pause.mul_f64(1.0 - SHARE + 2.0 * SHARE * unit)
}

/// A stamp as our status fields carry it: microseconds, which the API server stores unchanged.
pub fn stamp(at: DateTime<Utc>) -> DateTime<Utc> {
    at.trunc_subsecs(6)
}

/// A stamp for Kubernetes' own types (conditions), which have seconds.
pub fn to_k8s(at: DateTime<Utc>) -> Time {
    Time(jiff::Timestamp::from_second(at.timestamp()).unwrap_or_default())
}

/// A stamp of Kubernetes' own types as chrono.
pub fn from_k8s(at: &Time) -> DateTime<Utc> {
    DateTime::from_timestamp(at.0.as_second(), at.0.subsec_nanosecond().unsigned_abs()).unwrap_or_default()
}

/// A stamp of Kubernetes' Leases, which have microseconds.
pub fn from_micro(at: &MicroTime) -> DateTime<Utc> {
    from_k8s(&Time(at.0))
}

/// A duration as one to four groups of digits and `h`, `m`, `s` or `ms`. The text is kept: it is never rewritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Duration {
    text: String,
    value: std::time::Duration,
}

/// Why a text is no [`Duration`].
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no duration: write one to four groups of digits and h, m, s or ms, such as 1m30s")]
pub struct InvalidDuration(String);

impl Duration {
    /// The length of time.
    pub fn get(&self) -> std::time::Duration {
        self.value
    }

    /// A duration of whole seconds.
    pub fn seconds(seconds: u32) -> Self {
        Self { text: format!("{seconds}s"), value: std::time::Duration::from_secs(seconds.into()) }
    }

    /// A duration of whole hours.
    pub fn hours(hours: u32) -> Self {
        Self { text: format!("{hours}h"), value: std::time::Duration::from_secs(u64::from(hours) * 3600) }
    }

    /// A duration of whole minutes.
    pub fn minutes(minutes: u32) -> Self {
        Self { text: format!("{minutes}m"), value: std::time::Duration::from_secs(u64::from(minutes) * 60) }
    }
}

impl TryFrom<String> for Duration {
    type Error = InvalidDuration;

    fn try_from(text: String) -> Result<Self, InvalidDuration> {
        match parse(&text) {
            Some(value) => Ok(Self { text, value }),
            None => Err(InvalidDuration(text)),
        }
    }
}

impl std::str::FromStr for Duration {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        Self::try_from(text.to_owned())
    }
}

impl From<Duration> for String {
    fn from(duration: Duration) -> Self {
        duration.text
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn parse(text: &str) -> Option<std::time::Duration> {
    let mut rest = text;
    let mut total = std::time::Duration::ZERO;
    for _ in 0..4 {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at_checked(digits)?;
        if number.len() > 5 {
            return None;
        }
        let number: u32 = number.parse().ok()?;
        let unit_length = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(unit_length)?;
        let one = match unit {
            "h" => std::time::Duration::from_secs(3600),
            "m" => std::time::Duration::from_secs(60),
            "s" => std::time::Duration::from_secs(1),
            "ms" => std::time::Duration::from_millis(1),
            _ => return None,
        };
        total += one * number;
        rest = tail;
        if rest.is_empty() {
            return Some(total);
        }
    }
    None
}

impl JsonSchema for Duration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "maxLength": 24, "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_keep_their_text() {
        for (text, millis) in [("30s", 30_000), ("1m30s", 90_000), ("500ms", 500), ("0s", 0), ("1h1m1s1ms", 3_661_001)]
        {
            let duration: Duration = text.parse().unwrap();
            assert_eq!(duration.get().as_millis(), millis, "{text}");
            assert_eq!(duration.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_a_remedy() {
        for text in ["", "5", "s", "-1s", "1.5s", "1d", "100000s", "1s1s1s1s1s", "1s ", "ms"] {
            let error = text.parse::<Duration>().unwrap_err().to_string();
            assert!(error.contains("such as 1m30s"), "{text}: {error}");
        }
    }
}
