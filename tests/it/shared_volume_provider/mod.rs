//! Providers on a real API server, against the testbed's StorageOS control plane: the shipped program polls, discovers and
//! reports. One API server for all but what stops the controller.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test says what it expects by panicking"
)]

mod client;
mod discovery;
mod faults;
mod flags;
mod hidden;
mod lane;
mod login;
mod modes;
mod restart;
mod silent;
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
        Err(error) => return vec![Trial::test("shared_volume_provider::runtime", move || Err(error.into()))],
    };
    let mut trials = vec![
        alone("restart_tells_nothing_twice", restart::tells_nothing_twice),
        alone("credentials_are_nowhere_to_be_read", hidden::credentials_are_nowhere_to_be_read),
        alone("client::publishes_for_the_version_that_it_read", client::publishes_for_the_version_that_it_read),
        alone("client::renews_a_token_within_the_call", client::renews_a_token_within_the_call),
        alone("client::refreshes_a_token_before_it_ends", client::refreshes_a_token_before_it_ends),
        alone("client::changes_an_endpoint_that_is_silent", client::changes_an_endpoint_that_is_silent),
        alone("client::trusts_whom_it_is_told_to", client::trusts_whom_it_is_told_to),
        alone("client::asks_no_more_at_once_than_it_may", client::asks_no_more_at_once_than_it_may),
        trial(&shared, "writes_one_for_each_volume_once", discovery::writes_one_for_each_volume_once),
        trial(&shared, "is_at_rest_when_nothing_changes", discovery::is_at_rest_when_nothing_changes),
        trial(&shared, "a_name_that_no_service_may_have", discovery::a_name_that_no_service_may_have),
        trial(&shared, "names_and_template", discovery::names_and_template),
        trial(&shared, "a_claim_that_comes_later", discovery::a_claim_that_comes_later),
        trial(&shared, "only_selected_namespaces", discovery::only_selected_namespaces),
        trial(&shared, "adopt_feeds_and_writes_nothing", modes::adopt_feeds_and_writes_nothing),
        trial(&shared, "disabled_lists_nothing", modes::disabled_lists_nothing),
        trial(&shared, "disabled_serves_what_is_named", modes::disabled_serves_what_is_named),
        trial(&shared, "an_expired_token_within_a_poll", faults::an_expired_token_within_a_poll),
        trial(&shared, "a_provider_that_is_down_and_back", faults::a_provider_that_is_down_and_back),
        trial(&shared, "another_endpoint_is_used", faults::another_endpoint_is_used),
        trial(&shared, "wrong_credentials_until_the_secret_is_right", login::wrong_until_the_secret_is_right),
        trial(&shared, "a_missing_secret", login::a_missing_secret),
        trial(&shared, "tls_with_an_authority", login::tls_with_an_authority),
        trial(&shared, "the_poll_interval_is_that_of_the_flag", flags::the_poll_interval_is_that_of_the_flag),
        trial(&shared, "the_metrics_are_those_of_the_seed", flags::the_metrics_are_those_of_the_seed),
    ];
    trials.extend(faults::Failure::ALL.map(|failure| {
        let name = format!("a_namespace_that_fails_holds_up_no_other::{failure:?}");
        trial(&shared, &name, async move |lane: &Lane<'_>| faults::one_namespace(lane, failure).await)
    }));
    trials.extend([502, 503, 504].map(|status| {
        let name = format!("an_endpoint_with_nobody_behind_it::{status}");
        trial(&shared, &name, async move |lane: &Lane<'_>| faults::nobody_behind(lane, status).await)
    }));
    trials.extend(silent::Lack::ALL.map(|lack| {
        let name = format!("a_volume_without_is_ignored_silently::{lack:?}");
        trial(&shared, &name, async move |lane: &Lane<'_>| silent::without(lane, lack).await)
    }));
    trials
}

/// Each test has a control plane, a Secret, a namespace and a provider of its own, all of one name.
fn trial<T>(shared: &Arc<Shared<World>>, name: &str, test: T) -> Trial
where
    T: AsyncFn(&Lane<'_>) -> Result<(), Failed> + Send + 'static,
{
    let (shared, lane) = (shared.clone(), world::lane_name(name));
    Trial::test(format!("shared_volume_provider::{name}"), move || {
        shared.block_on(async {
            let lane = Lane::open(shared.world().await?, &lane).await?;
            let done = test(&lane).await;
            lane.close().await?;
            done
        })
    })
}

/// A test that has, or needs, no cluster of others.
fn alone<T>(name: &str, test: T) -> Trial
where
    T: AsyncFn() -> Result<(), Failed> + Send + 'static,
{
    Trial::test(format!("shared_volume_provider::{name}"), move || tokio::runtime::Runtime::new()?.block_on(test()))
}
