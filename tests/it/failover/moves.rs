//! The plain case: a node dies, its pod runs elsewhere, and the old writer is refused.

use bulkhead::api::node_fence::VolumeStatusState;
use bulkhead_testbed::cluster::Cluster;
use bulkhead_testbed::ledger::Stamp;
use libtest_mimic::Failed;

use super::fleet::{Lane, LaneOptions};
use super::look::is_released;

pub async fn a_pod_moves_from_a_dead_node(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "plain", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let ledger = lane.array().ledger().clone();
    let killed = ledger.now();
    lane.victim()?.kill().await;
    lane.moved(&set).await?;
    let fence = lane.detached().await?;
    assert!(is_released(&fence, &format!("{}-0", set.name)));
    let status = fence.status.ok_or("no status")?;
    assert!(status.volumes.iter().all(|row| row.state == VolumeStatusState::Detached), "{:?}", status.volumes);
    let (volume, node) = (set.handle(0, 0), lane.victim()?.csi_node_id().to_owned());
    assert!(ledger.refused_writes(&volume, &node, Stamp::START) > 0, "the zombie was never refused");
    assert!(ledger.writes(&volume, &node, killed) > 0, "the zombie did not go on writing");
    lane.end().await
}
