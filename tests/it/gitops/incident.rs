//! A node dies, its pod moves, and Argo CD has nothing to say.

use bulkhead::api::names;
use bulkhead_testbed::Testbed;
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::Outcome;
use super::argo_cd::{self, Synced};
use super::managers;
use super::world::World;
use crate::api::objects::{changed, one};
use crate::api::world::root;
use crate::failover::fleet::{Lane, LaneOptions};
use crate::failover::look::phase;

/// Argo CD syncs these objects and the policy of the node that dies, once. Then nothing is ever out of sync.
pub async fn is_no_drift(world: &World, objects: &[Value]) -> Outcome {
    let testbed = world.testbed();
    let (lane, set, _) = Lane::open(&world.cluster, "gitops-drift", LaneOptions::default()).await?;
    let folder = tempfile::tempdir()?;
    let git = [objects, &[policy(&lane.name)?]].concat();
    let synced = argo_cd::sync(testbed, folder.path(), &git).await?;
    in_sync(testbed, &synced, "before the node dies").await?;
    lane.victim()?.kill().await;
    lane.fence("begun", |fence| phase(fence).is_some()).await?;
    in_sync(testbed, &synced, "while its pod moves").await?;
    lane.detached().await?;
    lane.moved(&set).await?;
    let is_fenced = lane.taints().await?.iter().any(|taint| taint.key == names::FENCED_TAINT);
    assert!(is_fenced, "the incident is not over, its node has the taint");
    in_sync(testbed, &synced, "when its pod has moved").await?;
    managers::whom_the_server_saw_is_documented(testbed, &["bulkhead-controller", "bulkhead-csi-sidecar"]).await?;
    lane.end().await
}

/// A sample as a team has it in git, for the pods of a lane. It names no limits: those stay whose they are, as they are.
fn policy(lane: &str) -> Result<Value, Failed> {
    let sample = one(&root().join("config/samples/resiliencypolicy-first.yaml"))?;
    changed(&sample, lane, &vec![("/spec/selector/podSelector/matchLabels", json!({"lane": lane}))])
}

async fn in_sync(testbed: &Testbed, synced: &Synced, when: &str) -> Outcome {
    let drift = synced.drift(testbed).await?;
    if drift.is_empty() { Ok(()) } else { Err(format!("Argo CD would call out of sync {when}: {drift:#?}").into()) }
}
