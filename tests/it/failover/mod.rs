//! One node dies: from the taint to the running replacement, on the real control plane, with our real programs.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead::api::node_fence::{Phase, PodStatusState, VolumeStatusState};
use bulkhead_testbed::cluster::{Cluster, ClusterError, ClusterOptions, Workload};
use bulkhead_testbed::ledger::Stamp;
use libtest_mimic::{Failed, Trial};

/// Long enough for a loaded machine; nothing waits this long when it works.
const SOON: Duration = Duration::from_secs(60);

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    vec![trial("a_pod_moves_from_a_dead_node", a_pod_moves_from_a_dead_node)]
}

fn trial<F>(name: &'static str, test: fn() -> F) -> Trial
where
    F: Future<Output = Result<(), Failed>> + 'static,
{
    Trial::test(format!("failover::{name}"), move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(test())
    })
}

/// The options with the programs that cargo built for this test.
fn options() -> ClusterOptions {
    let controller = PathBuf::from(env!("CARGO_BIN_EXE_bulkhead-controller"));
    ClusterOptions { programs: controller.parent().map(PathBuf::from), ..ClusterOptions::default() }
}

async fn first_policy(cluster: &Cluster) -> Result<(), ClusterError> {
    let sample = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("config/samples/resiliencypolicy-first.yaml");
    Ok(cluster.testbed.apply_file(&sample).await?)
}

async fn a_pod_moves_from_a_dead_node() -> Result<(), Failed> {
    let cluster = Cluster::start(options()).await?;
    first_policy(&cluster).await?;
    let set = Workload::new("db");
    cluster.stateful_set(&set).await?;
    let placed = cluster.pods_ready(&set, SOON).await?;
    let from = placed.get("db-0").ok_or("db-0 is nowhere")?.clone();
    let node = cluster.node(&from)?;
    let array = cluster.arrays.first().ok_or("no array")?;
    let ledger = array.ledger();
    let killed = ledger.now();
    node.kill().await;
    let fence = cluster
        .fence(&from, "all pods released", SOON, |fence| {
            fence.status.as_ref().is_some_and(|status| {
                status.pods.iter().all(|row| row.state == PodStatusState::Released)
                    && matches!(status.phase, Some(Phase::PodsReleased | Phase::Detached))
            })
        })
        .await;
    let fence = match fence {
        Ok(fence) => fence,
        Err(error) => {
            for process in cluster.controllers.iter().chain(cluster.sidecars.values()) {
                eprintln!("{}", process.log_tail());
            }
            return Err(error.into());
        }
    };
    let status = fence.status.ok_or("no status")?;
    assert!(status.volumes.iter().all(|row| matches!(row.state, VolumeStatusState::Fenced | VolumeStatusState::Detached)));
    let placed = cluster.pods_ready(&set, SOON).await?;
    let to = placed.get("db-0").ok_or("db-0 is nowhere")?;
    assert_ne!(*to, from, "the replacement runs on the dead node");
    let volume = ledger.entries().first().map(|entry| entry.volume.to_string()).ok_or("no entry")?;
    assert!(ledger.refused_writes(&volume, node.csi_node_id(), Stamp::START) > 0, "the zombie was never refused");
    assert!(ledger.writes(&volume, node.csi_node_id(), killed) > 0, "the zombie did not go on writing");
    cluster.judge()?;
    eprintln!("{}", serde_json::to_string_pretty(&status)?);
    Ok(())
}
