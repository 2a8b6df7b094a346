//! Our programs die at any write and any call, and others carry on to the same end. Each test ends with the oracle.
#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test says what it expects by panicking")]

mod every;
mod lineage;
mod outcome;
mod sampled;
mod story;
mod track;
mod victim;

use libtest_mimic::{Failed, Trial};

/// Set by `cargo xtask test --wide`: every site instead of a few.
const WIDE: &str = "BULKHEAD_WIDE";

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    let wide = [
        alone("every_write_of_a_failover", every::write_of_a_failover),
        alone("every_write_of_an_awkward_failover", every::write_of_an_awkward_failover),
        alone("every_write_of_an_undo_and_of_a_deletion", every::write_of_an_undo_and_of_a_deletion),
        alone("every_write_and_call_of_the_sidecar", every::write_and_call_of_the_sidecar),
    ];
    let narrow = std::env::var_os(WIDE).is_none();
    let mut trials: Vec<_> = wide.into_iter().map(|trial| trial.with_ignored_flag(narrow)).collect();
    trials.push(alone("at_ten_points_another_carries_on", sampled::at_ten_points_another_carries_on));
    trials
}

/// Each has a cluster of its own, for it has the programs for itself.
fn alone<T>(name: &str, test: T) -> Trial
where
    T: AsyncFn() -> Result<(), Failed> + Send + 'static,
{
    Trial::test(format!("crash::{name}"), move || tokio::runtime::Runtime::new()?.block_on(test()))
}
