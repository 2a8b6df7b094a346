//! The node plugin of the S3 driver: the real program with a real API server, the kernel's mounts, the real mounter, and
//! mount-s3 played by a FUSE server of ours. Needs root, and works in a mount namespace of its own, where it can do no harm.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says what it expects by panicking; clippy knows only those of the standard harness for tests"
)]

mod definitions;
mod engine;
mod hostile;
mod legacy;
mod plugin;
mod publishing;
mod repairing;
mod sanity;
mod unmounting;
mod waiting;
mod world;

use std::process::ExitCode;
use std::sync::Arc;

use bulkhead_testbed::binaries::Binaries;
use bulkhead_testbed::here;

use world::Shared;

/// Tests at once: they mostly wait for programs to start.
const THREADS: usize = 4;

fn main() -> ExitCode {
    let first = std::env::args().nth(1);
    if first.is_some_and(|first| first == engine::SERVE) {
        return engine::main();
    }
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(THREADS));
    if let Some(ended) = here::in_own_namespaces(arguments.list) {
        return ended;
    }
    let shared = Arc::new(Shared::new());
    let groups = [
        publishing::trials(&shared),
        waiting::trials(&shared),
        unmounting::trials(&shared),
        repairing::trials(&shared),
        legacy::trials(&shared),
        hostile::trials(&shared),
        definitions::trials(&shared),
        sanity::trials(&shared),
    ];
    let mut trials: Vec<_> = groups.into_iter().flatten().collect();
    if let Some(lacking) = lacking(&arguments) {
        trials = trials.into_iter().map(|trial| here::unless(Some(&lacking), trial)).collect();
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(shared);
    conclusion.exit_code()
}

fn lacking(arguments: &libtest_mimic::Arguments) -> Option<String> {
    here::lacking(arguments.list, || match here::lacks_fuse() {
        None => Binaries::ensure(None).map(drop).map_err(|error| error.to_string()),
        Some(lacking) => Err(lacking.to_owned()),
    })
}
