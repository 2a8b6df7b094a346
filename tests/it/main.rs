//! One binary for all tests that need a control plane.

mod api;
mod failover;
mod tree;

fn main() {
    let trials = [tree::trials(), api::trials(), failover::trials()].into_iter().flatten().collect();
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials).exit();
}
