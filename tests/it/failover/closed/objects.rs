//! What a cell of the table stands on: nodes that nobody runs, a driver with its volume, and the objects of one pod.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bulkhead::api::names;
use bulkhead::csi::client;
use bulkhead::csi::v1::ControllerPublishVolumeRequest;
use bulkhead::csi::v1::VolumeCapability;
use bulkhead::csi::v1::controller_client::ControllerClient;
use bulkhead::csi::v1::volume_capability::AccessMode;
use bulkhead::csi::v1::volume_capability::access_mode::Mode;
use bulkhead::csi_sidecar::driver::Driver;
use bulkhead::csi_sidecar::metrics::Metrics;
use bulkhead::csi_sidecar::{self, Context, report};
use bulkhead::runtime::client::Clients;
use bulkhead::runtime::clock::Clock;
use bulkhead::runtime::events::Events;
use bulkhead::runtime::health::Health;
use bulkhead::runtime::leader::Leadership;
use bulkhead::runtime::telemetry::Telemetry;
use bulkhead::runtime::writer::Writer;
use bulkhead_testbed::Identity;
use bulkhead_testbed::array::{Array, ArrayOptions, Claim, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, ClusterError};
use bulkhead_testbed::ledger::Stamp;
use bulkhead_testbed::process::Process;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use libtest_mimic::Failed;
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::super::fleet::SOON;
use super::table::{Cell, Stage};

const NAME: &str = "bulkhead-csi-sidecar";

/// The nodes: one that will die per line of the table, and two whose Leases are renewed while this lives.
pub struct Nodes {
    client: Client,
    victims: BTreeSet<String>,
    _renewing: JoinSet<()>,
}

fn node_of(line: &str) -> String {
    format!("paper-{line}")
}

impl Nodes {
    pub async fn start(cluster: &Cluster, lines: impl Iterator<Item = String>) -> Result<Self, Failed> {
        let client = cluster.client.clone();
        let victims: BTreeSet<String> = lines.map(|line| node_of(&line)).collect();
        let well = ["paper-well-1".to_owned(), "paper-well-2".to_owned()];
        let api: Api<Node> = Api::all(client.clone());
        for name in victims.iter().chain(&well) {
            let node = json!({
                "metadata": { "name": name },
                "status": {
                    "conditions": [{ "type": "Ready", "status": "True", "reason": "Paper", "message": "" }],
                    "nodeInfo": {
                        "bootID": format!("boot-{name}"), "architecture": "", "containerRuntimeVersion": "",
                        "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
                        "operatingSystem": "", "osImage": "", "systemUUID": "",
                    },
                },
            });
            api.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        }
        let mut renewing = JoinSet::new();
        for name in well {
            renewing.spawn(renew(client.clone(), name));
        }
        Ok(Self { client, victims, _renewing: renewing })
    }

    /// All victims are taken for dead, as the node lifecycle controller says it.
    pub async fn die(&self) -> Result<(), Failed> {
        let api: Api<Node> = Api::all(self.client.clone());
        let params = PatchParams::default();
        let unknown = json!({ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "" });
        let status = Patch::Strategic(json!({ "status": { "conditions": [unknown] } }));
        let taint = json!({ "key": names::UNREACHABLE_TAINT, "effect": "NoSchedule" });
        let spec = Patch::Merge(json!({ "spec": { "taints": [taint] } }));
        for victim in &self.victims {
            api.patch_status(victim, &params, &status).await?;
            api.patch(victim, &params, &spec).await?;
        }
        Ok(())
    }
}

async fn renew(client: Client, node: String) {
    let api: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let mut tick = tokio::time::interval(Duration::from_secs(2));
    loop {
        tick.tick().await;
        let now = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": node },
            "spec": { "holderIdentity": node, "renewTime": now },
        });
        // One that fails is followed by the next; a node that falls silent is seen in the outcome.
        let _ = api.patch(&node, &PatchParams::apply("paper").force(), &Patch::Apply(&lease)).await;
    }
}

/// What the sidecars in this process share. A real one has a process and a Lease per driver.
pub struct Sidecars {
    clients: Clients,
    events: Events,
    telemetry: Telemetry,
    metrics: Metrics,
    cancel: CancellationToken,
    _guard: DropGuard,
}

impl Sidecars {
    /// With rights for whichever driver.
    pub async fn new(cluster: &Cluster) -> Result<Self, Failed> {
        let identity = Identity::CsiSidecar;
        let binding = serde_json::from_value(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "paper-sidecars" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": identity.user() }],
        }))?;
        cluster.testbed.apply(vec![binding]).await?;
        let clients = Clients::load(Some(&cluster.testbed.kubeconfig(&identity)?), NAME).await?;
        let (telemetry, cancel) = (Telemetry::new(), CancellationToken::new());
        let events =
            Events::spawn(clients.writes.clone(), NAME, NAME, Leadership::always(), &telemetry, cancel.clone());
        let metrics = Metrics::register(&telemetry);
        Ok(Self { clients, events, telemetry, metrics, _guard: cancel.clone().drop_guard(), cancel })
    }

    /// What they count.
    pub fn scrape(&self) -> Result<String, Failed> {
        Ok(self.telemetry.encode()?)
    }

    /// One beside this driver, in this process.
    async fn run(&self, cluster: &Cluster, array: &Array) -> Result<Context, Failed> {
        let cx = Context {
            driver: Driver::new(client::connect(&array.csi_socket().to_string_lossy())?),
            name: array.driver_name().to_owned(),
            clients: self.clients.clone(),
            writer: Writer::new(self.clients.writes.clone(), Leadership::always(), NAME),
            events: self.events.clone(),
            telemetry: self.telemetry.clone(),
            metrics: self.metrics.clone(),
            clock: Clock::system(),
            calls: TaskTracker::new(),
        };
        // The API server of a loaded machine may not answer at once: the real one tries again too.
        let reported = async || {
            Ok(match report::refresh(&cx).await {
                Ok(true) => Ok(()),
                other => Err(format!("{other:?}")),
            })
        };
        cluster.wait("the driver is reported", SOON, reported).await?;
        let (running, cancel) = (cx.clone(), self.cancel.clone());
        tokio::spawn(async move { csi_sidecar::run(running, &Health::new(), cancel).await });
        Ok(cx)
    }
}

/// One cell with its driver, volume, pod and attachment.
pub struct Bed {
    pub cell: Cell,
    /// Name of the pod and of its attachment.
    pub id: String,
    /// Name of its PersistentVolume.
    pub volume: String,
    pub handle: String,
    pub node: String,
    pub array: Array,
    /// When the volume was there and not yet published.
    pub created: Stamp,
    /// The sidecar in this process; the start of one is seen on a real program.
    sidecar: Option<Context>,
    program: Mutex<Option<Process>>,
    _folder: TempDir,
}

impl Bed {
    /// Sets everything up, with the sidecar.
    pub async fn new(cluster: &Cluster, sidecars: &Sidecars, cell: Cell) -> Result<Self, Failed> {
        let (id, node) = (cell.id(), node_of(&cell.line()));
        let folder = tempfile::tempdir()?;
        let options = ArrayOptions {
            driver_name: format!("{id}.paper"),
            lists_volumes: cell.call != Method::ControllerGetVolume,
            ..ArrayOptions::default()
        };
        let array = Array::start(folder.path(), options)?;
        array.install(&cluster.client).await?;
        let claim = Claim::new("default", &id);
        let handle = array.claim(&cluster.client, &claim).await?;
        let created = array.ledger().now();
        let mut bed = Self {
            cell,
            volume: claim.volume_name(),
            handle,
            id,
            node,
            array,
            created,
            sidecar: None,
            program: Mutex::new(None),
            _folder: folder,
        };
        bed.publish().await?;
        bed.create_objects(&cluster.client).await?;
        if cell.stage == Stage::Start {
            bed.begin(created);
            bed.program = Mutex::new(Some(bed.start_sidecar(cluster)?));
        } else {
            bed.sidecar = Some(sidecars.run(cluster, &bed.array).await?);
        }
        Ok(bed)
    }

    /// The CSI node id of its node.
    pub fn node_id(&self) -> String {
        format!("id-{}", self.node)
    }

    pub fn request_name(&self) -> String {
        names::fence_request(&self.node, self.array.driver_name())
    }

    /// The trouble begins.
    pub fn begin(&self, then: Stamp) {
        self.array.faults().add(Fault::on(self.cell.call, self.cell.effect(&self.handle, then)));
    }

    /// The sidecar asks its driver what it can do, as it does every half minute.
    pub async fn ask_driver(&self) {
        if let Some(cx) = &self.sidecar {
            // A driver that does not answer is what some cells are about.
            let _ = report::refresh(cx).await;
        }
    }

    fn start_sidecar(&self, cluster: &Cluster) -> Result<Process, ClusterError> {
        cluster.sidecar_named(&self.array, &format!("sidecar-{}", self.id))
    }

    /// A sidecar that loses its Lease to the load of the machine ends, and its kubelet starts it again.
    pub fn restart_sidecar(&self, cluster: &Cluster) -> Result<(), ClusterError> {
        let mut program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        if program.as_mut().is_some_and(|program| program.exit_status().is_some()) {
            *program = Some(self.start_sidecar(cluster)?);
        }
        Ok(())
    }

    /// As the attacher does.
    async fn publish(&self) -> Result<(), Failed> {
        self.array.add_node(&self.node_id());
        let channel = client::connect(&self.array.csi_socket().to_string_lossy())?;
        let mode = AccessMode { mode: Mode::SingleNodeWriter.into() };
        let request = ControllerPublishVolumeRequest {
            volume_id: self.handle.clone(),
            node_id: self.node_id(),
            volume_capability: Some(VolumeCapability { access_mode: Some(mode), access_type: None }),
            ..Default::default()
        };
        ControllerClient::new(channel).controller_publish_volume(request).await?;
        Ok(())
    }

    async fn create_objects(&self, client: &Client) -> Result<(), Failed> {
        let (id, params) = (&self.id, PatchParams::default());
        let lane = format!("{:?}", self.cell.minimum).to_lowercase();
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        let pod = json!({
            "metadata": {
                "name": id, "labels": { "lane": lane },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": id, "uid": id, "controller": true,
                }],
            },
            "spec": {
                "nodeName": self.node,
                "containers": [{ "name": "main", "image": "app" }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": id } }],
            },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        pods.patch_status(id, &params, &Patch::Merge(json!({ "status": { "phase": "Running" } }))).await?;
        let attachments: Api<VolumeAttachment> = Api::all(client.clone());
        let attachment = json!({
            "metadata": { "name": id, "annotations": { names::ATTACHED_NODE_ID_ANNOTATION: self.node_id() } },
            "spec": {
                "attacher": self.array.driver_name(), "nodeName": self.node,
                "source": { "persistentVolumeName": self.volume },
            },
        });
        attachments.create(&PostParams::default(), &serde_json::from_value(attachment)?).await?;
        attachments.patch_status(id, &params, &Patch::Merge(json!({ "status": { "attached": true } }))).await?;
        Ok(())
    }
}
