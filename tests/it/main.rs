//! One binary for all tests that need a control plane.

mod api;
mod failover;

fn main() {
    let trials = [api::trials(), failover::trials()].into_iter().flatten().collect();
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials).exit();
}
