//! The real `kubectl-bulkhead` against the real control plane: what it says of nodes and pods that are well, that failed and
//! that are held; that what it foresees is what happens; what it writes; what it prints for a driver's sidecar; and what people
//! without rights are told.
#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test says what it expects by panicking")]

mod certify;
mod doctor;
mod explain;
mod people;
mod plugin;
mod rights;
mod sidecar;
mod simulate;
mod support_bundle;

use std::sync::Arc;

use bulkhead_testbed::cluster::Cluster;
use libtest_mimic::{Failed, Trial};

use crate::failover::fleet::Fleet;

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    let fleet = match Fleet::new() {
        Ok(fleet) => Arc::new(fleet),
        Err(error) => return vec![Trial::test("kubectl::runtime", move || Err(error.into()))],
    };
    vec![
        trial(&fleet, "what_was_simulated_is_what_is_carried_out", simulate::what_was_simulated_is_what_is_carried_out),
        trial(&fleet, "a_brake_that_would_hold_is_foreseen", simulate::a_brake_that_would_hold_is_foreseen),
        trial(
            &fleet,
            "a_pod_that_cannot_move_is_foreseen_by_name",
            simulate::a_pod_that_cannot_move_is_foreseen_by_name,
        ),
        trial(
            &fleet,
            "a_node_is_explained_before_during_and_after",
            explain::a_node_is_explained_before_during_and_after,
        ),
        trial(
            &fleet,
            "a_pod_is_explained_with_its_policies_and_volumes",
            explain::a_pod_is_explained_with_its_policies_and_volumes,
        ),
        trial(&fleet, "a_policy_is_paused_and_goes_on", people::a_policy_is_paused_and_goes_on),
        trial(&fleet, "an_incident_is_held_and_goes_on", people::an_incident_is_held_and_goes_on),
        trial(&fleet, "who_may_not_read_is_told_what_is_missing", rights::who_may_not_read_is_told_what_is_missing),
        trial(&fleet, "who_may_read_may_not_write", rights::who_may_read_may_not_write),
        trial(&fleet, "doctor_names_what_is_missing", doctor::doctor_names_what_is_missing),
        trial(&fleet, "doctor_names_the_pods_that_would_stay", doctor::doctor_names_the_pods_that_would_stay),
        trial(&fleet, "nothing_is_created_without_what_it_takes", certify::nothing_is_created_without_what_it_takes),
        trial(&fleet, "what_is_printed_adds_a_sidecar", sidecar::what_is_printed_adds_a_sidecar),
        trial(
            &fleet,
            "a_driver_without_a_controller_gets_no_sidecar",
            sidecar::a_driver_without_a_controller_gets_no_sidecar,
        ),
        trial(
            &fleet,
            "a_bundle_has_what_helps_and_no_credentials",
            support_bundle::a_bundle_has_what_helps_and_no_credentials,
        ),
        trial(&fleet, "what_may_not_be_read_is_named", support_bundle::what_may_not_be_read_is_named),
    ]
}

fn trial<T>(fleet: &Arc<Fleet>, name: &'static str, test: T) -> Trial
where
    T: AsyncFn(&Cluster) -> Result<(), Failed> + Send + 'static,
{
    let fleet = fleet.clone();
    Trial::test(format!("kubectl::{name}"), move || fleet.block_on(async { test(fleet.cluster().await?).await }))
}
