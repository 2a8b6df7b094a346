//! One node dies: what happens then, on the real control plane, with our real programs. Each test ends with the oracle.
#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test says what it expects by panicking")]

mod agent_kinds;
mod agent_watches;
mod agents;
pub mod brakes;
mod closed;
mod crash_loops;
mod external;
mod finalizers;
pub mod fleet;
mod heartbeat;
mod heartbeat_storage;
mod identity;
pub mod kept;
mod kinds;
pub mod look;
mod machines;
mod methods;
mod moves;
mod neighbours;
mod network_edits;
mod network_fences;
mod network_machines;
mod order;
mod outages;
mod people;
mod plugins;
mod podmon;
mod policies;
mod power;
mod power_evidence;
mod real_csi_addons;
mod released;
mod replacements;
mod restarts;
mod returns;
mod unattached;
mod units;
pub mod volume_taints;
mod volumes;

use std::sync::Arc;

use bulkhead_testbed::cluster::Cluster;
use libtest_mimic::{Failed, Trial};

use fleet::Fleet;

/// The trials with their names, the long ones first.
macro_rules! on {
    ($group:literal, $fleet:expr, $($module:ident :: $test:ident),* $(,)?) => {
        vec![$(trial(&$fleet, concat!($group, "::", stringify!($test)), $module::$test)),*]
    };
}

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    let fleet = match Fleet::new() {
        Ok(fleet) => Arc::new(fleet),
        Err(error) => return vec![Trial::test("failover::runtime", move || Err(error.into()))],
    };
    let mut trials = vec![
        alone(
            "a_program_that_fails_everywhere_keeps_to_its_budget",
            crash_loops::a_program_that_fails_everywhere_keeps_to_its_budget,
        ),
        alone("every_trouble_of_every_call_at_every_stage", closed::every_trouble_of_every_call_at_every_stage),
        alone("what_was_begun_is_carried_through_by_others", restarts::what_was_begun_is_carried_through_by_others),
        alone("what_people_wrote_outlives_the_controller", people::what_people_wrote_outlives_the_controller),
        alone(
            "a_node_without_power_is_carried_through_by_the_next_controller",
            external::a_node_without_power_is_carried_through_by_the_next_controller,
        ),
        alone("without_csi_addons_the_pods_wait", network_fences::without_csi_addons_the_pods_wait),
        real_csi_addons::trial(),
        heartbeat::trial(),
        heartbeat_storage::trial(),
        power_evidence::trial(),
        power::whose_machine_a_bmc_is(),
        alone("most_nodes_at_once_and_then_all_are_an_outage", brakes::most_nodes_at_once_and_then_all_are_an_outage),
        alone(
            "a_storm_of_taints_moves_nobody_and_a_killed_controller_is_replaced",
            volume_taints::a_storm_moves_nobody_and_a_killed_controller_is_replaced,
        ),
        alone(
            "traps::an_api_server_that_was_down_leaves_no_suspicion",
            outages::an_api_server_that_was_down_leaves_no_suspicion,
        ),
        alone("traps::a_node_that_dies_while_no_controller_runs", outages::a_node_that_dies_while_no_controller_runs),
        alone("an_agent_is_sent_what_is_of_its_node", agent_watches::an_agent_is_sent_what_is_of_its_node),
        heartbeat::as_root(trial(
            &fleet,
            "failover::of_two_agents_of_a_node_one_acts",
            agent_kinds::of_two_agents_of_a_node_one_acts,
        )),
    ];
    trials.extend(on![
        "failover::traps",
        fleet,
        outages::a_volume_that_hangs_ages_the_proofs_of_the_others,
        outages::of_two_sidecars_one_calls_and_the_other_takes_over,
        neighbours::an_evicted_pod_of_another_driver_is_left_to_its_kubelet,
        neighbours::an_attachment_without_a_pod_is_kept,
        neighbours::a_terminating_pod_without_an_owner_is_kept,
        identity::a_node_that_is_ready_again_between_delete_and_key_gets_no_key,
        identity::a_key_that_the_cluster_refuses_gives_way_to_single_detaches,
        identity::pods_of_a_deleted_node_are_released_by_others,
        identity::pods_of_a_deleted_node_are_released_by_us_once_proved,
        identity::a_node_anew_with_the_same_boot_id_is_tainted_again,
        identity::a_node_anew_with_a_new_boot_id_is_clean,
        policies::of_two_policies_the_stricter_one_holds,
        policies::a_policy_that_becomes_stricter_holds_the_incident,
        policies::a_policy_that_becomes_weaker_weakens_no_incident,
        policies::pods_of_a_deleted_namespace_wait_for_the_proof,
        replacements::a_replacement_with_a_node_name_is_not_let_in,
        replacements::a_replacement_that_tolerates_everything_is_not_let_in,
        replacements::a_replacement_that_was_bound_before_the_taint_was_heard_of_moves_on,
        finalizers::a_pod_that_a_finalizer_holds_is_released_when_it_is_gone,
        finalizers::the_attachers_finalizer_is_the_one_that_is_looked_for,
        finalizers::our_finalizer_goes_only_from_the_list_that_was_read,
        volumes::every_kind_of_volume_that_attaches_moves,
        volumes::a_pod_with_a_local_volume_waits,
        identity::an_emptied_csi_node_does_not_hide_whom_to_cut_off,
        identity::a_csi_node_that_contradicts_holds_the_incident,
    ]);
    trials.extend(on![
        "failover",
        fleet,
        outages::an_array_that_is_slower_than_a_lease_is_asked_again,
        closed::each_trouble_holds_its_own_pod_only,
        closed::acknowledged_by_the_attacher,
        closed::a_list_that_cannot_be_read_starts_nothing,
        returns::a_node_back_during_the_fence_loses_its_pods_gracefully,
        returns::a_node_back_after_the_release_must_reboot,
        returns::a_node_back_before_the_first_call_is_undone,
        brakes::no_more_nodes_than_the_budget_are_acted_on,
        people::a_rehearsal_records_the_plan_and_does_nothing,
        people::beside_a_rehearsal_the_others_go,
        people::only_the_approval_of_the_plan_as_it_is_starts_it,
        people::a_hold_stops_before_the_release,
        people::a_pause_begins_nothing_and_stops_what_runs,
        people::in_a_maintenance_window_nothing_is_begun,
        people::each_zone_has_a_budget_of_its_own,
        people::the_policy_that_asks_for_less_is_told,
        volume_taints::its_pod_moves_and_nothing_else,
        volume_taints::one_that_is_tainted_everywhere_moves_nobody,
        volume_taints::no_more_nodes_than_the_budget_are_left,
        brakes::a_policy_with_an_open_fence_goes_when_it_is_finished,
        crash_loops::a_pod_that_fails_on_its_node_starts_on_another,
        units::pods_that_share_a_volume_go_together,
        units::who_is_outside_holds_the_unit,
        units::who_is_outside_goes_with_the_unit,
        units::pods_that_must_run_together_land_together,
        released::a_bare_pod_goes_where_that_is_asked_for,
        released::a_pod_without_volumes_goes_where_that_is_asked_for,
        released::an_ephemeral_volume_is_cut_off_too,
        plugins::new_pods_stay_away_while_it_is_down_and_nobody_leaves,
        machines::launchers_go_and_migration_targets_are_spared,
        kinds::pods_that_no_proof_can_move_wait_by_name,
        kinds::a_pod_with_a_finalizer_is_failed_first,
        kinds::pods_that_nobody_asked_for_are_left_alone,
        closed::a_read_back_that_shows_too_little_releases_nothing,
        closed::without_a_sidecar_pods_wait_for_it,
        closed::a_driver_that_cannot_unpublish_keeps_its_pods,
        closed::an_array_that_is_down_for_all_is_waited_for,
        order::every_step_waits_for_the_one_before,
        order::beside_a_pod_that_stays_attachments_go_one_by_one,
        order::somebody_elses_out_of_service_taint_is_not_touched,
        podmon::pods_labelled_for_podmon_move,
        podmon::a_persons_taint_moves_the_pods_that_are_not_ready,
        methods::without_a_sidecar_the_attacher_can_acknowledge,
        methods::the_fence_brings_the_secret_of_its_volume,
        external::a_node_without_power_frees_its_pods,
        external::what_a_fencer_has_begun_is_kept_while_its_node_is_deleted,
        external::when_nobody_answers_the_next_method_is_tried,
        power::a_machine_is_switched_off_and_on_again_by_its_bmc,
        power::a_bmc_that_is_broken_holds_the_pods,
        network_fences::a_node_is_shut_out_and_let_in_again,
        network_fences::a_fence_that_fails_holds_the_pods,
        network_fences::an_address_of_another_node_is_not_shut_out,
        network_fences::the_address_that_the_array_sees_is_shut_out,
        network_fences::an_address_that_others_want_out_stays_out,
        network_fences::a_sidecar_that_died_goes_on_where_it_was,
        network_fences::a_fence_that_somebody_deleted_is_lifted,
        network_machines::a_deleted_node_stays_shut_out,
        network_fences::a_fence_that_somebody_lifts_too_early_is_made_again,
        network_machines::a_fence_proves_nothing_of_another_machine,
        network_fences::two_drivers_of_a_node_let_it_in_again,
        network_edits::a_fence_that_somebody_edits_is_made_again,
        network_edits::a_fence_that_somebody_lifts_while_the_machine_may_run_is_made_again,
        unattached::a_network_fence_of_its_own_cluster_frees_its_pods,
        unattached::only_the_end_of_power_frees_its_pods_without_one,
        moves::a_pod_moves_from_a_dead_node,
    ]);
    if is_wide() {
        trials.extend(on!["failover::wide", fleet, closed::acknowledged_by_a_driver]);
    }
    trials
}

/// Whether what takes long runs too: `cargo xtask test --wide`.
fn is_wide() -> bool {
    std::env::var_os("BULKHEAD_WIDE").is_some()
}

fn trial<T>(fleet: &Arc<Fleet>, name: &'static str, test: T) -> Trial
where
    T: AsyncFn(&Cluster) -> Result<(), Failed> + Send + 'static,
{
    let fleet = fleet.clone();
    Trial::test(name, move || fleet.block_on(async { test(fleet.cluster().await?).await }))
}

/// A test that breaks what others share has a cluster of its own.
fn alone<T>(name: &str, test: T) -> Trial
where
    T: AsyncFn() -> Result<(), Failed> + Send + 'static,
{
    Trial::test(format!("failover::{name}"), move || tokio::runtime::Runtime::new()?.block_on(test()))
}
