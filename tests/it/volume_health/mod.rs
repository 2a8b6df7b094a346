//! The health of volumes on a real API server: what agents, drivers and nodes say becomes taints, and goes again. The
//! shipped controller under its shipped rights; reports are written with the tokens of those who may write them. One
//! cluster for all but what restarts the controller.
#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test says what it expects by panicking")]

mod agent;
mod driver;
mod enforcement;
mod lives;
mod nodes;
mod people;
mod race;
mod restarts;
mod stage;
mod sweep;
mod trust;
mod uses;
pub mod world;

use std::sync::Arc;

use libtest_mimic::{Failed, Trial};

use crate::shared::Shared;

use world::World;

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    let shared = match Shared::<World>::new() {
        Ok(shared) => Arc::new(shared),
        Err(error) => return vec![Trial::test("volume_health::runtime", move || Err(error.into()))],
    };
    let mut trials = vec![
        alone(
            "no_claim_is_bound_to_a_volume_while_it_is_tainted",
            race::no_claim_is_bound_to_a_volume_while_it_is_tainted,
        ),
        alone("what_is_shown_is_always_taken_back", enforcement::what_is_shown_is_always_taken_back),
        alone("new_users_are_kept_off", enforcement::new_users_are_kept_off),
        alone("what_is_recorded_survives_every_restart", restarts::what_is_recorded_survives_every_restart),
        alone("killed_at_every_write_it_converges", restarts::killed_at_every_write_it_converges),
        trial(&shared, "every_use_case_taints_and_clears", uses::every_use_case_taints_and_clears),
        trial(&shared, "users_of_a_volume_are_told_once", uses::users_of_a_volume_are_told_once),
        trial(&shared, "a_failed_node_taints_its_local_volumes", nodes::a_failed_node_taints_its_local_volumes),
        trial(&shared, "a_deleted_node_taints_them_at_once", nodes::a_deleted_node_taints_them_at_once),
        trial(
            &shared,
            "a_silent_agent_is_told_and_changes_no_taint",
            nodes::a_silent_agent_is_told_and_changes_no_taint,
        ),
        trial(&shared, "an_agent_taints_volumes_of_its_node_only", trust::an_agent_taints_volumes_of_its_node_only),
        trial(&shared, "people_taint_and_suppress", people::people_taint_and_suppress),
        trial(&shared, "a_data_loss_waits_for_a_person", people::a_data_loss_waits_for_a_person),
        trial(&shared, "a_policy_that_changes_selects_anew", lives::a_policy_that_changes_selects_anew),
        trial(&shared, "a_volume_goes_with_its_health_and_returns_anew", lives::a_volume_goes_and_returns_anew),
        trial(&shared, "one_that_a_person_made_is_completed", lives::one_that_a_person_made_is_completed),
        trial(&shared, "policies_tell_what_they_rule", lives::policies_tell_what_they_rule),
    ];
    trials.push(agent::trial());
    trials.extend(driver::trials());
    trials.extend(sweep::trials());
    if std::env::var_os("BULKHEAD_WIDE").is_some() {
        trials.push(alone("wide::a_thousand_nodes_come_and_go", nodes::a_thousand_nodes_come_and_go));
    }
    trials
}

fn trial<T>(shared: &Arc<Shared<World>>, name: &str, test: T) -> Trial
where
    T: AsyncFn(&World) -> Result<(), Failed> + Send + 'static,
{
    let shared = shared.clone();
    Trial::test(format!("volume_health::{name}"), move || shared.block_on(async { test(shared.world().await?).await }))
}

/// A test that breaks what others share has a cluster of its own.
fn alone<T>(name: &str, test: T) -> Trial
where
    T: AsyncFn() -> Result<(), Failed> + Send + 'static,
{
    Trial::test(format!("volume_health::{name}"), move || tokio::runtime::Runtime::new()?.block_on(test()))
}
