//! How the array is asked, and what its silence is worth.

use bulkhead::api::driver_report::{Capability, PathState};
use bulkhead::api::resiliency_policy::StorageEvidence;
use bulkhead_testbed::array::{ArrayOptions, Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, Workload};
use libtest_mimic::Failed;
use serde_json::json;
use tonic::Code;

use crate::failover::fleet::{Lane, LaneOptions};

use super::lane::{PERIOD, asking, path_of, questions};

pub async fn errors_and_silence_move_nobody(cluster: &Cluster) -> Result<(), Failed> {
    let options = LaneOptions { nodes: 3, policy: asking(&json!({})), ..LaneOptions::default() };
    let lane = Lane::new(cluster, "noanswer", options).await?;
    let mut sets = Vec::new();
    for (number, node) in lane.nodes.iter().take(2).enumerate() {
        let set = Workload { node: Some(node.name().to_owned()), ..lane.workload(&format!("db{number}")) };
        cluster.stateful_set_on(&[lane.array()], &set).await?;
        lane.ready_on(&set, &[node.name()]).await?;
        let before = lane.before(&set).await?;
        sets.push((set, before));
    }
    lane.asks_about(2).await?;
    let faulty = |effect, node: &str| {
        lane.array().faults().add(Fault::on(Method::ValidateVolumeHostConnectivity, effect).node(node))
    };
    let errs = faulty(Effect::Fail(Code::Internal), lane.nodes[0].csi_node_id());
    let hangs = faulty(Effect::Hang, lane.nodes[1].csi_node_id());
    let unknown = |it: &bulkhead::api::driver_report::DriverReportStatus| {
        lane.nodes.iter().take(2).all(|node| path_of(it, node) == Some(PathState::Unknown))
    };
    lane.reported("nobody can tell", unknown).await?;
    lane.assert_no_incident().await?;
    lane.array().faults().remove(errs);
    lane.array().faults().remove(hangs);
    lane.reported("answers again", |it| it.unreachable.is_empty()).await?;
    lane.assert_no_incident().await?;
    for (set, before) in &sets {
        assert_eq!(lane.pod(set, 0).await?.metadata.uid, before.uid, "{} is another pod", set.name);
    }
    assert_eq!(lane.deletions(&[])?, []);
    lane.end().await
}

pub async fn a_hundred_pods_on_an_erring_node_are_one_question_per_cycle(cluster: &Cluster) -> Result<(), Failed> {
    let policy = json!({ "detection": { "storage": { "period": "2s" } } });
    let lane = Lane::new(cluster, "hundred", LaneOptions { policy, ..LaneOptions::default() }).await?;
    let victim = lane.victim()?.clone();
    let set = Workload { replicas: 100, nodes: vec![victim.name().to_owned()], ..lane.workload("db") };
    lane.run(&set).await?;
    lane.array().faults().add(
        Fault::on(Method::ValidateVolumeHostConnectivity, Effect::Fail(Code::Internal)).node(victim.csi_node_id()),
    );
    let before = questions(lane.array(), &victim).len();
    lane.asked_again(&victim, 6).await?;
    let asked = questions(lane.array(), &victim);
    let gaps = asked[before..].windows(2).map(|pair| pair[1].at.since(pair[0].at));
    // Two seconds, less what is left to chance.
    let shortest = gaps.min().ok_or("too few questions")?;
    assert!(shortest >= 2 * PERIOD * 8 / 10, "asked twice within {shortest:?}");
    lane.assert_no_incident().await?;
    lane.end().await
}

pub async fn a_driver_without_the_extension_is_told_and_all_else_works(cluster: &Cluster) -> Result<(), Failed> {
    let array = ArrayOptions { has_podmon: false, ..ArrayOptions::default() };
    let options = LaneOptions { array, policy: asking(&json!({})), ..LaneOptions::default() };
    let (lane, db, _) = Lane::open(cluster, "plain", options).await?;
    let status = lane.reported("able", |it| it.capabilities.contains(&Capability::Unpublish)).await?;
    assert!(!status.capabilities.contains(&Capability::Connectivity) && status.backends.is_empty(), "{status:?}");
    lane.storage_evidence(StorageEvidence::Unsupported).await?;
    lane.victim()?.kill().await;
    lane.moved(&db).await?;
    lane.end().await
}
