//! What StorageOS' flags and metrics do.

use std::time::Duration;

use bulkhead_testbed::storageos::Method;
use kube::api::{Patch, PatchParams};
use libtest_mimic::Failed;
use serde_json::json;

use super::lane::Lane;
use super::world::{POLL, eventually};

/// The mean time between two polls, from the second on: the first waits for the login.
async fn pace(lane: &Lane<'_>, since: usize, polls: usize) -> Result<Duration, Failed> {
    lane.polled(polls + 1).await?;
    let asked = lane.server.requests();
    let at: Vec<_> = asked[since..].iter().filter(|it| it.path == "/v2/namespaces").map(|it| it.at).collect();
    let (first, last) = (at[1], at[at.len() - 1]);
    Ok(last.saturating_sub(first) / u32::try_from(at.len() - 2)?)
}

pub async fn the_poll_interval_is_that_of_the_flag(lane: &Lane<'_>) -> Result<(), Failed> {
    lane.provider(json!({})).await?;
    let of_flag = pace(lane, 0, 5).await?;
    // Ten per cent of jitter, and what a loaded machine adds.
    assert!(of_flag >= POLL.mul_f64(0.88) && of_flag < POLL * 2, "{of_flag:?}");
    let spec = json!({ "spec": { "pollInterval": "3s" } });
    lane.providers().patch(&lane.name, &PatchParams::default(), &Patch::Merge(spec)).await?;
    // A new poll begins with a login.
    eventually("another login", async || Ok((lane.server.count(&Method::POST, "/v2/auth/login") == 2).then_some(())))
        .await?;
    let own = pace(lane, lane.server.requests().len(), 2).await?;
    assert!(own >= Duration::from_millis(2640), "its own interval: {own:?}");
    Ok(())
}

pub async fn the_metrics_are_those_of_the_seed(lane: &Lane<'_>) -> Result<(), Failed> {
    lane.provider(json!({})).await?;
    lane.polled(2).await?;
    let text = lane.world.scrape().await?;
    for name in [
        "storageos_api_helper_duration_seconds_count{function=\"list_namespaces\"}",
        "storageos_api_helper_total{function=\"list_shared_volumes\",error=\"\"}",
        "storageos_api_in_flight_requests ",
        "storageos_api_request_duration_seconds_count{method=\"get\"}",
        "storageos_api_requests_total{code=\"200\",method=\"post\"}",
        "storageos_shared_volume_reconcile_duration_seconds_count ",
        "bulkhead_shared_volume_provider_polls_total{error=\"\"}",
        // What alert BulkheadProviderSilent asks, whether or not one ever answered.
        "bulkhead_shared_volume_provider_last_poll_age_seconds ",
        "bulkhead_informer_objects{informer=\"sharedvolumeproviders\"} ",
    ] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
    assert!(!text.contains(&lane.name), "no provider has a series of its own");
    Ok(())
}
