//! The node agent against the running kernel: real mounts, loop devices, a FUSE server that hangs, processes in other
//! mount namespaces. Needs root, and works in a mount namespace of its own, where it can do no harm. One test at a time:
//! a process in a mount namespace made for one would hold the mounts of all.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says what it expects by panicking; clippy knows only those of the standard harness for tests"
)]

mod bench;
mod cleaning;
mod given_back;
mod objects;
mod outside;
mod plugin;
mod probes;
mod probes_blocking;
mod probes_hung;
mod refusing;
mod self_fencing;
mod timed;
mod volumes;
mod world;

use std::process::ExitCode;

use bulkhead_testbed::here;
use libtest_mimic::{Failed, Trial};

fn main() -> ExitCode {
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads = Some(1);
    if let Some(path) = std::env::var_os(probes_hung::SERVE) {
        return probes_hung::serve(path.as_ref());
    }
    if let Some(ended) = here::in_own_namespaces(arguments.list) {
        return ended;
    }
    let root = here::is_root();
    let groups = [
        cleaning::trials(),
        refusing::trials(),
        probes::trials(),
        probes_blocking::trials(),
        probes_hung::trials(),
        volumes::trials(),
        timed::trials(),
        self_fencing::trials(),
        given_back::trials(),
    ];
    let mut trials: Vec<_> = groups.into_iter().flatten().collect();
    if !root {
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        let lacks = |trial: Trial| match ci {
            true => Trial::test(trial.name().to_owned(), || Err(Failed::from("needs root: run the tests as root"))),
            false => trial.with_kind("needs root").with_ignored_flag(true),
        };
        trials = trials.into_iter().map(lacks).collect();
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
