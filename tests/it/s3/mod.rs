//! S3 mounts on a real API server and scheduler: the shipped controller under its shipped rights gives each workload its
//! Mountpoint Pod and takes it back. Kubelet and node service are played. One cluster for all but what stops the controller.
#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test says what it expects by panicking")]

mod attachments;
mod crash;
mod ends;
mod lane;
mod odd;
mod pods;
mod provisioning;
mod replaced;
mod replicas;
mod rights;
mod sharing;
mod sweep;
mod uninstall;
mod volumes;
mod world;

use std::sync::Arc;

use libtest_mimic::{Failed, Trial};

use crate::shared::Shared;

use world::World;

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    let shared = match Shared::<World>::new() {
        Ok(shared) => Arc::new(shared),
        Err(error) => return vec![Trial::test("s3::runtime", move || Err(error.into()))],
    };
    let mut trials = vec![
        alone("killed_at_its_writes_it_converges", crash::killed_at_its_writes_it_converges),
        alone("the_sweep_finds_what_was_missed", sweep::finds_what_was_missed),
        alone("uninstall_releases_what_it_guards", uninstall::releases_what_it_guards_and_changes_nothing_else),
        alone("replicas_that_take_turns_make_no_duplicates", async || {
            replicas::that_take_turns_make_no_duplicates(5).await
        }),
        trial(&shared, "a_forgotten_mountpoint_pod_is_removed", sweep::a_forgotten_mountpoint_pod_is_removed),
    ];
    trials.extend(provisioning::Timing::ALL.map(|timing| {
        let name = format!("every_s3_volume_gets_a_mountpoint_pod::{timing:?}");
        trial(&shared, &name, async move |world: &World| provisioning::every_s3_volume(world, timing).await)
    }));
    trials.extend(replaced::End::ALL.map(|end| {
        let name = format!("a_mountpoint_pod_that_ends_is_replaced::{end:?}");
        trial(&shared, &name, async move |world: &World| replaced::one_that_ends(world, end).await)
    }));
    trials.extend([
        trial(&shared, "one_node_and_group_shares", sharing::one_node_and_group_shares),
        trial(&shared, "changed_options_are_another_mount", sharing::changed_options_are_another_mount),
        trial(&shared, "marked_pods_get_no_new_workload", sharing::marked_pods_get_no_new_workload),
        trial(&shared, "long_and_odd_names_are_served", sharing::long_and_odd_names_are_served),
        trial(&shared, "a_terminating_workload_keeps_its_mount", ends::a_terminating_workload_keeps_its_mount),
        trial(&shared, "one_that_never_started_gets_none", ends::one_that_never_started_gets_none),
        trial(&shared, "finished_workloads_are_removed", ends::finished_workloads_are_removed),
        trial(&shared, "an_unknown_phase_keeps_its_mount", ends::an_unknown_phase_keeps_its_mount),
        trial(&shared, "force_deleted_workloads_are_removed", ends::force_deleted_workloads_are_removed),
        trial(&shared, "never_mounted_is_deleted_without_running", ends::never_mounted_is_deleted_without_running),
        trial(&shared, "volume_and_claim_may_go_first", ends::volume_and_claim_may_go_first),
        trial(&shared, "a_deleted_attachment_is_made_anew", attachments::a_deleted_one_is_made_anew),
        trial(&shared, "upstreams_attachment_is_used", attachments::upstreams_is_used),
        trial(&shared, "duplicates_with_live_pods_merge", attachments::duplicates_with_live_pods_merge),
        trial(&shared, "empty_attachments_are_collected", attachments::empty_ones_are_collected),
        trial(&shared, "odd_attachments_wedge_nothing", odd::attachments_wedge_nothing),
        trial(&shared, "strangers_in_the_namespace_are_left", odd::strangers_in_the_namespace_are_left),
        trial(&shared, "a_mount_of_version_1_is_left", odd::a_mount_of_version_1_is_left),
        trial(&shared, "a_volume_made_anew_shares_nothing", volumes::one_made_anew_shares_nothing),
        trial(&shared, "a_claim_of_another_uid_is_not_bound", volumes::a_claim_of_another_uid_is_not_bound),
        trial(&shared, "what_cannot_be_served_is_told", volumes::what_cannot_be_served_is_told),
        trial(&shared, "ephemeral_claims_are_served", volumes::ephemeral_claims_are_served),
        trial(&shared, "the_mountpoint_pod_is_as_recorded", pods::the_mountpoint_pod_is_as_recorded),
        trial(&shared, "attributes_shape_the_pod", pods::attributes_shape_the_pod),
        trial(&shared, "invalid_attributes_are_told", pods::invalid_attributes_are_told),
        trial(&shared, "a_refusal_is_told_to_the_workload", pods::a_refusal_is_told_to_the_workload),
        trial(&shared, "no_room_is_told_to_the_workload", pods::no_room_is_told_to_the_workload),
        trial(&shared, "status_tells_who_is_served", attachments::status_tells_who_is_served),
        trial(&shared, "the_controllers_rights_are_narrow", rights::the_controllers_rights_are_narrow),
    ]);
    if std::env::var_os("BULKHEAD_WIDE").is_some() {
        trials.push(alone("wide::killed_at_every_write_it_converges", crash::killed_at_every_write_it_converges));
        // A thousand workloads.
        trials.push(alone("wide::replicas_that_take_turns_make_no_duplicates", async || {
            replicas::that_take_turns_make_no_duplicates(25).await
        }));
    }
    trials
}

fn trial<T>(shared: &Arc<Shared<World>>, name: &str, test: T) -> Trial
where
    T: AsyncFn(&World) -> Result<(), Failed> + Send + 'static,
{
    let shared = shared.clone();
    Trial::test(format!("s3::{name}"), move || shared.block_on(async { test(shared.world().await?).await }))
}

/// A test that stops the controller has a cluster of its own.
fn alone<T>(name: &str, test: T) -> Trial
where
    T: AsyncFn() -> Result<(), Failed> + Send + 'static,
{
    Trial::test(format!("s3::{name}"), move || tokio::runtime::Runtime::new()?.block_on(test()))
}
