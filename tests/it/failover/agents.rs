//! Node agents of simulated nodes: the real program, with the token that a kubelet gives its pod; and one of the test's own
//! that runs the same protocol and can fall silent.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bulkhead::api::node_volume_report::NodeVolumeReport;
use bulkhead::heartbeat::agent::Agent;
use bulkhead::heartbeat::keys::KeyPair;
use bulkhead::heartbeat::replicas::{self, Replica};
use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::{Cluster, ClusterError};
use bulkhead_testbed::process::{Launch, Process};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Node, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use super::fleet::SOON;
use crate::api::objects::tell;

/// A ServiceAccount, by namespace and name.
pub type Account = (&'static str, &'static str);

/// The agent's, as shipped.
const SHIPPED: Account = ("bulkhead-node-agent", "bulkhead-node-agent");

/// A kubeconfig with a token of the account that is bound to a node.
async fn kubeconfig(cluster: &Cluster, node: &str, (namespace, account): Account) -> Result<PathBuf, Failed> {
    let uid = Api::<Node>::all(cluster.client.clone()).get(node).await?.uid();
    let bound = json!({ "kind": "Node", "apiVersion": "v1", "name": node, "uid": uid });
    let request: TokenRequest =
        serde_json::from_value(json!({ "spec": { "audiences": [], "boundObjectRef": bound } }))?;
    let admin = cluster.testbed.client(&Identity::Admin).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(admin, namespace);
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    let token = answer.status.ok_or("no token")?.token;
    let admin = std::fs::read_to_string(cluster.testbed.kubeconfig(&Identity::Admin)?)?;
    let mut config: Value = serde_json::from_str(&admin)?;
    config["users"][0]["user"] = json!({ "token": token });
    let path = cluster.testbed.folder().join(format!("{account}-{node}.kubeconfig"));
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

/// Starts the agent of a node.
pub async fn start(cluster: &Cluster, node: &str) -> Result<Process, Failed> {
    let (process, port) = launch(cluster, node, SHIPPED).await?;
    reported(cluster, node, port).await.map_err(|error| format!("{error:?}\n{}", process.log_tail()))?;
    Ok(process)
}

/// Starts an agent of a node under this account, and says from which port it would send heartbeats. All of a node have one
/// kubelet's folder.
pub async fn launch(cluster: &Cluster, node: &str, account: Account) -> Result<(Process, u16), Failed> {
    let root = cluster.testbed.folder().canonicalize()?.join(format!("agent-{node}"));
    std::fs::create_dir_all(root.join("kubelet/pods"))?;
    let boot_id = root.join(format!("boot_id-{}", account.1));
    std::fs::write(&boot_id, cluster.node(node)?.boot_id())?;
    // A port that was free a moment ago.
    let port = std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
    let name = format!("{}-{node}", account.1);
    let launch = Launch {
        program: env!("CARGO_BIN_EXE_bulkhead-node-agent").into(),
        args: vec![
            "--kubeconfig".into(),
            kubeconfig(cluster, node, account).await?.into(),
            format!("--node-name={node}").into(),
            format!("--kubelet-root={}", root.join("kubelet").display()).into(),
            "--host-process=/proc/self".into(),
            format!("--boot-id-file={}", boot_id.display()).into(),
            "--listen=127.0.0.1:0".into(),
            "--heartbeat-address=127.0.0.1".into(),
            format!("--heartbeat-port={port}").into(),
        ],
        env: Vec::new(),
        log: cluster.testbed.folder().join(format!("{name}.log")),
        name,
    };
    Ok((Process::spawn(launch)?, port))
}

/// Waits until the agent of a node that has this port has told of its heartbeats.
pub async fn reported(cluster: &Cluster, node: &str, port: u16) -> Result<(), Failed> {
    let api: Api<NodeVolumeReport> = Api::all(cluster.client.clone());
    let look = async || {
        let status = api.get_opt(node).await?.and_then(|report| report.status);
        let told = status.as_ref().and_then(|status| status.heartbeat.as_ref()).map(|heartbeat| heartbeat.port);
        Ok(if told == Some(port) { Ok(()) } else { Err(format!("{status:?}")) })
    };
    Ok(cluster.wait(&format!("the agent of {node} tells of its heartbeats"), SOON, look).await?)
}

/// Waits until a replica is announced, and says where it listens.
pub async fn announced(cluster: &Cluster) -> Result<Replica, Failed> {
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), bulkhead::api::names::OPERATOR_NAMESPACE);
    let look = async || -> Result<Result<Replica, String>, ClusterError> {
        let data = api.get_opt(replicas::CONFIG_MAP).await?.and_then(|found| found.data).unwrap_or_default();
        Ok(replicas::read(&data).first().copied().ok_or_else(|| format!("{data:?}")))
    };
    Ok(cluster.wait("the controller is announced", SOON, look).await?)
}

/// An agent in this process, which can fall silent towards the controller and answers its peers all the same.
pub struct Mute {
    is_mute: Arc<AtomicBool>,
    /// The last beat that was sent.
    pub taped: Vec<u8>,
    _running: JoinSet<()>,
}

impl Mute {
    /// Starts it for a node, and returns once one beat was sent.
    pub async fn start(cluster: &Cluster, node: &str) -> Result<Self, Failed> {
        let socket = UdpSocket::bind("127.0.0.1:0").await?;
        let keys = KeyPair::generate()?;
        let object = Api::<Node>::all(cluster.client.clone()).get(node).await?;
        let heartbeat = json!({
            "publicKey": keys.public().to_string(), "address": "127.0.0.1", "port": socket.local_addr()?.port(),
        });
        let status =
            json!({ "nodeUID": object.uid(), "bootID": cluster.node(node)?.boot_id(), "heartbeat": heartbeat });
        let client = client(&kubeconfig(cluster, node, SHIPPED).await?).await?;
        let reports: Api<NodeVolumeReport> = Api::all(client);
        tell(&reports, node, &status).await?;
        let mut agent = Agent::new(keys);
        let replica = announced(cluster).await?;
        agent.set_replicas(&[replica]);
        let taped = agent.beat().pop().ok_or("no beat")?.1;
        socket.send_to(&taped, replica.at).await?;
        let is_mute = Arc::new(AtomicBool::new(false));
        let mut running = JoinSet::new();
        running.spawn(run(agent, socket, is_mute.clone()));
        Ok(Self { is_mute, taped, _running: running })
    }

    /// From now on the controller hears nothing of it.
    pub fn mute(&self) {
        self.is_mute.store(true, Ordering::Relaxed);
    }
}

async fn run(mut agent: Agent, socket: UdpSocket, is_mute: Arc<AtomicBool>) {
    let mut beat = tokio::time::interval(Duration::from_secs(1));
    let mut due = tokio::time::interval(Duration::from_millis(50));
    let mut buffer = [0; 512];
    loop {
        let out = tokio::select! {
            _ = beat.tick() => if is_mute.load(Ordering::Relaxed) { Vec::new() } else { agent.beat() },
            _ = due.tick() => agent.due(Instant::now()),
            received = socket.recv_from(&mut buffer) => match received {
                Ok((length, from)) => agent.receive(from, &buffer[..length], Instant::now()),
                Err(_) => Vec::new(),
            },
        };
        for (to, datagram) in out {
            let _ = socket.send_to(&datagram, to).await;
        }
    }
}

async fn client(kubeconfig: &std::path::Path) -> Result<Client, Failed> {
    let file = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await?;
    Ok(Client::try_from(config)?)
}
