//! A replacement that comes back to the dead node, because its template says so or because it tolerates everything: no
//! attachment lets it in. It is released again, each time after twice as long, and runs there when the node is clean.

use std::time::Duration;

use bulkhead_testbed::AttacherOptions;
use bulkhead_testbed::cluster::{Cluster, Workload};
use k8s_openapi::api::core::v1::Pod;
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

async fn comes_back(cluster: &Cluster, name: &str, template: impl Fn(&str) -> Value) -> Result<(), Failed> {
    // The attachment stays while such a pod is there: it is the attacher's re-sync that gives the access back.
    let attacher = AttacherOptions { reconcile_sync: Duration::from_secs(2), ..attacher() };
    let lane = Lane::new(cluster, name, LaneOptions { attacher, ..LaneOptions::default() }).await?;
    let victim = lane.victim()?;
    let set = Workload { template: template(victim.name()), ..lane.workload("db") };
    lane.run(&set).await?;
    let before = lane.before(&set).await?;
    victim.kill().await;
    // The one that came back is released, and so is the next: 2 s and 4 s later.
    let second = is_back(&lane, &set, std::slice::from_ref(&before.uid)).await?;
    let third = is_back(&lane, &set, &[before.uid, second.clone()]).await?;
    let attached = lane.attachments().await?;
    assert!(attached.iter().all(|name| before.attachments.contains(name)), "an attachment came in: {attached:?}");
    let deleted = lane.deletions(&[])?;
    let succeeded: Vec<_> = deleted.iter().filter(|record| record.succeeded()).collect();
    let [first, next] = succeeded.as_slice() else { return Err(format!("{succeeded:?}").into()) };
    let between = next.received - first.received;
    assert!(between.num_milliseconds() >= 1000, "released again after {between}");
    let fence = lane.fence("planned", |_| true).await?;
    assert_eq!(fence.spec.plan.pods.len(), 2, "{:?}", fence.spec.plan.pods);
    assert_eq!(lane.pod(&set, 0).await?.uid(), third);
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
