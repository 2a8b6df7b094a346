//! Heartbeats on the real control plane: what they make faster, and all that they must not do. Kubernetes itself would take
//! ten minutes to notice anything here.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bulkhead::api::node_fence::{Channel, NodeFence};
use bulkhead::heartbeat::keys::KeyPair;
use bulkhead::heartbeat::wire::{self, Message};
use bulkhead_testbed::cluster::{Cluster, ClusterError, ClusterOptions, Workload};
use bulkhead_testbed::process::{Process, Signal};
use bulkhead_testbed::{TestbedOptions, here};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use libtest_mimic::{Failed, Trial};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

use super::agents::{self, Mute};
use super::fleet::{SOON, create_policy, options};
use super::look::event;

pub const NODES: usize = 6;
/// Two missed renewals, the time to notice the last one, the peers, and a loaded machine.
const DECLARED: Duration = Duration::from_secs(45);

pub fn trial() -> Trial {
    as_root(super::alone("heartbeats_tell_of_a_death_and_of_nothing_else", tell_of_a_death_and_of_nothing_else))
}

/// Real agents need it.
pub fn as_root(trial: Trial) -> Trial {
    here::unless(here::lacks_root(), trial)
}

/// A cluster whose controller listens. Kubernetes itself would take ten minutes to notice a death.
pub async fn listening() -> Result<Cluster, Failed> {
    let testbed = TestbedOptions { node_monitor_grace_period: Duration::from_secs(600), ..options().testbed };
    let mut controller_args = options().controller_args;
    controller_args.extend(["--heartbeat-address=127.0.0.1", "--heartbeat-port=0"].map(str::to_owned));
    Ok(Cluster::start(ClusterOptions { nodes: NODES, testbed, controller_args, ..options() }).await?)
}

/// A cluster whose controller listens, with a protected pod on each of its first nodes.
async fn start() -> Result<Cluster, Failed> {
    let cluster = listening().await?;
    // What is played dead goes on writing: the array's word would hold what rests on heartbeats alone.
    // An agent that is stopped for two seconds may be starved for some more before it runs on.
    let spec = json!({
        "limits": { "maxUnhealthy": "99%" },
        "detection": { "agent": { "suspectAfter": "6s" }, "storage": { "ioInProgressCheck": "Disabled" } },
    });
    create_policy(&cluster.client, "beats", "beats", &spec).await?;
    for number in 1..=4 {
        let labels = [("lane".to_owned(), "beats".to_owned())].into();
        let set = Workload { labels, node: Some(format!("node-{number}")), ..Workload::new(&format!("db{number}")) };
        cluster.stateful_set(&set).await?;
        cluster.pods_ready(&set, SOON).await?;
    }
    Ok(cluster)
}

/// A value of the controller's metrics, 0 for one that is not there; none while nobody answers.
async fn metric(cluster: &Cluster, name: &str) -> Result<Option<u64>, ClusterError> {
    let failed = |source| ClusterError::File { path: "the controller's metrics".into(), source };
    let log = std::fs::read_to_string(&cluster.controllers[0].launch().log).map_err(failed)?;
    // Of the process that began last.
    let mut addresses = log.lines().filter(|line| line.contains("bulkhead-controller started"));
    let address = addresses.next_back().and_then(|line| line.split("address=").nth(1)?.split_whitespace().next());
    let Ok(mut connection) = TcpStream::connect(address.unwrap_or("127.0.0.1:1")).await else { return Ok(None) };
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    connection.write_all(request).await.map_err(failed)?;
    let mut text = String::new();
    connection.read_to_string(&mut text).await.map_err(failed)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(Some(line.and_then(|value| value.trim().parse().ok()).unwrap_or_default()))
}

pub async fn comes_to(cluster: &Cluster, name: &str, holds: impl Fn(u64) -> bool) -> Result<(), Failed> {
    let look = async || {
        let value = metric(cluster, name).await?;
        Ok(if value.is_some_and(&holds) { Ok(()) } else { Err(format!("{value:?}")) })
    };
    Ok(cluster.wait(name, SOON, look).await?)
}

pub const HEARD: &str = "bulkhead_heartbeat_nodes_heard";
const SILENT: &str = "bulkhead_heartbeat_nodes_silent";
const REACHABLE: &str = "bulkhead_heartbeat_verdicts_total{verdict=\"Reachable\"}";
pub const UNREACHABLE: &str = "bulkhead_heartbeat_verdicts_total{verdict=\"Unreachable\"}";

fn refused(result: &str) -> String {
    format!("bulkhead_heartbeat_datagrams_total{{result=\"{result}\"}}")
}

pub async fn fences(cluster: &Cluster) -> Result<Vec<NodeFence>, Failed> {
    Ok(Api::all(cluster.client.clone()).list(&ListParams::default()).await?.items)
}

async fn tell_of_a_death_and_of_nothing_else() -> Result<(), Failed> {
    let mut cluster = start().await?;
    let at = agents::announced(&cluster).await?.at;
    let mut agents = Vec::new();
    for number in [1, 2, 4, 5, 6] {
        agents.push(agents::start(&cluster, &format!("node-{number}")).await?);
    }
    let mute = Mute::start(&cluster, "node-3").await?;
    comes_to(&cluster, HEARD, |heard| heard == NODES as u64).await?;
    forged_and_replayed_are_refused(&cluster, at, &mute).await?;
    a_pause_of_two_seconds(&cluster, &mut agents[1]).await?;
    one_that_echoes_is_there(&cluster, &mute).await?;
    let agent = agents.remove(0);
    a_death(&cluster, agent).await?;
    // node-4 dies while no controller runs: the next one never hears it.
    let agent = agents.remove(1);
    never_heard_is_unknown(&mut cluster, agent).await?;
    cluster.judge()?;
    Ok(())
}

async fn forged_and_replayed_are_refused(cluster: &Cluster, at: SocketAddr, mute: &Mute) -> Result<(), Failed> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    let stranger = KeyPair::generate()?;
    let replica = agents::announced(cluster).await?.key;
    let pair = stranger.with_replica(replica).ok_or("no key")?;
    let known = wire::parse(&mute.taped).ok_or("no datagram")?.sender;
    socket.send_to(&mute.taped, at).await?;
    socket.send_to(b"hello", at).await?;
    socket.send_to(&wire::seal(&pair, stranger.public().id(), 1, &Message::Heartbeat), at).await?;
    socket.send_to(&wire::seal(&pair, known, u64::MAX, &Message::Heartbeat), at).await?;
    for result in ["Replayed", "Malformed", "UnknownSender", "Forged"] {
        comes_to(cluster, &refused(result), |count| count >= 1).await?;
    }
    Ok(())
}

/// Stopped as a whole, as by a pause of its machine.
async fn a_pause_of_two_seconds(cluster: &Cluster, agent: &mut Process) -> Result<(), Failed> {
    for _ in 0..3 {
        agent.signal(Signal::Stop)?;
        // The pause is what this is about.
        tokio::time::sleep(Duration::from_secs(2)).await;
        agent.signal(Signal::Continue)?;
        comes_to(cluster, SILENT, |silent| silent == 0).await?;
    }
    assert_eq!(metric(cluster, UNREACHABLE).await?, Some(0));
    assert_eq!(fences(cluster).await?.len(), 0);
    Ok(())
}

/// The controller hears nothing of it, and its kubelet is silent; but its peers reach it.
async fn one_that_echoes_is_there(cluster: &Cluster, mute: &Mute) -> Result<(), Failed> {
    mute.mute();
    cluster.node("node-3")?.kill().await;
    let began = Instant::now();
    event(cluster, "Node", "node-3", "NodeSuspected", "heartbeat").await?;
    comes_to(cluster, REACHABLE, |count| count >= 1).await?;
    // Nothing is done even long after two renewals were missed: that is what this waits for.
    while began.elapsed() < DECLARED {
        assert_eq!(fences(cluster).await?.len(), 0, "after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(metric(cluster, UNREACHABLE).await?, Some(0));
    Ok(())
}

async fn a_death(cluster: &Cluster, agent: Process) -> Result<(), Failed> {
    let set = Workload::new("db1");
    let died = Instant::now();
    cluster.node("node-1")?.kill().await;
    agent.kill().await;
    let fence = cluster.fence("node-1", "declared", DECLARED, |_| true).await?;
    println!("declared {:?} after its death", died.elapsed());
    let channels: Vec<_> = fence.spec.plan.evidence.iter().map(|it| it.channel).collect();
    assert_eq!(channels, [Channel::Kubelet, Channel::Agent], "{:?}", fence.spec.plan.evidence);
    let node = Api::<Node>::all(cluster.client.clone()).get("node-1").await?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.iter().find(|it| it.type_ == "Ready").map(|it| it.status.as_str());
    assert_eq!(ready, Some("True"), "Kubernetes has not noticed anything");
    let elsewhere = async || {
        let placed = cluster.pods_ready(&set, SOON).await?;
        Ok(if placed.values().any(|node| node == "node-1") { Err(format!("{placed:?}")) } else { Ok(()) })
    };
    cluster.wait("it runs elsewhere", SOON, elsewhere).await?;
    println!("runs elsewhere {:?} after its death", died.elapsed());
    Ok(())
}

async fn never_heard_is_unknown(cluster: &mut Cluster, agent: Process) -> Result<(), Failed> {
    let before = agents::announced(cluster).await?.key;
    cluster.controllers.remove(0).kill().await;
    cluster.node("node-4")?.kill().await;
    agent.kill().await;
    cluster.start_controller().await?;
    // The agents learn of its new key, and are heard: node-2, node-5 and node-6.
    let began = Instant::now();
    comes_to(cluster, HEARD, |heard| heard == 3).await?;
    assert_ne!(agents::announced(cluster).await?.key, before, "its keys are those of the process");
    while began.elapsed() < DECLARED {
        let names: Vec<_> = fences(cluster).await?.into_iter().filter_map(|fence| fence.metadata.name).collect();
        assert_eq!(names, ["node-1"], "after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(metric(cluster, SILENT).await?, Some(0));
    Ok(())
}
