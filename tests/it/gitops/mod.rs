//! What a GitOps tool sees: nothing drifts, every field has one owner, and the status of our objects is what its rules say.
#![allow(clippy::indexing_slicing, reason = "a test says what it expects by panicking")]

mod again;
mod argo_cd;
mod flux;
mod incident;
mod kstatus;
mod managers;
mod world;

use std::sync::Arc;

use libtest_mimic::{Failed, Trial};

use crate::shared::Shared;

use world::World;

/// Why a test failed.
type Outcome = Result<(), Failed>;

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    let shared = match Shared::<World>::new() {
        Ok(shared) => Arc::new(shared),
        Err(error) => return vec![Trial::test("gitops::runtime", move || Err(error.into()))],
    };
    let alone = shared.clone();
    let wide = std::env::var_os("BULKHEAD_WIDE").is_some();
    vec![
        trial(
            &shared,
            "applying_everything_again_changes_nothing_in_a_failover_too",
            again::applying_everything_again_changes_nothing_in_a_failover_too,
        ),
        trial(&shared, "applying_the_chart_again_changes_nothing", again::applying_the_chart_again_changes_nothing),
        trial(
            &shared,
            "kstatus_and_argo_cd_read_our_conditions_as_we_mean_them",
            kstatus::and_argo_cd_read_our_conditions_as_we_mean_them,
        ),
        Trial::test("gitops::flux_brings_objects_to_ready_and_a_failover_is_no_drift", move || {
            alone.block_on(flux::objects_from_git_reach_ready_and_a_failover_is_no_drift())
        })
        // Flux takes nine minutes of a processor to build.
        .with_ignored_flag(!wide),
        Trial::test("gitops::every_field_manager_is_documented", managers::every_field_manager_is_documented),
        Trial::test(
            "gitops::every_documented_field_manager_is_there",
            managers::every_documented_field_manager_is_there,
        ),
    ]
}

fn trial<T>(shared: &Arc<Shared<World>>, name: &str, test: T) -> Trial
where
    T: AsyncFn(&World) -> Outcome + Send + 'static,
{
    let shared = shared.clone();
    Trial::test(format!("gitops::{name}"), move || shared.block_on(async { test(shared.world().await?).await }))
}
