//! `bulkhead-node-agent`: removes from its node what fenced pods left behind, looks after the health of its volumes, and
//! reports both. It watches its Node, the NodeFence and the NodeVolumeReport of that name, the pods bound to it, and, to
//! know which volumes are its own, PersistentVolumes and VolumeHealthPolicies; for self-fencing, ResiliencyPolicies and
//! namespaces. It writes only the status of that NodeVolumeReport; taints, access and proofs are the controller's.

mod act;
pub mod addresses;
pub mod child;
pub mod children;
pub mod decide;
mod disk;
pub mod driver;
#[cfg(test)]
mod incident_tests;
pub mod live;
pub mod memory;
pub mod metrics;
pub mod mounts;
pub mod node_lock;
pub mod observe;
pub mod probes;
mod reads;
pub mod remnants;
#[cfg(test)]
mod report_tests;
pub mod self_fence;
pub mod status;
#[cfg(test)]
mod tests;
mod verdict;
pub mod volumes;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::Api;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::api::node_fence::NodeFence;
use crate::api::node_volume_report::{HeartbeatEndpoint, NodeVolumeReport};
use crate::api::slim::{Node, PersistentVolume, Pod, protobuf};
use crate::api::volume_health_policy::VolumeHealthPolicy;
use crate::error::Result;
use crate::heartbeat::sender::Surroundings;
use crate::runtime::client::Clients;
use crate::runtime::clock::Clock;
use crate::runtime::events::Events;
use crate::runtime::health::Health;
use crate::runtime::informer::Informer;
use crate::runtime::lock::lock;
use crate::runtime::queue::{self, Next, Queue, QueueConfig, UNSEEN_PACE_OF_FENCES};
use crate::runtime::store::{ObjectKey, Store};
use crate::runtime::telemetry::Telemetry;
use crate::runtime::writer::Writer;

use children::Children;
use driver::{Plugin, Plugins};
use memory::Memory;
use metrics::Metrics;
use self_fence::record::Record;
use self_fence::{Namespaces, Sources, Watching};
use volumes::report::NodeHealth;

/// Volumes cleaned at once.
pub const VOLUMES_AT_ONCE: usize = 16;
/// How long what is known of the node plugins is good for.
const PLUGINS: Duration = Duration::from_secs(2);
/// When work ends, others are about to end as well: one look for all.
const GATHER: Duration = Duration::from_millis(150);

/// How the agent works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the node.
    pub node_name: String,
    /// The kubelet's root folder.
    pub kubelet_root: String,
    /// A process of the host, by its folder in `/proc`.
    pub host: String,
    /// Where the kernel tells the boot id.
    pub boot_id_file: String,
    /// How long the kubelet may take after a pod is gone.
    pub kubelet_patience: Duration,
    /// How often a clean node is looked at again.
    pub check_interval: Duration,
    /// Deadline of a call to a driver.
    pub call_timeout: Duration,
    /// Deadline of an inventory.
    pub inventory_timeout: Duration,
}

/// Node plugins by driver, and when they were found.
type Found = (Instant, BTreeMap<String, Plugin>);

/// What the agent works with.
#[derive(Clone)]
pub struct Context {
    /// How it works.
    pub settings: Arc<Settings>,
    /// Where the drivers are.
    pub plugins: Plugins,
    /// Child processes.
    pub children: Children,
    /// Clients.
    pub clients: Clients,
    /// Writes.
    pub writer: Writer,
    /// Events.
    pub events: Events,
    /// Metrics of the agent.
    pub metrics: Metrics,
    /// Clocks.
    pub clock: Clock,
    /// Volumes cleaned at once.
    pub turns: Arc<Semaphore>,
    /// Node plugins as they were found last.
    pub found: Arc<tokio::sync::Mutex<Option<Found>>>,
    /// By what its heartbeats are known, if it sends any.
    pub heartbeat: Option<HeartbeatEndpoint>,
    /// What is told of self-fencing; nothing where no pod was stopped.
    pub self_fence: Arc<watch::Sender<Option<self_fence::record::Told>>>,
    /// What is known of the health of the volumes; nothing before all of them were looked at once.
    pub health: Arc<watch::Sender<Option<Arc<NodeHealth>>>>,
}

impl Context {
    fn absolute(&self, path: &str) -> String {
        format!("{}/{path}", self.settings.kubelet_root.trim_end_matches('/'))
    }

    /// The node plugin of a driver, if one answers.
    async fn plugin(&self, driver: &str) -> Option<Plugin> {
        let mut found = self.found.lock().await;
        let now = self.clock.now().mono;
        let plugins = match found.take() {
            Some((at, plugins)) if now < at + PLUGINS => (at, plugins),
            _ => (now, self.plugins.find().await),
        };
        found.insert(plugins).1.get(driver).cloned()
    }
}

/// The objects of this node.
#[derive(Clone)]
pub struct Stores {
    /// The Node.
    pub nodes: Store<Node>,
    /// Its NodeFence.
    pub fences: Store<NodeFence>,
    /// Its NodeVolumeReport.
    pub reports: Store<NodeVolumeReport>,
    /// The pods bound to it.
    pub pods: Store<Pod>,
    /// PersistentVolumes that may be its own.
    pub volumes: Store<PersistentVolume>,
    /// Policies that say which volumes are looked at, and how.
    pub policies: Store<VolumeHealthPolicy>,
}

impl Stores {
    /// Waits for what is needed to clean up.
    async fn synced(&self) {
        let (nodes, fences) = (self.nodes.wait_synced(), self.fences.wait_synced());
        tokio::join!(nodes, fences, self.reports.wait_synced(), self.pods.wait_synced());
    }
}

/// Memory shared with the work under way.
pub type Shared = Arc<Mutex<Memory>>;

/// What self-fencing goes by: what heartbeats tell of the neighbours, and what an earlier process wrote down. Without heartbeats
/// nothing is begun, and what that one began is ended.
pub type Alone = (Option<watch::Receiver<Surroundings>>, Record);

/// Works until `cancel`.
pub async fn run(cx: Context, alone: Alone, telemetry: &Telemetry, health: &Health, cancel: CancellationToken) {
    let watches = &cx.clients.watches;
    let by_name = format!("metadata.name={}", cx.settings.node_name);
    let bound = format!("spec.nodeName={}", cx.settings.node_name);
    let nodes: Store<Node> = Informer::new(Api::all(watches.clone()), "nodes")
        .protobuf(&protobuf::NODE)
        .fields(&by_name)
        .eager()
        .spawn(cancel.clone(), telemetry);
    let pods: Store<Pod> = Informer::new(Api::all(watches.clone()), "pods")
        .protobuf(&protobuf::POD)
        .fields(&bound)
        .eager()
        .spawn(cancel.clone(), telemetry);
    // Whether or not the API has ever answered us.
    fence_itself(&cx, (nodes.clone(), pods.clone()), alone, telemetry, &cancel);
    let gate = health.gate("informers");
    gate.close("the first lists have not arrived");
    // Which volumes may be here depends on the Node.
    if cancel.run_until_cancelled(nodes.wait_synced()).await.is_none() {
        return;
    }
    let is_here = {
        let (nodes, name) = (nodes.clone(), cx.settings.node_name.clone());
        move |volume: &PersistentVolume| volumes::may_be_here(volume, nodes.get(&ObjectKey::cluster(&name)).as_deref())
    };
    let stores = Stores {
        nodes,
        fences: Informer::new(Api::all(watches.clone()), "nodefences")
            .fields(&by_name)
            .eager()
            .spawn(cancel.clone(), telemetry),
        reports: Informer::new(Api::all(watches.clone()), "nodevolumereports")
            .fields(&by_name)
            .eager()
            .spawn(cancel.clone(), telemetry),
        pods,
        volumes: Informer::new(Api::all(watches.clone()), "persistentvolumes")
            .protobuf(&protobuf::PERSISTENT_VOLUME)
            .keep(is_here)
            .spawn(cancel.clone(), telemetry),
        policies: Informer::new(Api::all(watches.clone()), "volumehealthpolicies").spawn(cancel.clone(), telemetry),
    };
    if cancel.run_until_cancelled(stores.synced()).await.is_none() {
        return;
    }
    gate.open();
    serve(cx, stores, telemetry, cancel).await;
}

fn fence_itself(
    cx: &Context,
    (nodes, pods): (Store<Node>, Store<Pod>),
    (surroundings, earlier): Alone,
    telemetry: &Telemetry,
    cancel: &CancellationToken,
) {
    let watching = surroundings.map(|surroundings| {
        let watches = cx.clients.watches.clone();
        let policies =
            Informer::new(Api::all(watches.clone()), "resiliencypolicies").eager().spawn(cancel.clone(), telemetry);
        let (telemetry, cancel) = (telemetry.clone(), cancel.clone());
        let namespaces = Namespaces::new(move || {
            Informer::new(Api::all(watches.clone()), "namespaces").eager().spawn(cancel.clone(), &telemetry)
        });
        Watching { sources: Sources { nodes, policies, pods, namespaces }, surroundings }
    });
    tokio::spawn(self_fence::run(cx.clone(), watching, earlier, cancel.clone()));
}

/// Works with what the stores hold, until `cancel`.
pub async fn serve(cx: Context, stores: Stores, telemetry: &Telemetry, cancel: CancellationToken) {
    let (queue, receiver) = queue::queue();
    queue.follow_all(stores.nodes.subscribe(), None, Turn::CleanUp);
    queue.follow_all(stores.fences.subscribe(), None, Turn::CleanUp);
    queue.follow_all(stores.reports.subscribe(), None, Turn::CleanUp);
    queue.follow_all(stores.pods.subscribe(), Some(GATHER), Turn::CleanUp);
    queue.add(Turn::CleanUp);
    let changed = {
        let queue = queue.clone();
        move || queue.add_after(Turn::Report, GATHER)
    };
    tokio::spawn(volumes::watch(cx.clone(), stores.clone(), cancel.clone(), changed.clone()));
    let mut told = cx.self_fence.subscribe();
    tokio::spawn(cancel.clone().run_until_cancelled_owned(async move {
        while told.changed().await.is_ok() {
            changed();
        }
    }));
    // A look waits for a place first, for as long at most.
    let deadline = Duration::from_secs(60) + cx.settings.inventory_timeout * 2;
    let agent = Arc::new(Agent { cx, stores, queue, memory: Shared::default(), checked: Mutex::default() });
    let config = QueueConfig { name: "node_agent", kind: "", concurrency: 2, deadline };
    let reconcile = move |turn: Turn| {
        let agent = agent.clone();
        async move { agent.turn(turn).await }
    };
    queue::run(config, receiver, telemetry, cancel, None, reconcile).await;
}

/// What the agent does in turn; each once at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Turn {
    /// Clean up after an incident, and report.
    CleanUp,
    /// Report what is new of the volumes. A look at an incident may take long.
    Report,
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CleanUp => "clean-up",
            Self::Report => "report",
        })
    }
}

struct Agent {
    cx: Context,
    stores: Stores,
    queue: Queue<Turn>,
    memory: Shared,
    /// When the NodeFence was last read behind the watch.
    checked: Mutex<Option<Instant>>,
}

impl Agent {
    async fn turn(&self, turn: Turn) -> Result<Next> {
        let done = match turn {
            Turn::CleanUp => self.clean_up().await,
            Turn::Report => self.report().await,
        };
        match done {
            Err(error) if error.is_conflict() => Ok(Next::After(UNSEEN_PACE_OF_FENCES)),
            done => done,
        }
    }

    async fn report(&self) -> Result<Next> {
        // Without a report to write in there is nothing to do: it wakes the clean-up, which reports as well.
        if let Some(seen) = observe::observe(&self.cx, &self.stores).await? {
            act::report(&self.cx, &self.stores, seen, None).await?;
        }
        Ok(Next::Await)
    }

    async fn clean_up(&self) -> Result<Next> {
        self.check_behind_the_watch(&self.cx.settings.node_name).await;
        let Some(mut seen) = observe::observe(&self.cx, &self.stores).await? else {
            return Ok(Next::After(self.cx.settings.check_interval));
        };
        if let Some(fence) = &seen.fence {
            seen.looked = Some(observe::look(&self.cx, fence).await);
        }
        let now = self.cx.clock.now().mono;
        let decision = {
            let mut memory = lock(&self.memory);
            memory.note(&seen, now);
            decide::decide(&seen, &memory, now)
        };
        let again = decision.look_again;
        let wake = {
            let queue = self.queue.clone();
            move || queue.add_after(Turn::CleanUp, GATHER)
        };
        act::act(&self.cx, &self.stores, seen, &self.memory, decision, wake).await?;
        Ok(Next::After(again.max(Duration::from_millis(20))))
    }

    /// A watch that is silent without a word must not leave a node uncleaned: while there is a NodeFence it is read
    /// itself every now and then.
    async fn check_behind_the_watch(&self, node: &str) {
        let key = ObjectKey::cluster(node);
        if self.stores.fences.get(&key).is_none() {
            return;
        }
        let now = self.cx.clock.now().mono;
        let due = lock(&self.checked).is_none_or(|checked| now >= checked + self.cx.settings.check_interval);
        if !due {
            return;
        }
        *lock(&self.checked) = Some(now);
        let fences: Api<NodeFence> = Api::all(self.cx.clients.reads.clone());
        match fences.get_opt(node).await {
            Ok(Some(fence)) => self.stores.fences.insert(fence),
            Ok(None) => self.stores.fences.remove(&key),
            Err(error) => tracing::debug!(%error, "the NodeFence cannot be read"),
        }
    }
}
