//! Looks at every schedule of the small worlds within bounds, and prints how many states that were; then takes the safety
//! measures out, one at a time, and prints what notices. `cargo xtask bench exhaustive` builds it as it should run.

use std::process::ExitCode;
use std::time::Duration;

use bulkhead::mutants::Mutant;
use bulkhead_simulation::exhaustive::{Bounds, Order, QUICK, all};
use bulkhead_simulation::mutants::{Caught, Story, hunt_at_random};
use clap::Parser;

#[derive(Parser)]
#[command(name = "exhaustive", about = "Looks at every schedule of a small simulated cluster")]
struct Options {
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

fn main() -> ExitCode {
    let Options { faults, seconds, schedules } = Options::parse();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let bounds = Bounds { faults, timeout: Duration::from_secs(seconds), ..QUICK };
    let report = all(bounds).search(Order::Depth, threads);
    println!("{faults} faults: {report}");
    println!("reached: {}", report.reached.join(", "));
    for (invariant, told) in &report.broken {
        println!("{invariant} is broken:\n{told}");
    }
    let mut missed = false;
    println!("{:<22} {:<34} schedules at random until it is noticed", "mutant", "its story");
    for mutant in Mutant::ALL {
        let (story, random) = (Story::of(mutant).hunt(), hunt_at_random(mutant, schedules));
        missed |= story.is_none();
        let told = |caught: Option<Caught>| {
            caught.map_or("not noticed".to_owned(), |it| format!("{} after {}", it.violation.invariant, it.schedules))
        };
        println!("{:<22} {:<34} {}", format!("{mutant:?}"), told(story), told(random));
    }
    if report.broken.is_empty() && !missed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
