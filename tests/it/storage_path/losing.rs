//! One node loses the path to one of its arrays.

use bulkhead::api::driver_report::PathState;
use bulkhead::api::fence_request::FenceOutcome;
use bulkhead::api::node_fence::{Channel, PodAction};
use bulkhead::api::resiliency_policy::StorageEvidence;
use bulkhead_testbed::array::{ArrayOptions, Effect, Fault, Link, Method};
use bulkhead_testbed::cluster::{Cluster, Workload};
use libtest_mimic::Failed;
use serde_json::json;

use crate::failover::fleet::{Lane, LaneOptions};
use crate::failover::kept::Kept;
use crate::failover::look::{answer, event, is_released, pod_row};
use crate::failover::volume_taints::agent_finds_nothing;

use super::lane::{asking, path_of, questions};

pub async fn only_its_pods_move_and_the_taint_stays_until_the_path_is_proved_back(
    cluster: &Cluster,
) -> Result<(), Failed> {
    let options = ArrayOptions { driver_name: "lostpath-other.csi.test".into(), ..ArrayOptions::default() };
    let other = cluster.add_array(&options).await?;
    let _sidecar = Kept::new(cluster.sidecar(&other.array)?);
    let options = LaneOptions { policy: asking(&json!({})), ..LaneOptions::default() };
    let lane = Lane::new(cluster, "lostpath", options).await?;
    let db = lane.workload("db");
    lane.run(&db).await?;
    // On the same node, protected by the same policy, with its volume on the other array.
    let web = Workload { volumes: vec![1], ..lane.workload("web") };
    lane.run_on(&[lane.array(), &other.array], &web).await?;
    let before = lane.before(&web).await?;
    lane.asks_about(1).await?;
    lane.storage_evidence(StorageEvidence::Supported).await?;
    let victim = lane.victim()?.clone();

    lane.path(&victim, Link::Refuse);
    lane.moved(&db).await?;
    event(cluster, "DriverReport", lane.array().driver_name(), "PathLost", victim.name()).await?;
    event(cluster, "Node", victim.name(), "PathLost", lane.array().driver_name()).await?;
    let pod = format!("{}-0", db.name);
    let fence = lane.fence("released", |fence| is_released(fence, &pod)).await?;
    assert_eq!(pod_row(&fence, &pod).and_then(|row| row.reason.as_deref()), Some("StoragePathLoss"));
    let planned: Vec<_> = fence.spec.plan.pods.iter().map(|row| (row.name.as_str(), row.action)).collect();
    assert_eq!(planned, [(pod.as_str(), PodAction::Release)]);
    let evidence: Vec<_> = fence.spec.plan.evidence.iter().map(|it| (it.channel, it.backend.as_deref())).collect();
    assert_eq!(evidence, [(Channel::Storage, Some(lane.array().driver_name()))]);

    // It is clean, and the array is asked on: no pod is to land there while it does not reach its storage.
    agent_finds_nothing(cluster, &fence).await?;
    lane.asked_again(&victim, 4).await?;
    assert!(lane.is_tainted().await?, "the taint went before the path was back");
    assert_eq!(
        path_of(&lane.reported("lost", |it| !it.unreachable.is_empty()).await?, &victim),
        Some(PathState::Disconnected)
    );
    let asked = questions(lane.array(), &victim).len();
    lane.path(&victim, Link::Up);
    lane.recovered().await?;
    let since = questions(lane.array(), &victim).len() - asked;
    assert!(since >= 3, "{since} answers gave the node back");
    event(cluster, "DriverReport", lane.array().driver_name(), "PathRestored", victim.name()).await?;

    assert_eq!(lane.pod(&web, 0).await?.metadata.uid, before.uid, "another pod of the node was moved");
    let deleted = lane.deletions(&[])?;
    let deleted: std::collections::BTreeSet<_> = deleted.iter().map(|record| record.name.as_str()).collect();
    assert_eq!(deleted.into_iter().collect::<Vec<_>>(), [pod.as_str()]);
    let next = Workload { nodes: vec![victim.name().to_owned()], ..lane.workload("next") };
    lane.run(&next).await?;
    lane.end().await
}

pub async fn a_sidecar_that_is_killed_in_the_middle_is_replaced(cluster: &Cluster) -> Result<(), Failed> {
    let options = LaneOptions { sidecar: false, policy: asking(&json!({})), ..LaneOptions::default() };
    let (lane, db, _) = Lane::open(cluster, "middle", options).await?;
    let first = cluster.sidecar(lane.array())?;
    lane.asks_about(1).await?;
    let victim = lane.victim()?.clone();
    let fault = lane.array().faults().add(Fault::on(Method::ControllerUnpublishVolume, Effect::Hang));
    lane.path(&victim, Link::Refuse);
    let volume = db.volume_name(0, 0);
    lane.begun(&volume).await?;
    first.kill().await;
    let _second = Kept::new(cluster.sidecar(lane.array())?);
    lane.array().faults().remove(fault);
    lane.moved(&db).await?;
    lane.request("proved", |request| answer(request, &volume).is_some_and(|row| row.result == FenceOutcome::Fenced))
        .await?;
    let pod = format!("{}-0", db.name);
    let fence = lane.fence("released", |fence| is_released(fence, &pod)).await?;
    // What the first had reported is neither forgotten nor believed: it is asked anew.
    lane.reported("lost again", |it| path_of(it, &victim) == Some(PathState::Disconnected)).await?;
    agent_finds_nothing(cluster, &fence).await?;
    assert!(lane.is_tainted().await?, "the taint went before the path was back");
    lane.path(&victim, Link::Up);
    lane.recovered().await?;
    lane.end().await
}
