//! `xtask bench exhaustive`: every schedule of a small simulated cluster, and every mutant.

use std::path::Path;

use clap::Args;

use crate::Result;
use crate::steps::{Steps, cargo};

/// Options of `bench exhaustive`.
#[derive(Args, Clone, Copy, Debug)]
pub struct Options {
    /// Faults at any points of a schedule, beside the failed node that it begins with
    #[arg(long, default_value_t = 2)]
    faults: u32,
    /// Give up after so many seconds
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// Random schedules to look for each mutant in
    #[arg(long, default_value_t = 10_000)]
    schedules: u64,
}

/// Looks at the schedules and prints how many there were, and what notices the mutants.
pub fn run(root: &Path, options: Options) -> Result<()> {
    let mut command = cargo(&["run", "--release", "--package", "bulkhead-simulation", "--bin", "exhaustive", "--"]);
    let Options { faults, seconds, schedules } = options;
    for (name, value) in [("--faults", u64::from(faults)), ("--seconds", seconds), ("--schedules", schedules)] {
        command.args([name, &value.to_string()]);
    }
    Steps::new(root).run(&mut command, "an invariant is broken, or a mutant is not noticed: see above")
}
