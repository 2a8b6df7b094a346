//! Simulated nodes: what a kubelet and a CSI node plugin do, seen from the API and from the array.
//!
//! A pod turns Ready only when its volumes are attached and staged; then one writer per volume runs. A node that is
//! [killed](SimulatedNode::kill) writes nothing to the API any more, but its writers go on; a node that comes back does what
//! a kubelet does. Leases and node conditions are not kept here but by a [`Heartbeat`] (kwok).

mod heartbeat;
mod kubelet;
mod network;
mod objects;
mod pod_worker;
pub(crate) mod status;
mod volumes;
mod world;
mod writer;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::DeleteParams;
use kube::{Api, Client};
use tokio::task::JoinSet;

pub use self::heartbeat::{Heartbeat, KwokHeartbeat};

use self::kubelet::Kubelet;
use self::world::World;
use crate::array::Array;
use crate::lock::lock;
use crate::process::ProcessError;

/// How simulated nodes behave.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The time between two writes of a writer.
    pub write_interval: Duration,
    /// How many pods fit on a node.
    pub max_pods: u32,
    /// Labels that every node gets beside the usual ones.
    pub labels: BTreeMap<String, String>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        NodeOptions { write_interval: Duration::from_millis(20), max_pods: 250, labels: BTreeMap::new() }
    }
}

/// Why a node could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The API server refused the node's objects.
    #[error("the API server refused an object of the node: {0}")]
    Api(#[from] kube::Error),
    /// An object could not be put together.
    #[error("an object of the node is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Its heartbeat could not be started.
    #[error("the node's heartbeat does not start: {0}")]
    Heartbeat(#[from] crate::TestbedError),
    /// Its heartbeat ended.
    #[error("the node's heartbeat ended: {0}")]
    Ended(#[from] ProcessError),
    /// The kernel gave no boot id.
    #[error("no new boot id from the kernel: {0}")]
    BootId(#[from] io::Error),
}

/// Simulated nodes of one cluster. Dropping it ends all their writers.
pub struct SimulatedNodes {
    world: Arc<World>,
    /// Watches pods and nodes, once for all.
    _watches: JoinSet<()>,
}

impl SimulatedNodes {
    /// Nodes with the CSI drivers of `arrays`. There are none yet: see [`SimulatedNodes::add`].
    pub fn new(
        client: Client,
        arrays: impl IntoIterator<Item = Arc<Array>>,
        heartbeat: Arc<dyn Heartbeat>,
        options: NodeOptions,
    ) -> Self {
        let world = Arc::new(World::new(client, arrays, heartbeat, options));
        let mut watches = JoinSet::new();
        watches.spawn(world::watch_pods(world.clone()));
        watches.spawn(world::watch_nodes(world.clone()));
        SimulatedNodes { world, _watches: watches }
    }

    /// One more array. Nodes that are added from now on have its driver.
    pub fn add_array(&self, array: Arc<Array>) {
        self.world.add_array(array);
    }

    /// Adds a node: registers it with the arrays, creates Node and CSINode, starts its heartbeat.
    ///
    /// # Errors
    ///
    /// See [`NodeError`].
    pub async fn add(&self, name: &str) -> Result<SimulatedNode, NodeError> {
        let node = {
            let mut registry = lock(&self.world.registry);
            let node = Arc::new(Kubelet::new(self.world.clone(), name, registry.added)?);
            registry.added += 1;
            registry.nodes.insert(name.to_owned(), node.clone());
            node
        };
        node.register().await?;
        node.power_on();
        self.world.heartbeat.start(name).await?;
        Ok(SimulatedNode(node))
    }

    /// Takes a node away for good: power, heartbeat, and its Node object. What it wrote stays in the ledgers.
    ///
    /// # Errors
    ///
    /// When the API server refuses the deletion.
    pub async fn remove(&self, name: &str) -> Result<(), NodeError> {
        let node = lock(&self.world.registry).nodes.remove(name);
        let Some(node) = node.map(SimulatedNode) else {
            return Ok(());
        };
        node.power_off().await;
        let nodes: Api<Node> = Api::all(self.world.client.clone());
        match nodes.delete(name, &DeleteParams::default()).await {
            // A test deleted it before.
            Err(kube::Error::Api(gone)) if gone.code == 404 => Ok(()),
            deleted => Ok(deleted.map(drop)?),
        }
    }

    /// The node of this name, if it was added.
    pub fn node(&self, name: &str) -> Option<SimulatedNode> {
        let registry = lock(&self.world.registry);
        registry.nodes.get(name).cloned().map(SimulatedNode)
    }
}

impl Drop for SimulatedNodes {
    fn drop(&mut self) {
        // Nodes and world know each other: emptying the registry lets both go.
        let nodes = std::mem::take(&mut lock(&self.world.registry).nodes);
        for node in nodes.values() {
            node.stop_pods();
        }
    }
}

/// One simulated node. Cheap to clone; all clones are the same node.
#[derive(Clone)]
pub struct SimulatedNode(Arc<Kubelet>);

impl SimulatedNode {
    /// The name of its Node object.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The CSI node id by which the arrays know it. It differs from the name, so that mixing them up is noticed.
    pub fn csi_node_id(&self) -> &str {
        &self.0.csi_node_id
    }

    /// Its present boot id.
    pub fn boot_id(&self) -> String {
        lock(&self.0.boot_id).clone()
    }

    /// Cuts it off from the API: when this returns, it writes nothing there any more and its heartbeat has stopped. **Its
    /// writers go on.**
    pub async fn kill(&self) {
        self.0.network.cut().await;
        self.0.world.heartbeat.stop(&self.0.name).await;
    }

    /// All its writers pause, as on a suspended machine.
    pub fn freeze_writers(&self) {
        self.0.frozen.send_replace(true);
    }

    /// Its writers go on.
    pub fn thaw_writers(&self) {
        self.0.frozen.send_replace(false);
    }

    /// Takes its power: cut off from the API, and its writers end.
    pub async fn power_off(&self) {
        self.0.power_off().await;
        self.0.world.heartbeat.stop(&self.0.name).await;
    }

    /// Brings it back. After [`kill`](Self::kill) its network is back, its boot id is the same, and its kubelet ends the
    /// containers of pods that are gone. After [`power_off`](Self::power_off) it boots.
    ///
    /// # Errors
    ///
    /// See [`NodeError`].
    pub async fn revive(&self) -> Result<(), NodeError> {
        self.thaw_writers();
        if !self.0.is_on() {
            self.0.renew_boot_id()?;
        }
        self.0.network.restore();
        if !self.0.is_on() {
            self.0.report_boot().await?;
            self.0.power_on();
        }
        self.0.world.heartbeat.start(&self.0.name).await
    }

    /// Its kubelet restarts while the machine runs on, and registers again: new Node and CSINode objects where somebody
    /// deleted them, with the same boot id.
    ///
    /// # Errors
    ///
    /// See [`NodeError`].
    pub async fn register(&self) -> Result<(), NodeError> {
        self.0.register().await
    }

    /// Power off and on: all writers gone, a new boot id, pods that still exist start from scratch.
    ///
    /// # Errors
    ///
    /// See [`NodeError`].
    pub async fn reboot(&self) -> Result<(), NodeError> {
        self.power_off().await;
        self.revive().await
    }
}
