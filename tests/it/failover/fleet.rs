//! The cluster that most tests share, and a lane of it: what one test has for itself (nodes, array with attacher and
//! sidecar, policy), so that tests run side by side and each may break what is its own.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::array::{Array, ArrayOptions};
use bulkhead_testbed::cluster::{AddedArray, Cluster, ClusterError, ClusterOptions, Workload, merge};
use bulkhead_testbed::nodes::{NodeOptions, SimulatedNode};
use bulkhead_testbed::{AttacherOptions, Component, TestbedOptions, oracle};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use libtest_mimic::Failed;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use super::kept::Kept;

/// Long enough for a loaded machine, and for two pauses between rounds of fencing, of up to 60 s each; nothing waits this
/// long when it works.
pub const SOON: Duration = Duration::from_secs(150);

/// The shared cluster, started by the first test that needs it.
pub struct Fleet {
    // Dropped before the runtime that its tasks run on.
    cluster: OnceCell<(Cluster, Kept)>,
    runtime: Runtime,
}

impl Fleet {
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { cluster: OnceCell::new(), runtime: Runtime::new()? })
    }

    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    pub async fn cluster(&self) -> Result<&Cluster, Failed> {
        let start = async || {
            // Two nodes that never fail: not all nodes are ever suspected.
            let mut cluster = Cluster::start(ClusterOptions { arrays: Vec::new(), nodes: 2, ..options() }).await?;
            let controller = Kept::new(cluster.controllers.remove(0));
            Ok::<_, Failed>((cluster, controller))
        };
        let (cluster, _) = self.cluster.get_or_try_init(start).await?;
        Ok(cluster)
    }
}

/// The options with the programs that cargo built for this test, and spans that fit a test.
pub fn options() -> ClusterOptions {
    let controller = PathBuf::from(env!("CARGO_BIN_EXE_bulkhead-controller"));
    let mut testbed = TestbedOptions::fast_nodes();
    // Attach/detach learns of an attachment that somebody else removed at its next sync only, each minute by default.
    testbed.extra_args.insert(Component::ControllerManager, vec!["--attach-detach-reconcile-sync-period=2s".into()]);
    ClusterOptions {
        testbed,
        programs: controller.parent().map(PathBuf::from),
        node: NodeOptions { write_interval: Duration::from_millis(50), ..NodeOptions::default() },
        controller_args: vec!["--attacher-resync-period=1s".into()],
        ..ClusterOptions::default()
    }
}

/// An attacher that does not make tests with many volumes wait: its own limit is 5 requests per second, and it pauses
/// for up to 5 minutes after an error.
pub fn attacher() -> AttacherOptions {
    let retry_interval = (Duration::from_secs(1), Duration::from_secs(2));
    AttacherOptions { qps: 100, burst: 200, retry_interval, ..AttacherOptions::default() }
}

/// What a lane is made of.
pub struct LaneOptions {
    pub nodes: usize,
    pub sidecar: bool,
    pub array: ArrayOptions,
    pub attacher: AttacherOptions,
    /// Merged into the policy's spec.
    pub policy: Value,
}

impl Default for LaneOptions {
    fn default() -> Self {
        Self { nodes: 2, sidecar: true, array: ArrayOptions::default(), attacher: attacher(), policy: json!({}) }
    }
}

/// One test's part of a cluster.
pub struct Lane<'a> {
    pub cluster: &'a Cluster,
    pub name: String,
    /// The first is where workloads begin.
    pub nodes: Vec<SimulatedNode>,
    pub storage: AddedArray,
    pub sidecar: Option<Kept>,
}

impl<'a> Lane<'a> {
    /// Everything of the lane is named after `name`.
    pub async fn new(cluster: &'a Cluster, name: &str, options: LaneOptions) -> Result<Self, Failed> {
        let array = ArrayOptions { driver_name: format!("{name}.csi.test"), ..options.array };
        let storage = cluster.add_array_with(&array, &options.attacher).await?;
        let mut nodes = Vec::new();
        for number in 1..=options.nodes {
            nodes.push(cluster.nodes.add(&format!("{name}-node-{number}")).await?);
        }
        let names: Vec<_> = nodes.iter().map(|node| node.name().to_owned()).collect();
        cluster.nodes_usable(&names).await?;
        let sidecar = options.sidecar.then(|| cluster.sidecar(&storage.array)).transpose()?.map(Kept::new);
        let lane = Self { cluster, name: name.to_owned(), nodes, storage, sidecar };
        create_policy(&cluster.client, name, name, &options.policy).await?;
        Ok(lane)
    }

    pub fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    pub fn array(&self) -> &Array {
        &self.storage.array
    }

    /// The node where workloads begin.
    pub fn victim(&self) -> Result<&SimulatedNode, Failed> {
        Ok(self.nodes.first().ok_or("the lane has no node")?)
    }

    /// A protected workload of one pod with one volume, on the victim while that can run it.
    pub fn workload(&self, name: &str) -> Workload {
        Workload {
            labels: [("lane".to_owned(), self.name.clone())].into(),
            nodes: self.nodes.iter().map(|node| node.name().to_owned()).collect(),
            node: self.nodes.first().map(|node| node.name().to_owned()),
            ..Workload::new(&format!("{}-{name}", self.name))
        }
    }

    /// Runs a workload on the victim.
    pub async fn run(&self, set: &Workload) -> Result<(), Failed> {
        self.run_on(&[self.array()], set).await
    }

    /// The same with volumes on these arrays.
    pub async fn run_on(&self, arrays: &[&Array], set: &Workload) -> Result<(), Failed> {
        self.cluster.stateful_set_on(arrays, set).await?;
        self.ready_on(set, &[self.victim()?.name()]).await
    }

    /// Waits until every pod of the workload is Ready on one of these nodes.
    pub async fn ready_on(&self, set: &Workload, nodes: &[&str]) -> Result<(), Failed> {
        self.cluster
            .wait(&format!("{} Ready on {nodes:?}", set.name), SOON, async || {
                let placed = self.cluster.pods_ready(set, SOON).await?;
                let there = placed.values().all(|node| nodes.contains(&node.as_str()));
                Ok(if there { Ok(()) } else { Err(format!("{placed:?}")) })
            })
            .await?;
        Ok(())
    }

    /// Waits until the workload runs on the lane's other nodes.
    pub async fn moved(&self, set: &Workload) -> Result<(), Failed> {
        let others: Vec<_> = self.nodes.iter().skip(1).map(SimulatedNode::name).collect();
        self.ready_on(set, &others).await
    }

    /// The oracle's verdict; then the lane is taken down, so that it costs the other tests nothing.
    pub async fn end(self) -> Result<(), Failed> {
        let verdict = oracle::judge(self.array().ledger());
        if !verdict.is_clean() {
            return Err(format!("{}: {verdict}", self.name).into());
        }
        let policies: Api<ResiliencyPolicy> = Api::all(self.client());
        // It may be gone already, where a test deleted it.
        let _ = policies.delete(&self.name, &DeleteParams::default()).await;
        for node in &self.nodes {
            self.cluster.nodes.remove(node.name()).await?;
        }
        Ok(())
    }
}

/// A policy for pods of a lane, without limits but those in `spec`.
pub async fn create_policy(client: &Client, name: &str, lane: &str, spec: &Value) -> Result<(), Failed> {
    let mut policy = json!({
        "mode": "Enforce",
        "selector": { "podSelector": { "matchLabels": { "lane": lane } } },
        "limits": { "maxNodes": "100%", "ceiling": 100, "maxUnhealthy": "100%", "window": "0s", "cooldown": "0s" },
    });
    merge(&mut policy, spec);
    let policy: ResiliencyPolicy = serde_json::from_value(json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "ResiliencyPolicy",
        "metadata": { "name": name }, "spec": policy,
    }))?;
    Api::all(client.clone()).create(&PostParams::default(), &policy).await.map_err(ClusterError::from)?;
    Ok(())
}
