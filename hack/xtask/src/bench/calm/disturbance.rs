//! What happens to a cluster that is no failure of a node: how each disturbance begins and ends.

use std::fmt;
use std::time::Duration;

use bulkhead::api::names::OPERATOR_NAMESPACE;
use bulkhead_testbed::Component;
use bulkhead_testbed::cluster::real::RealCluster;
use bulkhead_testbed::process::Signal;
use bulkhead_testbed::real_nodes::{Fault, NodeProgram, RealNode};
use clap::ValueEnum;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};

use crate::Result;

use super::SOON;

/// How long a process is stopped.
const PAUSE: Duration = Duration::from_secs(2);
/// How long links lose packets.
const LOSSY: Duration = Duration::from_secs(30);
/// How long a link is down.
const DOWN: Duration = Duration::from_secs(10);
/// How often a switch goes down, for how long, and how long it is up then.
const FLAPS: usize = 5;
const FLAP_DOWN: Duration = Duration::from_secs(2);
const FLAP_UP: Duration = Duration::from_secs(3);
/// How long the API server is away.
const AWAY: Duration = Duration::from_secs(60);
const AWAY_LONG: Duration = Duration::from_secs(600);
/// What was disturbed is told within this time, if it is: heartbeats and their peers need five seconds, two missed renewals of
/// a Lease 21 since the last one.
const WATCHED: Duration = Duration::from_secs(20);
/// What Kubernetes makes of a silence is told later: it waits for 50 s, and looks every 5 s. A leader that was cut off itself
/// believes in no heartbeat for a minute; the next disturbance must not meet that.
const WATCHED_LONG: Duration = Duration::from_secs(65);

const CONTROLLER: &str = "bulkhead-controller";
const SIDECAR: &str = "bulkhead-csi-sidecar";
const AGENT: &str = "bulkhead-node-agent";
/// The pods of the controller.
pub const CONTROLLERS: &str = "app.kubernetes.io/name=bulkhead,app.kubernetes.io/component=controller";
/// The pods of the driver's controller, with the sidecar.
pub const SIDECARS: &str = "app.kubernetes.io/name=csi-array,app.kubernetes.io/component=controller";

/// A disturbance. The nodes and the zones that it is about take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Disturbance {
    /// The agent of a node is stopped for 2 s
    PauseAgent,
    /// The kubelet of a node is stopped for 2 s
    PauseKubelet,
    /// Both replicas of the controller and of the sidecar are stopped for 2 s
    PauseControllers,
    /// All of a node is stopped for 2 s, as a virtual machine that moves
    PauseNode,
    /// Every link of every node loses a hundredth of its packets for 30 s
    PacketLoss,
    /// The control link of a node is down for 10 s, its storage link is up
    LinkDown,
    /// Both links of all nodes of a zone go down for 2 s, five times
    RackFlap,
    /// The CNI plugin of the nodes of a zone goes away until they are NotReady, and comes back
    CniRestart,
    /// The API server is away for a minute
    ApiServerDown,
    /// The API server is away for ten minutes
    ApiServerDownLong,
    /// The controller that leads is killed
    ControllerKilled,
    /// All agents are replaced one after the other, as by an update
    AgentsRolled,
}

impl fmt::Display for Disturbance {
    /// Its name on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

impl Disturbance {
    /// Whether it is played only when it is asked for.
    pub fn is_long(self) -> bool {
        self == Self::ApiServerDownLong
    }

    /// How long after its end it is looked whether anything is done.
    pub fn watched(self) -> Duration {
        match self {
            Self::LinkDown | Self::RackFlap | Self::ApiServerDown | Self::ApiServerDownLong => WATCHED_LONG,
            _ => WATCHED,
        }
    }

    /// Begins it and ends it, for the time of this number.
    pub async fn play(self, cluster: &RealCluster, nodes: usize, number: usize) -> Result<()> {
        let node = cluster.node(&format!("node-{}", number % nodes + 1))?;
        match self {
            Self::PauseAgent => pause(&[(node, AGENT)]).await,
            Self::PauseKubelet => broken(&[node], Fault::Freeze(NodeProgram::Kubelet), PAUSE).await,
            Self::PauseControllers => pause_controllers(cluster).await,
            Self::PauseNode => broken(&[node], Fault::FreezeEverything, PAUSE).await,
            Self::PacketLoss => lose_packets(cluster, nodes).await,
            Self::LinkDown => broken(&[node], Fault::CutControl, DOWN).await,
            Self::RackFlap => flap(&cluster.zone(number)?).await,
            Self::CniRestart => restart_cni(cluster, &cluster.zone(number)?).await,
            Self::ApiServerDown => api_server_is_away(cluster, AWAY).await,
            Self::ApiServerDownLong => api_server_is_away(cluster, AWAY_LONG).await,
            Self::ControllerKilled => kill_leader(cluster).await,
            Self::AgentsRolled => Ok(cluster.roll_agents(SOON).await?),
        }
    }
}

/// Stops these programs for a moment.
async fn pause(programs: &[(RealNode, &str)]) -> Result<()> {
    for (node, program) in programs {
        node.signal(program, Signal::Stop).await?;
    }
    tokio::time::sleep(PAUSE).await;
    for (node, program) in programs {
        node.signal(program, Signal::Continue).await?;
    }
    Ok(())
}

async fn pause_controllers(cluster: &RealCluster) -> Result<()> {
    let mut programs = Vec::new();
    for (labels, program) in [(CONTROLLERS, CONTROLLER), (SIDECARS, SIDECAR)] {
        for node in cluster.nodes_of(labels).await? {
            programs.push((cluster.node(&node)?, program));
        }
    }
    pause(&programs).await
}

/// These nodes have a fault for some time.
async fn broken(nodes: &[RealNode], fault: Fault, time: Duration) -> Result<()> {
    try_join_all(nodes.iter().map(|node| node.fault(fault))).await?;
    tokio::time::sleep(time).await;
    try_join_all(nodes.iter().map(|node| node.heal(fault))).await?;
    Ok(())
}

async fn lose_packets(cluster: &RealCluster, nodes: usize) -> Result<()> {
    let nodes = (1..=nodes).map(|number| cluster.node(&format!("node-{number}")));
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    both_links(&nodes, [Fault::LossyControl, Fault::LossyStorage], LOSSY).await
}

/// What the switch of a rack does to its nodes. An array does not give up a node that is away for so short, so its word on them
/// stays.
async fn flap(nodes: &[RealNode]) -> Result<()> {
    for _ in 0..FLAPS {
        both_links(nodes, [Fault::CutControl, Fault::CutStorage], FLAP_DOWN).await?;
        tokio::time::sleep(FLAP_UP).await;
    }
    Ok(())
}

async fn both_links(nodes: &[RealNode], [control, storage]: [Fault; 2], time: Duration) -> Result<()> {
    tokio::try_join!(broken(nodes, control, time), broken(nodes, storage, time))?;
    Ok(())
}

/// A plugin that is replaced takes its settings away until the new one runs. The nodes must have noticed.
async fn restart_cni(cluster: &RealCluster, nodes: &[RealNode]) -> Result<()> {
    for node in nodes {
        cluster.hide_pod_network(node.name()).await?;
    }
    let api: Api<Node> = Api::all(cluster.client.clone());
    for node in nodes {
        let look = async || {
            let conditions =
                api.get(node.name()).await?.status.and_then(|status| status.conditions).unwrap_or_default();
            let is_unready = conditions.iter().any(|it| it.type_ == "Ready" && it.status == "False");
            Ok(if is_unready { Ok(()) } else { Err(format!("{conditions:?}")) })
        };
        cluster.wait("a node without its CNI plugin is NotReady", SOON, look).await?;
    }
    for node in nodes {
        cluster.show_pod_network(node.name()).await?;
    }
    for node in nodes {
        cluster.usable(node.name(), SOON).await?;
    }
    Ok(())
}

async fn api_server_is_away(cluster: &RealCluster, time: Duration) -> Result<()> {
    cluster.testbed.stop(Component::ApiServer).await?;
    tokio::time::sleep(time).await;
    Ok(cluster.testbed.start_again(Component::ApiServer).await?)
}

/// It says no good-bye, so its Lease has to run out. Its pod goes too: a container that is killed again and again is started
/// later each time.
async fn kill_leader(cluster: &RealCluster) -> Result<()> {
    let holder = cluster.holder().await?;
    let leader = cluster.leader().await?.ok_or("nobody leads")?;
    let node = leader.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).ok_or("the leader is on no node")?;
    cluster.node(node)?.signal(CONTROLLER, Signal::Kill).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), OPERATOR_NAMESPACE);
    pods.delete(&leader.name_any(), &DeleteParams::default().grace_period(0)).await?;
    let look = async || {
        let now = cluster.holder().await?;
        Ok(if now.is_some() && now != holder { Ok(()) } else { Err(format!("{now:?}")) })
    };
    Ok(cluster.wait("another controller leads", SOON, look).await?)
}
