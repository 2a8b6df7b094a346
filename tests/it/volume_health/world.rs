//! A control plane whose nodes, pods and volumes are objects only, so that a test says what becomes of them; and the
//! voices of agents and sidecars, under their own identities.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead::api::driver_report::DriverReport;
use bulkhead::api::names;
use bulkhead::api::node_volume_report::NodeVolumeReport;
use bulkhead::api::volume_health::{VolumeHealth, VolumeHealthStatus};
use bulkhead_testbed::Identity;
use bulkhead_testbed::cluster::{Cluster, ClusterError, ClusterOptions};
use chrono::{SecondsFormat, Utc};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::api::agent;
use crate::api::objects::{api, tell};
use crate::failover::kept::Kept;
use crate::shared;

/// Long enough for a loaded machine; nothing waits this long when it works.
pub const SOON: Duration = Duration::from_secs(120);
/// The driver whose sidecar [`Identity::CsiSidecar`] is.
pub const DRIVER: &str = "csi.test.bulkhead.dev";
/// Namespace of the agents.
const AGENTS: &str = "bulkhead-node-agent";
/// How often the sidecar renews its Lease.
const RENEWAL: Duration = Duration::from_secs(5);

/// A control plane, our controller, and whoever reports.
pub struct World {
    pub cluster: Cluster,
    pub admin: Client,
    sidecar: Client,
    agents: Mutex<BTreeMap<String, Client>>,
    /// What is wrong with volumes of [`DRIVER`], by test: each has its own handles.
    abnormal: Mutex<BTreeMap<String, Value>>,
    kept: Option<Kept>,
    _renewing: JoinSet<()>,
}

impl shared::World for World {
    async fn start_shared() -> Result<Self, Failed> {
        let mut world = Self::start().await?;
        world.keep_controller();
        Ok(world)
    }
}

fn options() -> ClusterOptions {
    let controller = PathBuf::from(env!("CARGO_BIN_EXE_bulkhead-controller"));
    let programs = controller.parent().map(PathBuf::from);
    let mut options = ClusterOptions { controller: true, ..ClusterOptions::without_nodes(programs) };
    options.testbed.scheduler = false;
    options
}

impl World {
    /// Starts everything, with the installed policy and the right of one sidecar to report.
    pub async fn start() -> Result<Self, Failed> {
        let cluster = Cluster::start(options()).await?;
        let root = crate::api::world::root();
        for folder in ["config/volume-health", "hack/testbed/manifests/fencer"] {
            cluster.testbed.apply_dir(&root.join(folder)).await?;
        }
        let admin = cluster.testbed.client(&Identity::Admin).await?;
        let sidecar = cluster.testbed.client(&Identity::CsiSidecar).await?;
        let mut renewing = JoinSet::new();
        renew(&sidecar).await?;
        let beating = sidecar.clone();
        renewing.spawn(async move {
            loop {
                tokio::time::sleep(RENEWAL).await;
                if let Err(error) = renew(&beating).await {
                    eprintln!("the Lease of the sidecar is not renewed: {error}");
                }
            }
        });
        let world = Self {
            cluster,
            admin,
            sidecar,
            agents: Mutex::default(),
            abnormal: Mutex::default(),
            kept: None,
            _renewing: renewing,
        };
        let report: DriverReport = serde_json::from_value(json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "DriverReport", "metadata": { "name": DRIVER },
        }))?;
        Api::<DriverReport>::all(world.sidecar.clone()).create(&PostParams::default(), &report).await?;
        world.driver("", json!([])).await?;
        Ok(world)
    }

    /// The controller is started again whenever it ends.
    fn keep_controller(&mut self) {
        self.kept = Some(Kept::new(self.cluster.controllers.remove(0)));
    }

    /// A Ready node with a Ready agent.
    pub async fn node(&self, name: &str) -> Result<Node, Failed> {
        let nodes: Api<Node> = Api::all(self.admin.clone());
        let labels = json!({ "kubernetes.io/hostname": name });
        let node = serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } }))?;
        let node = nodes.create(&PostParams::default(), &node).await?;
        self.ready(name, "True", 0).await?;
        let agent = self.pod(AGENTS, &format!("agent-{name}"), name, json!([])).await?;
        let bound = json!({ "kind": "Pod", "apiVersion": "v1", "name": agent.name_any(), "uid": agent.uid() });
        let client = agent::with_token(&self.cluster.testbed, &self.admin, bound).await?;
        self.agents.lock().await.insert(name.to_owned(), client);
        Ok(node)
    }

    /// The node has had this Ready status for that long.
    pub async fn ready(&self, name: &str, status: &str, seconds: i64) -> Result<(), Failed> {
        let since = (Utc::now() - chrono::TimeDelta::seconds(seconds)).to_rfc3339_opts(SecondsFormat::Secs, true);
        let ready =
            json!({ "type": "Ready", "status": status, "lastTransitionTime": since, "lastHeartbeatTime": since });
        let patch = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
        let nodes: Api<Node> = Api::all(self.admin.clone());
        nodes.patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// The pod of a node's agent is Ready, or not.
    pub async fn agent_ready(&self, node: &str, status: &str) -> Result<(), Failed> {
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } });
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), AGENTS);
        pods.patch_status(&format!("agent-{node}"), &PatchParams::default(), &Patch::Strategic(ready)).await?;
        Ok(())
    }

    /// A pod that runs on a node; those of the agents' namespace are agents.
    pub async fn pod(&self, namespace: &str, name: &str, node: &str, volumes: Value) -> Result<Pod, Failed> {
        let is_agent = namespace == AGENTS;
        let labels = if is_agent { json!({ names::NODE_AGENT_LABEL: "true" }) } else { json!({}) };
        let account = if is_agent { AGENTS } else { "default" };
        let pod = json!({
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "spec": {
                "serviceAccountName": account, "nodeName": node, "volumes": volumes,
                "containers": [{ "name": "c", "image": "none" }],
            },
        });
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), namespace);
        let pod: Pod = serde_json::from_value(pod)?;
        // The ServiceAccount of a new namespace comes a moment later.
        let created = async || Ok(pods.create(&PostParams::default(), &pod).await.map_err(|error| error.to_string()));
        let pod = self.cluster.wait("pod is taken", SOON, created).await?;
        let ready = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
        pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(ready)).await?;
        Ok(pod)
    }

    /// A pod that uses a claim.
    pub async fn user(&self, name: &str, node: &str, claim: &str) -> Result<Pod, Failed> {
        let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
        self.pod("default", name, node, volumes).await
    }

    /// A local volume of a node.
    pub async fn local(&self, name: &str, node: &str) -> Result<PersistentVolume, Failed> {
        let host = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] });
        let affinity = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [host] }] } });
        let source = json!({ "local": { "path": format!("/mnt/{name}") }, "nodeAffinity": affinity });
        self.volume(name, json!({}), source).await
    }

    /// A volume of [`DRIVER`], its handle named after it, bound to a claim of its name.
    pub async fn csi(&self, name: &str, labels: Value) -> Result<PersistentVolume, Failed> {
        let source = json!({ "csi": { "driver": DRIVER, "volumeHandle": handle(name) } });
        let volume = self.volume(name, labels, source).await?;
        self.claim(name).await?;
        Ok(volume)
    }

    /// A claim of the volume's name, bound to it.
    pub async fn claim(&self, name: &str) -> Result<(), Failed> {
        let claim = json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": {
                "accessModes": ["ReadWriteMany"], "volumeName": name, "storageClassName": "",
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.admin.clone(), "default");
        claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        self.health(name, "Bound", |status| {
            let claim = status.volume.as_ref().and_then(|volume| volume.claim.as_deref());
            claim == Some(&format!("default/{name}"))
        })
        .await
        .map(drop)
    }

    async fn volume(&self, name: &str, labels: Value, source: Value) -> Result<PersistentVolume, Failed> {
        let mut volume = json!({
            "metadata": { "name": name, "labels": labels },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"], "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
            },
        });
        bulkhead_testbed::cluster::merge(&mut volume["spec"], &source);
        let volumes: Api<PersistentVolume> = Api::all(self.admin.clone());
        Ok(volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?)
    }

    /// The agent of a node says this of all its volumes.
    pub async fn report(&self, node: &str, volumes: Value) -> Result<(), Failed> {
        let object = Api::<Node>::all(self.admin.clone()).get(node).await?;
        let agents = self.agents.lock().await;
        let client = agents.get(node).ok_or("no agent there")?;
        let reports: Api<NodeVolumeReport> = Api::all(client.clone());
        let status = json!({ "nodeUID": object.uid(), "volumes": volumes });
        let write = async || Ok(tell(&reports, node, &status).await.map(drop).map_err(|error| error.to_string()));
        // The controller makes the report.
        Ok(self.cluster.wait("report is taken", SOON, write).await?)
    }

    /// The sidecar says that this is wrong, for one test.
    pub async fn driver(&self, test: &str, groups: Value) -> Result<(), Failed> {
        let mut abnormal = self.abnormal.lock().await;
        abnormal.insert(test.to_owned(), groups);
        let all: Vec<_> = abnormal.values().filter_map(Value::as_array).flatten().cloned().collect();
        let now = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
        let ready = json!({ "type": "Ready", "status": "True", "reason": "Reporting", "message": "", "lastTransitionTime": now });
        let status = json!({ "abnormal": all, "coverage": "Complete", "conditions": [ready] });
        let reports: Api<DriverReport> = Api::all(self.sidecar.clone());
        tell(&reports, DRIVER, &status).await?;
        Ok(())
    }

    pub fn healths(&self) -> Api<VolumeHealth> {
        Api::all(self.admin.clone())
    }

    /// Waits until the VolumeHealth of a volume is as `holds` wants it.
    pub async fn health(
        &self,
        name: &str,
        what: &str,
        holds: impl Fn(&VolumeHealthStatus) -> bool,
    ) -> Result<VolumeHealth, Failed> {
        let api = self.healths();
        let look = async || {
            let found = api.get_opt(name).await?;
            let status = found.as_ref().and_then(|health| health.status.as_ref());
            Ok(match (status.is_some_and(&holds), found) {
                (true, Some(health)) => Ok(health),
                (_, other) => Err(serde_json::to_string(&other.map(|health| health.status))?),
            })
        };
        Ok(self.cluster.wait(&format!("VolumeHealth {name}: {what}"), SOON, look).await?)
    }

    /// Waits until it has exactly these taints.
    pub async fn tainted(&self, name: &str, summary: &str) -> Result<VolumeHealth, Failed> {
        self.health(name, summary, |status| {
            status.phase.is_some() && status.taint_summary.as_deref().unwrap_or_default() == summary
        })
        .await
    }

    pub async fn want(&self, name: &str, spec: Value) -> Result<(), Failed> {
        self.healths().patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await?;
        Ok(())
    }

    pub async fn policy(&self, name: &str, spec: Value) -> Result<DynamicObject, Failed> {
        let object = json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "VolumeHealthPolicy", "metadata": { "name": name }, "spec": spec,
        });
        let api = api(&self.admin, "VolumeHealthPolicy");
        Ok(api.patch(name, &PatchParams::apply("a-person").force(), &Patch::Apply(object)).await?)
    }

    pub async fn drop_policy(&self, name: &str) -> Result<(), Failed> {
        api(&self.admin, "VolumeHealthPolicy").delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Reasons of the Events about an object of that kind and name, each as often as it was told.
    pub async fn events(&self, kind: &str, name: &str) -> Result<Vec<String>, Failed> {
        let events = Api::<Event>::all(self.admin.clone()).list(&ListParams::default()).await?;
        let about = events.items.into_iter().filter(|event| {
            let regarding = event.regarding.as_ref();
            regarding.is_some_and(|it| it.kind.as_deref() == Some(kind) && it.name.as_deref() == Some(name))
        });
        let ours = about.filter(|event| event.reporting_controller.as_deref() == Some("bulkhead-controller"));
        let mut told = Vec::new();
        for event in ours {
            let times = 1 + event.series.map_or(0, |series| series.count.max(1) - 1);
            told.extend((0..times).map(|_| event.reason.clone().unwrap_or_default()));
        }
        told.sort();
        Ok(told)
    }

    /// Waits until exactly these Events were told about an object.
    pub async fn told(&self, kind: &str, name: &str, reasons: &[&str]) -> Result<(), Failed> {
        let look = async || {
            let told = self.events(kind, name).await.map_err(|error| format!("{error:?}"));
            Ok(told.and_then(|told| if told == reasons { Ok(()) } else { Err(format!("{told:?}")) }))
        };
        Ok(self.cluster.wait(&format!("Events {reasons:?} of {kind} {name}"), SOON, look).await?)
    }
}

/// The handle of a volume of [`DRIVER`].
pub fn handle(volume: &str) -> String {
    format!("handle-{volume}")
}

/// A finding of an agent, as it stands in a report.
pub fn bad(volume: &str, check: &str, state: &str, reason: &str) -> Value {
    let finding =
        json!({ "check": check, "state": state, "reason": reason, "message": "seen in a test", "since": Utc::now() });
    json!({ "name": volume, "state": state, "findings": [finding] })
}

/// A volume of which an agent says that it is good.
pub fn good(volume: &str) -> Value {
    json!({ "name": volume, "state": "Healthy" })
}

/// What a sidecar says of one volume.
pub fn abnormal(volume: &str, state: &str, reason: &str) -> Value {
    json!({ "state": state, "reason": reason, "since": Utc::now(), "volumeHandles": [handle(volume)] })
}

async fn renew(sidecar: &Client) -> Result<(), ClusterError> {
    let now = Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": names::fencer_lease(DRIVER), "namespace": names::OPERATOR_NAMESPACE },
        "spec": { "holderIdentity": "a-test", "leaseDurationSeconds": 15, "renewTime": now },
    });
    let leases: Api<Lease> = Api::namespaced(sidecar.clone(), names::OPERATOR_NAMESPACE);
    let name = names::fencer_lease(DRIVER);
    match leases.get_opt(&name).await? {
        None => drop(leases.create(&PostParams::default(), &serde_json::from_value(lease)?).await?),
        Some(mut known) => {
            known.spec = serde_json::from_value(lease["spec"].clone())?;
            leases.replace(&name, &PostParams::default(), &known).await?;
        }
    }
    Ok(())
}
