//! A node as its agent sees it: a kubelet's folder with real mounts, and an API that holds the objects of that node.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::node_volume_report::{CleanupState, NodeVolumeReport, NodeVolumeReportStatus};
use bulkhead::api::slim::Node;
use bulkhead::node_agent::children::Children;
use bulkhead::node_agent::driver::Plugins;
use bulkhead::node_agent::metrics::Metrics;
use bulkhead::node_agent::mounts::mountinfo;
use bulkhead::node_agent::{self, Context, Settings, Stores, VOLUMES_AT_ONCE};
use bulkhead::runtime::client::Clients;
use bulkhead::runtime::clock::Clock;
use bulkhead::runtime::events::Events;
use bulkhead::runtime::leader::Leadership;
use bulkhead::runtime::store::{ObjectKey, Store};
use bulkhead::runtime::telemetry::Telemetry;
use bulkhead::runtime::writer::Writer;
use http::{Method, Request, Response, StatusCode};
use kube::{Client, Resource};
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::objects::{fence_of, from, running};
use super::outside::Outside;
use super::plugin::{Behaviour, DRIVER, Plugin};

pub const NODE: &str = "worker-1";
/// How long anything may take on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A node. Its mounts and its agent go with it.
pub struct World {
    pub root: PathBuf,
    pub plugin: Plugin,
    pub stores: Stores,
    pub patience: Duration,
    pub call_timeout: Duration,
    pub inventory_timeout: Duration,
    /// The process whose mounts are the node's.
    pub host: String,
    /// The agent's program, which it starts for its children.
    pub program: PathBuf,
    pub events: Arc<Mutex<Vec<String>>>,
    pub history: Arc<Mutex<Vec<NodeVolumeReportStatus>>>,
    /// Pods that the API has, beside those that the watch has told of.
    pub untold: Arc<Mutex<Vec<Value>>>,
    /// The NodeFence that the API has, where the watch has not told of it.
    untold_fence: Arc<Mutex<Option<NodeFence>>>,
    pub outside: Outside,
    agent: Option<CancellationToken>,
    _folder: tempfile::TempDir,
}

/// A volume of the incident.
pub struct Volume {
    pub name: String,
    pub handle: String,
    pub pod: String,
}

pub fn volume(number: usize) -> Volume {
    Volume {
        name: format!("pvc-{number}"),
        handle: format!("handle-{number}"),
        pod: format!("a1f0c1e2-0001-4000-8000-{number:012}"),
    }
}

impl World {
    pub fn new(behaviour: Behaviour) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("kubelet");
        fs::create_dir_all(root.join("pods")).unwrap();
        fs::create_dir_all(root.join("plugins")).unwrap();
        let stores = unlisted();
        stores.nodes.list_done();
        stores.volumes.list_done();
        stores.policies.list_done();
        let node: Node = from(json!({
            "metadata": { "name": NODE, "uid": "node-uid" },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }));
        stores.nodes.insert(node);
        stores.reports.insert(from(json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeVolumeReport",
            "metadata": { "name": NODE, "uid": "report-uid", "resourceVersion": "1" },
        })));
        Self {
            plugin: Plugin::new(&root, behaviour),
            root,
            stores,
            patience: Duration::from_millis(200),
            call_timeout: Duration::from_secs(5),
            inventory_timeout: Duration::from_secs(15),
            host: "/proc/self".into(),
            program: env!("CARGO_BIN_EXE_bulkhead-node-agent").into(),
            events: Arc::default(),
            history: Arc::default(),
            untold: Arc::default(),
            untold_fence: Arc::default(),
            outside: Outside::new(),
            agent: None,
            _folder: folder,
        }
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The NodeFence, with these volumes cut off and proved.
    pub fn fence(&self, episode: i64, volumes: &[Volume]) {
        self.fence_beside(episode, volumes, &[]);
    }

    /// The NodeFence, with these volumes cut off and proved, and these pods of the node left alone.
    pub fn fence_beside(&self, episode: i64, volumes: &[Volume], kept_pods: &[&str]) {
        self.stores.fences.insert(fence_of(episode, volumes, kept_pods));
    }

    /// The NodeFence as the API has it; the watch is silent about it.
    pub fn fence_untold(&self, episode: i64, volumes: &[Volume]) {
        *self.untold_fence.lock().unwrap() = Some(fence_of(episode, volumes, &[]));
    }

    /// A pod that the API has.
    pub fn pod(&self, uid: &str) {
        self.stores.pods.insert(from(running(uid)));
    }

    /// One of that name: its uid is another's than that of the one before it.
    pub fn pod_anew(&self, name: &str, uid: &str) {
        let mut pod = running(uid);
        pod["metadata"]["name"] = name.into();
        self.stores.pods.insert(from(pod));
    }

    /// The pod is gone for the API.
    pub fn pod_is_gone(&self, uid: &str) {
        self.stores.pods.remove(&ObjectKey::namespaced("shop", uid));
    }

    /// A file system volume as driver and kubelet leave it: the driver's own mount, staged and bound into the pod.
    pub fn publish(&self, volume: &Volume) {
        let private = self.plugin.private(&volume.handle);
        folder(&private);
        tmpfs(&private);
        let staging = self.path(&staging(volume)).join("globalmount");
        folder(&staging);
        bind(&private, &staging);
        record(staging.parent().unwrap(), volume);
        let target = self.path(&target(volume)).join("mount");
        folder(&target);
        bind(&staging, &target);
        record(target.parent().unwrap(), volume);
    }

    /// Mount points below the node's folder.
    pub fn mounts(&self) -> Vec<String> {
        let mounts = mountinfo::parse(&fs::read("/proc/self/mountinfo").unwrap()).unwrap();
        let within = |mount: &mountinfo::Mount| mountinfo::is_within(&mount.path, self.root.to_str().unwrap());
        mounts.into_iter().filter(within).map(|mount| mount.path).collect()
    }

    /// Starts the agent; one that runs is killed.
    pub fn start(&mut self) {
        self.stop();
        let telemetry = Telemetry::new();
        let client = self.api();
        let cancel = CancellationToken::new();
        let settings = Settings {
            node_name: NODE.into(),
            kubelet_root: self.root.to_str().unwrap().to_owned(),
            host: self.host.clone(),
            boot_id_file: "/proc/sys/kernel/random/boot_id".into(),
            kubelet_patience: self.patience,
            check_interval: Duration::from_secs(1),
            call_timeout: self.call_timeout,
            inventory_timeout: self.inventory_timeout,
        };
        let children = Children::new(self.program.clone(), settings.host.clone());
        let plugins =
            Plugins { host: settings.host.clone(), kubelet_root: settings.kubelet_root.clone(), beside: None };
        let always = Leadership::always();
        let cx = Context {
            settings: Arc::new(settings),
            plugins,
            metrics: Metrics::register(&telemetry, children.clone()),
            children,
            clients: Clients {
                reads: client.clone(),
                writes: client.clone(),
                leases: client.clone(),
                watches: client.clone(),
            },
            writer: Writer::new(client.clone(), always.clone(), "bulkhead-node-agent"),
            events: Events::spawn(client, "agent", "pod", always, &telemetry, cancel.clone()),
            clock: Clock::system(),
            turns: Arc::new(Semaphore::new(VOLUMES_AT_ONCE)),
            found: Arc::default(),
            heartbeat: None,
            self_fence: Arc::default(),
            health: Arc::default(),
        };
        self.outside.start(&cx, &self.stores, &cancel);
        let (stores, token) = (self.stores.clone(), cancel.clone());
        tokio::spawn(async move { node_agent::serve(cx, stores, &telemetry, token).await });
        self.agent = Some(cancel);
    }

    /// The API is away, and whoever starts now has heard nothing of it. Returns what it has.
    pub fn lose_the_api(&mut self) -> Stores {
        self.outside.api(false);
        std::mem::replace(&mut self.stores, unlisted())
    }

    /// The API is back, with all that it had; the lists arrive.
    pub fn find_the_api(&self, had: &Stores) {
        self.outside.api(true);
        let stores = &self.stores;
        fill(&stores.pods, &had.pods);
        fill(&stores.volumes, &had.volumes);
        fill(&stores.policies, &had.policies);
        fill(&stores.reports, &had.reports);
        fill(&stores.fences, &had.fences);
        // Without its Node an agent does nothing, as without any of these.
        fill(&stores.nodes, &had.nodes);
    }

    pub fn stop(&mut self) {
        if let Some(cancel) = self.agent.take() {
            cancel.cancel();
        }
    }

    /// An API that takes reports and Events.
    fn api(&self) -> Client {
        let (stores, history, events) = (self.stores.clone(), self.history.clone(), self.events.clone());
        let (untold, outside) = (self.untold.clone(), self.outside.clone());
        let untold_fence = self.untold_fence.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (stores, history, events) = (stores.clone(), history.clone(), events.clone());
            let (untold, outside) = (untold.clone(), outside.clone());
            let untold_fence = untold_fence.clone();
            async move {
                outside.api_answers().await;
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(Body::new(body), usize::MAX).await.unwrap();
                let untold_fence = untold_fence.lock().unwrap().clone().map(Arc::new);
                let fence = untold_fence.or_else(|| stores.fences.get(&ObjectKey::cluster(NODE)));
                let answer = match (&parts.method, parts.uri.path()) {
                    (&Method::PUT, path) if path.ends_with("/nodevolumereports/worker-1/status") => {
                        let mut report: NodeVolumeReport = serde_json::from_slice(&body).unwrap();
                        let version: u64 = report.metadata.resource_version.as_deref().unwrap().parse().unwrap();
                        report.metadata.resource_version = Some((version + 1).to_string());
                        history.lock().unwrap().extend(report.status.clone());
                        stores.reports.insert(report.clone());
                        serde_json::to_value(report).unwrap()
                    }
                    (&Method::GET, path) if path.ends_with("/nodefences/worker-1") && fence.is_none() => {
                        let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                                             "message": "not found", "reason": "NotFound", "code": 404 });
                        let body = Body::from(status.to_string());
                        return Ok(Response::builder().status(StatusCode::NOT_FOUND).body(body).unwrap());
                    }
                    (&Method::GET, path) if path.ends_with("/nodefences/worker-1") => {
                        serde_json::to_value(fence.as_deref()).unwrap()
                    }
                    (&Method::GET, "/api/v1/pods") => {
                        assert!(parts.uri.query().unwrap().contains("spec.nodeName%3Dworker-1"), "{}", parts.uri);
                        let mut pods: Vec<_> = stores.pods.list().iter().map(|pod| json!(**pod)).collect();
                        pods.extend(untold.lock().unwrap().clone());
                        json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods })
                    }
                    (&Method::POST, path) if path.ends_with("/events") => {
                        let event: Value = serde_json::from_slice(&body).unwrap();
                        events.lock().unwrap().push(event["reason"].as_str().unwrap().to_owned());
                        event
                    }
                    other => panic!("the agent asks for something that is not its own: {other:?}"),
                };
                let body = Body::from(answer.to_string());
                Ok::<_, Infallible>(Response::builder().status(StatusCode::OK).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    pub fn status(&self) -> NodeVolumeReportStatus {
        self.stores.reports.get(&ObjectKey::cluster(NODE)).unwrap().status.clone().unwrap_or_default()
    }

    pub fn state(&self) -> Option<CleanupState> {
        self.status().cleanup.map(|cleanup| cleanup.state)
    }

    /// Reasons of what is said to be left.
    pub fn reasons(&self) -> Vec<String> {
        self.status().cleanup.into_iter().flat_map(|cleanup| cleanup.remaining).map(|left| left.reason).collect()
    }

    /// Waits until it holds.
    pub async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(
                Instant::now() < end,
                "not within {PATIENCE:?}: {what}\nreport: {:#?}\nmounts: {:#?}\ncalls: {:#?}",
                self.status(),
                self.mounts(),
                self.plugin.calls()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn until_clean(&self) {
        self.until("the report says Clean", |world| world.state() == Some(CleanupState::Clean)).await;
        assert_eq!(self.mounts(), [] as [&str; 0]);
        assert_eq!(self.status().volumes, []);
    }

    pub async fn until_blocked_by(&self, reason: &str) {
        self.until(&format!("blocked by {reason}"), |world| {
            world.state() == Some(CleanupState::Blocked) && world.reasons().iter().any(|found| found == reason)
        })
        .await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop();
        for path in self.mounts().iter().rev() {
            let _ = rustix::mount::unmount(path.as_str(), UnmountFlags::DETACH);
        }
    }
}

/// What an agent knows before any list of the API has arrived.
fn unlisted() -> Stores {
    Stores {
        nodes: Store::new_detached(Vec::new()),
        fences: Store::new_detached(Vec::new()),
        reports: Store::new_detached(Vec::new()),
        pods: Store::new_detached(Vec::new()),
        volumes: Store::new_detached(Vec::new()),
        policies: Store::new_detached(Vec::new()),
    }
}

fn fill<K: Resource<DynamicType = ()> + Clone>(store: &Store<K>, had: &Store<K>) {
    had.list().iter().for_each(|object| store.insert(K::clone(object)));
    store.list_done();
}

pub fn staging(volume: &Volume) -> String {
    let digest: String = Sha256::digest(&volume.handle).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("plugins/kubernetes.io/csi/{DRIVER}/{digest}")
}

pub fn target(volume: &Volume) -> String {
    format!("pods/{}/volumes/kubernetes.io~csi/{}", volume.pod, volume.name)
}

pub fn record(folder: &Path, volume: &Volume) {
    let text = json!({ "driverName": DRIVER, "volumeHandle": volume.handle, "specVolID": volume.name }).to_string();
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("vol_data.json"), text).unwrap();
}

pub fn folder(path: &Path) {
    fs::create_dir_all(path).unwrap();
}

pub fn tmpfs(path: &Path) {
    rustix::mount::mount("tmpfs", path, "tmpfs", MountFlags::empty(), None).unwrap();
}

pub fn bind(from: &Path, to: &Path) {
    rustix::mount::mount_bind(from, to).unwrap();
}
