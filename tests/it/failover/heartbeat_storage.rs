//! A node whose heartbeat is lost and that its array has lost too: declared in seconds, long before two renewals of its Lease
//! are missed. Kubernetes itself would take ten minutes.

use std::time::{Duration, Instant};

use bulkhead::api::names;
use bulkhead::api::node_fence::Channel;
use bulkhead_testbed::array::Link;
use bulkhead_testbed::cluster::{Cluster, ClusterError, Workload};
use bulkhead_testbed::process::Process;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use libtest_mimic::{Failed, Trial};
use serde_json::json;

use super::agents;
use super::fleet::{SOON, create_policy};
use super::heartbeat::{HEARD, NODES, as_root, comes_to, fences, listening};
use super::look::{event, operator_records};

/// Two renewals are missed after 21 s at the soonest.
const SECONDS: Duration = Duration::from_secs(15);
/// The shortest deadline, and the time that an agent is given after it, from its last heartbeat on: that may be a second older
/// than its death.
const SELF_FENCED: Duration = Duration::from_secs(9);

pub fn trial() -> Trial {
    as_root(super::alone("heartbeat_and_storage_tell_of_a_death_in_seconds", tell_of_a_death_in_seconds))
}

/// A cluster with a protected pod on each of three nodes, the second under a policy by which nodes fence themselves. The
/// third keeps its path: an array that has lost everyone who uses it says nothing about any of them.
async fn start() -> Result<Cluster, Failed> {
    let cluster = listening().await?;
    for (name, number, self_fencing) in
        [("plain", 1, json!({})), ("alone", 2, json!({ "mode": "Enabled", "after": "5s" })), ("steady", 3, json!({}))]
    {
        let spec = json!({
            "limits": { "maxUnhealthy": "99%" },
            "selfFencing": self_fencing,
            "triggers": { "storagePathLoss": "Ignore" },
            "detection": { "storage": { "period": "1s", "lossThreshold": 2, "recoveryThreshold": 2 } },
        });
        create_policy(&cluster.client, name, name, &spec).await?;
        let labels = [("lane".to_owned(), name.to_owned())].into();
        let set = Workload { labels, node: Some(format!("node-{number}")), ..Workload::new(name) };
        cluster.stateful_set(&set).await?;
        cluster.pods_ready(&set, SOON).await?;
    }
    Ok(cluster)
}

async fn tell_of_a_death_in_seconds() -> Result<(), Failed> {
    let cluster = start().await?;
    let mut agents = Vec::new();
    for number in 1..=NODES {
        agents.push(agents::start(&cluster, &format!("node-{number}")).await?);
    }
    comes_to(&cluster, HEARD, |heard| heard == NODES as u64).await?;
    // The path alone, which the policy ignores, declares nobody: nor does it while heartbeats come.
    let array = cluster.arrays.first().ok_or("no array")?.clone();
    let id = cluster.node("node-1")?.csi_node_id().to_owned();
    array.set_link(&id, Link::Refuse);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(fences(&cluster).await?.len(), 0);
    array.set_link(&id, Link::Up);
    // What leaves the first node would bring its policy, which does not wait, to the second.
    Api::<Node>::all(cluster.client.clone()).cordon("node-2").await?;
    let took = dies(&cluster, "node-1", agents.remove(0)).await?;
    assert!(took < SECONDS, "{took:?}");
    is_detached_by_the_key(&cluster, "node-1").await?;
    array.set_link(&id, Link::Up);
    // Its agent, if it lives, has stopped its pods by then.
    let took = dies(&cluster, "node-2", agents.remove(0)).await?;
    assert!(took >= SELF_FENCED && took < SELF_FENCED + SECONDS, "{took:?}");
    cluster.judge()?;
    Ok(())
}

/// Kubernetes calls the node Ready all the time. It is detached as a whole all the same, and not by an attach/detach that
/// would look again later.
async fn is_detached_by_the_key(cluster: &Cluster, name: &str) -> Result<(), Failed> {
    event(cluster, "NodeFence", name, "OutOfServiceAdded", "").await?;
    let api: Api<Node> = Api::all(cluster.client.clone());
    let look = async || -> Result<Result<bool, String>, ClusterError> {
        let node = api.get(name).await?;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let is_ready = conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True");
        let is_there = taints.iter().any(|taint| taint.key == names::OUT_OF_SERVICE_TAINT);
        Ok(if is_there { Err(format!("{taints:?}")) } else { Ok(is_ready) })
    };
    let is_ready = cluster.wait("the key is taken back", SOON, look).await?;
    assert!(is_ready, "Kubernetes knew: this shows nothing");
    let detached = operator_records(cluster, |it| it.resource == "volumeattachments" && it.verb == "delete")?;
    assert!(detached.is_empty(), "attachments went one by one: {detached:?}");
    Ok(())
}

/// Node, agent and storage path of a node are gone; how long until it is declared.
async fn dies(cluster: &Cluster, node: &str, agent: Process) -> Result<Duration, Failed> {
    let array = cluster.arrays.first().ok_or("no array")?;
    let died = Instant::now();
    cluster.node(node)?.kill().await;
    agent.kill().await;
    array.set_link(cluster.node(node)?.csi_node_id(), Link::Refuse);
    let fence = cluster.fence(node, "declared", SOON, |_| true).await?;
    let took = died.elapsed();
    println!("{node} declared {took:?} after its death");
    let channels: Vec<_> = fence.spec.plan.evidence.iter().map(|it| it.channel).collect();
    assert_eq!(channels, [Channel::Agent, Channel::Storage], "{:?}", fence.spec.plan.evidence);
    Ok(took)
}
