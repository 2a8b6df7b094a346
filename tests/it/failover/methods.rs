//! Method Detach for drivers without a sidecar, and the secrets that some drivers want.

use bulkhead::api::fencing::{FenceMethodType, Proof};
use bulkhead_testbed::array::{ArrayOptions, SecretRef};
use bulkhead_testbed::cluster::{Cluster, Workload};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use libtest_mimic::Failed;
use serde_json::json;

use super::fleet::{Lane, LaneOptions};
use super::look::volume_row;

/// Where the shipped example of a fencer may read Secrets.
const SECRETS: &str = "csi-test";

pub async fn without_a_sidecar_the_attacher_can_acknowledge(cluster: &Cluster) -> Result<(), Failed> {
    let policy = json!({ "fencing": { "minimumProof": "Acknowledged", "methods": [{ "type": "Detach" }] } });
    let lane = Lane::new(cluster, "detach", LaneOptions { sidecar: false, policy, ..LaneOptions::default() }).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let attachments = lane.attachments().await?;
    lane.victim()?.kill().await;
    lane.moved(&set).await?;
    let fence = lane.detached().await?;
    let row = volume_row(&fence, &set.volume_name(0, 0)).ok_or("no row")?;
    assert_eq!((row.method, row.proof), (Some(FenceMethodType::Detach), Proof::Acknowledged));
    let deleted = lane.deletions(&attachments)?;
    let detached = deleted.iter().filter(|record| record.resource == "volumeattachments");
    let released = deleted.iter().filter(|record| record.resource == "pods");
    let detached_at = detached.map(|record| record.finished).max().ok_or("nothing was detached")?;
    let released_at = released.map(|record| record.received).min().ok_or("nothing was released")?;
    assert!(detached_at <= released_at, "released before the detach");
    lane.end().await
}

pub async fn the_fence_brings_the_secret_of_its_volume(cluster: &Cluster) -> Result<(), Failed> {
    let array =
        ArrayOptions { required_secret: Some(("token".into(), "open sesame".into())), ..ArrayOptions::default() };
    let lane = Lane::new(cluster, "secret", LaneOptions { array, ..LaneOptions::default() }).await?;
    let secret: Secret = serde_json::from_value(json!({
        "metadata": { "name": "array", "namespace": SECRETS },
        "stringData": { "token": "open sesame" },
    }))?;
    Api::namespaced(lane.client(), SECRETS).create(&PostParams::default(), &secret).await?;
    let secret = SecretRef { namespace: SECRETS.into(), name: "array".into() };
    let set = Workload { secret: Some(secret), ..lane.workload("db") };
    lane.run(&set).await?;
    lane.victim()?.kill().await;
    lane.moved(&set).await?;
    let fence = lane.detached().await?;
    let row = volume_row(&fence, &set.volume_name(0, 0)).ok_or("no row")?;
    assert_eq!((row.method, row.proof), (Some(FenceMethodType::Unpublish), Proof::Verified));
    lane.end().await
}
