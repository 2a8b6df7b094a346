//! One binary for all tests that need a control plane.

mod api;
mod failover;
mod tree;

/// Tests at once: they mostly wait for the cluster, not for a processor.
const THREADS: usize = 6;

fn main() {
    let mut arguments = libtest_mimic::Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(THREADS));
    let trials = [tree::trials(), api::trials(), failover::trials()].into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit();
}
