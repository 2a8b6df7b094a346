//! One node's kubelet: its registration, its power, its way to the API, its report of volumes in use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{SecondsFormat, Utc};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::task::JoinSet;

use super::NodeError;
use super::network::Network;
use super::objects::Registration;
use super::pod_worker::PodWorker;
use super::world::{PodView, World};
use crate::lock::lock;

/// The pause before something that failed is tried again.
pub(super) const RETRY: Duration = Duration::from_millis(100);

pub(super) struct Kubelet {
    pub world: Arc<World>,
    pub name: String,
    pub csi_node_id: String,
    pub boot_id: Mutex<String>,
    pub network: Network,
    pub frozen: watch::Sender<bool>,
    /// The volumes that the attach/detach controller says are attached.
    pub attached: watch::Sender<BTreeSet<String>>,
    address: Ipv4Addr,
    next_pod: AtomicU32,
    /// A worker per pod; `None` without power.
    workers: Mutex<Option<JoinSet<()>>>,
    /// Pod uid → unique names of its volumes.
    in_use: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// What was last reported as in use; `None` while that is unclear. Held while it is reported.
    reported: AsyncMutex<Option<BTreeSet<String>>>,
}

impl Kubelet {
    pub fn new(world: Arc<World>, name: &str, number: usize) -> Result<Self, NodeError> {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        Ok(Kubelet {
            world,
            name: name.to_owned(),
            csi_node_id: format!("csi-{name}"),
            boot_id: Mutex::new(new_boot_id()?),
            network: Network::default(),
            frozen: watch::Sender::new(false),
            attached: watch::Sender::default(),
            // 172.16.0.0/12 for nodes, 10.128.0.0/9 with 256 addresses per node for pods.
            address: Ipv4Addr::from(0xac10_0001_u32.wrapping_add(number)),
            next_pod: AtomicU32::new(0x0a80_0001_u32.wrapping_add(number.wrapping_mul(256))),
            workers: Mutex::new(None),
            in_use: Mutex::default(),
            reported: AsyncMutex::default(),
        })
    }

    /// The node's address.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// An address for one more pod.
    pub fn next_pod_address(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.next_pod.fetch_add(1, Ordering::Relaxed))
    }

    /// Creates Node and CSINode, and tells the arrays.
    pub async fn register(&self) -> Result<(), NodeError> {
        for array in self.world.arrays() {
            array.add_node(&self.csi_node_id);
        }
        let (boot_id, address) = (lock(&self.boot_id).clone(), self.address());
        let drivers = self.drivers();
        let registration = self.registration(&boot_id, &address, &drivers);
        let client = &self.world.client;
        let nodes: Api<Node> = Api::all(client.clone());
        let created = nodes.create(&PostParams::default(), &registration.node()?).await?;
        let csi_node = registration.csi_node(&created.uid().unwrap_or_default())?;
        let csi_nodes: Api<CSINode> = Api::all(client.clone());
        // One of a deleted node of this name may still be there.
        let params = PatchParams::apply("testbed-kubelet").force();
        csi_nodes.patch(&self.name, &params, &Patch::Apply(&csi_node)).await?;
        Ok(())
    }

    fn drivers(&self) -> Vec<String> {
        let arrays = self.world.arrays().into_iter();
        arrays.map(|array| array.driver_name().to_owned()).collect()
    }

    fn registration<'a>(&'a self, boot_id: &'a str, address: &'a str, drivers: &'a [String]) -> Registration<'a> {
        Registration {
            name: &self.name,
            csi_node_id: &self.csi_node_id,
            address,
            boot_id,
            drivers: drivers.iter().map(String::as_str).collect(),
            options: &self.world.options,
        }
    }

    pub fn is_on(&self) -> bool {
        lock(&self.workers).is_some()
    }

    /// Runs the pods that are bound to it.
    pub fn power_on(self: &Arc<Self>) {
        // The registry is locked throughout: a pod that is bound meanwhile is run by the watch after this.
        let registry = lock(&self.world.registry);
        *lock(&self.workers) = Some(JoinSet::new());
        for pod in registry.pods_of(&self.name) {
            self.run(pod);
        }
    }

    /// Ends all writers and pod workers; nothing is mounted any more.
    pub async fn power_off(&self) {
        self.stop_pods();
        self.network.cut().await;
        for array in self.world.arrays() {
            array.forget_staging(&self.csi_node_id);
        }
        lock(&self.in_use).clear();
    }

    /// Aborts all pod workers, and with each its writers.
    pub fn stop_pods(&self) {
        drop(lock(&self.workers).take());
    }

    pub fn renew_boot_id(&self) -> Result<(), NodeError> {
        *lock(&self.boot_id) = new_boot_id()?;
        Ok(())
    }

    /// Reports the new boot id, that nothing is in use, and in the same write that it is not ready yet, as a kubelet does: who sees
    /// the boot beside the word of the one before would take it for one that fell silent.
    pub async fn report_boot(&self) -> Result<(), NodeError> {
        let (boot_id, address) = (lock(&self.boot_id).clone(), self.address());
        let info = self.registration(&boot_id, &address, &[]).info();
        let now = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
        let ready = json!({
            "type": "Ready",
            "status": "False",
            "reason": "KubeletNotReady",
            "message": "it has just begun",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        });
        let status = json!({ "status": { "nodeInfo": info, "volumesInUse": [], "conditions": [ready] } });
        let mut reported = self.reported.lock().await;
        match self.patch_node_status(&status).await {
            // Somebody deleted the node: a kubelet registers again when it starts.
            Err(kube::Error::Api(gone)) if gone.code == 404 => self.register().await?,
            patched => patched?,
        }
        *reported = Some(BTreeSet::new());
        Ok(())
    }

    /// Begins to run a pod, if there is power.
    pub fn run(self: &Arc<Self>, pod: PodView) {
        if let Some(workers) = lock(&self.workers).as_mut() {
            while workers.try_join_next().is_some() {}
            workers.spawn(PodWorker::new(self.clone(), pod).run());
        }
    }

    /// Asks the API when the network is up, and again while it does not answer. A refusal is an answer.
    pub async fn ask<T, F>(&self, request: impl Fn() -> F) -> kube::Result<T>
    where
        F: Future<Output = kube::Result<T>>,
    {
        loop {
            let passage = self.network.pass().await;
            match request().await {
                Err(error) if is_transient(&error) => {
                    tracing::debug!(%error, node = self.name, "asking the API again");
                }
                answer => return answer,
            }
            drop(passage);
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Notes which volumes a pod uses, and reports `status.volumesInUse` unless it says so already.
    pub async fn use_volumes(&self, pod_uid: &str, volumes: Option<BTreeSet<String>>) {
        {
            let mut in_use = lock(&self.in_use);
            match volumes {
                Some(volumes) => in_use.insert(pod_uid.to_owned(), volumes),
                None => in_use.remove(pod_uid),
            };
        }
        if let Err(error) = self.report_in_use().await {
            tracing::warn!(%error, node = self.name, "volumesInUse is not reported");
        }
    }

    async fn report_in_use(&self) -> kube::Result<()> {
        let mut reported = self.reported.lock().await;
        let in_use: BTreeSet<String> = lock(&self.in_use).values().flatten().cloned().collect();
        if reported.as_ref() != Some(&in_use) {
            // Whoever waits for this may be dropped, with the request on its way.
            *reported = None;
            let status = json!({ "status": { "volumesInUse": in_use } });
            self.patch_node_status(&status).await?;
            *reported = Some(in_use);
        }
        Ok(())
    }

    async fn patch_node_status(&self, status: &serde_json::Value) -> kube::Result<()> {
        let nodes: Api<Node> = Api::all(self.world.client.clone());
        // Conditions are merged by their type, and lists of volumes replaced.
        let (params, patch) = (PatchParams::default(), Patch::Strategic(status));
        self.ask(|| nodes.patch_status(&self.name, &params, &patch)).await.map(drop)
    }
}

fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500 || status.code == 429,
        _ => true,
    }
}

fn new_boot_id() -> Result<String, NodeError> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(id.trim().to_owned())
}
