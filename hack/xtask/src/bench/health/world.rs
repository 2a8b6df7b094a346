//! The cluster that is measured: a real control plane with everything we ship, nodes that kwok keeps Ready, a bound local
//! volume after the other on them, and pods that stand for the agents.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_testbed::process::{Launch, Process};
use bulkhead_testbed::{Identity, KwokNodes, KwokOptions, Testbed, TestbedOptions};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::Result;

use super::super::objects::{AT_ONCE, at_once, create};

/// The agent's ServiceAccount and its namespace, as shipped.
pub const AGENT: &str = "bulkhead-node-agent";
/// What kwok knows its nodes by.
const NODE_LABEL: &str = "bench.bulkhead.dev/node";
/// A loaded machine is late; that nodes fail is not the question here.
const GRACE: Duration = Duration::from_secs(300);

/// Which volume is where: they are dealt out to the nodes like cards.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// How many volumes.
    pub volumes: usize,
    /// How many nodes.
    pub nodes: usize,
}

impl Layout {
    /// The name of a volume.
    pub fn volume(number: usize) -> String {
        format!("bench-{number:05}")
    }

    /// The name of a node.
    pub fn node(number: usize) -> String {
        format!("bench-{number:03}")
    }

    /// The node of a volume.
    pub fn node_of(self, volume: usize) -> usize {
        volume % self.nodes
    }

    /// The volumes of a node.
    pub fn volumes_of(self, node: usize) -> impl Iterator<Item = usize> {
        (node..self.volumes).step_by(self.nodes)
    }

    /// All volumes.
    pub fn all(self) -> Range<usize> {
        0..self.volumes
    }
}

/// A Node object.
#[derive(Clone, Debug)]
pub struct SimulatedNode {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its boot id.
    pub boot_id: String,
}

/// The cluster.
pub struct World {
    /// A client that may do everything.
    pub admin: Client,
    /// The nodes, by number.
    pub nodes: Vec<SimulatedNode>,
    /// The folder with our programs.
    pub programs: PathBuf,
    _kwok: Process,
    /// The control plane.
    pub testbed: Testbed,
}

impl World {
    /// Starts the control plane with everything we ship, and nodes with Ready agents, but no volume and no program of ours.
    pub async fn start(root: &Path, programs: &Path, layout: Layout) -> Result<Self> {
        let options = TestbedOptions {
            scheduler: false,
            node_monitor_grace_period: GRACE,
            // Binding all those volumes is not what is measured.
            controller_manager_qps: 2000,
            controller_manager_burst: 4000,
            ..TestbedOptions::default()
        };
        let testbed = Testbed::start(options).await?;
        let admin = testbed.client(&Identity::Admin).await?;
        install(&testbed, root).await?;
        let _kwok = testbed.start_kwok(&KwokNodes::Labelled(NODE_LABEL.into()), &KwokOptions::default())?;
        let mut world = Self { admin, nodes: Vec::new(), programs: programs.to_owned(), _kwok, testbed };
        let boot_id = |number: usize| format!("00000000-0000-4000-8000-{number:012}");
        let nodes = (0..layout.nodes).map(|number| world.add_node(Layout::node(number), boot_id(number)));
        world.nodes = stream::iter(nodes.collect::<Vec<_>>()).buffered(AT_ONCE).try_collect().await?;
        world.nodes_ready(layout.nodes).await?;
        Ok(world)
    }

    /// Adds a Node with a pod that stands for its agent.
    pub async fn add_node(&self, name: String, boot_id: String) -> Result<SimulatedNode> {
        let node: Node = create(&self.admin, None, node(&name, &boot_id)).await?;
        let pod: Pod = create(&self.admin, Some(AGENT), agent_pod(&name)).await?;
        let ready = json!({ "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": chrono::Utc::now().to_rfc3339() }],
        }});
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), AGENT);
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(ready)).await?;
        Ok(SimulatedNode { uid: node.uid().unwrap_or_default(), name, boot_id })
    }

    /// Waits until that many nodes are Ready.
    pub async fn nodes_ready(&self, count: usize) -> Result<()> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(180);
        let nodes: Api<Node> = Api::all(self.admin.clone());
        loop {
            let ready = nodes.list(&ListParams::default()).await?.items.iter().filter(|node| is_ready(node)).count();
            if ready >= count {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                return Err(format!("{ready} of {count} nodes are Ready after 3 minutes").into());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Creates local volumes with their claims: name, node and path of each.
    pub async fn add_volumes(&self, volumes: Vec<(String, String, String)>) -> Result<()> {
        let creations = volumes.into_iter().map(|(name, node, path)| async move {
            create::<PersistentVolume>(&self.admin, None, volume(&name, &node, &path)).await?;
            create::<PersistentVolumeClaim>(&self.admin, Some("default"), claim(&name)).await?;
            Ok::<_, Box<dyn std::error::Error>>(())
        });
        at_once(creations).await
    }

    /// Starts one of our programs.
    pub fn launch(&self, program: &str, kubeconfig: &Path, further: &[&str]) -> Result<Process> {
        let mut args: Vec<std::ffi::OsString> = vec!["--kubeconfig".into(), kubeconfig.as_os_str().to_owned()];
        args.extend(["--identity", program, "--listen", "127.0.0.1:0"].map(Into::into));
        args.extend(further.iter().map(Into::into));
        Ok(Process::spawn(Launch {
            name: program.to_owned(),
            program: self.programs.join(program),
            args,
            env: Vec::new(),
            log: self.testbed.folder().join(format!("{program}.log")),
        })?)
    }
}

/// All that `config/default` has, but what would make pods.
async fn install(testbed: &Testbed, root: &Path) -> Result<()> {
    let text = testbed.kubectl(&["kustomize", &root.join("config/default").to_string_lossy()]).await?;
    let mut objects: Vec<DynamicObject> = serde_saphyr::from_multiple(&text)?;
    let makes_pods = |kind: &str| matches!(kind, "Deployment" | "DaemonSet");
    objects.retain(|object| !object.types.as_ref().is_some_and(|types| makes_pods(&types.kind)));
    Ok(testbed.apply(objects).await?)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn node(name: &str, boot_id: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name, NODE_LABEL: "yes" } },
        "status": {
            "nodeInfo": {
                "architecture": "amd64", "bootID": boot_id, "containerRuntimeVersion": "simulated://1",
                "kernelVersion": "6.18.0", "kubeProxyVersion": "", "kubeletVersion": "v1.36.3", "machineID": name,
                "operatingSystem": "linux", "osImage": "simulated", "systemUUID": name,
            },
        },
    })
}

fn agent_pod(node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("agent-{node}"), "namespace": AGENT,
            "labels": { "app.kubernetes.io/name": "bulkhead", "app.kubernetes.io/component": "node-agent" },
        },
        "spec": {
            "serviceAccountName": AGENT, "nodeName": node, "containers": [{ "name": "agent", "image": "agent" }],
            "tolerations": [{ "operator": "Exists" }],
        },
    })
}

fn volume(name: &str, node: &str, path: &str) -> Value {
    let hostname = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] });
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "persistentVolumeReclaimPolicy": "Retain", "local": { "path": path },
            "claimRef": { "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default", "name": name },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [hostname] }] } },
        },
    })
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "volumeName": name,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}
