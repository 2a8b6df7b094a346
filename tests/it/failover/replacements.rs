//! A replacement that comes back to the dead node, because its template says so or because it tolerates everything: no
//! attachment lets it in. It never starts there, so it is no further victim, and it runs there when the node is clean. One
//! that a scheduler bound there before it heard of the taint is released again.

use std::time::Duration;

use bulkhead::api::node_fence::PodAction;
use bulkhead_testbed::AttacherOptions;
use bulkhead_testbed::cluster::{Cluster, Workload};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::fleet::{Lane, LaneOptions, SOON, attacher};

pub async fn a_replacement_with_a_node_name_is_not_let_in(cluster: &Cluster) -> Result<(), Failed> {
    comes_back(cluster, "nodename", |victim| json!({ "spec": { "nodeName": victim } })).await
}

pub async fn a_replacement_that_tolerates_everything_is_not_let_in(cluster: &Cluster) -> Result<(), Failed> {
    comes_back(cluster, "tolerant", |_| json!({ "spec": { "tolerations": [{ "operator": "Exists" }] } })).await
}

/// As after an outage of the API server, when the scheduler's watch of nodes comes back later than that of pods.
pub async fn a_replacement_that_was_bound_before_the_taint_was_heard_of_moves_on(
    cluster: &Cluster,
) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "unheard", LaneOptions::default()).await?;
    let victim = lane.victim()?;
    // The scheduler that does not hear is this test.
    let set = Workload { template: json!({ "spec": { "schedulerName": "unheard" } }), ..lane.workload("db") };
    cluster.stateful_set_on(&[lane.array()], &set).await?;
    let first = bind(&lane, &set, victim.name(), &[]).await?;
    lane.ready_on(&set, &[victim.name()]).await?;
    victim.kill().await;
    let second = bind(&lane, &set, victim.name(), std::slice::from_ref(&first)).await?;
    let elsewhere = lane.nodes.get(1).ok_or("the lane has one node")?.name();
    bind(&lane, &set, elsewhere, &[first, second]).await?;
    lane.moved(&set).await?;
    let fence = lane.detached().await?;
    let rows: Vec<_> = fence.spec.plan.pods.iter().map(|row| row.action).collect();
    assert_eq!(rows, [PodAction::Release; 2], "{:?}", fence.spec.plan.pods);
    lane.end().await
}

/// Binds the workload's pod once it is none of these, and returns its uid.
async fn bind(lane: &Lane<'_>, set: &Workload, node: &str, others: &[String]) -> Result<String, Failed> {
    let api: Api<Pod> = Api::default_namespaced(lane.client());
    let name = format!("{}-0", set.name);
    let look = async || {
        let uid = api.get_opt(&name).await?.as_ref().and_then(ResourceExt::uid);
        Ok(uid.filter(|uid| !others.contains(uid)).ok_or_else(|| "no other pod".to_owned()))
    };
    let uid = lane.cluster.wait("there is another pod", SOON, look).await?;
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name, "uid": uid },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    api.create_subresource::<_, Value>("binding", &name, &PostParams::default(), &binding).await?;
    Ok(uid)
}

async fn comes_back(cluster: &Cluster, name: &str, template: impl Fn(&str) -> Value) -> Result<(), Failed> {
    // The attachment stays while such a pod is there: it is the attacher's re-sync that gives the access back.
    let attacher = AttacherOptions { reconcile_sync: Duration::from_secs(2), ..attacher() };
    let lane = Lane::new(cluster, name, LaneOptions { attacher, ..LaneOptions::default() }).await?;
    let victim = lane.victim()?;
    let set = Workload { template: template(victim.name()), ..lane.workload("db") };
    lane.run(&set).await?;
    let before = lane.before(&set).await?;
    victim.kill().await;
    let second = is_back(&lane, &set, std::slice::from_ref(&before.uid)).await?;
    // It holds nothing: the attachment of what was released goes, and the attacher can give no access back.
    let fence = lane.detached().await?;
    assert_eq!(lane.attachments().await?, [""; 0], "an attachment stayed or came in");
    let released = lane.deletions(&[])?.iter().filter(|record| record.succeeded()).count();
    assert_eq!((released, fence.spec.plan.pods.len()), (1, 1), "released again: {:?}", fence.spec.plan.pods);
    assert_eq!(lane.pod(&set, 0).await?.uid(), second);
    victim.reboot().await?;
    lane.recovered().await?;
    lane.ready_on(&set, &[victim.name()]).await?;
    lane.end().await
}

/// Waits until the workload's pod is bound to the victim and none of these, and returns its uid.
async fn is_back(lane: &Lane<'_>, set: &Workload, others: &[Option<String>]) -> Result<Option<String>, Failed> {
    let api: Api<Pod> = Api::default_namespaced(lane.client());
    let name = format!("{}-0", set.name);
    let victim = lane.victim()?.name();
    let look = async || {
        let pod = api.get_opt(&name).await?;
        let node = pod.as_ref().and_then(|pod| pod.spec.as_ref()?.node_name.as_deref());
        let uid = pod.as_ref().and_then(ResourceExt::uid);
        let is_new = node == Some(victim) && !others.contains(&uid);
        Ok(if is_new { Ok(uid) } else { Err(format!("{uid:?} on {node:?}")) })
    };
    Ok(lane.cluster.wait("the replacement is bound to the victim", SOON, look).await?)
}
