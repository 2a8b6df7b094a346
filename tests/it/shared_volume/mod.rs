//! SharedVolumes on a real API server: the shipped controller under its shipped rights gives each claim an address that stays,
//! and sends its clients to one server at a time. Kubelets and NFS servers are played. While a test does its part every
//! version of every slice is watched: never two servers at once. One cluster for all but what stops the controller. Lines and
//! rows are those of `docs/shared-volume-requirements.md`: of the description, and of what the real controller lacks.
#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test says what it expects by panicking")]

mod claims;
mod control_plane;
mod endings;
mod fencing;
mod foreign;
mod lane;
mod pods;
mod providers;
mod restarts;
mod services;
mod switching;
mod union;
mod world;

use std::sync::Arc;

use libtest_mimic::{Failed, Trial};

use crate::shared::Shared;

use lane::Lane;
use world::World;

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    let shared = match Shared::<World>::new() {
        Ok(shared) => Arc::new(shared),
        Err(error) => return vec![Trial::test("shared_volume::runtime", move || Err(error.into()))],
    };
    let mut trials = vec![
        alone("killed_at_its_writes_it_converges", restarts::killed_at_its_writes_it_converges),
        alone("replicas_that_take_turns_serve_on", restarts::replicas_that_take_turns_serve_on),
        alone("at_rest_nothing_is_written", restarts::at_rest_nothing_is_written),
        alone("the_seeds_flags_have_their_effect", providers::the_seeds_flags_have_their_effect),
        trial(&shared, "services_are_as_specified", services::are_as_specified),
        trial(&shared, "services_go_with_the_claim", services::go_with_the_claim),
        trial(&shared, "services_come_back_with_their_address", services::come_back_with_their_address),
        trial(&shared, "one_whose_address_is_taken_is_told", services::whose_address_is_taken_is_told),
        trial(&shared, "edited_slices_are_repaired", services::edited_slices_are_repaired),
        trial(&shared, "edited_services_are_repaired", services::edited_services_are_repaired),
        trial(&shared, "services_of_odd_claims_have_names", services::have_names_where_claims_have_odd_ones),
        trial(&shared, "services_of_others_are_adopted_where_allowed", services::of_others_are_adopted_where_allowed),
        trial(&shared, "services_have_the_servers_family", services::have_the_servers_family),
        trial(
            &shared,
            "nothing_is_published_before_the_first_answer",
            switching::nothing_is_published_before_the_first_answer,
        ),
        trial(&shared, "the_name_is_published_where_wanted", switching::the_name_is_published_where_wanted),
        trial(&shared, "a_lost_server_is_replaced", switching::a_lost_server_is_replaced),
        trial(&shared, "a_lost_server_without_another", switching::a_lost_server_without_another),
        trial(&shared, "switches_hold_down", switching::switches_hold_down),
        trial(&shared, "a_person_switches", switching::a_person_switches),
        trial(&shared, "endpoints_follow", switching::endpoints_follow),
        trial(&shared, "claims_are_waited_for", claims::are_waited_for),
        trial(&shared, "claims_that_are_replaced_are_not_served", claims::that_are_replaced_are_not_served),
        trial(&shared, "claims_belong_to_the_older_of_two", claims::belong_to_the_older_of_two),
        trial(&shared, "claims_of_two_may_want_one_service", claims::of_two_may_want_one_service),
        trial(&shared, "with_no_valid_server_there_is_no_service", claims::with_no_valid_server_get_no_service),
        trial(&shared, "claims_keep_what_others_wrote", claims::keep_what_others_wrote),
        trial(&shared, "one_that_is_deleted_leaves_nothing", endings::one_that_is_deleted_leaves_nothing),
        trial(&shared, "one_that_retains_leaves_all", endings::one_that_retains_leaves_all_to_the_claim),
        trial(&shared, "one_that_is_suspended_writes_nothing", endings::one_that_is_suspended_writes_nothing),
        trial(&shared, "foreign_slices_stop_ours", foreign::slices_stop_ours),
        trial(&shared, "legacy_endpoints_go_first", foreign::legacy_endpoints_go_before_ours_come),
        trial(&shared, "the_ready_pod_serves", pods::the_ready_one_serves),
        trial(&shared, "only_selected_pods_serve", pods::only_selected_ones_serve),
        trial(&shared, "a_fence_moves_clients_off_the_node", fencing::moves_clients_off_the_node),
        trial(&shared, "a_fence_leaves_nobody_there", fencing::leaves_nobody_where_there_is_no_other),
        trial(&shared, "volumes_of_a_provider_are_published", providers::volumes_are_published),
        trial(&shared, "a_failover_of_a_provider_is_followed", providers::a_failover_is_followed),
        trial(&shared, "a_lost_endpoint_may_change_nothing", providers::a_lost_endpoint_may_change_nothing),
        trial(&shared, "incomplete_volumes_are_ignored", providers::incomplete_volumes_are_ignored_silently),
        trial(&shared, "what_is_deleted_is_taken_back", providers::what_is_deleted_is_taken_back),
        trial(&shared, "a_volume_that_is_gone_keeps_its_address", providers::a_volume_that_is_gone_keeps_its_address),
        trial(&shared, "failures_of_a_provider_are_told_apart", providers::failures_are_told_apart),
        trial(&shared, "nobody_gets_at_the_volume_of_another", providers::nobody_gets_at_the_volume_of_another),
        trial(
            &shared,
            "what_was_discovered_belongs_to_the_namespace",
            providers::what_was_discovered_belongs_to_the_namespace,
        ),
    ];
    if std::env::var_os("BULKHEAD_WIDE").is_some() {
        trials.push(alone("wide::killed_at_every_write_it_converges", restarts::killed_at_every_write_it_converges));
    }
    trials
}

/// A test has a namespace of its name.
fn trial<T>(shared: &Arc<Shared<World>>, name: &str, test: T) -> Trial
where
    T: AsyncFn(&Lane<'_>) -> Result<(), Failed> + Send + 'static,
{
    let (shared, namespace) = (shared.clone(), name.replace('_', "-"));
    Trial::test(format!("shared_volume::{name}"), move || {
        shared.block_on(async {
            let lane = Lane::new(shared.world().await?, &namespace).await?;
            test(&lane).await?;
            lane.judge()
        })
    })
}

/// A test that stops the controller has a cluster of its own.
fn alone<T>(name: &str, test: T) -> Trial
where
    T: AsyncFn() -> Result<(), Failed> + Send + 'static,
{
    Trial::test(format!("shared_volume::{name}"), move || tokio::runtime::Runtime::new()?.block_on(test()))
}
