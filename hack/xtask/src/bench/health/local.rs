//! The node that this machine is: real volumes in a mount namespace of their own, and the real agent that looks at them.
//! All mounts go with the process that holds the namespace, however this program ends.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bulkhead_testbed::process::{Launch, Process};
use bulkhead_testbed::{Identity, usage};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::Result;

use super::world::{AGENT, World};

/// The name of the node.
pub const NODE: &str = "this-machine";
/// How long the namespace may take to be there.
const NAMESPACE_LIMIT: Duration = Duration::from_secs(10);

/// Whether this process may do what is needed here.
pub fn is_possible() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    user.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}

/// A volume on this machine.
#[derive(Clone, Debug)]
pub struct LocalVolume {
    /// The PersistentVolume.
    pub name: String,
    path: PathBuf,
    /// A file system of its own, which is taken away; the others are folders, which are deleted.
    pub is_mount: bool,
}

/// The node.
pub struct LocalNode {
    /// Its volumes.
    pub volumes: Vec<LocalVolume>,
    namespace: PathBuf,
    host: PathBuf,
    kubelet: PathBuf,
    _holder: Process,
}

impl LocalNode {
    /// Makes the volumes, the Node and the PersistentVolumes.
    pub async fn new(world: &World, count: usize) -> Result<Self> {
        let folder = world.testbed.folder().join("local");
        let kubelet = folder.join("kubelet");
        std::fs::create_dir_all(&kubelet)?;
        let volume = |number: usize| {
            let name = format!("local-{number:03}");
            LocalVolume { path: folder.join(&name), name, is_mount: number.is_multiple_of(2) }
        };
        let volumes: Vec<_> = (0..count).map(volume).collect();
        let (_holder, host) = hold_namespace(world).await?;
        let local = Self { volumes, namespace: host.join("ns/mnt"), host, kubelet, _holder };
        for volume in &local.volumes {
            local.repair(volume).await?;
        }
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        world.add_node(NODE.to_owned(), boot_id).await?;
        let path = |volume: &LocalVolume| volume.path.to_string_lossy().into_owned();
        let objects = local.volumes.iter().map(|volume| (volume.name.clone(), NODE.to_owned(), path(volume)));
        world.add_volumes(objects.collect()).await?;
        Ok(local)
    }

    /// Starts the agent, with a token as a kubelet gives it to the agent's pod.
    pub async fn start_agent(&self, world: &World) -> Result<Process> {
        let kubeconfig = kubeconfig(world).await?;
        let (host, kubelet) = (self.host.to_string_lossy(), self.kubelet.to_string_lossy());
        let node = ["--node-name", NODE, "--host-process", &*host, "--kubelet-root", &*kubelet];
        world.launch("bulkhead-node-agent", &kubeconfig, &node)
    }

    /// Takes the volume away. Returns when that began.
    pub async fn take_away(&self, volume: &LocalVolume) -> Result<Instant> {
        let from = Instant::now();
        match volume.is_mount {
            true => self.run("umount", &[], &volume.path).await?,
            false => std::fs::remove_dir_all(&volume.path)?,
        }
        Ok(from)
    }

    /// Puts it back. Returns when that was done.
    pub async fn repair(&self, volume: &LocalVolume) -> Result<Instant> {
        std::fs::create_dir_all(&volume.path)?;
        if volume.is_mount {
            self.run("mount", &["-t", "tmpfs", "-o", "size=1m", "bulkhead-bench"], &volume.path).await?;
        }
        Ok(Instant::now())
    }

    async fn run(&self, program: &str, args: &[&str], path: &Path) -> Result<()> {
        let mut command = tokio::process::Command::new("nsenter");
        command.arg(format!("--mount={}", self.namespace.display())).arg(program).args(args).arg(path);
        let output = command.stdin(std::process::Stdio::null()).kill_on_drop(true).output().await?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{program} {}: {}", path.display(), String::from_utf8_lossy(&output.stderr)).into())
    }
}

/// A process with a mount namespace of its own, which stands for the host; its folder in `/proc`.
async fn hold_namespace(world: &World) -> Result<(Process, PathBuf)> {
    let holder = Process::spawn(Launch {
        name: "host".into(),
        program: "unshare".into(),
        args: ["--mount", "--propagation", "private", "sleep", "infinity"].map(Into::into).to_vec(),
        env: Vec::new(),
        log: world.testbed.folder().join("host.log"),
    })?;
    let deadline = Instant::now() + NAMESPACE_LIMIT;
    loop {
        // Until it has become `sleep` it may still be in our own namespace.
        if let Ok(id) = usage::id(&holder)
            && std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.trim() == "sleep")
        {
            return Ok((holder, PathBuf::from(format!("/proc/{id}"))));
        }
        if Instant::now() > deadline {
            return Err(format!("no mount namespace of its own: {}", holder.log_tail()).into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn kubeconfig(world: &World) -> Result<PathBuf> {
    let pods: Api<Pod> = Api::namespaced(world.admin.clone(), AGENT);
    let pod = pods.get(&format!("agent-{NODE}")).await?;
    let bound = json!({ "kind": "Pod", "apiVersion": "v1", "name": pod.name_any(), "uid": pod.uid() });
    let request: TokenRequest = serde_json::from_value(json!({
        "spec": { "audiences": [], "boundObjectRef": bound, "expirationSeconds": 86_400 },
    }))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(world.admin.clone(), AGENT);
    let answer = accounts.create_token_request(AGENT, &PostParams::default(), &request).await?;
    let token = answer.status.ok_or("the API server gave no token")?.token;
    let mut config: Value =
        serde_json::from_str(&std::fs::read_to_string(world.testbed.kubeconfig(&Identity::Admin)?)?)?;
    let user = config.pointer_mut("/users/0/user").ok_or("the kubeconfig has no user")?;
    *user = json!({ "token": token });
    let path = world.testbed.folder().join("agent.kubeconfig");
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}
