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

use std::process::ExitCode;

use bulkhead_testbed::here;
use libtest_mimic::Trial;

fn main() -> ExitCode {
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads = Some(1);
    if let Some(ended) = here::in_own_namespaces(arguments.list) {
        return ended;
    }
    let mut trials: Vec<Trial> =
        [waiting::trials(), engine::trials(), ending::trials()].into_iter().flatten().collect();
    trials.extend(mounted::trials().into_iter().map(|trial| here::unless(here::lacks_root(), trial)));
    libtest_mimic::run(&arguments, trials).exit_code()
}
