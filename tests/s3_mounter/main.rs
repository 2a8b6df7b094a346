//! The mounter of the S3 driver: the real program, as a process of its own. What it runs is a script that tells what it was
//! given; or, as root, the real engine, which serves a real FUSE mount from a real S3 server. The messages are written as
//! upstream's node service writes them. One test at a time: descriptors and mounts are counted.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says what it expects by panicking; clippy knows only those of the standard harness for tests"
)]

mod ending;
mod engine;
mod mounted;
mod node;
mod waiting;
mod world;

use std::process::{Command, ExitCode};

use libtest_mimic::{Failed, Trial};

/// Set in the process that runs in the mount namespace of its own.
const INSIDE: &str = "BULKHEAD_TEST_MOUNT_NAMESPACE";

fn main() -> ExitCode {
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads = Some(1);
    let root = rustix::process::geteuid().is_root();
    if root && !arguments.list && std::env::var_os(INSIDE).is_none() {
        return inside();
    }
    let mut trials: Vec<Trial> =
        [waiting::trials(), engine::trials(), ending::trials()].into_iter().flatten().collect();
    trials.extend(mounted::trials().into_iter().map(|trial| if root { trial } else { lacking(trial) }));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Fails in CI, which has to run everything; elsewhere it is left out.
fn lacking(trial: Trial) -> Trial {
    match std::env::var("CI").is_ok_and(|value| value == "true") {
        true => Trial::test(trial.name().to_owned(), || Err(Failed::from("needs root: run the tests as root"))),
        false => trial.with_kind("needs root").with_ignored_flag(true),
    }
}

/// Runs this program again, in namespaces of its own.
fn inside() -> ExitCode {
    let program = std::env::current_exe().expect("our own path");
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(program)
        .args(std::env::args().skip(1))
        .env(INSIDE, "1")
        .status();
    match status {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(error) => {
            eprintln!("error: unshare (util-linux): {error}");
            ExitCode::FAILURE
        }
    }
}
