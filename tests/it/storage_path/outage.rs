//! An array is out for everyone.

use bulkhead::api::driver_report::{BackendState, PathState};
use bulkhead::api::names;
use bulkhead_testbed::array::{Effect, Fault, Link, Method};
use bulkhead_testbed::cluster::{Cluster, Workload};
use libtest_mimic::Failed;
use serde_json::json;
use tonic::Code;

use crate::failover::brakes::policy_says;
use crate::failover::fleet::{Lane, LaneOptions};
use crate::failover::look::{event, operator_records};

use super::lane::asking;

/// All nodes lose the path at once; then nobody is told anything; and each time it is over by itself.
pub async fn an_array_that_is_out_for_all_moves_nobody_and_recovers_by_itself(cluster: &Cluster) -> Result<(), Failed> {
    let options = LaneOptions { nodes: 4, policy: asking(&json!({})), ..LaneOptions::default() };
    let lane = Lane::new(cluster, "arrayout", options).await?;
    let driver = lane.array().driver_name().to_owned();
    let mut sets = Vec::new();
    for (number, node) in lane.nodes.iter().take(3).enumerate() {
        let set = Workload { node: Some(node.name().to_owned()), ..lane.workload(&format!("db{number}")) };
        cluster.stateful_set_on(&[lane.array()], &set).await?;
        lane.ready_on(&set, &[node.name()]).await?;
        let before = lane.before(&set).await?;
        sets.push((set, before));
    }
    lane.asks_about(3).await?;

    lane.nodes.iter().for_each(|node| lane.path(node, Link::Refuse));
    let all_lost = |it: &bulkhead::api::driver_report::DriverReportStatus| {
        it.unreachable.iter().filter(|pair| pair.state == PathState::Disconnected).count() == 3
    };
    lane.reported("all are lost", all_lost).await?;
    policy_says(cluster, "arrayout", "Restrained", "True", "ArrayOutage").await?;
    event(cluster, "Node", lane.victim()?.name(), "FenceHeld", "ArrayOutage").await?;
    lane.nodes.iter().for_each(|node| lane.path(node, Link::Up));
    lane.reported("all are back", |it| it.unreachable.is_empty()).await?;
    policy_says(cluster, "arrayout", "Restrained", "False", "Unrestrained").await?;

    let fault =
        lane.array().faults().add(Fault::on(Method::ValidateVolumeHostConnectivity, Effect::Fail(Code::Unavailable)));
    lane.reported("silent", |it| it.backends.iter().any(|known| known.state == BackendState::Silent)).await?;
    event(cluster, "DriverReport", &driver, "BackendSilent", &driver).await?;
    policy_says(cluster, "arrayout", "Restrained", "True", "ArrayOutage").await?;
    lane.array().faults().remove(fault);
    event(cluster, "DriverReport", &driver, "BackendAnswering", &driver).await?;
    policy_says(cluster, "arrayout", "Restrained", "False", "Unrestrained").await?;

    lane.assert_no_incident().await?;
    for (set, before) in &sets {
        assert_eq!(lane.pod(set, 0).await?.metadata.uid, before.uid, "{} is another pod", set.name);
    }
    assert_eq!(lane.deletions(&[])?, [], "something was deleted");
    let nodes: Vec<_> = lane.nodes.iter().map(|node| node.name().to_owned()).collect();
    let tainted = operator_records(cluster, |record| {
        record.resource == "nodes" && nodes.contains(&record.name) && record.is_write()
    })?;
    assert_eq!(tainted, [], "a node was written to ({})", names::FENCED_TAINT);
    lane.end().await
}
