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
/// What the driver wants to be told.
const TOKEN: &str = "open sesame";

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
    let array = ArrayOptions { required_secret: Some(("token".into(), TOKEN.into())), ..ArrayOptions::default() };
    let lane = Lane::new(cluster, "secret", LaneOptions { array, ..LaneOptions::default() }).await?;
    let secret: Secret = serde_json::from_value(json!({
        "metadata": { "name": "array", "namespace": SECRETS },
        "stringData": { "token": TOKEN },
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
    nobody_tells_it(cluster).await?;
    lane.end().await
}

/// Neither a log, at the most that our programs say, nor an object shows the Secret's value.
async fn nobody_tells_it(cluster: &Cluster) -> Result<(), Failed> {
    let mut logs = 0;
    for entry in std::fs::read_dir(cluster.testbed.folder())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("bulkhead-") && name.ends_with(".log") {
            let log = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            logs += usize::from(log.contains("DEBUG"));
            assert!(!log.contains(TOKEN), "{name} shows the Secret");
        }
    }
    assert!(logs >= 2, "the logs of a controller and a sidecar");
    for kind in ["nodefences,fencerequests,driverreports,nodevolumereports,volumeattachments", "events.events.k8s.io"] {
        let objects = cluster.testbed.kubectl(&["get", kind, "-A", "-o", "json"]).await?;
        assert!(!objects.contains(TOKEN), "a status or an Event shows the Secret");
    }
    Ok(())
}
