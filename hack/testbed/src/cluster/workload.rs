//! StatefulSets for tests, and the volumes of their pods.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::{Cluster, ClusterError};
use crate::array::{Array, Claim, SecretRef};
use crate::ledger::Access;

/// A StatefulSet for tests.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Its namespace, which must exist.
    pub namespace: String,
    /// How many pods.
    pub replicas: usize,
    /// For each volume of a pod, the array it is on.
    pub volumes: Vec<usize>,
    /// Access mode of the volumes.
    pub access: Access,
    /// `ReadWriteOncePod` in place of `ReadWriteOnce`.
    pub one_pod: bool,
    /// Raw block volumes.
    pub block: bool,
    /// The controller-publish secret of the volumes.
    pub secret: Option<SecretRef>,
    /// Labels of the pods besides `app`.
    pub labels: BTreeMap<String, String>,
    /// Only these nodes may run them; empty for any.
    pub nodes: Vec<String>,
    /// The node that runs them while it can, if set.
    pub node: Option<String>,
    /// Their PriorityClass, if set.
    pub priority_class: Option<String>,
    /// Volumes of each pod besides those of `volumes`, as in a PodSpec.
    pub more_volumes: Vec<Value>,
    /// Merged into the template of the pods: finalizers, tolerations and the like.
    pub template: Value,
}

impl Workload {
    /// One protected pod with one volume.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            replicas: 1,
            volumes: vec![0],
            access: Access::SingleWriter,
            one_pod: false,
            block: false,
            secret: None,
            labels: BTreeMap::from([("bulkhead.dev/protect".to_owned(), "true".to_owned())]),
            nodes: Vec::new(),
            node: None,
            priority_class: None,
            more_volumes: Vec::new(),
            template: json!({}),
        }
    }

    /// A pod's volume claim.
    pub fn claim(&self, replica: usize, volume: usize) -> Claim {
        Claim {
            access: self.access,
            one_pod: self.one_pod,
            block: self.block,
            secret: self.secret.clone(),
            ..Claim::new(&self.namespace, &self.claim_name(replica, volume))
        }
    }

    /// The name of a pod's volume claim.
    pub fn claim_name(&self, replica: usize, volume: usize) -> String {
        format!("data{volume}-{}-{replica}", self.name)
    }

    /// The volume handle of a pod's volume on its array.
    pub fn handle(&self, replica: usize, volume: usize) -> String {
        format!("vol-{}", self.volume_name(replica, volume))
    }

    /// The name of a pod's PersistentVolume.
    pub fn volume_name(&self, replica: usize, volume: usize) -> String {
        self.claim(replica, volume).volume_name()
    }

    fn object(&self) -> Result<StatefulSet, serde_json::Error> {
        let mut labels = self.labels.clone();
        labels.insert("app".to_owned(), self.name.clone());
        let templates: Vec<_> = (0..self.volumes.len())
            .map(|number| {
                json!({
                    "metadata": { "name": format!("data{number}") },
                    "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
                })
            })
            .collect();
        let mut template = json!({
            "metadata": { "labels": labels },
            "spec": {
                "automountServiceAccountToken": false,
                "affinity": self.affinity(),
                "priorityClassName": self.priority_class,
                "containers": [{ "name": "main", "image": "app" }],
                "volumes": self.more_volumes,
            },
        });
        merge(&mut template, &self.template);
        serde_json::from_value(json!({
            "metadata": { "name": self.name, "namespace": self.namespace },
            "spec": {
                "replicas": self.replicas,
                "serviceName": self.name,
                "podManagementPolicy": "Parallel",
                "selector": { "matchLabels": { "app": self.name } },
                "template": template,
                "volumeClaimTemplates": templates,
            },
        }))
    }

    fn affinity(&self) -> Value {
        let hostname = |nodes: &[String]| json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": nodes }] });
        let mut affinity = serde_json::Map::new();
        if let Some(node) = &self.node {
            let preference = json!([{ "weight": 100, "preference": hostname(std::slice::from_ref(node)) }]);
            affinity.insert("preferredDuringSchedulingIgnoredDuringExecution".into(), preference);
        }
        if !self.nodes.is_empty() {
            let terms = json!({ "nodeSelectorTerms": [hostname(&self.nodes)] });
            affinity.insert("requiredDuringSchedulingIgnoredDuringExecution".into(), terms);
        }
        json!({ "nodeAffinity": affinity })
    }
}

impl Cluster {
    /// Creates a StatefulSet whose pods each have volumes on the cluster's arrays, protected by the first sample's
    /// label.
    pub async fn stateful_set(&self, set: &Workload) -> Result<(), ClusterError> {
        let arrays: Vec<&Array> = self.arrays.iter().map(AsRef::as_ref).collect();
        self.stateful_set_on(&arrays, set).await
    }

    /// The same on other arrays, to which `set.volumes` then refers.
    pub async fn stateful_set_on(&self, arrays: &[&Array], set: &Workload) -> Result<(), ClusterError> {
        for replica in 0..set.replicas {
            for (number, array) in set.volumes.iter().enumerate() {
                if let Some(array) = arrays.get(*array) {
                    array.claim(&self.client, &set.claim(replica, number)).await?;
                }
            }
        }
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), &set.namespace);
        api.create(&PostParams::default(), &set.object()?).await?;
        Ok(())
    }
}

/// Merges objects, field by field; anything else is replaced.
pub fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}
