//! Real nodes: a kubelet, a containerd and a kube-proxy each, in namespaces of their own on this machine, with two links to
//! the rest of the testbed, control and storage, and with faults.
//!
//! A node sees its own disk, its own processes and its own network; the kernel is the machine's. Nothing of it outlives the
//! testbed: a [guard](guard) sees to that even when the testbed is killed.

mod command;
mod error;
mod faults;
mod guard;
mod machine;
mod network;
mod node;
pub mod remote;
mod requirements;
pub mod script;
mod settings;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::api::DeleteParams;
use kube::{Api, Client};

pub use self::error::RealNodeError;
pub use self::faults::{Fault, NodeProgram};
pub use self::network::NodeNetwork;
pub use self::node::RealNode;
pub use self::requirements::check;

use self::network::{Link, MAX_NODES};
use self::node::Built;
use self::settings::{PAUSE_IMAGE, Settings};
use crate::binaries::{Binaries, Program};
use crate::image::{ImageFile, ImageSpec};
use crate::lock::lock;
use crate::{Identity, Testbed};

/// How real nodes behave. The defaults are upstream's.
#[derive(Clone, Debug)]
pub struct RealNodeOptions {
    /// The folder of programs that the user named; see [`crate::binaries`].
    pub binaries: Option<PathBuf>,
    /// How often a kubelet looks at its node's conditions.
    pub status_update_frequency: Duration,
    /// How long a node's Lease lasts, in whole seconds; the kubelet renews it after a quarter of that.
    pub lease_duration: Duration,
    /// How often a kubelet compares pods with their containers, beside on changes.
    pub sync_frequency: Duration,
    /// How often a kubelet looks at the use of volumes.
    pub volume_stats_period: Duration,
    /// Labels that every node gets beside the usual ones.
    pub labels: BTreeMap<String, String>,
}

impl Default for RealNodeOptions {
    fn default() -> Self {
        Self {
            binaries: None,
            status_update_frequency: Duration::from_secs(10),
            lease_duration: Duration::from_secs(40),
            sync_frequency: Duration::from_secs(60),
            volume_stats_period: Duration::from_secs(60),
            labels: BTreeMap::new(),
        }
    }
}

impl RealNodeOptions {
    /// A heartbeat each second, for the short grace period of [`crate::TestbedOptions::fast_nodes`].
    pub fn fast() -> Self {
        Self {
            status_update_frequency: Duration::from_secs(1),
            lease_duration: Duration::from_secs(4),
            sync_frequency: Duration::from_secs(5),
            volume_stats_period: Duration::from_secs(5),
            ..Self::default()
        }
    }
}

/// The real nodes of one testbed. Dropping it ends them, and returns when nothing of them is left.
pub struct RealNodes {
    // Dropped in this order: the nodes' own handles first, then, with the last of them, the network and its guard.
    nodes: Mutex<BTreeMap<String, RealNode>>,
    network: Arc<NodeNetwork>,
    options: RealNodeOptions,
    client: Client,
    server: String,
    /// The testbed's folder.
    folder: PathBuf,
    programs: Vec<PathBuf>,
    pause: PathBuf,
}

impl RealNodes {
    /// Prepares real nodes for a testbed that was started with [`crate::TestbedOptions::advertise_address`] set to
    /// [`NodeNetwork::host_control_address`]. There are none yet: see [`RealNodes::add`]. The first time on a machine this
    /// builds their programs, which takes minutes.
    ///
    /// # Errors
    /// See [`RealNodeError`].
    pub async fn start(
        testbed: &Testbed,
        network: NodeNetwork,
        options: RealNodeOptions,
    ) -> Result<Self, RealNodeError> {
        let server = testbed.advertised_server().ok_or(RealNodeError::NotAdvertised)?;
        let given = options.binaries.clone();
        let binaries =
            tokio::task::spawn_blocking(move || Binaries::ensure_all(given.as_deref(), &Program::REAL_NODES))
                .await
                .map_err(|error| RealNodeError::Guard(std::io::Error::other(error)))??;
        let pause = testbed.folder().join("pause-image.tar");
        busybox(PAUSE_IMAGE, &["sleep", "infinity"]).write(&pause)?;
        Ok(Self {
            nodes: Mutex::default(),
            network: Arc::new(network),
            client: testbed.client(&Identity::Admin).await?,
            server,
            folder: testbed.folder().to_owned(),
            programs: Program::REAL_NODES.map(|program| binaries.path(program)).to_vec(),
            pause,
            options,
        })
    }

    /// The networks of the nodes.
    pub fn network(&self) -> &NodeNetwork {
        &self.network
    }

    /// Adds a node and returns when it is Ready. Several may be added at once.
    ///
    /// # Errors
    /// See [`RealNodeError`].
    pub async fn add(&self, testbed: &Testbed, name: &str) -> Result<RealNode, RealNodeError> {
        let node = self.build(testbed, name)?;
        node.power_on().await?;
        node.wait_ready().await?;
        Ok(node)
    }

    /// Takes a node away for good: power, and its Node object.
    ///
    /// # Errors
    /// When the API server refuses the deletion.
    pub async fn remove(&self, name: &str) -> Result<(), RealNodeError> {
        let node = lock(&self.nodes).remove(name);
        let Some(node) = node else { return Ok(()) };
        node.power_off().await;
        let nodes: Api<NodeObject> = Api::all(self.client.clone());
        match nodes.delete(name, &DeleteParams::default()).await {
            // A test deleted it before.
            Err(kube::Error::Api(gone)) if gone.code == 404 => Ok(()),
            deleted => Ok(deleted.map(drop)?),
        }
    }

    /// The node of this name, if it was added.
    pub fn node(&self, name: &str) -> Option<RealNode> {
        lock(&self.nodes).get(name).cloned()
    }

    /// Puts an image archive (see [`crate::image`]) into every node that is there now.
    ///
    /// # Errors
    /// As [`RealNode::import_image`].
    pub async fn import_image(&self, archive: &Path) -> Result<(), RealNodeError> {
        let nodes: Vec<RealNode> = lock(&self.nodes).values().cloned().collect();
        futures::future::try_join_all(nodes.iter().map(|node| node.import_image(archive))).await.map(drop)
    }

    fn build(&self, testbed: &Testbed, name: &str) -> Result<RealNode, RealNodeError> {
        let mut nodes = lock(&self.nodes);
        if nodes.contains_key(name) {
            return Err(RealNodeError::Exists(name.to_owned()));
        }
        let taken: Vec<u8> = nodes.values().map(RealNode::number).collect();
        let number = (0..MAX_NODES).find(|number| !taken.contains(number)).ok_or(RealNodeError::TooMany(MAX_NODES))?;
        let group = format!("{}/{name}", self.network.guard.group());
        let settings = Settings {
            name,
            options: &self.options,
            server: self.server.clone(),
            node_address: self.network.node_address(Link::Control, number).to_string(),
            pod_subnet: self.network.pod_subnet(number),
            plugins: requirements::plugins().unwrap_or_default(),
            runc: requirements::find("runc").unwrap_or_default().display().to_string(),
        };
        let disk = self.folder.join("nodes").join(name);
        write_disk(testbed, &settings, &disk)?;
        let node = RealNode::new(Built {
            name: name.to_owned(),
            number,
            network: self.network.clone(),
            disk,
            logs: self.folder.clone(),
            group,
            programs: self.programs.clone(),
            args: NodeProgram::ALL.map(|program| (program, settings.args(program))).into(),
            pause: self.pause.clone(),
            client: self.client.clone(),
        });
        nodes.insert(name.to_owned(), node.clone());
        Ok(node)
    }
}

impl Drop for RealNodes {
    fn drop(&mut self) {
        // Also when a test still holds on to a node.
        self.network.guard.end();
    }
}

/// An image of busybox alone, with the names of what tests usually call.
pub fn busybox(name: &str, arguments: &[&str]) -> ImageSpec {
    const PROGRAM: &str = "/bin/busybox";
    let file = ImageFile {
        source: requirements::find("busybox").unwrap_or_else(|| PROGRAM.into()),
        path: PROGRAM.into(),
        mode: 0o755,
    };
    let names = ["sh", "cat", "sleep", "sync", "date", "echo", "ls", "mkdir", "mv", "rm", "mount", "umount", "nc"];
    ImageSpec {
        name: name.to_owned(),
        files: vec![file],
        links: names.map(|name| (format!("/bin/{name}"), PROGRAM.to_owned())).to_vec(),
        entrypoint: [PROGRAM].iter().chain(arguments).map(|&word| word.to_owned()).collect(),
        ..ImageSpec::default()
    }
}

/// What an installation leaves on a node's disk: certificates and settings.
fn write_disk(testbed: &Testbed, settings: &Settings<'_>, disk: &Path) -> Result<(), RealNodeError> {
    let node =
        Identity::User { name: format!("system:node:{}", settings.name), groups: vec!["system:nodes".to_owned()] };
    let proxy = Identity::User { name: "system:kube-proxy".to_owned(), groups: Vec::new() };
    let copy = |source: &Path, target: &str| write(disk, target, &fs::read(source).map_err(file_error(source))?);
    copy(&testbed.authority_file(), "etc/kubernetes/ca.crt")?;
    for (user, identity) in [("kubelet", node), ("kube-proxy", proxy)] {
        let files = testbed.certificate(&identity)?;
        copy(&files.certificate, &format!("etc/kubernetes/{user}.crt"))?;
        copy(&files.key, &format!("etc/kubernetes/{user}.key"))?;
    }
    settings.files().into_iter().try_for_each(|(path, text)| write(disk, path, text.as_bytes()))
}

fn write(disk: &Path, path: &str, content: &[u8]) -> Result<(), RealNodeError> {
    let path = disk.join(path);
    let parent = path.parent().unwrap_or(disk);
    fs::create_dir_all(parent).and_then(|()| fs::write(&path, content)).map_err(file_error(&path))
}

fn file_error(path: &Path) -> impl FnOnce(std::io::Error) -> RealNodeError {
    let path = path.to_owned();
    move |source| RealNodeError::File { path, source }
}
