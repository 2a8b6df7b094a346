//! What all simulated nodes share: the client, the arrays, and one watch of pods and one of nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;

use super::NodeOptions;
use super::heartbeat::Heartbeat;
use super::kubelet::Kubelet;
use crate::array::Array;
use crate::lock::lock;
use crate::pod_watch;

/// A pod as its worker sees it; `None` when it is gone from the API.
pub(super) type PodView = watch::Receiver<Option<Arc<Pod>>>;

pub(super) struct World {
    pub client: Client,
    /// By CSI driver name.
    arrays: Mutex<BTreeMap<String, Arc<Array>>>,
    pub heartbeat: Arc<dyn Heartbeat>,
    pub options: NodeOptions,
    pub registry: Mutex<Registry>,
}

#[derive(Default)]
pub(super) struct Registry {
    pub nodes: HashMap<String, Arc<Kubelet>>,
    /// How many were added ever: addresses go by that, so that no two have one, also after some were removed.
    pub added: usize,
    /// By uid: a pod of the same name is another pod.
    pods: HashMap<String, Bound>,
}

/// A pod that is bound to a node.
#[derive(Debug)]
struct Bound {
    node: String,
    pod: watch::Sender<Option<Arc<Pod>>>,
}

impl Registry {
    /// The pods that are bound to a node now.
    pub fn pods_of(&self, node: &str) -> impl Iterator<Item = PodView> {
        let bound = self.pods.values().filter(move |bound| bound.node == node);
        bound.map(|bound| bound.pod.subscribe())
    }
}

impl World {
    pub fn new(
        client: Client,
        arrays: impl IntoIterator<Item = Arc<Array>>,
        heartbeat: Arc<dyn Heartbeat>,
        options: NodeOptions,
    ) -> Self {
        let arrays = arrays.into_iter();
        World {
            client,
            arrays: Mutex::new(arrays.map(|array| (array.driver_name().to_owned(), array)).collect()),
            heartbeat,
            options,
            registry: Mutex::default(),
        }
    }

    /// Nodes that register from now on have its driver.
    pub fn add_array(&self, array: Arc<Array>) {
        let driver = array.driver_name().to_owned();
        lock(&self.arrays).insert(driver, array);
    }

    /// All arrays now.
    pub fn arrays(&self) -> Vec<Arc<Array>> {
        lock(&self.arrays).values().cloned().collect()
    }

    /// The array of a CSI driver.
    pub fn array(&self, driver: &str) -> Option<Arc<Array>> {
        lock(&self.arrays).get(driver).cloned()
    }

    fn see_pod(&self, pod: Pod) {
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else {
            return;
        };
        let uid = pod.uid().unwrap_or_default();
        let pod = Arc::new(pod);
        let mut registry = lock(&self.registry);
        if let Some(bound) = registry.pods.get(&uid) {
            bound.pod.send_replace(Some(pod));
            return;
        }
        let sender = watch::Sender::new(Some(pod));
        if let Some(kubelet) = registry.nodes.get(&node) {
            kubelet.run(sender.subscribe());
        }
        registry.pods.insert(uid, Bound { node, pod: sender });
    }

    fn lose_pods(&self, is_lost: impl Fn(&str) -> bool) {
        lock(&self.registry).pods.retain(|uid, bound| {
            let lost = is_lost(uid);
            if lost {
                bound.pod.send_replace(None);
            }
            !lost
        });
    }

    fn see_node(&self, node: &Node, gone: bool) {
        let attached = node.status.as_ref().and_then(|status| status.volumes_attached.as_ref()).filter(|_| !gone);
        let names = attached.into_iter().flatten();
        let names: BTreeSet<String> = names.map(|volume| volume.name.clone()).collect();
        if let Some(kubelet) = lock(&self.registry).nodes.get(&node.name_any()) {
            kubelet.attached.send_replace(names);
        }
    }
}

/// Follows all pods, for ever.
pub(super) async fn watch_pods(world: Arc<World>) {
    pod_watch::follow(world.client.clone(), |pod| world.see_pod(pod), |is_lost| world.lose_pods(is_lost)).await;
}

/// Follows all nodes, for what the attach/detach controller says there, for ever.
pub(super) async fn watch_nodes(world: Arc<World>) {
    let api: Api<Node> = Api::all(world.client.clone());
    let events = watcher::watcher(api, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::InitApply(node) | Event::Apply(node)) => world.see_node(&node, false),
            Ok(Event::Delete(node)) => world.see_node(&node, true),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => tracing::debug!(%error, "the simulated nodes' watch of nodes goes on"),
        }
    }
}
