//! One node dies: what happens then, on the real control plane, with our real programs. Each test ends with the oracle.

mod closed;
mod fleet;
mod look;
mod moves;

use std::sync::Arc;

use bulkhead_testbed::cluster::Cluster;
use libtest_mimic::{Failed, Trial};

use fleet::Fleet;

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    let fleet = match Fleet::new() {
        Ok(fleet) => Arc::new(fleet),
        Err(error) => return vec![Trial::test("failover::runtime", move || Err(error.into()))],
    };
    // The long ones first.
    vec![
        trial(&fleet, "each_trouble_holds_its_own_pod_only", closed::each_trouble_holds_its_own_pod_only),
        trial(&fleet, "a_list_that_cannot_be_read_starts_nothing", closed::a_list_that_cannot_be_read_starts_nothing),
        trial(
            &fleet,
            "a_read_back_that_shows_too_little_releases_nothing",
            closed::a_read_back_that_shows_too_little_releases_nothing,
        ),
        trial(&fleet, "a_pod_moves_from_a_dead_node", moves::a_pod_moves_from_a_dead_node),
        trial(&fleet, "without_a_sidecar_pods_wait_for_it", closed::without_a_sidecar_pods_wait_for_it),
        trial(
            &fleet,
            "a_driver_that_cannot_unpublish_keeps_its_pods",
            closed::a_driver_that_cannot_unpublish_keeps_its_pods,
        ),
        trial(
            &fleet,
            "an_array_that_is_down_for_all_is_waited_for",
            closed::an_array_that_is_down_for_all_is_waited_for,
        ),
    ]
}

fn trial<T>(fleet: &Arc<Fleet>, name: &str, test: T) -> Trial
where
    T: AsyncFn(&Cluster) -> Result<(), Failed> + Send + 'static,
{
    let fleet = fleet.clone();
    Trial::test(format!("failover::{name}"), move || fleet.block_on(async { test(fleet.cluster().await?).await }))
}
