//! Failures that are no cell of the table of failures: who leads, what of the node fails, how many nodes, which volumes.

use std::collections::BTreeSet;

use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::cluster::real::{RealCluster, RealWorkload};
use bulkhead_testbed::real_nodes::{Fault, NodeProgram, RealNode};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::Outcome;
use super::bed::{SOON, WITHOUT_BRAKES};
use super::story::{Story, of_now, one};
use super::table::BY_AGENT;

/// Who must act dies with the node that it must act on.
pub async fn leader_on_the_failing_node(cluster: &RealCluster) -> Outcome {
    let leader = cluster.leader().await?.ok_or("nobody leads")?;
    let node = leader.spec.and_then(|spec| spec.node_name).ok_or("the holder is on no node")?;
    let workload = RealWorkload { node: Some(node.clone()), ..RealWorkload::new("leader") };
    let story = Story::begin(cluster, workload, &[Fault::CutControl]).await?;
    assert_eq!(story.old.node, node);
    story.writes_when_declared().await?;
    story.moves().await?;
    story.is_refused().await?;
    story.recovers(BY_AGENT).await
}

/// Whether the storage failed, or its path, or the node's, nobody here can tell yet: nothing is done.
pub async fn storage_link_alone(cluster: &RealCluster) -> Outcome {
    let story = Story::begin(cluster, RealWorkload::new("no-storage"), &[Fault::CutStorage]).await?;
    let log = || cluster.log(&story.workload, &story.old);
    // The driver gives each write ten seconds: longer than a node may be silent here until it is declared failed.
    cluster
        .wait("two writes of the cut off node fail", SOON, async || {
            let printed = log()?;
            Ok(if printed.matches("refused").count() >= 2 { Ok(()) } else { Err(printed) })
        })
        .await?;
    let fence = Api::<NodeFence>::all(cluster.client.clone()).get_opt(&story.old.node).await?;
    assert!(!fence.as_ref().is_some_and(of_now), "{fence:?}");
    cluster.usable(&story.old.node, SOON).await?;
    assert_eq!(one(cluster.running(&story.workload, &[], SOON).await?)?, story.old);
    story.node.heal_all().await?;
    let healed = story.ledger().now();
    story.ledger().wait_for_write(&story.volume, &story.old.node, healed, SOON).await?;
    Ok(cluster.end(&story.workload, SOON).await?)
}

pub async fn block_volume(cluster: &RealCluster) -> Outcome {
    let workload = RealWorkload { block: true, ..RealWorkload::new("block") };
    let mut story = Story::prepare(cluster, workload).await?;
    // Devices are the machine's: those of this node are the ones on files that it sees.
    let claims = Api::<PersistentVolumeClaim>::namespaced(cluster.client.clone(), &story.workload.namespace);
    let claim = claims.get(&story.workload.claim(0)).await?;
    let volume = claim.spec.and_then(|spec| spec.volume_name).ok_or("the claim is not bound")?;
    let before = loop_devices(&story.node, &volume).await?;
    assert!(!before.is_empty(), "{before:?}");
    story.fail(&[Fault::CutControl]).await?;
    story.writes_when_declared().await?;
    story.moves().await?;
    story.is_refused().await?;
    let node = story.node.clone();
    story.recovers(BY_AGENT).await?;
    let after = loop_devices(&node, &volume).await?;
    assert!(after.is_disjoint(&before), "{after:?}");
    Ok(())
}

/// The loop devices whose file is on the volume, each with its file.
async fn loop_devices(node: &RealNode, volume: &str) -> Result<BTreeSet<String>, Failed> {
    let output = node.exec(&["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"]).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().filter(|line| line.contains(volume)).map(str::to_owned).collect())
}

/// Its kubelet registers it again while the containers of its former life still run.
pub async fn node_made_anew(cluster: &RealCluster) -> Outcome {
    let story = Story::begin(cluster, RealWorkload::new("anew"), &[Fault::CutControl]).await?;
    story.moves().await?;
    story.is_refused().await?;
    story.detached().await?;
    // A kubelet registers when it starts, and at no other time.
    story.node.fault(Fault::Kill(NodeProgram::Kubelet)).await?;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    nodes.delete(&story.old.node, &DeleteParams::default()).await?;
    cluster
        .wait("the Node is gone", SOON, async || {
            Ok(if nodes.get_opt(&story.old.node).await?.is_none() { Ok(()) } else { Err("it is there".to_owned()) })
        })
        .await?;
    story.node.heal_all().await?;
    cluster
        .wait("the new Node has our taint", SOON, async || {
            let node = nodes.get_opt(&story.old.node).await?;
            Ok(if node.as_ref().is_some_and(is_fenced) { Ok(()) } else { Err(format!("{node:?}")) })
        })
        .await?;
    story.becomes_whole(BY_AGENT).await
}

pub fn is_fenced(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().any(|taint| taint.key == names::FENCED_TAINT)
}

pub async fn two_of_three(cluster: &RealCluster) -> Outcome {
    let [mut one, mut other] = two(cluster, "two").await?;
    one.fail(&[Fault::CutControl]).await?;
    other.fail(&[Fault::CutControl]).await?;
    for story in [&one, &other] {
        story.moves().await?;
        story.is_refused().await?;
    }
    one.node.heal_all().await?;
    other.node.heal_all().await?;
    one.becomes_whole(BY_AGENT).await?;
    other.becomes_whole(BY_AGENT).await
}

/// Two nodes of three at once are more than a node that failed.
pub async fn two_of_three_with_brakes(cluster: &RealCluster) -> Outcome {
    // The defaults, but that the calm after an outage does not hold up the tests that come later. Kubernetes gives up one node
    // after the other: the first must not be acted on before the second is counted.
    let limits = json!({"maxNodes": null, "ceiling": null, "maxUnhealthy": null, "window": null, "cooldown": "1m"});
    limit(cluster, limits, json!({"kubelet": {"decisiveAfter": "10s"}})).await?;
    let tested = held(cluster).await;
    limit(cluster, serde_json::from_str(WITHOUT_BRAKES)?, Value::Null).await?;
    tested?;
    is_restrained(cluster, "False").await
}

async fn held(cluster: &RealCluster) -> Outcome {
    let [mut one, mut other] = two(cluster, "held").await?;
    one.fail(&[Fault::CutControl]).await?;
    other.fail(&[Fault::CutControl]).await?;
    is_restrained(cluster, "True").await?;
    let fences = Api::<NodeFence>::all(cluster.client.clone());
    for story in [&one, &other] {
        let declared = story.ledger().now();
        unreachable(cluster, &story.old.node).await?;
        story.ledger().wait_for_write(&story.volume, &story.old.node, declared, SOON).await?;
        let fence = fences.get_opt(&story.old.node).await?;
        assert!(!fence.as_ref().is_some_and(of_now), "{fence:?}");
    }
    // Both: with one of them healed the other is no outage any more, and is left alone for as long as the calm lasts.
    one.node.heal_all().await?;
    other.node.heal_all().await?;
    for story in [one, other] {
        cluster.usable(&story.old.node, SOON).await?;
        let fence = fences.get_opt(&story.old.node).await?;
        assert!(!fence.as_ref().is_some_and(of_now), "{fence:?}");
        assert_eq!(super::story::one(cluster.running(&story.workload, &[], SOON).await?)?, story.old, "another pod");
        let healed = story.ledger().now();
        story.ledger().wait_for_write(&story.volume, &story.old.node, healed, SOON).await?;
        cluster.end(&story.workload, SOON).await?;
    }
    Ok(())
}

/// Waits until the policy says that of its condition Restrained.
async fn is_restrained(cluster: &RealCluster, status: &str) -> Outcome {
    let policies: Api<ResiliencyPolicy> = Api::all(cluster.client.clone());
    let look = async || {
        let conditions = policies.get("protected").await?.status.map(|status| status.conditions).unwrap_or_default();
        let is_so = conditions.iter().any(|it| it.type_ == "Restrained" && it.status == status);
        Ok(if is_so { Ok(()) } else { Err(format!("{conditions:?}")) })
    };
    Ok(cluster.wait(&format!("the policy's Restrained is {status}"), SOON, look).await?)
}

/// Waits until Kubernetes has given a node up.
async fn unreachable(cluster: &RealCluster, name: &str) -> Outcome {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    cluster
        .wait("the node is unreachable", SOON, async || {
            let conditions = nodes.get(name).await?.status.and_then(|status| status.conditions).unwrap_or_default();
            let unknown = conditions.iter().any(|it| it.type_ == "Ready" && it.status == "Unknown");
            Ok(if unknown { Ok(()) } else { Err(format!("{conditions:?}")) })
        })
        .await?;
    Ok(())
}

async fn limit(cluster: &RealCluster, limits: Value, detection: Value) -> Outcome {
    let policies: Api<ResiliencyPolicy> = Api::all(cluster.client.clone());
    let patch = Patch::Merge(json!({"spec": {"limits": limits, "detection": detection}}));
    policies.patch("protected", &PatchParams::default(), &patch).await?;
    Ok(())
}

/// A database on each of two nodes; who must act has a replica on the third.
async fn two<'a>(cluster: &'a RealCluster, name: &str) -> Result<[Story<'a>; 2], Failed> {
    let operator = cluster.nodes_of("app.kubernetes.io/name=bulkhead,app.kubernetes.io/component=controller").await?;
    let driver = cluster.nodes_of("app.kubernetes.io/name=csi-array,app.kubernetes.io/component=controller").await?;
    let third = operator.intersection(&driver).next().ok_or("no node has a replica of both")?;
    let all = (1..=3).map(|number| format!("node-{number}"));
    let mut stories = Vec::new();
    for node in all.filter(|node| node != third) {
        let workload = RealWorkload { node: Some(node.clone()), ..RealWorkload::new(&format!("{name}-{node}")) };
        let story = Story::prepare(cluster, workload).await?;
        assert_eq!(story.old.node, node);
        stories.push(story);
    }
    Ok(<[Story<'_>; 2]>::try_from(stories).map_err(|_| "there are not three nodes")?)
}
