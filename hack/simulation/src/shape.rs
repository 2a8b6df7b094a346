//! What a world consists of before anything happens: nodes, drivers, volumes, workloads, policies.

mod unattached;

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::api::slim::{
    CsiDriver, CsiSource, Namespace, PersistentVolume, PersistentVolumeClaim, Pod, Volume, VolumeSource,
};
use bulkhead::api::usage::Lookup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use crate::chance::{Chance, Choice};
use crate::oracle::programs::PLUGIN;

pub use self::unattached::Clusters;

/// The only namespace of workloads.
pub const NAMESPACE: &str = "shop";

/// A CSI driver and its array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Its name.
    pub name: String,
    /// Whether sidecars run beside it.
    pub has_sidecar: bool,
    /// Whether it lists published nodes.
    pub lists: bool,
    /// It says whether a volume is doing I/O, from whichever node.
    pub tells_io: bool,
    /// How long an unpublish takes, in milliseconds.
    pub latency: u64,
}

/// A program that cuts nodes off as a whole: it switches them off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerShape {
    /// It switches them on when it is told to give the access back.
    pub gives_back: bool,
    /// It reports those that have no power before anybody asks.
    pub reports: bool,
    /// It takes them off the fabric of all storages instead, and leaves them their power. That it always gives back.
    pub leaves_power: bool,
}

/// Storages that give access by their network only: what csi-addons shuts out writes nothing, and an unpublish revokes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkShape {
    /// They know a machine by none of its own addresses; only the driver can tell.
    pub is_behind_nat: bool,
}

/// A PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeShape {
    /// Its driver.
    pub driver: String,
    /// Several nodes may use it at once (ReadWriteMany).
    pub shared: bool,
}

/// What makes the pods of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The next pod has the same name, once the last one is gone.
    StatefulSet,
    /// The next pod has another name, as soon as the last one is being deleted.
    ReplicaSet,
    /// As a StatefulSet, but its pods carry a finalizer that goes once they have ended.
    Job,
    /// One on each node; here it has no volumes.
    DaemonSet,
    /// The same; and it is the node plugin of the driver that its name tells.
    Plugin,
}

impl Owner {
    /// Whether its pods belong to their nodes.
    pub fn is_daemon(self) -> bool {
        matches!(self, Self::DaemonSet | Self::Plugin)
    }
}

/// Where the pods of a workload go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Where the scheduler puts them.
    Scheduled,
    /// The scheduler puts them anywhere: they tolerate every taint.
    ToleratesAll,
    /// They name the node of that number.
    Named(usize),
}

/// A workload of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name, also the `app` label of its pods.
    pub name: String,
    /// Its owner.
    pub owner: Owner,
    /// Volumes of its pod.
    pub volumes: Vec<String>,
    /// Where its pods go.
    pub placement: Placement,
    /// Number of the node where its pod is at the beginning.
    pub home: usize,
    /// Priority of its pods.
    pub priority: i32,
    /// Whether a policy selects it.
    pub is_protected: bool,
}

impl Workload {
    /// A pod of a StatefulSet that a policy protects, on that node at first, and wherever it is scheduled later.
    pub fn protected(name: &str, volumes: &[&str], home: usize) -> Self {
        Self {
            name: name.into(),
            owner: Owner::StatefulSet,
            volumes: volumes.iter().map(|it| (*it).to_owned()).collect(),
            placement: Placement::Scheduled,
            home,
            priority: 0,
            is_protected: true,
        }
    }
}

/// Everything that a world begins with.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Node names.
    pub nodes: Vec<String>,
    /// Drivers.
    pub drivers: Vec<Driver>,
    /// Volumes by name.
    pub volumes: BTreeMap<String, VolumeShape>,
    /// Workloads.
    pub workloads: Vec<Workload>,
    /// Policies.
    pub policies: Vec<ResiliencyPolicy>,
    /// Admission for attachments is not installed.
    pub admission_missing: bool,
    /// The agents send heartbeats.
    pub beats: bool,
    /// The program that cuts nodes off as a whole, for method External, if there is one.
    pub power: Option<PowerShape>,
    /// All storages are such, for method NetworkFence.
    pub network: Option<NetworkShape>,
    /// Drivers that attach nothing (`attachRequired: false`), each with the cluster that its NetworkFenceClass names, if it names one.
    unattached: BTreeMap<String, Option<String>>,
    statics: Statics,
}

/// Objects that nobody changes.
#[derive(Clone, Debug, Default)]
struct Statics {
    claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    volumes: BTreeMap<String, Arc<PersistentVolume>>,
    drivers: BTreeMap<String, Arc<CsiDriver>>,
    namespaces: Vec<Arc<Namespace>>,
}

impl Lookup for Shape {
    fn claim(&self, _: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.statics.claims.get(name).cloned()
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.statics.volumes.get(name).cloned()
    }

    fn driver(&self, name: &str) -> Option<Arc<CsiDriver>> {
        self.statics.drivers.get(name).cloned()
    }
}

/// The NetworkFenceClass of a driver.
pub fn fence_class(driver: &str) -> String {
    format!("fence-{driver}")
}

/// The CSI volume handle of a volume.
pub fn handle(volume: &str) -> String {
    format!("handle-{volume}")
}

/// A policy of that name for pods with label `app` in the list.
pub fn policy(name: &str, apps: &[&str], spec: &serde_json::Value) -> ResiliencyPolicy {
    let mut whole = json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "ResiliencyPolicy", "metadata": { "name": name },
        "spec": {
            "mode": "Enforce",
            "selector": { "podSelector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": apps }] } },
        },
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole["spec"][key] = value.clone();
    }
    serde_json::from_value(whole).expect("a policy")
}

impl Shape {
    /// A shape with its static objects.
    pub fn new(
        nodes: usize,
        drivers: Vec<Driver>,
        volumes: BTreeMap<String, VolumeShape>,
        workloads: Vec<Workload>,
        policies: Vec<ResiliencyPolicy>,
    ) -> Self {
        let nodes = (0..nodes).map(|number| format!("n{number}")).collect();
        let statics = Statics::new(&drivers, &volumes);
        Self {
            nodes,
            drivers,
            volumes,
            workloads,
            policies,
            admission_missing: false,
            beats: false,
            power: None,
            network: None,
            unattached: BTreeMap::new(),
            statics,
        }
    }

    /// Three nodes, one driver, a database with one volume and a queue with two on the first node.
    pub fn plain() -> Self {
        let driver =
            Driver { name: "block.example.com".into(), has_sidecar: true, lists: true, tells_io: false, latency: 50 };
        let volume = VolumeShape { driver: driver.name.clone(), shared: false };
        let volumes = ["v0", "v1", "v2"].map(|name| (name.to_owned(), volume.clone()));
        let workload = |name: &str, volumes: &[&str], priority| Workload {
            name: name.into(),
            owner: Owner::StatefulSet,
            volumes: volumes.iter().map(|it| (*it).to_owned()).collect(),
            placement: Placement::Scheduled,
            home: 0,
            priority,
            is_protected: true,
        };
        let workloads = vec![workload("db", &["v0"], 10), workload("queue", &["v1", "v2"], 0)];
        let policy = policy("all", &["db", "queue"], &json!({ "limits": { "maxNodes": 1, "window": "60s" } }));
        Self::new(3, vec![driver], volumes.into(), workloads, vec![policy])
    }

    /// A shape by chance.
    pub fn random(chance: &mut dyn Chance) -> Self {
        crate::shapes::random(chance)
    }

    /// Whether who cuts nodes off as a whole leaves them their power.
    pub fn leaves_power(&self) -> bool {
        self.power.is_some_and(|power| power.leaves_power)
    }

    /// Labels of the namespaces.
    pub fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.statics.namespaces.clone()
    }

    /// The workload of that name.
    pub fn workload(&self, name: &str) -> Option<&Workload> {
        self.workloads.iter().find(|workload| workload.name == name)
    }

    /// The workload that a pod belongs to.
    pub fn workload_of(&self, pod: &Pod) -> Option<&Workload> {
        let labels = pod.metadata.labels.as_ref()?;
        self.workload(labels.get("app")?)
    }

    /// The driver of that name.
    pub fn driver_of(&self, volume: &str) -> Option<&str> {
        self.volumes.get(volume).map(|volume| volume.driver.as_str())
    }

    /// The name under which a node's status tells of a volume.
    pub fn unique_name(&self, volume: &str) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver_of(volume).unwrap_or_default(), handle(volume))
    }
}

impl Workload {
    /// Its next pod, not bound.
    pub fn pod(&self, number: u64) -> Pod {
        let mut pod = Pod::default();
        let (kind, name) = match self.owner {
            Owner::StatefulSet => ("StatefulSet", format!("{}-0", self.name)),
            Owner::Job => ("Job", format!("{}-0", self.name)),
            Owner::ReplicaSet => ("ReplicaSet", format!("{}-{number}", self.name)),
            Owner::DaemonSet | Owner::Plugin => ("DaemonSet", format!("{}-0", self.name)),
        };
        pod.metadata.name = Some(name);
        pod.metadata.namespace = Some(NAMESPACE.into());
        pod.metadata.labels = Some(BTreeMap::from([("app".to_owned(), self.name.clone())]));
        pod.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "apps/v1".into(),
            kind: kind.into(),
            name: self.name.clone(),
            uid: format!("owner-{}", self.name),
            controller: Some(true),
            ..OwnerReference::default()
        }]);
        if self.owner == Owner::Job {
            pod.metadata.finalizers = Some(vec![JOB_FINALIZER.into()]);
        }
        pod.spec.priority = Some(self.priority);
        let volume = |name: &String| Volume { name: name.clone(), source: VolumeSource::Claim(name.clone()) };
        pod.spec.volumes = self.volumes.iter().map(volume).collect();
        if let Some(driver) = self.name.strip_prefix(PLUGIN).filter(|_| self.owner == Owner::Plugin) {
            let folder = |name: &str| Volume {
                name: name.replace('.', "-"),
                source: VolumeSource::HostPath(format!("/var/lib/kubelet/{name}")),
            };
            pod.spec.volumes = vec![folder("plugins_registry"), folder(&format!("plugins/{driver}"))];
        }
        pod.spec.tolerations.fence = self.placement == Placement::ToleratesAll || self.owner.is_daemon();
        pod.status.phase = Some("Pending".into());
        pod
    }
}

/// Whether a policy selects the pods of an app.
pub fn selects(policy: &ResiliencyPolicy, app: Option<&String>) -> bool {
    let labels = app.map(|app| ("app".to_owned(), app.clone())).into_iter().collect();
    policy.spec.selector.pod_selector.as_ref().is_none_or(|selector| selector.matches(&labels))
}

/// What the job controller puts on its pods until they are counted.
pub const JOB_FINALIZER: &str = "batch.kubernetes.io/job-tracking";

/// Names of the volumes of a pod.
pub fn volumes_of(pod: &Pod) -> impl Iterator<Item = &str> {
    pod.spec.volumes.iter().filter_map(|volume| match &volume.source {
        VolumeSource::Claim(name) => Some(name.as_str()),
        _ => None,
    })
}

impl Statics {
    fn new(drivers: &[Driver], volumes: &BTreeMap<String, VolumeShape>) -> Self {
        let mut statics = Self::default();
        for driver in drivers {
            let mut object = CsiDriver::default();
            object.metadata.name = Some(driver.name.clone());
            statics.drivers.insert(driver.name.clone(), Arc::new(object));
        }
        for (name, volume) in volumes {
            let mut claim = PersistentVolumeClaim::default();
            claim.metadata.name = Some(name.clone());
            claim.spec.volume_name = Some(name.clone());
            statics.claims.insert(name.clone(), Arc::new(claim));
            let mut object = PersistentVolume::default();
            object.metadata.name = Some(name.clone());
            object.metadata.uid = Some(format!("uid-{name}"));
            let csi = CsiSource { driver: volume.driver.clone(), volume_handle: handle(name), ..CsiSource::default() };
            object.spec.csi = Some(csi);
            statics.volumes.insert(name.clone(), Arc::new(object));
        }
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(NAMESPACE.into());
        statics.namespaces.push(Arc::new(namespace));
        statics
    }
}

/// A share of choices: one of these.
pub fn one_of<T: Clone>(chance: &mut dyn Chance, options: &[T]) -> T {
    let index = chance.pick(Choice::Shape, options.len() as u64);
    options[usize::try_from(index).unwrap_or(0)].clone()
}
