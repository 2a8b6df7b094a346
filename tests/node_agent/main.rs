//! The node agent against the running kernel: real mounts, loop devices, a FUSE server that hangs, processes in other
//! mount namespaces. Needs root, and works in a mount namespace of its own, where it can do no harm. One test at a time, since
//! a process in a mount namespace made for one would hold the mounts of all; last some that only look, side by side.

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
use libtest_mimic::{Conclusion, Trial};

/// How many of the tests that only look run at once: they mostly wait.
const THREADS: usize = 4;

fn main() -> ExitCode {
    let mut arguments = libtest_mimic::Arguments::from_args();
    if let Some(path) = std::env::var_os(probes_hung::SERVE) {
        return probes_hung::serve(path.as_ref());
    }
    if let Some(ended) = here::in_own_namespaces(arguments.list) {
        return ended;
    }
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
    let as_root = |trial: Trial| here::unless(here::lacks_root(), trial);
    let mut run = |threads, trials: Vec<Trial>| {
        arguments.test_threads = Some(threads);
        libtest_mimic::run(&arguments, trials.into_iter().map(as_root).collect())
    };
    let ended = [run(1, groups.into_iter().flatten().collect()), run(THREADS, volumes::only_look())];
    ended.iter().find(|it| it.has_failed()).map_or(ExitCode::SUCCESS, Conclusion::exit_code)
}
