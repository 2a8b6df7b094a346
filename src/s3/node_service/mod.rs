//! CSI Identity and Node services of the S3 driver.
//!
//! The controller assigns each volume of a pod to a Mountpoint Pod (`assignment`). For that we make a FUSE mount, the
//! *source*, and hand its descriptor to the Mountpoint Pod, where mount-s3 serves it (`source`); it is bind-mounted into the
//! folder of each pod that uses it (`publish`, `unpublish`). The last one gone, the source goes too (`unmounter`). What dies
//! is mounted again (`repair`).

pub mod assignment;
pub mod communication;
pub mod credentials;
pub mod decide;
mod folders;
pub mod leaving;
pub mod legacy;
pub mod metrics;
pub mod mounts;
pub mod probe;
pub mod publication;
pub mod publish;
pub mod records;
pub mod repair;
pub mod request;
pub mod service;
pub mod source;
pub mod stats;
pub mod taint;
mod tell;
pub mod turns;
pub mod unmounter;
pub mod unpublish;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Api;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::s3::DRIVER;
use crate::api::slim::Pod;
use crate::csi::plugin::{KubeletRegistration, PluginIdentity};
use crate::csi::plugin_registration::registration_server::RegistrationServer;
use crate::csi::server;
use crate::csi::v1::identity_server::IdentityServer;
use crate::csi::v1::node_server::NodeServer;
use crate::error::{Error, Result};
use crate::node_agent::mounts::mountinfo::Device;
use crate::node_agent::mounts::read::Root;
use crate::runtime::client::Clients;
use crate::runtime::events::Events;
use crate::runtime::health::Health;
use crate::runtime::informer::Informer;
use crate::runtime::lock::lock;
use crate::runtime::store::Store;
use crate::runtime::telemetry::Telemetry;
use crate::runtime::writer::Writer;
use crate::s3::keys::Keys;

use leaving::Leaving;
use metrics::Metrics;
use mounts::Table;
use probe::Probes;
use publication::Origin;
use records::Records;
use turns::Turns;

/// Index: s3pa by the uids of the workloads that it names.
pub const BY_WORKLOAD: &str = "workload";
/// Longest request. The kubelet's are a few KiB.
const REQUEST_MAX: usize = 2 << 20;
/// How often the server is asked again for what it has not told at the start.
const AGAIN: Duration = Duration::from_secs(1);

/// How the node service works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the node.
    pub node_name: String,
    /// Its CSI id.
    pub node_id: String,
    /// The kubelet's root folder, as it was told to the kubelet.
    pub kubelet_root: String,
    /// Socket of the services.
    pub socket: PathBuf,
    /// Whether the kubelet is told of us; else a registrar beside us does that.
    pub registers: bool,
    /// Where Mountpoint Pods are.
    pub mountpoint_namespace: String,
    /// How many volumes the scheduler may bring here, if that is limited.
    pub volumes_max: Option<i64>,
    /// How long a call waits for a Mountpoint Pod that runs.
    pub patience: Duration,
    /// How long mount-s3 may take to answer.
    pub mount_patience: Duration,
    /// The driver's own keys, if it has any.
    pub keys: Option<Keys>,
    /// What else mount-s3 has in its environment.
    pub environment: BTreeMap<String, String>,
}

/// The objects that concern this node.
#[derive(Clone)]
pub struct Stores {
    /// Its s3pa, by [`BY_WORKLOAD`].
    pub attachments: Store<MountpointS3PodAttachment>,
    /// Its Mountpoint Pods.
    pub pods: Store<Pod>,
}

/// What all steps work with.
pub struct Node {
    /// How it works.
    pub settings: Settings,
    /// The kubelet's folder.
    pub root: Arc<Root>,
    /// Objects.
    pub stores: Stores,
    /// Tells that one of these has changed.
    pub changes: watch::Sender<()>,
    /// The mount table as it was when it last changed: to wait for a change. To act, it is read.
    pub tables: watch::Sender<Arc<Table>>,
    /// Clients.
    pub clients: Clients,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub metrics: Metrics,
    /// Asks mounts.
    pub probes: Probes,
    /// One at a time at a target.
    pub turns: Turns,
    /// One at a time at a source.
    pub source_turns: Turns<Option<source::Failure>>,
    /// Targets that are being left.
    pub leaving: Leaving,
    /// What is mounted.
    pub records: Records,
    /// What sources were made from, by Mountpoint Pod, as far as it is known.
    pub origins: Mutex<BTreeMap<String, Origin>>,
    /// Credentials of volumes' own secrets by target, as the kubelet last brought them. Nowhere but here and in the
    /// memory of the Mountpoint Pod.
    pub keys: Mutex<HashMap<String, Keys>>,
    /// File systems whose server is gone.
    pub dead: Mutex<BTreeSet<Device>>,
    kubernetes: Mutex<Option<String>>,
}

impl Node {
    /// A path below the kubelet's root, as the mount table has it.
    pub fn absolute(&self, path: &str) -> String {
        format!("{}/{path}", self.root.path)
    }

    /// The server's version, once it is known.
    pub fn kubernetes(&self) -> Option<String> {
        lock(&self.kubernetes).clone()
    }
}

/// What the program hands to us.
pub struct Parts {
    /// Clients.
    pub clients: Clients,
    /// Writes.
    pub writer: Writer,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub telemetry: Telemetry,
    /// Readiness.
    pub health: Health,
    /// Ends all.
    pub cancel: CancellationToken,
    /// This program.
    pub program: PathBuf,
}

/// Serves until `cancel`.
///
/// # Errors
///
/// When the kubelet's folder or the sockets cannot be used.
pub async fn run(settings: Settings, parts: Parts) -> Result<()> {
    let at = |path: &str| {
        let context =
            format!("{path}: is --kubelet-path what the kubelet was told, and mounted with Bidirectional propagation?");
        move |source: io::Error| Error::Io { context, source }
    };
    let root = Arc::new(Root::open(&settings.kubelet_root).map_err(at(&settings.kubelet_root))?);
    let records = Records::load(&root).map_err(at(&root.path))?;
    clear_read_only(&root).map_err(at(&root.path))?;
    let cancel = parts.cancel.clone();
    let stores = watch_objects(&settings, &parts);
    let node = Arc::new(Node {
        settings,
        root,
        stores,
        changes: watch::Sender::new(()),
        tables: watch::Sender::new(Arc::default()),
        clients: parts.clients.clone(),
        events: parts.events.clone(),
        metrics: Metrics::register(&parts.telemetry),
        probes: Probes::new(parts.program.clone()),
        turns: Turns::default(),
        source_turns: Turns::default(),
        leaving: Leaving::default(),
        origins: Mutex::new(origins(&records)),
        records,
        keys: Mutex::default(),
        dead: Mutex::default(),
        kubernetes: Mutex::default(),
    });
    tokio::spawn(mounts::watch(node.tables.clone(), cancel.clone()));
    tokio::spawn(tell_changes(node.clone(), cancel.clone()));
    tokio::spawn(learn_version(node.clone(), cancel.clone()));
    let look_after = look_after(node.clone(), &parts, cancel.clone());
    tokio::try_join!(serve(node.clone(), cancel.clone()), look_after).map(drop)
}

/// What sources were made from, as far as it is mounted for somebody.
fn origins(records: &Records) -> BTreeMap<String, Origin> {
    let of = |record: publication::Publication| Some((record.served_by.clone()?.name, record.origin()));
    records.list().into_iter().filter_map(of).collect()
}

/// What a run that was killed left half-made.
fn clear_read_only(root: &Root) -> io::Result<()> {
    let folder = mounts::read_only_folder();
    for name in folders::names(root, &folder)? {
        let path = format!("{folder}/{name}");
        mounts::unmount_all(root, &path)?;
        folders::remove(root, &path)?;
    }
    Ok(())
}

fn watch_objects(settings: &Settings, parts: &Parts) -> Stores {
    let watches = parts.clients.watches.clone();
    let here = format!("spec.nodeName={}", settings.node_name);
    let node_name = settings.node_name.clone();
    let attachments = Informer::new(Api::all(watches.clone()), "mountpoints3podattachments")
        .index(BY_WORKLOAD, |attachment: &MountpointS3PodAttachment| {
            attachment.spec.workloads().into_iter().map(str::to_owned).collect()
        })
        .keep(move |attachment: &MountpointS3PodAttachment| attachment.spec.node_name == node_name)
        .fields_if_served(&here)
        .eager();
    let pods = Api::namespaced(watches, &settings.mountpoint_namespace);
    Stores {
        attachments: attachments.spawn(parts.cancel.clone(), &parts.telemetry),
        pods: Informer::new(pods, "mountpoint_pods")
            .fields(&here)
            .eager()
            .spawn(parts.cancel.clone(), &parts.telemetry),
    }
}

/// Wakes whoever waits for an object.
async fn tell_changes(node: Arc<Node>, cancel: CancellationToken) {
    let (mut attachments, mut pods) = (node.stores.attachments.subscribe(), node.stores.pods.subscribe());
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = attachments.recv() => {}
            _ = pods.recv() => {}
        }
        node.changes.send_replace(());
    }
}

/// S3 servers get to see it; nothing depends on it.
async fn learn_version(node: Arc<Node>, cancel: CancellationToken) {
    loop {
        match node.clients.reads.apiserver_version().await {
            Ok(version) => return *lock(&node.kubernetes) = Some(version.git_version),
            Err(error) => tracing::debug!(%error, "the server's version is not known yet"),
        }
        if cancel.run_until_cancelled(tokio::time::sleep(AGAIN)).await.is_none() {
            return;
        }
    }
}

async fn serve(node: Arc<Node>, cancel: CancellationToken) -> Result<()> {
    let socket = node.settings.socket.clone();
    let failed = |path: &std::path::Path| {
        let context = format!("serving on {}", path.display());
        move |source: io::Error| Error::Io { context, source }
    };
    let calls = NodeServer::new(service::NodeService(node.clone())).max_decoding_message_size(REQUEST_MAX);
    let identity = IdentityServer::new(PluginIdentity { driver_name: DRIVER.to_owned() });
    let services = Server::builder().add_service(identity).add_service(calls);
    let serving = async { server::on_socket(services, &socket, cancel.clone()).await.map_err(failed(&socket)) };
    let registering = async {
        if !node.settings.registers {
            return Ok(());
        }
        let registry = PathBuf::from(&node.settings.kubelet_root).join(format!("plugins_registry/{DRIVER}-reg.sock"));
        let endpoint = socket.display().to_string();
        let registration = KubeletRegistration { driver_name: DRIVER.to_owned(), endpoint };
        let services = Server::builder().add_service(RegistrationServer::new(registration));
        server::on_registration_socket(services, &registry, cancel.clone()).await.map_err(failed(&registry))
    };
    tokio::try_join!(serving, registering).map(drop)
}

/// Everything that nobody asks for.
async fn look_after(node: Arc<Node>, parts: &Parts, cancel: CancellationToken) -> Result<()> {
    let gate = parts.health.gate("informers");
    gate.close("the first lists have not arrived");
    let synced = async {
        tokio::join!(node.stores.attachments.wait_synced(), node.stores.pods.wait_synced());
    };
    let tainted = taint::run(&node, parts.writer.clone(), &parts.telemetry, cancel.clone());
    let rest = async {
        if cancel.run_until_cancelled(synced).await.is_none() {
            return;
        }
        gate.open();
        tokio::join!(unmounter::run(node.clone(), cancel.clone()), repair::run(node.clone(), cancel.clone()));
    };
    tokio::join!(tainted, rest);
    Ok(())
}
