//! Flags as Go programs take them.

use std::ffi::OsString;
use std::time::Duration;

use clap::Parser;

use crate::controllers::shared_volume_provider::flags::{GoDuration, ProviderFlags, with_two_dashes};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    flags: ProviderFlags,
    #[arg(long, allow_hyphen_values = true)]
    other: Option<String>,
}

fn parsed(arguments: &[&str]) -> Result<Cli, clap::Error> {
    let arguments = std::iter::once("program").chain(arguments.iter().copied()).map(OsString::from);
    Cli::try_parse_from(with_two_dashes(arguments))
}

fn flags(arguments: &[&str]) -> ProviderFlags {
    parsed(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}")).flags
}

#[test]
fn the_defaults_are_those_of_the_seed() {
    let flags = flags(&[]);
    let seconds = [flags.poll(), flags.cache_expiry(), flags.create_poll(), flags.create_wait()].map(|it| it.as_secs());
    assert_eq!(seconds, [5, 60, 1, 20]);
}

#[test]
fn one_dash_or_two_with_a_space_or_an_equals_sign() {
    for arguments in [
        &["-api-poll-interval", "1.5s"][..],
        &["-api-poll-interval=1.5s"],
        &["--api-poll-interval", "1.5s"],
        &["--api-poll-interval=1.5s"],
    ] {
        assert_eq!(flags(arguments).poll(), Duration::from_millis(1500), "{arguments:?}");
    }
}

#[test]
fn every_flag_has_its_effect() {
    let flags = flags(&[
        "-api-poll-interval=2s",
        "-cache-expiry-interval",
        "1m30s",
        "-k8s-create-poll-interval=250ms",
        "-k8s-create-wait-duration",
        "1h",
    ]);
    assert_eq!(flags.poll(), Duration::from_secs(2));
    assert_eq!(flags.cache_expiry(), Duration::from_secs(90));
    assert_eq!(flags.create_poll(), Duration::from_millis(250));
    assert_eq!(flags.create_wait(), Duration::from_secs(3600));
}

#[test]
fn zero_is_no_flood() {
    let flags = flags(&["-api-poll-interval=0", "-cache-expiry-interval=0", "-k8s-create-poll-interval=0"]);
    assert!(flags.poll() >= Duration::from_millis(100) && flags.create_poll() >= Duration::from_millis(10));
    assert_eq!(flags.cache_expiry(), Duration::from_secs(60), "as it was before");
}

#[test]
fn other_arguments_stay_as_they_are() {
    let cli = parsed(&["--other", "-x", "-api-poll-interval=3s"]).unwrap();
    assert_eq!((cli.other.as_deref(), cli.flags.poll()), (Some("-x"), Duration::from_secs(3)));
    let kept = ["-h", "-api-poll", "-api-poll-intervals=1s", "x", "--", "-api-poll-interval=1s"].map(OsString::from);
    assert_eq!(with_two_dashes(kept.clone()), kept);
}

#[test]
fn durations_are_read_as_go_does() {
    for (text, nanos) in [
        ("0", 0),
        ("+0", 0),
        ("0s", 0),
        ("5s", 5_000_000_000),
        ("1m0s", 60_000_000_000),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("300ms", 300_000_000),
        ("1h15m30.918s", 4_530_918_000_000),
        ("3ns", 3),
        ("7us", 7_000),
        ("7\u{b5}s", 7_000),
        ("7\u{3bc}s", 7_000),
        ("0.3333333333333333333s", 333_333_333),
        ("0.100000000000000000000h", 360_000_000_000),
    ] {
        assert_eq!(text.parse(), Ok(GoDuration(Duration::from_nanos(nanos))), "{text}");
    }
}

#[test]
fn what_is_no_duration_is_refused_with_a_remedy() {
    for text in [
        "",
        "+",
        "5",
        "s",
        ".s",
        "-5s",
        "1d",
        "1s1",
        "1 s",
        "1..5s",
        "1.5.5s",
        "five",
        "1S",
        "+-5s",
        "9999999999999h",
        "99999999999999999999999999999999999999999999s",
    ] {
        let error = text.parse::<GoDuration>().expect_err(text).to_string();
        assert!(error.contains("1h30m"), "{text}: {error}");
    }
}
