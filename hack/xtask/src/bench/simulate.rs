//! `xtask bench simulate`: many schedules of the simulator, on all processors.

use std::path::Path;

use clap::Args;

use crate::Result;
use crate::steps::{Steps, cargo};

/// Options of `bench simulate`.
#[derive(Args, Clone, Copy, Debug)]
pub struct Options {
    /// How many schedules
    #[arg(long, default_value_t = 1_000_000)]
    schedules: u64,
    /// The first seed; the others follow. With --schedules 1 a single one is replayed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Run the development build: quick to make, slow to run
    #[arg(long)]
    dev: bool,
}

/// Runs the schedules and prints what they came to.
pub fn run(root: &Path, options: Options) -> Result<()> {
    let mut command = cargo(&["run", "--package", "bulkhead-simulation", "--bin", "simulate"]);
    if !options.dev {
        command.arg("--release");
    }
    command.args(["--", "--schedules", &options.schedules.to_string(), "--seed", &options.seed.to_string()]);
    Steps::new(root).run(&mut command, "an invariant is broken: see the seed above, which replays it")
}
