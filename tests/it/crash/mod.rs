//! Our programs die at any write and any call, and others carry on to the same end. Each test ends with the oracle.
#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test says what it expects by panicking")]

mod every;
mod lineage;
mod network_fence;
mod outcome;
mod pair;
mod sampled;
mod stops;
mod story;
mod track;
mod victim;

use std::time::Duration;

use libtest_mimic::{Failed, Trial};

/// Twice what others wait: here a replica waits for the Lease of another besides.
const SOON: Duration = Duration::from_secs(120);

/// Set by `cargo xtask test --wide`: every site instead of a few.
const WIDE: &str = "BULKHEAD_WIDE";

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    let wide = [
        alone("every_write_of_a_failover", every::write_of_a_failover),
        alone("every_write_of_an_awkward_failover", every::write_of_an_awkward_failover),
        alone("every_write_of_an_undo_and_of_a_deletion", every::write_of_an_undo_and_of_a_deletion),
        alone("every_write_and_call_of_the_sidecar", every::write_and_call_of_the_sidecar),
        alone("every_write_of_a_network_fence", network_fence::every_write_of_a_network_fence),
        alone("frozen_at_every_write_of_the_controller", stops::at_every_write_of_the_controller),
        alone("frozen_at_every_write_and_call_of_the_sidecar", stops::at_every_write_and_call_of_the_sidecar),
    ];
    let narrow = std::env::var_os(WIDE).is_none();
    let mut trials: Vec<_> = wide.into_iter().map(|trial| trial.with_ignored_flag(narrow)).collect();
    trials.extend([
        alone(
            "a_frozen_controller_does_nothing_wrong_when_it_goes_on",
            stops::a_frozen_controller_does_nothing_wrong_when_it_goes_on,
        ),
        alone(
            "a_frozen_sidecar_does_nothing_wrong_when_it_goes_on",
            stops::a_frozen_sidecar_does_nothing_wrong_when_it_goes_on,
        ),
        alone("at_ten_points_another_carries_on", sampled::at_ten_points_another_carries_on),
        alone(
            "a_network_fence_is_carried_through_by_others",
            network_fence::a_network_fence_is_carried_through_by_others,
        ),
    ]);
    trials
}

/// Each has a cluster of its own, for it has the programs for itself.
fn alone<T>(name: &str, test: T) -> Trial
where
    T: AsyncFn() -> Result<(), Failed> + Send + 'static,
{
    Trial::test(format!("crash::{name}"), move || tokio::runtime::Runtime::new()?.block_on(test()))
}
