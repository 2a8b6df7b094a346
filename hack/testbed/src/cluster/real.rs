//! A cluster of real nodes on which the product runs as it is shipped: control plane, kubelets, the test array over TCP with
//! its CSI driver, and from our manifests the operator, the node agent and the sidecar, all in pods.

mod breakage;
mod install;
mod nfs;
mod operator;
mod s3;
mod workload;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead::api::driver_report::DriverReport;
use bulkhead::api::node_fence::NodeFence;
use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tempfile::TempDir;

pub use self::breakage::LocalVolume;
pub use self::nfs::{NfsExport, Said};
pub use self::s3::{S3, S3Volume, Shell};
pub use self::workload::{Kind, PodPlace, RealWorkload, last_written, records_found};

use super::{ClusterError, wait};
use crate::array::{Array, ArrayOptions};
use crate::csi_driver::manifests;
use crate::images;
use crate::real_nodes::{NodeNetwork, RealNode, RealNodeOptions, RealNodes};
use crate::{Identity, Testbed, TestbedOptions, oracle};

/// How long everything that we ship may take to run. A loaded machine needs more than the usual half minute.
const ROLLOUT: Duration = Duration::from_secs(240);
/// The label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// How a cluster is set up. The defaults notice a dead node after 8 s instead of 50.
#[derive(Clone, Debug)]
pub struct RealClusterOptions {
    /// Control plane.
    pub testbed: TestbedOptions,
    /// How many nodes, named `node-1` and so on. The operator needs two; a third runs its second replica while one is away.
    pub nodes: usize,
    /// Their settings.
    pub node: RealNodeOptions,
    /// So many zones the nodes are in, in turn; none: their zones are not known.
    pub zones: usize,
    /// The array.
    pub array: ArrayOptions,
    /// The folder with our programs, static ones.
    pub programs: PathBuf,
    /// Whether what we ship is installed. Without it there is the driver alone, as on a plain Kubernetes.
    pub operator: bool,
    /// Whether there is an S3 server on the storage network, and the S3 driver is installed too.
    pub s3: bool,
    /// Whether nodes have the image of an NFS server and its clients, which the machine must have installed.
    pub nfs: bool,
    /// Further arguments of `bulkhead-controller`.
    pub controller_args: Vec<String>,
}

impl RealClusterOptions {
    /// The defaults, for the programs in this folder.
    pub fn new(programs: &Path) -> Self {
        Self {
            testbed: TestbedOptions::fast_nodes(),
            nodes: 3,
            node: RealNodeOptions::fast(),
            zones: 0,
            array: ArrayOptions::default(),
            programs: programs.to_owned(),
            operator: true,
            s3: false,
            nfs: false,
            controller_args: Vec::new(),
        }
    }
}

/// A running cluster of real nodes. Nothing of it outlives the value.
pub struct RealCluster {
    // Dropped in this order: nodes while their array answers, the control plane last.
    /// The nodes.
    pub nodes: RealNodes,
    /// The array.
    pub array: Arc<Array>,
    /// S3, if it was asked for.
    pub s3: Option<S3>,
    /// A client that may do everything.
    pub client: Client,
    /// The control plane.
    pub testbed: Testbed,
    options: RealClusterOptions,
    driver: manifests::Deployment,
    _array_folder: TempDir,
}

impl RealCluster {
    /// Starts everything and returns when every pod that we ship is available. The first time on a machine this builds
    /// upstream programs, which takes minutes.
    ///
    /// # Errors
    /// When this machine can have no real nodes, and whatever else goes wrong.
    pub async fn start(options: RealClusterOptions) -> Result<Self, ClusterError> {
        let archives = archives(&options).await?;
        let network = NodeNetwork::create().await?;
        let testbed =
            TestbedOptions { advertise_address: Some(network.host_control_address()), ..options.testbed.clone() };
        let testbed = Testbed::start(testbed).await?;
        let folder = tempfile::tempdir().map_err(ClusterError::Array)?;
        let array = Arc::new(Array::start(folder.path(), options.array.clone()).map_err(ClusterError::Array)?);
        let any_port = |address| SocketAddr::new(IpAddr::V4(address), 0);
        let management =
            array.serve_management(any_port(network.host_control_address())).map_err(ClusterError::Array)?;
        let io = array.serve_io(any_port(network.host_storage_address())).map_err(ClusterError::Array)?;
        let s3 = options.s3.then(|| S3::start(any_port(network.host_storage_address())));
        let driver = manifests::Deployment {
            driver_name: array.driver_name().to_owned(),
            ..manifests::Deployment::new(management, io)
        };
        let cluster = Self {
            nodes: RealNodes::start(&testbed, network, options.node.clone()).await?,
            array,
            s3: s3.transpose().map_err(ClusterError::Array)?,
            client: testbed.client(&Identity::Admin).await?,
            testbed,
            options,
            driver,
            _array_folder: folder,
        };
        try_join_all((1..=cluster.options.nodes).map(|number| cluster.add_node(number, &archives))).await?;
        if cluster.options.operator {
            cluster.install_operator().await?;
        }
        cluster.apply_driver(cluster.options.operator).await?;
        cluster.settled().await?;
        Ok(cluster)
    }

    async fn add_node(&self, number: usize, archives: &[PathBuf]) -> Result<(), ClusterError> {
        let name = format!("node-{number}");
        // The driver's pods say the node's name for its CSI node id.
        self.array.add_node(&name);
        let node = self.nodes.add(&self.testbed, &name).await?;
        if let Some(zone) = number.checked_rem(self.options.zones) {
            let patch = Patch::Merge(json!({"metadata": {"labels": {ZONE: format!("zone-{zone}")}}}));
            Api::<Node>::all(self.client.clone()).patch(&name, &PatchParams::default(), &patch).await?;
        }
        for archive in archives {
            node.import_image(archive).await?;
        }
        Ok(())
    }

    /// The nodes of the zone with this number; they are counted round and round. Without zones all nodes are one.
    ///
    /// # Errors
    /// When a node was removed.
    pub fn zone(&self, number: usize) -> Result<Vec<RealNode>, ClusterError> {
        let zones = self.options.zones.max(1);
        let numbers = (1..=self.options.nodes).filter(|node| node % zones == number % zones);
        numbers.map(|node| self.node(&format!("node-{node}"))).collect()
    }

    /// Waits until all that runs in the cluster is available, and the driver is reported.
    ///
    /// # Errors
    /// When it is not in time; the error says what every pod that is not ready waits for.
    pub async fn settled(&self) -> Result<(), ClusterError> {
        wait::until("everything that is shipped is available", ROLLOUT, async || {
            let missing = self.unavailable().await?;
            if missing.is_empty() {
                return Ok(Ok(()));
            }
            Ok(Err(format!("not available: {}; {}", missing.join(", "), self.waiting().await?.join("; "))))
        })
        .await
    }

    /// What is not available yet.
    async fn unavailable(&self) -> Result<Vec<String>, ClusterError> {
        let all = ListParams::default();
        let mut missing = Vec::new();
        for deployment in Api::<Deployment>::all(self.client.clone()).list(&all).await? {
            let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            let available = deployment.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0);
            if available < wanted {
                missing.push(format!("Deployment {}", deployment.name_any()));
            }
        }
        for set in Api::<DaemonSet>::all(self.client.clone()).list(&all).await? {
            let available = set.status.as_ref().and_then(|status| status.number_available).unwrap_or(0);
            if usize::try_from(available).unwrap_or(0) < self.options.nodes {
                missing.push(format!("DaemonSet {}", set.name_any()));
            }
        }
        if self.options.operator && !self.is_reported().await? {
            missing.push(format!("DriverReport {}", self.array.driver_name()));
        }
        Ok(missing)
    }

    /// Whether the sidecar of the array's driver reports that it works.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn is_reported(&self) -> Result<bool, ClusterError> {
        let report = Api::<DriverReport>::all(self.client.clone()).get_opt(self.array.driver_name()).await?;
        let conditions = report.and_then(|report| report.status).map(|status| status.conditions);
        Ok(conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True"))
    }

    /// What the pods wait for that are not Ready.
    async fn waiting(&self) -> Result<Vec<String>, ClusterError> {
        let pods = Api::<Pod>::all(self.client.clone()).list(&ListParams::default()).await?;
        let unready = pods.iter().filter(|pod| super::ready_on(pod).is_none());
        Ok(unready
            .map(|pod| {
                let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
                let states: Vec<_> = statuses.filter(|status| !status.ready).map(state_of).collect();
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("no node");
                format!("{} on {node}: {}", pod.name_any(), states.join(", "))
            })
            .collect())
    }

    /// The names of all nodes.
    pub fn node_names(&self) -> impl Iterator<Item = String> + use<> {
        (1..=self.options.nodes).map(|number| format!("node-{number}"))
    }

    /// The node of this name.
    ///
    /// # Errors
    /// When no such node was added.
    pub fn node(&self, name: &str) -> Result<RealNode, ClusterError> {
        self.nodes.node(name).ok_or_else(|| super::no_node(name))
    }

    /// Mends all that is broken on any node.
    ///
    /// # Errors
    /// When a node does not come back.
    pub async fn heal_all(&self) -> Result<(), ClusterError> {
        for name in self.node_names() {
            self.node(&name)?.heal_all().await?;
        }
        Ok(())
    }

    /// Waits until `look` says Ok.
    ///
    /// # Errors
    /// What `look` fails with, or that it was in vain.
    pub async fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        look: impl AsyncFnMut() -> Result<Result<T, String>, ClusterError>,
    ) -> Result<T, ClusterError> {
        wait::until(what, limit, look).await
    }

    /// Waits until the NodeFence of a node is as `holds` wants it.
    ///
    /// # Errors
    /// When it is not in time; the error has the NodeFence.
    pub async fn fence(
        &self,
        node: &str,
        what: &str,
        limit: Duration,
        holds: impl Fn(&NodeFence) -> bool,
    ) -> Result<NodeFence, ClusterError> {
        wait::fence(&self.client, node, what, limit, holds).await
    }

    /// Waits until a node is Ready and has no taint.
    ///
    /// # Errors
    /// When it is not in time; the error has its taints and conditions.
    pub async fn usable(&self, name: &str, limit: Duration) -> Result<(), ClusterError> {
        let api: Api<Node> = Api::all(self.client.clone());
        wait::until(&format!("node {name} Ready and without taints"), limit, async || {
            let node = api.get_opt(name).await?;
            Ok(match node {
                Some(node) if super::is_usable(&node) => Ok(()),
                Some(node) => {
                    let conditions = node.status.and_then(|status| status.conditions);
                    Err(json!({"spec": node.spec, "conditions": conditions}).to_string())
                }
                None => Err("there is none".into()),
            })
        })
        .await
    }

    /// The verdict of the oracle; an error text when it found two writers.
    ///
    /// # Errors
    /// See above.
    pub fn judge(&self) -> Result<(), String> {
        let verdict = oracle::judge(self.array.ledger());
        if verdict.is_clean() { Ok(()) } else { Err(format!("{}: {verdict}", self.array.driver_name())) }
    }
}

/// The archives of all images, packed where they are not there yet.
async fn archives(options: &RealClusterOptions) -> Result<Vec<PathBuf>, ClusterError> {
    let RealClusterOptions { programs, s3: with_s3, nfs: with_nfs, .. } = options.clone();
    let packing = tokio::task::spawn_blocking(move || {
        let folder = images::folder(&programs);
        let mut archives = images::ensure(&programs, &folder)?;
        if with_s3 {
            archives.extend(s3::archives(&programs, &folder)?);
        }
        if with_nfs {
            archives.push(nfs::archive(&programs, &folder)?);
        }
        Ok(archives)
    });
    packing.await.map_err(|error| ClusterError::Array(std::io::Error::other(error)))?
}

fn state_of(status: &ContainerStatus) -> String {
    let state = status.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let ended = state.and_then(|state| state.terminated.as_ref());
    let why = match (waiting, ended) {
        (Some(waiting), _) => format!("{:?} {:?}", waiting.reason, waiting.message),
        (None, Some(ended)) => format!("ended with {} {:?}", ended.exit_code, ended.message),
        (None, None) => "runs, not ready".to_owned(),
    };
    format!("{} ({why}, {} restarts)", status.name, status.restart_count)
}

/// The labels of what every workload protects.
fn protected() -> BTreeMap<String, String> {
    BTreeMap::from([("bulkhead.dev/protect".to_owned(), "true".to_owned())])
}
