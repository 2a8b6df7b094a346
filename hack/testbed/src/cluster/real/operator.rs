//! What we ship, as it runs in a cluster of real nodes: who leads, where, what it says of itself, and how its agents are
//! replaced.

use std::collections::BTreeSet;
use std::time::Duration;

use bulkhead::api::names::OPERATOR_NAMESPACE;
use chrono::Utc;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::RealCluster;
use crate::cluster::{ClusterError, no_node, wait};
use crate::real_nodes::RealNodeError;

/// The Lease of the replica of the controller that leads.
const LEASE: &str = "bulkhead-controller";
/// The DaemonSet of the agents, and its namespace.
const AGENTS: &str = "bulkhead-node-agent";

impl RealCluster {
    /// A node that no leader of ours is on: their fail-over is another story, and takes as long as their Leases last.
    ///
    /// # Errors
    /// When every node has one.
    pub async fn node_without_leader(&self) -> Result<String, ClusterError> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), OPERATOR_NAMESPACE);
        let holders = leases.list(&ListParams::default()).await?.into_iter();
        let holders: Vec<_> = holders.filter_map(|lease| lease.spec?.holder_identity).collect();
        // A holder is POD_SUFFIX.
        let leads =
            |pod: &Pod| holders.iter().any(|it| it.rsplit_once('_').is_some_and(|(it, _)| it == pod.name_any()));
        let pods = Api::<Pod>::all(self.client.clone()).list(&ListParams::default()).await?;
        let taken: Vec<_> =
            pods.iter().filter(|pod| leads(pod)).filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref()).collect();
        let mut names = self.node_names();
        names.find(|name| !taken.contains(&name.as_str())).ok_or_else(|| no_node("without a leader"))
    }

    /// Who holds the Lease of the controller: somebody else after each change of leader. `None` while nobody does.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn holder(&self) -> Result<Option<String>, ClusterError> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), OPERATOR_NAMESPACE);
        let holder = leases.get_opt(LEASE).await?.and_then(|lease| lease.spec?.holder_identity);
        Ok(holder.filter(|holder| !holder.is_empty()))
    }

    /// The pod that leads the operator. `None` while none does.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn leader(&self) -> Result<Option<Pod>, ClusterError> {
        let holder = self.holder().await?;
        // A holder is POD_SUFFIX.
        let Some((pod, _)) = holder.as_deref().and_then(|holder| holder.rsplit_once('_')) else { return Ok(None) };
        Ok(Api::<Pod>::namespaced(self.client.clone(), OPERATOR_NAMESPACE).get_opt(pod).await?)
    }

    /// The nodes of all pods with these labels, but for pods that end.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn nodes_of(&self, labels: &str) -> Result<BTreeSet<String>, ClusterError> {
        let pods = Api::<Pod>::all(self.client.clone()).list(&ListParams::default().labels(labels)).await?;
        let stay = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(stay.filter_map(|pod| pod.spec?.node_name).collect())
    }

    /// What a pod answers a scrape, asked from its own node, which reaches every pod of its own.
    ///
    /// # Errors
    /// When it does not answer, or is on no node.
    pub async fn scrape(&self, pod: &Pod, port: i32) -> Result<String, ClusterError> {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()).unwrap_or_default();
        let url = format!("http://{address}:{port}/metrics");
        let argv = ["curl", "--silent", "--show-error", "--max-time", "10", &url];
        let output = self.node(node)?.exec(&argv).await?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(RealNodeError::Command { command: argv.join(" "), message }.into())
    }

    /// Replaces all agents, as an update does, and returns when all are replaced.
    ///
    /// # Errors
    /// When they are not in time; the error has the status of their DaemonSet.
    pub async fn roll_agents(&self, limit: Duration) -> Result<(), ClusterError> {
        let sets: Api<DaemonSet> = Api::namespaced(self.client.clone(), AGENTS);
        let restarted = json!({"kubectl.kubernetes.io/restartedAt": Utc::now().to_rfc3339()});
        let patch = Patch::Merge(json!({"spec": {"template": {"metadata": {"annotations": restarted}}}}));
        let generation = sets.patch(AGENTS, &PatchParams::default(), &patch).await?.metadata.generation;
        wait::until("the agents are replaced", limit, async || {
            let status = sets.get(AGENTS).await?.status.unwrap_or_default();
            let all = Some(status.desired_number_scheduled);
            let is_done = status.observed_generation >= generation
                && status.updated_number_scheduled == all
                && status.number_available == all;
            Ok(if is_done { Ok(()) } else { Err(format!("{status:?}")) })
        })
        .await
    }
}
