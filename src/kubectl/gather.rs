//! What a person can see of the cluster: each kind listed once, nodes that are decided on read once more.

use std::path::Path;
use std::sync::Arc;

use chrono::TimeDelta;
use kube::{Api, ResourceExt};

use crate::api::fence_request::FenceRequest;
use crate::api::node_fence::NodeFence;
use crate::api::slim::{Lease, Node, Pod};
use crate::api::time::Now;
use crate::api::usage::PodView;
use crate::controllers::resiliency_policy::decide::Seen;
use crate::controllers::resiliency_policy::evidence::Silence;
use crate::controllers::resiliency_policy::memory::{Found, Memory};
use crate::controllers::resiliency_policy::observe;
use crate::controllers::resiliency_policy::plan::LiveNode;
use crate::controllers::{BY_NODE, NODE_LEASES, Stores};
use crate::runtime::client::Clients;
use crate::runtime::clock::Clock;
use crate::runtime::store::ObjectKey;

use super::error::{Error, Result};
use super::foresee::{self, Foreseen};
use super::simulate;
use super::simulate::report::Simulation;

/// Shows in the server's audit log.
const USER_AGENT: &str = "kubectl-bulkhead";

/// How the cluster is reached.
pub struct Cluster {
    /// Clients of the person.
    pub clients: Clients,
    /// The namespace of the operator.
    pub operator: String,
}

/// What was read.
pub struct Gathered {
    /// The cluster it was read of.
    pub clients: Clients,
    /// All that failover rests on.
    pub stores: Stores,
    /// When.
    pub now: Now,
}

impl Cluster {
    /// By the person's kubeconfig.
    pub async fn connect(kubeconfig: Option<&Path>, context: Option<&str>, operator: &str) -> Result<Self> {
        let clients = Clients::of_person(kubeconfig, context, USER_AGENT).await?;
        Ok(Self { clients, operator: operator.to_owned() })
    }

    /// Lists everything.
    pub async fn gather(&self) -> Result<Gathered> {
        let stores = Stores::listed(&self.clients.reads, &self.operator).await.map_err(Error::Unread)?;
        Ok(Gathered { clients: self.clients.clone(), stores, now: Clock::system().now() })
    }
}

impl Gathered {
    /// The node of that name; an error if nothing is known of it, not even an incident.
    pub fn node(&self, name: &str) -> Result<Option<Arc<Node>>> {
        let node = self.stores.nodes.get(&ObjectKey::cluster(name));
        if node.is_none() && self.fence(name).is_none() {
            let remedy = "kubectl get nodes lists them".to_owned();
            return Err(Error::NotFound { kind: "node", name: name.to_owned(), remedy });
        }
        Ok(node)
    }

    /// The node of that name; an error if there is none.
    pub fn existing_node(&self, name: &str) -> Result<Arc<Node>> {
        let remedy = || "nothing can fail that is not there; kubectl get nodes lists them".to_owned();
        let none = || Error::NotFound { kind: "node", name: name.to_owned(), remedy: remedy() };
        self.stores.nodes.get(&ObjectKey::cluster(name)).ok_or_else(none)
    }

    /// The NodeFence of a node.
    pub fn fence(&self, node: &str) -> Option<Arc<NodeFence>> {
        self.stores.fences.get(&ObjectKey::cluster(node))
    }

    /// FenceRequests of a node.
    pub fn requests(&self, node: &str) -> Vec<Arc<FenceRequest>> {
        self.stores.requests.by_index(BY_NODE, node)
    }

    /// The Lease of a node's kubelet.
    pub fn lease(&self, node: &str) -> Option<Arc<Lease>> {
        self.stores.leases.get(&ObjectKey::namespaced(NODE_LEASES, node))
    }

    /// A pod with its volumes, also one that uses none.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<PodView> {
        let api: Api<Pod> = Api::namespaced(self.clients.reads.clone(), namespace);
        let Some(pod) = api.get_opt(name).await? else {
            let remedy = format!("kubectl get pods -n {namespace} lists them; -n names another namespace");
            return Err(Error::NotFound { kind: "pod", name: format!("{namespace}/{name}"), remedy });
        };
        Ok(PodView::new(Arc::new(pod), &self.stores))
    }

    /// What is decided as things are.
    pub async fn present(&self, node: &str) -> Result<Foreseen> {
        Ok(foresee::present(observe::found(&self.stores), node, self.now, async |name: &str, silence: Silence| {
            self.look(name, silence).await
        })
        .await?)
    }

    /// What would be decided if the node failed now.
    pub async fn failure(&self, node: &str) -> Result<(Foreseen, Simulation)> {
        self.failure_in(observe::found(&self.stores), node).await
    }

    /// The same of one node after the other: the pods of all others, which have no part in which pods of it go, are left out,
    /// so that to ask for each of a large cluster does not take its square. They do have a part in the brakes that count nodes:
    /// of these it says nothing.
    pub async fn failure_of_one(&self, node: &str) -> Result<Simulation> {
        Ok(self.failure_in(observe::found_on(&self.stores, node), node).await?.1)
    }

    async fn failure_in(&self, found: Found, node: &str) -> Result<(Foreseen, Simulation)> {
        let foreseen = foresee::failure(found, node, self.now, async |name: &str, silence: Silence| {
            self.look(name, silence).await
        })
        .await?;
        let fence = self.fence(node);
        let simulation = simulate::node(node, &foreseen, fence.as_deref(), &self.requests(node), self.now);
        Ok((foreseen, simulation))
    }

    /// What the controller sees in the stores.
    pub fn seen(&self) -> Seen {
        Memory::default().look(observe::found(&self.stores), foresee::EPOCH, self.now)
    }

    /// How long ago a Lease of the operator was renewed, by its holder's clock.
    pub fn operator_lease_age(&self, name: &str) -> Option<TimeDelta> {
        let leases = self.stores.fencer_leases.list();
        let lease = leases.iter().find(|lease| lease.name_any() == name)?;
        Some(self.now.wall.signed_duration_since(lease.renewed_at()?))
    }

    async fn look(&self, name: &str, silence: Silence) -> crate::error::Result<Option<LiveNode>> {
        observe::read(&self.clients.reads, &self.stores, name, silence).await
    }

    /// NodeFences, the latest decision first.
    pub fn fences(&self) -> Vec<Arc<NodeFence>> {
        let mut fences = self.stores.fences.list();
        fences.sort_by_key(|fence| (std::cmp::Reverse(fence.spec.plan.decided_at), fence.name_any()));
        fences
    }
}
