//! The flags of the StorageOS api-manager's shared volume controller, under their names: Go programs take flags with one
//! dash, and durations such as 1.5s.

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

/// The shortest time between two polls, so that 0 is no flood.
const POLL_MIN: Duration = Duration::from_millis(100);
/// The shortest time between two reads of an object that was created.
const CREATE_POLL_MIN: Duration = Duration::from_millis(10);
/// What 0 stands for, as it did before.
const CACHE_EXPIRY: Duration = Duration::from_secs(60);

/// Flags; each is an environment variable too. A SharedVolumeProvider that names a time itself overrides them.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Shared volumes")]
pub struct ProviderFlags {
    /// Time between two lists of a provider's volumes. Go durations, with one dash or two.
    #[arg(long, env = "BULKHEAD_API_POLL_INTERVAL", default_value = "5s")]
    api_poll_interval: GoDuration,
    /// Time from its last success after which a provider's volume is verified again in full.
    #[arg(long, env = "BULKHEAD_CACHE_EXPIRY_INTERVAL", default_value = "1m")]
    cache_expiry_interval: GoDuration,
    /// Time between two reads of a Kubernetes object that was created and is not seen yet.
    #[arg(long, env = "BULKHEAD_K8S_CREATE_POLL_INTERVAL", default_value = "1s")]
    k8s_create_poll_interval: GoDuration,
    /// Time after which one that does not appear is an error.
    #[arg(long, env = "BULKHEAD_K8S_CREATE_WAIT_DURATION", default_value = "20s")]
    k8s_create_wait_duration: GoDuration,
}

/// Names of the flags.
const NAMES: [&str; 4] =
    ["api-poll-interval", "cache-expiry-interval", "k8s-create-poll-interval", "k8s-create-wait-duration"];

impl ProviderFlags {
    /// Time between two lists.
    pub fn poll(&self) -> Duration {
        self.api_poll_interval.0.max(POLL_MIN)
    }

    /// Time from its last success after which a volume is verified again.
    pub fn cache_expiry(&self) -> Duration {
        Some(self.cache_expiry_interval.0).filter(|it| !it.is_zero()).unwrap_or(CACHE_EXPIRY)
    }

    /// Time between two reads after a create.
    pub fn create_poll(&self) -> Duration {
        self.k8s_create_poll_interval.0.max(CREATE_POLL_MIN)
    }

    /// Time after which what was created and does not appear is an error.
    pub fn create_wait(&self) -> Duration {
        self.k8s_create_wait_duration.0
    }
}

/// The arguments of the program with a second dash at those of our flags that have one: `-api-poll-interval 2s` and
/// `-api-poll-interval=2s` become `--api-poll-interval …`. What follows `--` stays.
pub fn with_two_dashes(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut is_over = false;
    let doubled = arguments.into_iter().map(|argument| {
        is_over |= argument == "--";
        let name = argument.to_str().and_then(|text| text.strip_prefix('-'));
        let name = name.map(|text| text.split_once('=').map_or(text, |(name, _)| name));
        match name {
            Some(name) if !is_over && NAMES.contains(&name) => {
                let mut doubled = OsString::from("-");
                doubled.push(&argument);
                doubled
            }
            _ => argument,
        }
    });
    doubled.collect()
}

/// A duration as Go writes it: `1m0s`, `1.5s`, `300ms`, `0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoDuration(pub Duration);

/// Why a text is no [`GoDuration`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no duration: write a number and a unit such as 300ms, 1.5s, 2m or 1h30m; not less than 0")]
pub struct InvalidGoDuration(String);

impl FromStr for GoDuration {
    type Err = InvalidGoDuration;

    fn from_str(text: &str) -> Result<Self, InvalidGoDuration> {
        parse(text).map(Self).ok_or_else(|| InvalidGoDuration(text.chars().take(40).collect()))
    }
}

fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut nanos = 0_u128;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at_checked(end)?;
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(end)?;
        nanos = nanos.checked_add(part(number, unit)?)?;
        rest = tail;
    }
    // As in Go, not even an empty text is a duration.
    let nanos = Some(nanos).filter(|_| !text.trim_start_matches('+').is_empty())?;
    i64::try_from(nanos).ok().and_then(|nanos| u64::try_from(nanos).ok()).map(Duration::from_nanos)
}

/// `number` of `unit` in nanoseconds. More digits than a nanosecond has are without effect.
fn part(number: &str, unit: &str) -> Option<u128> {
    let unit: u128 = match unit {
        "ns" => 1,
        // The two characters that look like a Greek mu.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
    let whole = digits(whole)?.checked_mul(unit)?;
    if fraction.contains('.') {
        return None;
    }
    let fraction = fraction.get(..fraction.len().min(15))?;
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    whole.checked_add(digits(fraction)?.checked_mul(unit)? / scale)
}
