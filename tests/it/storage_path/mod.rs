//! A node is well, and does not reach the storage of its pods: what happens then, on the real control plane, with our real
//! programs, and an array that says who reaches it.
#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test says what it expects by panicking")]

mod asking;
mod io;
mod lane;
mod losing;
mod outage;

use std::sync::Arc;

use bulkhead_testbed::cluster::Cluster;
use libtest_mimic::{Failed, Trial};

use crate::failover::fleet::Fleet;

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    let fleet = match Fleet::new() {
        Ok(fleet) => Arc::new(fleet),
        Err(error) => return vec![Trial::test("storage_path::runtime", move || Err(error.into()))],
    };
    macro_rules! on {
        ($($module:ident :: $test:ident),* $(,)?) => {
            vec![$(trial(&fleet, concat!("storage_path::", stringify!($test)), $module::$test)),*]
        };
    }
    let mut trials = on![
        outage::an_array_that_is_out_for_all_moves_nobody_and_recovers_by_itself,
        losing::only_its_pods_move_and_the_taint_stays_until_the_path_is_proved_back,
        losing::a_sidecar_that_is_killed_in_the_middle_is_replaced,
        asking::errors_and_silence_move_nobody,
        asking::a_hundred_pods_on_an_erring_node_are_one_question_per_cycle,
        asking::a_driver_without_the_extension_is_told_and_all_else_works,
        io::a_failed_node_is_cut_off_though_it_writes,
        io::what_is_not_known_stops_nothing,
        io::of_a_shared_volume_only_the_nodes_own_io_counts,
    ];
    trials.push(io::trial());
    trials
}

fn trial<T>(fleet: &Arc<Fleet>, name: &'static str, test: T) -> Trial
where
    T: AsyncFn(&Cluster) -> Result<(), Failed> + Send + 'static,
{
    let fleet = fleet.clone();
    Trial::test(name, move || fleet.block_on(async { test(fleet.cluster().await?).await }))
}
