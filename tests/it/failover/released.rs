//! Pods that are kept unless a policy says otherwise, and volumes of every origin.

use bulkhead_testbed::array::Claim;
use bulkhead_testbed::cluster::{Cluster, Workload};
use bulkhead_testbed::ledger::Access;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::Api;
use kube::api::PostParams;
use libtest_mimic::Failed;
use serde_json::json;

use super::fleet::{Lane, LaneOptions, SOON};
use super::kinds::{pod, volume};
use super::look::is_released;

/// `barePods: Delete`: fenced as all are, then deleted; nobody creates it again.
pub async fn a_bare_pod_goes_where_that_is_asked_for(cluster: &Cluster) -> Result<(), Failed> {
    let policy = json!({ "release": { "barePods": "Delete" } });
    let lane = Lane::new(cluster, "barely", LaneOptions { policy, ..LaneOptions::default() }).await?;
    let handle = lane.array().claim(&lane.client(), &Claim::new("default", "barely-bare")).await?;
    cluster.testbed.apply(vec![pod(&lane, "bare", &json!({}), json!({ "volumes": volume("barely-bare") }))?]).await?;
    let api: Api<Pod> = Api::default_namespaced(lane.client());
    let runs = async || {
        let pod = api.get("barely-bare").await?;
        let ready = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        Ok(if ready { Ok(()) } else { Err(format!("{:?}", pod.status)) })
    };
    cluster.wait("the bare pod runs", SOON, runs).await?;
    lane.victim()?.kill().await;
    lane.fence("released", |fence| is_released(fence, "barely-bare")).await?;
    assert!(api.get_opt("barely-bare").await?.is_none());
    assert!(!lane.array().published_nodes(&handle).contains(&lane.victim()?.csi_node_id().to_owned()));
    lane.end().await
}

/// `podsWithoutVolumes: Release`: also on a node that holds nothing else, though such pods are in no cache.
pub async fn a_pod_without_volumes_goes_where_that_is_asked_for(cluster: &Cluster) -> Result<(), Failed> {
    let policy = json!({ "release": { "podsWithoutVolumes": "Release" } });
    let lane = Lane::new(cluster, "stateless", LaneOptions { policy, ..LaneOptions::default() }).await?;
    let set = Workload { volumes: Vec::new(), ..lane.workload("web") };
    lane.run(&set).await?;
    lane.victim()?.kill().await;
    lane.moved(&set).await?;
    let fence = lane.fence("released", |fence| is_released(fence, "stateless-web-0")).await?;
    assert_eq!(fence.spec.plan.volumes, []);
    lane.victim()?.reboot().await?;
    lane.recovered().await?;
    lane.end().await
}

/// The claim of a generic ephemeral volume goes with its pod and comes again with the next; it is cut off as others are.
pub async fn an_ephemeral_volume_is_cut_off_too(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "passing", LaneOptions::default()).await?;
    let size = "1048576";
    for number in 0..2 {
        let name = format!("passing-{number}");
        let handle = lane.array().create_volume(&name, Access::SingleWriter, 1 << 20)?;
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": size }, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "passing",
                "csi": { "driver": lane.array().driver_name(), "volumeHandle": handle },
            },
        }))?;
        Api::all(lane.client()).create(&PostParams::default(), &volume).await?;
    }
    let claim = json!({ "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "passing",
        "resources": { "requests": { "storage": size } },
    } });
    let scratch = json!({ "name": "scratch", "ephemeral": { "volumeClaimTemplate": claim } });
    let set = Workload { more_volumes: vec![scratch], ..lane.workload("db") };
    lane.run(&set).await?;
    lane.victim()?.kill().await;
    lane.moved(&set).await?;
    let fence = lane.detached().await?;
    let planned: Vec<_> = fence.spec.plan.volumes.iter().map(|row| row.name.clone()).collect();
    let scratch = planned.iter().find(|name| name.starts_with("passing-")).ok_or("the volume is not planned")?;
    let row = super::look::volume_row(&fence, scratch).ok_or("no row")?;
    assert_eq!(row.reason.as_deref(), Some("NotPublished"), "{row:?}");
    assert!(planned.contains(&set.volume_name(0, 0)), "{planned:?}");
    lane.end().await
}
