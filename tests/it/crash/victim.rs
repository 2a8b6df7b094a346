//! Nodes that are dead already, each with one pod, and nobody has acted on them: the policy that selects the pod is not
//! there yet. Creating it begins the incident at once, so that many incidents can follow each other, each alone.

use bulkhead::api::names;
use bulkhead_testbed::array::Array;
use bulkhead_testbed::cluster::{Cluster, Workload};
use bulkhead_testbed::nodes::SimulatedNode;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::SOON;
use crate::failover::fleet::create_policy;
use crate::failover::volume_taints::agent_says;

/// The nodes that stay, where pods move to.
pub const SPARE: [&str; 2] = ["node-1", "node-2"];

/// As of whoever must see a pod end.
pub const FINALIZER: &str = "test.bulkhead.dev/held";

/// A dead node with a pod.
pub struct Victim {
    pub node: SimulatedNode,
    pub set: Workload,
    stays: Option<Workload>,
    first_pod: String,
}

impl Victim {
    /// Dead nodes of these names. All die at once: it takes Kubernetes 8 s to notice. On an awkward one there is a pod more
    /// that nobody protects, and the protected one has a finalizer.
    pub async fn all(cluster: &Cluster, array: &Array, named: &[(String, bool)]) -> Result<Vec<Self>, Failed> {
        let mut nodes = Vec::new();
        for (name, awkward) in named {
            nodes.push((cluster.nodes.add(name).await?, *awkward));
        }
        let names: Vec<_> = named.iter().map(|(name, _)| name.clone()).collect();
        cluster.nodes_usable(&names).await?;
        let pods: Api<Pod> = Api::default_namespaced(cluster.client.clone());
        let mut victims = Vec::new();
        for (node, awkward) in nodes {
            let name = node.name().to_owned();
            let set = Workload {
                labels: [("lane".to_owned(), name.clone())].into(),
                nodes: [&[name.as_str()], SPARE.as_slice()].concat().into_iter().map(str::to_owned).collect(),
                node: Some(name.clone()),
                ..Workload::new(&name)
            };
            cluster.stateful_set_on(&[array], &set).await?;
            let stays =
                Workload { labels: [].into(), nodes: vec![name.clone()], ..Workload::new(&format!("{name}-stays")) };
            if awkward {
                cluster.stateful_set_on(&[array], &stays).await?;
            }
            victims.push(Self { node, set, stays: awkward.then_some(stays), first_pod: String::new() });
        }
        for victim in &mut victims {
            if let Some(stays) = &victim.stays {
                cluster.pods_ready(stays, SOON).await?;
            }
            let placed = cluster.pods_ready(&victim.set, SOON).await?;
            assert_eq!(placed.values().collect::<Vec<_>>(), [victim.node.name()]);
            if victim.stays.is_some() {
                let held = Patch::Merge(json!({ "metadata": { "finalizers": [FINALIZER] } }));
                pods.patch(&victim.pod(), &PatchParams::default(), &held).await?;
            }
            victim.first_pod = pods.get(&victim.pod()).await?.uid().ok_or("no uid")?;
        }
        for victim in &victims {
            victim.node.kill().await;
        }
        for victim in &victims {
            victim.unreachable(cluster).await?;
        }
        Ok(victims)
    }

    /// Of the node, of its workload and of its policy.
    pub fn name(&self) -> &str {
        self.node.name()
    }

    pub fn pod(&self) -> String {
        format!("{}-0", self.set.name)
    }

    /// The uid of the pod that ran when the node died.
    pub fn first_pod(&self) -> &str {
        &self.first_pod
    }

    /// Begins the incident.
    pub async fn protect(&self, cluster: &Cluster) -> Result<(), Failed> {
        self.protect_by(cluster, &json!({})).await
    }

    /// The same by a policy with this in its spec.
    pub async fn protect_by(&self, cluster: &Cluster, spec: &Value) -> Result<(), Failed> {
        create_policy(&cluster.client, self.name(), self.name(), spec).await
    }

    /// The array sees the node by its address, and its agent reports that one.
    pub async fn has_address(&self, cluster: &Cluster, array: &Array) -> Result<(), Failed> {
        let node = Api::<Node>::all(cluster.client.clone()).get(self.name()).await?;
        let mut addresses = node.status.and_then(|status| status.addresses).unwrap_or_default().into_iter();
        let address = addresses.find(|it| it.type_ == "InternalIP").ok_or("no address")?.address;
        array.set_client_address(self.node.csi_node_id(), &address)?;
        agent_says(cluster, self.name(), json!({ "addresses": [address] })).await
    }

    async fn unreachable(&self, cluster: &Cluster) -> Result<(), Failed> {
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        let look = async || {
            let node = nodes.get(self.name()).await?;
            let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            let silent = taints.iter().any(|taint| taint.key == names::UNREACHABLE_TAINT);
            Ok(if silent { Ok(()) } else { Err(format!("{taints:?}")) })
        };
        Ok(cluster.wait(&format!("{} is unreachable", self.name()), SOON, look).await?)
    }
}
