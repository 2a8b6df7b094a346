//! The cluster that is measured: API server and etcd with everything we ship, objects by the hundred thousand, and Leases that
//! are renewed as kubelets do.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_testbed::process::{Launch, Process};
use bulkhead_testbed::{Component, Identity, Testbed, TestbedOptions};
use chrono::Utc;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::Result;

use super::super::watched;
use super::agents::Agents;
use super::etcd::Etcd;
use super::objects::{Layout, Maker, NAMESPACES};

/// The time by which anything must be done. How long it took is measured; a loaded machine must not end a run.
pub const LIMIT: Duration = Duration::from_secs(900);
/// How often a kubelet renews its Lease, and in how many parts that time is divided: as many renew together.
const RENEWAL: (Duration, usize) = (Duration::from_secs(10), 50);
/// Room in etcd, and what it takes at once: a hundred objects, of which a node's is the larger the more volumes are attached to
/// it. Its own defaults are 2 GiB and 1.5 MiB.
const ETCD: [&str; 2] = ["--quota-backend-bytes=17179869184", "--max-request-bytes=16777216"];
/// What the default cluster has, and what it would make pods of.
const MAKES_PODS: [&str; 2] = ["Deployment", "DaemonSet"];

/// The cluster.
pub struct World {
    /// A client that may do everything.
    pub admin: Client,
    /// Nodes whose kubelets are silent.
    pub silent: Arc<Mutex<BTreeSet<usize>>>,
    _renewals: JoinSet<()>,
    /// The control plane.
    pub testbed: Testbed,
}

impl World {
    /// Starts the control plane and fills it.
    pub async fn start(root: &Path, layout: Layout, agents: &Agents) -> Result<Self> {
        let options = TestbedOptions {
            extra_args: [(Component::Etcd, ETCD.map(str::to_owned).to_vec())].into(),
            ..TestbedOptions::api_server_only()
        };
        let testbed = Testbed::start(options).await?;
        let admin = testbed.client(&Identity::Admin).await?;
        install(&testbed, root).await?;
        let etcd = Etcd::new(&testbed.etcd())?;
        let maker = Arc::new(Maker::new(layout, Utc::now()));
        fill(&etcd, &maker, layout, agents).await?;
        let silent = Arc::new(Mutex::new(BTreeSet::new()));
        let mut renewals = JoinSet::new();
        renewals.spawn(renew(etcd, maker, layout, silent.clone()));
        let world = Self { admin, silent, _renewals: renewals, testbed };
        // The API server's caches follow etcd; the last object of each large kind tells that they have caught up.
        let ((namespace, pod), attachment) = (layout.last_pod(), layout.last_attachment());
        is_cached::<Pod>(Api::namespaced(world.admin.clone(), &namespace), &pod).await?;
        is_cached::<VolumeAttachment>(Api::all(world.admin.clone()), &attachment).await?;
        Ok(world)
    }

    /// Starts the controller and waits until it is ready.
    pub async fn start_controller(&self, programs: &Path) -> Result<Process> {
        let kubeconfig = self.testbed.kubeconfig(&Identity::OperatorController)?;
        let mut args: Vec<std::ffi::OsString> = vec!["--kubeconfig".into(), kubeconfig.into()];
        args.extend(["--identity", "bulkhead-controller-0", "--listen", "127.0.0.1:0"].map(Into::into));
        args.extend(["--heartbeat-address", "127.0.0.1", "--heartbeat-port", "0"].map(Into::into));
        let mut controller = Process::spawn(Launch {
            name: "bulkhead-controller".to_owned(),
            program: programs.join("bulkhead-controller"),
            args,
            env: Vec::new(),
            log: self.testbed.folder().join("bulkhead-controller.log"),
        })?;
        watched::ready(&mut controller, LIMIT).await?;
        Ok(controller)
    }

    /// The kubelet of a node is silent from now on.
    pub fn silence(&self, node: usize) {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner).insert(node);
    }
}

/// All that `config/default` has, but what would make pods.
async fn install(testbed: &Testbed, root: &Path) -> Result<()> {
    let text = testbed.kubectl(&["kustomize", &root.join("config/default").to_string_lossy()]).await?;
    let mut objects: Vec<DynamicObject> = serde_saphyr::from_multiple(&text)?;
    // Health of the volumes would be an object more for each volume: `bench health` measures that.
    let is_left_out = |kind: &str| MAKES_PODS.contains(&kind) || kind == "VolumeHealthPolicy";
    objects.retain(|object| !object.types.as_ref().is_some_and(|types| is_left_out(&types.kind)));
    testbed.apply(objects).await?;
    let namespace =
        |number| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": Layout::namespace(number) } });
    let ours = (0..NAMESPACES).map(namespace).chain([policy()]);
    Ok(testbed.apply(ours.map(serde_json::from_value).collect::<Result<_, _>>()?).await?)
}

/// The first policy with its brakes off: how many nodes fail is not the question here.
fn policy() -> serde_json::Value {
    json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "ResiliencyPolicy", "metadata": { "name": "bench" },
        "spec": {
            "mode": "Enforce",
            "selector": { "podSelector": { "matchLabels": { "bulkhead.dev/protect": "true" } } },
            "limits": { "maxNodes": "100%", "ceiling": 5000, "maxUnhealthy": "100%" },
        },
    })
}

async fn fill(etcd: &Etcd, maker: &Maker, layout: Layout, agents: &Agents) -> Result<()> {
    let now = Utc::now();
    etcd.put((0..layout.nodes).map(|number| maker.node(number))).await?;
    etcd.put((0..layout.nodes).map(|number| maker.lease(number, now))).await?;
    etcd.put((0..layout.nodes).map(|number| maker.csi_node(number))).await?;
    etcd.put(agents.keys.iter().enumerate().map(|(number, key)| maker.report(number, *key))).await?;
    etcd.put((0..layout.attachments).map(|number| maker.volume(number))).await?;
    etcd.put((0..layout.attachments).map(|number| maker.claim(number))).await?;
    etcd.put((0..layout.attachments).map(|number| maker.attachment(number))).await?;
    etcd.put((0..layout.pods).map(|number| maker.pod(number))).await
}

/// Renews the Leases of all nodes that are not silent, for ever.
async fn renew(etcd: Etcd, maker: Arc<Maker>, layout: Layout, silent: Arc<Mutex<BTreeSet<usize>>>) {
    let (every, parts) = RENEWAL;
    let mut pace = tokio::time::interval(every / u32::try_from(parts).unwrap_or(1));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for part in (0..parts).cycle() {
        pace.tick().await;
        let silent = silent.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let nodes = (part..layout.nodes).step_by(parts).filter(|node| !silent.contains(node));
        let now = Utc::now();
        let leases: Vec<_> = nodes.map(|node| maker.lease(node, now)).collect();
        if let Err(error) = etcd.put(leases.into_iter()).await {
            tracing::warn!(%error, "Leases are not renewed");
        }
    }
}

/// Waits until the API server shows that object from its cache.
async fn is_cached<K>(api: Api<K>, name: &str) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let params = ListParams::default().fields(&format!("metadata.name={name}")).match_any();
    let deadline = Instant::now() + LIMIT;
    loop {
        // The cache of a kind that has just been asked for the first time may not be there yet, which is an error.
        match api.list(&params).await {
            Ok(found) if !found.items.is_empty() => return Ok(()),
            _ if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(250)).await,
            Ok(_) => return Err(format!("the API server does not show {name}").into()),
            Err(error) => return Err(error.into()),
        }
    }
}
