//! Every kind of volume: what can be cut off moves, what cannot waits by name.

use bulkhead::api::node_fence::PodStatusState;
use bulkhead_testbed::array::Method;
use bulkhead_testbed::cluster::{Cluster, Workload};
use bulkhead_testbed::ledger::{Access, Stamp};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::PostParams;
use libtest_mimic::Failed;
use serde_json::json;

use super::fleet::{Lane, LaneOptions};
use super::look::{pod_row, volume_row};

/// One pod per kind on the dead node: each moves with a proof of its own. `attachRequired: false`, inline and hostPath
/// volumes: see `pods_that_no_proof_can_move_wait_by_name`.
pub async fn every_kind_of_volume_that_attaches_moves(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "kinds", LaneOptions::default()).await?;
    let [victim, spare] = lane.nodes.as_slice() else { return Err("two nodes".into()) };
    let sets = [
        lane.workload("rwo"),
        Workload { one_pod: true, ..lane.workload("rwop") },
        Workload { access: Access::MultiWriter, ..lane.workload("rwx") },
        Workload { access: Access::ReadOnly, ..lane.workload("rox") },
        Workload { block: true, ..lane.workload("block") },
        Workload { block: true, access: Access::MultiWriter, ..lane.workload("blockrwx") },
    ];
    for set in &sets {
        cluster.stateful_set_on(&[lane.array()], set).await?;
    }
    for set in &sets {
        lane.ready_on(set, &[victim.name()]).await?;
    }
    // Another node shares the RWX volume: only the dead one is cut off.
    let [_, _, rwx, ..] = &sets;
    let claim = json!({ "name": "data", "persistentVolumeClaim": { "claimName": rwx.claim_name(0, 0) } });
    let sharer = Workload {
        volumes: Vec::new(),
        more_volumes: vec![claim],
        nodes: vec![spare.name().into()],
        node: None,
        ..lane.workload("sharer")
    };
    cluster.stateful_set_on(&[], &sharer).await?;
    lane.ready_on(&sharer, &[spare.name()]).await?;
    let sharers = lane.pod(&sharer, 0).await?.metadata.uid;
    let from = lane.array().ledger().now();
    victim.kill().await;
    for set in &sets {
        lane.moved(set).await?;
    }
    let fence = lane.detached().await?;
    for set in &sets {
        let row = volume_row(&fence, &set.volume_name(0, 0)).ok_or("no row")?;
        assert_eq!(row.reason.as_deref(), Some("NotPublished"), "{}", set.name);
        assert_eq!(pod_row(&fence, &format!("{}-0", set.name)).map(|row| row.state), Some(PodStatusState::Released));
        assert!(
            !lane.array().published_nodes(&set.handle(0, 0)).contains(&victim.csi_node_id().into()),
            "{}",
            set.name
        );
    }
    assert_eq!(lane.pod(&sharer, 0).await?.metadata.uid, sharers, "the other user of the volume was touched");
    let ledger = lane.array().ledger();
    let handle = rwx.handle(0, 0);
    assert!(ledger.writes(&handle, spare.csi_node_id(), from) > 0, "the other user cannot write");
    assert!(ledger.refused_writes(&handle, victim.csi_node_id(), Stamp::START) > 0, "the zombie was never refused");
    lane.end().await
}

/// A `local` PersistentVolume is on the node's own disk.
pub async fn a_pod_with_a_local_volume_waits(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "local", LaneOptions::default()).await?;
    let victim = lane.victim()?;
    let terms = json!([{ "matchExpressions":
        [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [victim.name()] }] }]);
    let size = json!({ "storage": "1Gi" });
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": { "name": "local-disk" },
        "spec": {
            "capacity": size, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": { "namespace": "default", "name": "local-disk" },
            "local": { "path": "/mnt/disk" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": terms } },
        },
    }))?;
    Api::all(lane.client()).create(&PostParams::default(), &volume).await?;
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": { "name": "local-disk" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "local-disk",
            "resources": { "requests": size },
        },
    }))?;
    Api::default_namespaced(lane.client()).create(&PostParams::default(), &claim).await?;
    let disk = json!({ "name": "disk", "persistentVolumeClaim": { "claimName": "local-disk" } });
    let set = Workload { more_volumes: vec![disk], ..lane.workload("db") };
    lane.run(&set).await?;
    let before = lane.before(&set).await?;
    victim.kill().await;
    let pod = format!("{}-0", set.name);
    let waits = |fence: &bulkhead::api::node_fence::NodeFence| {
        pod_row(fence, &pod).is_some_and(|row| row.reason.as_deref() == Some("LocalVolume"))
    };
    lane.fence("the pod waits", waits).await?;
    lane.event("FenceHeld", "local-disk lives on the node and cannot move").await?;
    lane.assert_untouched(&set, &before).await?;
    assert_eq!(lane.array().calls().count(Method::ControllerUnpublishVolume), 0, "it was cut off for nothing");
    victim.revive().await?;
    lane.ready_on(&set, &[victim.name()]).await?;
    lane.recovered().await?;
    lane.assert_untouched(&set, &before).await?;
    lane.end().await
}
