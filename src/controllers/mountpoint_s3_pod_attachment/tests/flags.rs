//! Flags under upstream's names.

use clap::{CommandFactory, Parser};

use super::super::flags::S3Flags;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    s3: S3Flags,
}

fn config(flags: &[&str]) -> Result<Option<super::super::Config>, String> {
    Cli::parse_from(["bulkhead-controller"].iter().chain(flags)).s3.config()
}

#[test]
fn the_flags_fit_together() {
    Cli::command().debug_assert();
}

#[test]
fn without_an_image_there_are_no_s3_mounts() {
    assert!(config(&[]).unwrap().is_none());
    let config = config(&["--mountpoint-image=m"]).unwrap().unwrap();
    assert_eq!((config.pods.namespace.as_str(), config.pods.image.as_str()), ("mount-s3", "m"));
    assert_eq!(config.sweep.as_secs(), 120);
    assert_eq!(config.patience.stale_after.as_secs(), 120);
}

#[test]
fn a_version_becomes_a_label() {
    let flags = ["--mountpoint-image=m", "--mounted-by-csi-driver-version=-2.2.0+build/7-"];
    assert_eq!(config(&flags).unwrap().unwrap().pods.driver_version, "2.2.0_build_7");
}

#[test]
fn what_is_wrong_is_said_with_its_flag() {
    for (flag, words) in [
        ("--mountpoint-pod-labels=[]", "no JSON object"),
        ("--mountpoint-pod-labels={\"a\":1}", "a is no text"),
        ("--mountpoint-pod-labels={\"s3.csi.scality.com/pod-uid\":\"x\"}", "set by the controller"),
        ("--mountpoint-resources={", "--mountpoint-resources is no JSON"),
        ("--mountpoint-pod-template={\"spec\":{\"containers\":[]}}", "spec.containers"),
        ("--mountpoint-pod-template={\"status\":{}}", "only metadata and spec"),
    ] {
        let error = config(&["--mountpoint-image=m", flag]).unwrap_err();
        assert!(error.contains(words), "{flag}: {error}");
    }
}
