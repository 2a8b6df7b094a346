//! Workloads of real containers: a database-like writer on a volume that the driver's provisioner makes.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{RealCluster, protected};
use crate::cluster::{ClusterError, merge, ready_on, wait};

/// Where the volume is in the container.
const VOLUME: &str = "/data";

/// What makes the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A claim for each pod.
    StatefulSet,
    /// One claim for its one pod, which ends before the next begins.
    Deployment,
}

/// Pods that write to their volumes for ever: see `testbed-writer`.
#[derive(Clone, Debug)]
pub struct RealWorkload {
    /// Its name.
    pub name: String,
    /// Its namespace, which must exist.
    pub namespace: String,
    /// What makes the pods.
    pub kind: Kind,
    /// How many pods; a Deployment has one.
    pub replicas: usize,
    /// How many volumes a pod of a StatefulSet has; it writes to the first.
    pub volumes: usize,
    /// Raw block volumes.
    pub block: bool,
    /// The StorageClass of the volumes; `None` for the driver's own.
    pub class: Option<String>,
    /// The time between two writes, such as `100ms`.
    pub every: String,
    /// Labels of the pods besides `app`.
    pub labels: BTreeMap<String, String>,
    /// The node that runs them while it can, if set.
    pub node: Option<String>,
    /// Merged into the template of the pods: tolerations and the like.
    pub template: Value,
}

/// Where a pod runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPlace {
    /// The pod.
    pub name: String,
    /// Its uid, which tags its writes in the array's ledger.
    pub uid: String,
    /// Its node.
    pub node: String,
}

impl RealWorkload {
    /// One protected pod of a StatefulSet with one volume.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            kind: Kind::StatefulSet,
            replicas: 1,
            volumes: 1,
            block: false,
            class: None,
            every: "100ms".to_owned(),
            labels: protected(),
            node: None,
            template: json!({}),
        }
    }

    /// The claim of the pod with this number.
    pub fn claim(&self, replica: usize) -> String {
        match self.kind {
            Kind::StatefulSet => format!("data-{}-{replica}", self.name),
            Kind::Deployment => self.name.clone(),
        }
    }

    fn claim_spec(&self, class: &str) -> Value {
        json!({
            "storageClassName": class,
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": if self.block { "Block" } else { "Filesystem" },
            "resources": {"requests": {"storage": "16Mi"}},
        })
    }

    fn template(&self) -> Value {
        let mut labels = self.labels.clone();
        labels.insert("app".to_owned(), self.name.clone());
        let (disk, list, at) = if self.block {
            ("--device", "volumeDevices", "devicePath")
        } else {
            ("--journal", "volumeMounts", "mountPath")
        };
        let place = |(name, path): (String, String)| json!({"name": name, at: path});
        let places: Vec<_> = self.volume_names().zip(self.volume_paths()).map(place).collect();
        let path = if self.block { VOLUME.to_owned() } else { format!("{VOLUME}/journal") };
        let mut container = json!({
            "name": "writer",
            "image": "testbed-writer:latest",
            "imagePullPolicy": "Never",
            "args": [format!("{disk}={path}"), format!("--every={}", self.every)],
            "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        });
        merge(&mut container, &json!({list: places}));
        let mut template = json!({
            "metadata": {"labels": labels},
            "spec": {
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 5,
                "containers": [container],
            },
        });
        if let Some(node) = &self.node {
            let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
            let preference = json!([{"weight": 100, "preference": {"matchExpressions": [here]}}]);
            let affinity = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preference}});
            merge(&mut template, &json!({"spec": {"affinity": affinity}}));
        }
        merge(&mut template, &self.template);
        template
    }

    /// `data`, `data2` and so on.
    fn volume_names(&self) -> impl Iterator<Item = String> {
        (1..=self.volumes).map(|number| if number == 1 { "data".to_owned() } else { format!("data{number}") })
    }

    fn volume_paths(&self) -> impl Iterator<Item = String> {
        (1..=self.volumes).map(|number| if number == 1 { VOLUME.to_owned() } else { format!("{VOLUME}{number}") })
    }

    fn stateful_set(&self, class: &str) -> Result<StatefulSet, serde_json::Error> {
        let claim = |name| json!({"metadata": {"name": name}, "spec": self.claim_spec(class)});
        let claims: Vec<_> = self.volume_names().map(claim).collect();
        serde_json::from_value(json!({
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "replicas": self.replicas,
                "serviceName": self.name,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": self.name}},
                "template": self.template(),
                "volumeClaimTemplates": claims,
            },
        }))
    }

    fn deployment(&self) -> Result<Deployment, serde_json::Error> {
        let mut template = self.template();
        let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": self.claim(0)}});
        merge(&mut template, &json!({"spec": {"volumes": [claim]}}));
        serde_json::from_value(json!({
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": {"app": self.name}},
                "template": template,
            },
        }))
    }
}

impl RealCluster {
    /// Creates a workload.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn run(&self, workload: &RealWorkload) -> Result<(), ClusterError> {
        let (client, create) = (self.client.clone(), PostParams::default());
        let class = workload.class.as_deref().unwrap_or(self.array.driver_name());
        if workload.kind == Kind::StatefulSet {
            let api: Api<StatefulSet> = Api::namespaced(client, &workload.namespace);
            api.create(&create, &workload.stateful_set(class)?).await?;
            return Ok(());
        }
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": workload.claim(0)},
            "spec": workload.claim_spec(class),
        }))?;
        Api::namespaced(client.clone(), &workload.namespace).create(&create, &claim).await?;
        let api: Api<Deployment> = Api::namespaced(client, &workload.namespace);
        api.create(&create, &workload.deployment()?).await?;
        Ok(())
    }

    /// Deletes a workload and waits until its pods are gone. Its volumes stay.
    ///
    /// # Errors
    /// When they are not gone in time.
    pub async fn end(&self, workload: &RealWorkload, limit: Duration) -> Result<(), ClusterError> {
        let (client, name, delete) = (self.client.clone(), &workload.name, DeleteParams::background());
        match workload.kind {
            Kind::StatefulSet => {
                drop(Api::<StatefulSet>::namespaced(client, &workload.namespace).delete(name, &delete).await?);
            }
            Kind::Deployment => {
                drop(Api::<Deployment>::namespaced(client, &workload.namespace).delete(name, &delete).await?);
            }
        }
        let (api, selected) = self.pods(workload);
        wait::until(&format!("the pods of {name} are gone"), limit, async || {
            let left: Vec<_> = api.list(&selected).await?.iter().map(ResourceExt::name_any).collect();
            Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
        })
        .await
    }

    fn pods(&self, workload: &RealWorkload) -> (Api<Pod>, ListParams) {
        let selected = ListParams::default().labels(&format!("app={}", workload.name));
        (Api::namespaced(self.client.clone(), &workload.namespace), selected)
    }

    /// Waits until all pods of a workload are Ready, none of them one of `but`, and returns them by name.
    ///
    /// # Errors
    /// When they are not in time; the error says what they wait for.
    pub async fn running(
        &self,
        workload: &RealWorkload,
        but: &[PodPlace],
        limit: Duration,
    ) -> Result<Vec<PodPlace>, ClusterError> {
        let (api, selected) = self.pods(workload);
        wait::until(&format!("the pods of {} are Ready", workload.name), limit, async || {
            let pods = api.list(&selected).await?;
            let mut ready: Vec<_> = pods.iter().filter_map(place_of).filter(|place| !but.contains(place)).collect();
            ready.sort_by(|one, other| one.name.cmp(&other.name));
            if ready.len() == workload.replicas {
                return Ok(Ok(ready));
            }
            Ok(Err(format!("ready: {ready:?}; {}", self.waiting().await?.join("; "))))
        })
        .await
    }

    /// The volume handle of a claim that is bound, which names the volume in the array's ledger.
    ///
    /// # Errors
    /// When it is not bound, or its volume is not of a CSI driver.
    pub async fn volume(&self, workload: &RealWorkload, replica: usize) -> Result<String, ClusterError> {
        let name = workload.claim(replica);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &workload.namespace);
        let unbound = || ClusterError::Timeout {
            what: format!("claim {name} is bound"),
            limit: Duration::ZERO,
            last: "it is not".into(),
        };
        let volume = claims.get(&name).await?.spec.and_then(|spec| spec.volume_name).ok_or_else(unbound)?;
        let volume = Api::<PersistentVolume>::all(self.client.clone()).get(&volume).await?;
        volume.spec.and_then(|spec| spec.csi).map(|csi| csi.volume_handle).ok_or_else(unbound)
    }

    /// What a pod's writer printed so far, read from the disk of its node: also while nobody reaches that node.
    ///
    /// # Errors
    /// When there is no log.
    pub fn log(&self, workload: &RealWorkload, pod: &PodPlace) -> Result<String, ClusterError> {
        let folder = format!("var/log/pods/{}_{}_{}/writer/0.log", workload.namespace, pod.name, pod.uid);
        let path = self.node(&pod.node)?.disk().join(folder);
        std::fs::read_to_string(&path).map_err(|source| ClusterError::File { path, source })
    }
}

/// The last record that a writer knew to be safe, by its log.
pub fn last_written(log: &str) -> Option<u64> {
    numbers(log, "wrote ").max()
}

/// How many records a writer found when it started, by its log.
pub fn records_found(log: &str) -> Option<u64> {
    numbers(log, "opened records=").max()
}

/// The numbers behind a word.
fn numbers(log: &str, word: &str) -> impl Iterator<Item = u64> {
    let words = log.lines().filter_map(move |line| line.split_once(word));
    words.filter_map(|(_, rest)| rest.trim().parse().ok())
}

pub(super) fn place_of(pod: &Pod) -> Option<PodPlace> {
    Some(PodPlace { name: pod.name_any(), uid: pod.uid()?, node: ready_on(pod)? })
}
