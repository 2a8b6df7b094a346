//! Runs many schedules and prints what they came to. A seed that breaks an invariant is made short and told; the program
//! then fails. `cargo xtask bench simulate` builds it as it should run.

use std::process::ExitCode;

use bulkhead_simulation::{Batch, tell};
use clap::Parser;

#[derive(Parser)]
#[command(name = "simulate", about = "Runs many schedules of a simulated cluster and judges each")]
struct Options {
    /// How many schedules
    #[arg(long, default_value_t = 1_000_000)]
    schedules: u64,
    /// The first seed; the others follow
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    let Options { schedules, seed } = Options::parse();
    let batch = Batch::run(seed, schedules);
    let seconds = batch.took.as_secs_f64();
    println!("{:>12} schedules from seed {seed} in {seconds:.1} s", batch.schedules);
    println!("{:>12.0} schedules per second", batch.schedules as f64 / seconds.max(0.001));
    println!("{:>12} {:>12}", "happened", "in schedules");
    for ((name, number), (_, schedules)) in batch.counts.all().into_iter().zip(batch.schedules_with.all()) {
        println!("{number:>12} {schedules:>12} {}", name.replace('_', " "));
    }
    for outcome in &batch.broken {
        println!("seed {}: {}", outcome.seed, outcome.violations.first().map(ToString::to_string).unwrap_or_default());
    }
    match batch.broken.first() {
        None => {
            println!("every invariant held");
            ExitCode::SUCCESS
        }
        Some(first) => {
            println!("{}", tell(first.seed));
            ExitCode::FAILURE
        }
    }
}
