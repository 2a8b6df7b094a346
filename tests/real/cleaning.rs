//! What happens to a node while it is cleaned, and how long that takes.

use std::time::{Duration, Instant};

use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::node_volume_report::{Cleanup, CleanupState, NodeVolumeReport};
use bulkhead_testbed::cluster::real::{RealCluster, RealWorkload};
use bulkhead_testbed::process::Signal;
use bulkhead_testbed::real_nodes::{Fault, NodeProgram, RealNode};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::Outcome;
use super::bed::SOON;
use super::scenes::is_fenced;
use super::story::{Story, condition};
use super::table::{BY_AGENT, BY_REBOOT};

/// The program of the agent, its DaemonSet and their namespace.
const AGENT: &str = "bulkhead-node-agent";
/// The program of the controller.
pub const CONTROLLER: &str = "bulkhead-controller";

/// What happens while the node is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    Reboot,
    KillAgent,
    DeleteAgentPod,
    KillLeader,
}

/// How far the clean-up is when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Inventory,
    Cleaning,
    OnePass,
}

impl At {
    fn is_now(self, cleanup: &Cleanup) -> bool {
        match self {
            Self::Inventory => cleanup.state == CleanupState::Inventory,
            Self::Cleaning => cleanup.state == CleanupState::Cleaning,
            Self::OnePass => cleanup.clean_passes == 1,
        }
    }
}

/// Strikes once, at this point of a clean-up.
pub async fn struck(cluster: &RealCluster, at: At, strike: Strike) -> Outcome {
    let name = format!("{at:?}-{strike:?}").to_lowercase();
    let mut story = Story::prepare(cluster, RealWorkload::new(&name)).await?;
    // The kubelet removes its own mounts. This one is left to the agent.
    let bind = format!(
        "mkdir -p /mnt/{name} && mount --bind \"$(grep -F {} /proc/self/mountinfo | cut -d' ' -f5 | grep '/mount$')\" /mnt/{name}",
        story.old.uid
    );
    shell(&story.node, &bind).await?;
    story.fail(&[Fault::CutControl]).await?;
    story.moves().await?;
    story.is_refused().await?;
    story.detached().await?;
    story.node.heal_all().await?;
    cleanup(&story, &format!("{at:?}"), |cleanup| at.is_now(cleanup)).await?;
    match strike {
        Strike::Reboot => story.node.reboot().await?,
        Strike::KillAgent => story.node.signal(AGENT, Signal::Kill).await?,
        Strike::DeleteAgentPod => {
            let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), AGENT);
            let here = ListParams::default().fields(&format!("spec.nodeName={}", story.old.node));
            pods.delete_collection(&DeleteParams::default(), &here).await?;
        }
        Strike::KillLeader => {
            let leader = cluster.leader().await?.and_then(|pod| pod.spec?.node_name).ok_or("nobody leads")?;
            cluster.node(&leader)?.signal(CONTROLLER, Signal::Kill).await?;
        }
    }
    let node = story.node.clone();
    story.becomes_whole(if strike == Strike::Reboot { BY_REBOOT } else { BY_AGENT }).await?;
    let mounts = node.exec(&["cat", "/proc/self/mountinfo"]).await?;
    let mounts = String::from_utf8_lossy(&mounts.stdout).into_owned();
    assert!(!mounts.contains(&format!("/mnt/{name}")), "{mounts}");
    Ok(())
}

async fn shell(node: &RealNode, script: &str) -> Outcome {
    let output = node.exec(&["sh", "-c", script]).await?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{script}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// Waits until the agent says something of the present clean-up.
async fn cleanup(story: &Story<'_>, what: &str, holds: impl Fn(&Cleanup) -> bool) -> Result<Cleanup, Failed> {
    let reports: Api<NodeVolumeReport> = Api::all(story.cluster.client.clone());
    let fence = Api::<NodeFence>::all(story.cluster.client.clone()).get(&story.old.node).await?;
    let look = async || {
        let status = reports.get_opt(&story.old.node).await?.and_then(|report| report.status);
        let of_now = |cleanup: &Cleanup| {
            fence.uid().as_ref() == Some(&cleanup.fence_uid) && cleanup.episode == fence.spec.episode
        };
        let cleanup = status.and_then(|status| status.cleanup).filter(of_now);
        Ok(match cleanup {
            Some(cleanup) if holds(&cleanup) => Ok(cleanup),
            other => Err(format!("{other:?}")),
        })
    };
    Ok(story.cluster.wait(&format!("clean-up: {what}"), SOON, look).await?)
}

async fn node_of(story: &Story<'_>) -> Result<Node, Failed> {
    Ok(Api::<Node>::all(story.cluster.client.clone()).get(&story.old.node).await?)
}

pub async fn agent_missing(cluster: &RealCluster) -> Outcome {
    let mut story = Story::prepare(cluster, RealWorkload::new("no-agent")).await?;
    // Those that run would clean before they end.
    let selected = select(cluster, json!("nowhere")).await;
    let tested = async {
        selected?;
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), AGENT);
        cluster
            .wait("no agent runs", SOON, async || {
                let left = pods.list(&ListParams::default()).await?.items.len();
                Ok(if left == 0 { Ok(()) } else { Err(format!("{left} do")) })
            })
            .await?;
        story.fail(&[Fault::CutControl]).await?;
        story.moves().await?;
        story.is_refused().await?;
        story.detached().await?;
        story.node.heal_all().await?;
        let missing = |fence: &NodeFence| condition(fence, "NodeClean") == Some(("False", "AgentMissing"));
        story.fence("NodeClean is False by AgentMissing", missing).await?;
        assert!(is_fenced(&node_of(&story).await?));
        Outcome::Ok(())
    };
    let tested = tested.await;
    select(cluster, Value::Null).await?;
    tested?;
    story.becomes_whole(BY_AGENT).await
}

/// Where agents run besides on Linux.
async fn select(cluster: &RealCluster, nodes: Value) -> Outcome {
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), AGENT);
    let patch = json!({"spec": {"template": {"spec": {"nodeSelector": {"tests": nodes}}}}});
    sets.patch(AGENT, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Nobody ends the old container while the kubelet is frozen, and nobody takes its volume away under it.
pub async fn process_holds_mount(cluster: &RealCluster) -> Outcome {
    let faults = [Fault::CutControl, Fault::Freeze(NodeProgram::Kubelet)];
    let story = Story::begin(cluster, RealWorkload::new("holder"), &faults).await?;
    story.moves().await?;
    story.is_refused().await?;
    story.detached().await?;
    story.node.heal(Fault::CutControl).await?;
    let blocked = cleanup(&story, "Blocked", |cleanup| cleanup.state == CleanupState::Blocked).await?;
    assert!(blocked.remaining.iter().all(|left| left.reason == "ProcessHoldsMount"), "{blocked:?}");
    assert!(!blocked.remaining.is_empty());
    assert!(is_fenced(&node_of(&story).await?));
    assert_ne!(story.left().await?, "");
    story.recovers(BY_AGENT).await
}

/// As many mounts as a busy node has.
pub async fn fifty_mounts(cluster: &RealCluster) -> Outcome {
    let node = cluster.node("node-2")?;
    let workload = RealWorkload {
        replicas: 5,
        volumes: 10,
        node: Some(node.name().to_owned()),
        every: "500ms".to_owned(),
        ..RealWorkload::new("fifty")
    };
    cluster.run(&workload).await?;
    let old = cluster.running(&workload, &[], SOON * 2).await?;
    assert!(old.iter().all(|pod| pod.node == node.name()), "{old:?}");
    let volume = cluster.volume(&workload, 0).await?;
    let first = old.first().cloned().ok_or("no pod")?;
    let began = cluster.array.ledger().now();
    let story = Story { cluster, workload, volume, old: first, node, began };
    story.node.fault(Fault::CutControl).await?;
    cluster.running(&story.workload, &old, SOON * 2).await?;
    story.is_refused().await?;
    story.detached().await?;
    let healed = Instant::now();
    story.node.heal_all().await?;
    let times = Times::measure(&story, healed).await?;
    println!("{times:?}");
    story.becomes_whole(BY_AGENT).await?;
    assert!(times.started <= times.ready + Duration::from_secs(2), "{times:?}");
    assert!(times.untainted <= times.ready + Duration::from_secs(10), "{times:?}");
    Ok(())
}

/// Since the link was healed.
#[derive(Debug)]
struct Times {
    /// The Node is Ready.
    ready: Duration,
    /// The agent reports the clean-up.
    started: Duration,
    /// Our taint is gone.
    untainted: Duration,
}

impl Times {
    async fn measure(story: &Story<'_>, healed: Instant) -> Result<Self, Failed> {
        let nodes: Api<Node> = Api::all(story.cluster.client.clone());
        let is_ready = |node: &Node| {
            let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True")
        };
        let when = async |what: &str, holds: &dyn Fn(&Node) -> bool| {
            let look = async || {
                let node = nodes.get(&story.old.node).await?;
                Ok(if holds(&node) { Ok(healed.elapsed()) } else { Err(format!("{:?}", node.spec)) })
            };
            story.cluster.wait(what, SOON, look).await
        };
        let started = async {
            cleanup(story, "begun", |_| true).await?;
            Ok::<_, Failed>(healed.elapsed())
        };
        let untainted = |node: &Node| !is_fenced(node);
        let (ready, started, untainted) =
            tokio::join!(when("Ready", &is_ready), started, when("untainted", &untainted));
        Ok(Self { ready: ready?, started: started?, untainted: untainted? })
    }
}
