//! One binary for all tests that need a control plane.

mod api;

fn main() {
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), api::trials()).exit();
}
