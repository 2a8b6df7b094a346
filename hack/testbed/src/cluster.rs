//! A whole cluster in one value: control plane, test array with its attacher, simulated nodes, and the operator as it is
//! shipped (its real programs, under its real identities, with its real RBAC and admission policies).

mod error;
pub mod real;
mod tapped;
pub mod tutorial;
mod wait;
pub mod watched;
mod workload;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead::api::node_fence::NodeFence;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use tempfile::TempDir;

pub use self::error::ClusterError;
pub use self::tapped::Tapped;
pub use self::workload::{Workload, merge};

use crate::array::{Array, ArrayOptions};
use crate::nodes::{KwokHeartbeat, NodeOptions, SimulatedNode, SimulatedNodes};
use crate::process::{Launch, Process};
use crate::{AttacherOptions, Identity, KwokOptions, Testbed, TestbedError, TestbedOptions, oracle};

/// How a cluster is set up. The defaults notice a dead node after 8 s instead of 50.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Control plane.
    pub testbed: TestbedOptions,
    /// Heartbeats of the nodes.
    pub kwok: KwokOptions,
    /// One array, with its attacher and its sidecar, per CSI driver.
    pub arrays: Vec<ArrayOptions>,
    /// The attachers.
    pub attacher: AttacherOptions,
    /// How many nodes, named `node-1` and so on.
    pub nodes: usize,
    /// Their settings.
    pub node: NodeOptions,
    /// The folder with our programs; without it no operator is started.
    pub programs: Option<PathBuf>,
    /// Whether a sidecar is started beside each array.
    pub sidecars: bool,
    /// Whether a controller is started. What it needs is installed in any case.
    pub controller: bool,
    /// Further arguments of `bulkhead-controller`.
    pub controller_args: Vec<String>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            testbed: TestbedOptions::fast_nodes(),
            kwok: KwokOptions::fast(),
            arrays: vec![ArrayOptions::default()],
            attacher: AttacherOptions::default(),
            nodes: 3,
            node: NodeOptions::default(),
            programs: None,
            sidecars: true,
            controller: true,
            controller_args: Vec::new(),
        }
    }
}

impl ClusterOptions {
    /// The control plane and our programs: no array, no node of its own and no controller yet. No kubelet renews anything there, so
    /// no Lease says that a node is gone.
    pub fn without_nodes(programs: Option<PathBuf>) -> Self {
        let testbed =
            TestbedOptions { node_monitor_grace_period: Duration::from_secs(86400), ..TestbedOptions::default() };
        Self { testbed, programs, arrays: Vec::new(), nodes: 0, controller: false, ..Self::default() }
    }
}

fn no_node(name: &str) -> ClusterError {
    ClusterError::Timeout { what: format!("node {name}"), limit: Duration::ZERO, last: "no such node was added".into() }
}

/// A running cluster. Nothing of it outlives the value.
pub struct Cluster {
    /// Our controllers, in the order they were started.
    pub controllers: Vec<Process>,
    /// Our sidecars, by driver.
    pub sidecars: BTreeMap<String, Process>,
    /// A client that may do everything.
    pub client: Client,
    /// The nodes.
    pub nodes: SimulatedNodes,
    /// The arrays, in the order of the options.
    pub arrays: Vec<Arc<Array>>,
    /// The control plane.
    pub testbed: Arc<Testbed>,
    options: ClusterOptions,
    _parts: Vec<(Process, TempDir)>,
}

/// An array that was added to a running cluster, with its attacher. What it knows goes when this is dropped.
pub struct AddedArray {
    /// The array.
    pub array: Arc<Array>,
    /// Its attacher.
    pub attacher: Process,
    _folder: TempDir,
}

impl Cluster {
    /// Starts everything and returns when nodes are Ready and the operator leads.
    pub async fn start(options: ClusterOptions) -> Result<Self, ClusterError> {
        let testbed = Arc::new(Testbed::start(options.testbed.clone()).await?);
        let client = testbed.client(&Identity::TestbedNodes).await?;
        let (mut arrays, mut parts) = (Vec::new(), Vec::new());
        for array in &options.arrays {
            let added = start_array(&testbed, &client, array, &options.attacher).await?;
            arrays.push(added.array);
            parts.push((added.attacher, added._folder));
        }
        let heartbeat = Arc::new(KwokHeartbeat::new(testbed.clone(), options.kwok.clone()));
        let nodes = SimulatedNodes::new(client.clone(), arrays.clone(), heartbeat, options.node.clone());
        for number in 1..=options.nodes {
            nodes.add(&format!("node-{number}")).await?;
        }
        let mut cluster = Self {
            controllers: Vec::new(),
            sidecars: BTreeMap::new(),
            client,
            nodes,
            arrays,
            testbed,
            options,
            _parts: parts,
        };
        let names: Vec<_> = (1..=cluster.options.nodes).map(|number| format!("node-{number}")).collect();
        cluster.nodes_usable(&names).await?;
        if cluster.options.programs.is_some() {
            cluster.install_operator().await?;
        }
        Ok(cluster)
    }

    /// Applies what we ship (definitions, RBAC, admission policies) and starts our programs.
    async fn install_operator(&mut self) -> Result<(), ClusterError> {
        let root = root();
        self.testbed.apply_file(&root.join("config/default/namespace.yaml")).await?;
        for folder in ["crds", "config/rbac", "config/policies", "config/gates", "config/flow-control"] {
            self.testbed.apply_dir(&root.join(folder)).await?;
        }
        let drivers: Vec<_> = self.arrays.iter().map(|array| array.driver_name().to_owned()).collect();
        for driver in &drivers {
            self.allow_fencer(driver).await?;
            if self.options.sidecars {
                self.start_sidecar(driver).await?;
            }
        }
        if !self.options.controller {
            return Ok(());
        }
        self.start_controller().await?;
        self.wait("the controller leads", Duration::from_secs(30), async || {
            let log = self.controllers.iter().map(Process::log_tail).collect::<String>();
            let api: Api<k8s_openapi::api::coordination::v1::Lease> =
                Api::namespaced(self.client.clone(), bulkhead::api::names::OPERATOR_NAMESPACE);
            let lease = api.get_opt("bulkhead-controller").await?;
            let holder = lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity);
            Ok(if holder.is_some_and(|holder| !holder.is_empty()) { Ok(()) } else { Err(log) })
        })
        .await
    }

    /// One more array with its attacher, without a sidecar. Nodes that are added from now on have its driver.
    pub async fn add_array(&self, options: &ArrayOptions) -> Result<AddedArray, ClusterError> {
        self.add_array_with(options, &self.options.attacher).await
    }

    /// The same with an attacher of its own settings.
    pub async fn add_array_with(
        &self,
        options: &ArrayOptions,
        attacher: &AttacherOptions,
    ) -> Result<AddedArray, ClusterError> {
        let added = start_array(&self.testbed, &self.client, options, attacher).await?;
        self.nodes.add_array(added.array.clone());
        self.allow_fencer(&options.driver_name).await?;
        Ok(added)
    }

    /// Gives our sidecar's ServiceAccount the rights of this driver's fencer, as shipped.
    async fn allow_fencer(&self, driver: &str) -> Result<(), ClusterError> {
        let objects = fencer_rbac(&self.testbed, driver).await?;
        Ok(self.testbed.apply(objects).await?)
    }

    /// Starts one more `bulkhead-controller`.
    pub async fn start_controller(&mut self) -> Result<(), ClusterError> {
        let process = self.controller(&format!("bulkhead-controller-{}", self.controllers.len()))?;
        self.controllers.push(process);
        Ok(())
    }

    /// A `bulkhead-controller` of that name. One that ended and starts again under its name leads at once, as a
    /// container does that its kubelet restarts.
    pub fn controller(&self, name: &str) -> Result<Process, ClusterError> {
        let identity = self.testbed.kubeconfig(&Identity::OperatorController)?;
        let mut args = common_args(&identity, name);
        args.extend(self.options.controller_args.iter().map(OsString::from));
        self.launch("bulkhead-controller", name, args)
    }

    /// Starts `bulkhead-csi-sidecar` beside the array of this driver.
    pub async fn start_sidecar(&mut self, driver: &str) -> Result<(), ClusterError> {
        let array = self.arrays.iter().find(|array| array.driver_name() == driver).cloned();
        if let Some(array) = array {
            let process = self.sidecar(&array)?;
            self.sidecars.insert(driver.to_owned(), process);
        }
        Ok(())
    }

    /// A `bulkhead-csi-sidecar` beside an array.
    pub fn sidecar(&self, array: &Array) -> Result<Process, ClusterError> {
        self.sidecar_named(array, &format!("bulkhead-csi-sidecar-{}", array.driver_name()))
    }

    /// One of several beside an array: the name tells the replicas apart, in the Lease and by their logs.
    pub fn sidecar_named(&self, array: &Array, name: &str) -> Result<Process, ClusterError> {
        let identity = self.testbed.kubeconfig(&Identity::CsiSidecar)?;
        let mut args = common_args(&identity, name);
        args.extend([OsString::from("--csi-address"), array.csi_socket().as_os_str().to_owned()]);
        self.launch("bulkhead-csi-sidecar", name, args)
    }

    fn launch(&self, program: &str, name: &str, args: Vec<OsString>) -> Result<Process, ClusterError> {
        let folder = self.options.programs.clone().unwrap_or_default();
        let launch = Launch {
            name: name.to_owned(),
            program: folder.join(program),
            args,
            env: Vec::new(),
            log: self.testbed.folder().join(format!("{name}.log")),
        };
        Ok(Process::spawn(launch)?)
    }

    /// The node of that number, from 1.
    pub fn node(&self, name: &str) -> Result<SimulatedNode, ClusterError> {
        self.nodes.node(name).ok_or_else(|| no_node(name))
    }

    /// Waits until every pod of the set is Ready, and returns the node of each.
    pub async fn pods_ready(&self, set: &Workload, limit: Duration) -> Result<BTreeMap<String, String>, ClusterError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &set.namespace);
        let mut placed = BTreeMap::new();
        for replica in 0..set.replicas {
            let name = format!("{}-{replica}", set.name);
            let node = self
                .wait(&format!("pod {name} Ready"), limit, async || {
                    let pod = api.get_opt(&name).await?;
                    Ok(pod.as_ref().and_then(ready_on).ok_or_else(|| format!("{:?}", pod.map(|pod| pod.status))))
                })
                .await?;
            placed.insert(name, node);
        }
        Ok(placed)
    }

    /// Waits until `look` says Ok.
    pub async fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        look: impl AsyncFnMut() -> Result<Result<T, String>, ClusterError>,
    ) -> Result<T, ClusterError> {
        wait::until(what, limit, look).await
    }

    /// Waits until the NodeFence of a node is as `holds` wants it.
    pub async fn fence(
        &self,
        node: &str,
        what: &str,
        limit: Duration,
        holds: impl Fn(&NodeFence) -> bool,
    ) -> Result<NodeFence, ClusterError> {
        wait::fence(&self.client, node, what, limit, holds).await
    }

    /// The verdict of every array's oracle; an error text when one found two writers.
    pub fn judge(&self) -> Result<(), String> {
        for array in &self.arrays {
            let verdict = oracle::judge(array.ledger());
            if !verdict.is_clean() {
                return Err(format!("{}: {verdict}", array.driver_name()));
            }
        }
        Ok(())
    }

    /// Waits until these nodes are Ready and have no taint.
    pub async fn nodes_usable(&self, names: &[String]) -> Result<(), ClusterError> {
        let api: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.client.clone());
        // After an outage of the API server Kubernetes' own informers take up to a minute to look again.
        self.wait("all nodes Ready", Duration::from_secs(180), async || {
            let nodes = api.list(&kube::api::ListParams::default()).await?.items;
            let wanted = nodes.iter().filter(|node| names.contains(&node.name_any()));
            let ready = wanted.filter(|node| is_usable(node)).count();
            Ok(if ready == names.len() { Ok(()) } else { Err(format!("{ready} of {} are", names.len())) })
        })
        .await
    }
}

fn common_args(kubeconfig: &Path, identity: &str) -> Vec<OsString> {
    let log = "info,bulkhead=debug,kube_client=warn,tower=warn,hyper=warn,hyper_util=warn";
    let mut args: Vec<OsString> = vec!["--kubeconfig".into(), kubeconfig.as_os_str().to_owned()];
    args.extend(["--identity", identity, "--listen", "127.0.0.1:0", "--log", log].map(OsString::from));
    args
}

fn is_usable(node: &k8s_openapi::api::core::v1::Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    ready && taints.count() == 0
}

fn ready_on(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let ready =
        status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let live = pod.metadata.deletion_timestamp.is_none();
    (ready && live).then(|| pod.spec.as_ref()?.node_name.clone()).flatten()
}

async fn start_array(
    testbed: &Testbed,
    client: &Client,
    options: &ArrayOptions,
    attacher: &AttacherOptions,
) -> Result<AddedArray, ClusterError> {
    let folder = tempfile::tempdir().map_err(ClusterError::Array)?;
    let array = Arc::new(Array::start(folder.path(), options.clone()).map_err(ClusterError::Array)?);
    array.install(client).await?;
    let attacher = testbed.start_attacher(array.driver_name(), array.csi_socket(), attacher)?;
    Ok(AddedArray { array, attacher, _folder: folder })
}

/// The rights of the test driver's sidecar, by the template that we ship, for whichever driver.
async fn fencer_rbac(testbed: &Testbed, driver: &str) -> Result<Vec<kube::api::DynamicObject>, ClusterError> {
    const TEST_DRIVER: &str = "csi.test.bulkhead.dev";
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/fencer"));
    let text = testbed.kubectl(&["kustomize", &folder.to_string_lossy()]).await?;
    let lease = bulkhead::api::names::fencer_lease;
    let text = text.replace(&lease(TEST_DRIVER), &lease(driver)).replace(TEST_DRIVER, driver);
    let mut objects = crate::apply::parse(folder, &text).map_err(TestbedError::from)?;
    // One account has them all here: its requests are ranked by none of them, or by whichever is first.
    objects.retain(|object| object.types.as_ref().is_none_or(|types| types.kind != "FlowSchema"));
    Ok(objects)
}

/// The root of this repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
