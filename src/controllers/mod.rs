//! The controllers, one folder each, all of one shape: `observe` gathers what is seen, `decide` (pure) says the next
//! step, `act` carries it out, `status` (pure) says what is reported, `mod` wires them to the informers. Controllers
//! meet in the API, never in each other.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Client, Resource};
use tokio_util::sync::CancellationToken;

use crate::api::driver_report::DriverReport;
use crate::api::fence_request::FenceRequest;
use crate::api::node_fence::NodeFence;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::{
    CsiDriver, CsiNode, Lease, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment,
    VolumeSource,
};
use crate::api::usage::Lookup;
use crate::runtime::apply::Writer;
use crate::runtime::client::Clients;
use crate::runtime::clock::Clock;
use crate::runtime::events::Events;
use crate::runtime::health::Health;
use crate::runtime::informer::Informer;
use crate::runtime::store::{ObjectKey, Store};
use crate::runtime::telemetry::Telemetry;

#[cfg(test)]
mod metrics_tests;
pub mod node_fence;
pub mod resiliency_policy;
#[cfg(test)]
mod testing;

/// Index of pods, attachments and requests by the name of their node.
pub const BY_NODE: &str = "node";
/// Where kubelets keep their Leases.
pub const NODE_LEASES: &str = "kube-node-lease";

/// What every controller works with.
#[derive(Clone)]
pub struct Context {
    /// What is known of the cluster.
    pub stores: Stores,
    /// Clients, for what must be read live.
    pub clients: Clients,
    /// Writes, each asking for leadership.
    pub writer: Writer,
    /// Events.
    pub events: Events,
    /// Metrics.
    pub telemetry: Telemetry,
    /// Clocks.
    pub clock: Clock,
}

/// One informer per kind, shared by all controllers.
#[derive(Clone)]
pub struct Stores {
    /// Nodes.
    pub nodes: Store<Node>,
    /// Leases of the kubelets.
    pub leases: Store<Lease>,
    /// Leases of the sidecars, among those of the operator's namespace.
    pub fencer_leases: Store<Lease>,
    /// Pods that use volumes.
    pub pods: Store<Pod>,
    /// Claims.
    pub claims: Store<PersistentVolumeClaim>,
    /// Volumes.
    pub volumes: Store<PersistentVolume>,
    /// Attachments.
    pub attachments: Store<VolumeAttachment>,
    /// CSI drivers on nodes.
    pub csi_nodes: Store<CsiNode>,
    /// CSI drivers.
    pub csi_drivers: Store<CsiDriver>,
    /// Namespaces.
    pub namespaces: Store<Namespace>,
    /// Policies.
    pub policies: Store<ResiliencyPolicy>,
    /// NodeFences.
    pub fences: Store<NodeFence>,
    /// FenceRequests.
    pub requests: Store<FenceRequest>,
    /// DriverReports.
    pub reports: Store<DriverReport>,
}

impl Stores {
    /// Starts all informers. `namespace` is the operator's own.
    pub fn spawn(
        client: &Client,
        namespace: &str,
        telemetry: &Telemetry,
        health: &Health,
        cancel: &CancellationToken,
    ) -> Self {
        let all = |name| Start { name, client, telemetry, health, cancel };
        Self {
            nodes: all("nodes").informer(|i| i),
            leases: all("leases").namespaced(NODE_LEASES),
            fencer_leases: all("fencerleases").namespaced(namespace),
            pods: all("pods").informer(|i| i.index(BY_NODE, |pod: &Pod| node_of(pod)).keep(uses_volumes)),
            claims: all("persistentvolumeclaims").informer(|i| i),
            volumes: all("persistentvolumes").informer(|i| i),
            attachments: all("volumeattachments").informer(|i| {
                i.index(BY_NODE, |attachment: &VolumeAttachment| vec![attachment.spec.node_name.clone()])
            }),
            csi_nodes: all("csinodes").informer(|i| i),
            csi_drivers: all("csidrivers").informer(|i| i),
            namespaces: all("namespaces").informer(|i| i),
            policies: all("resiliencypolicies").informer(|i| i),
            fences: all("nodefences").informer(|i| i),
            requests: all("fencerequests")
                .informer(|i| i.index(BY_NODE, |request: &FenceRequest| vec![request.spec.node_name.clone()])),
            reports: all("driverreports").informer(|i| i),
        }
    }

    /// Returns once every informer holds what the API server has.
    pub async fn wait_synced(&self) {
        tokio::join!(
            self.nodes.wait_synced(),
            self.leases.wait_synced(),
            self.fencer_leases.wait_synced(),
            self.pods.wait_synced(),
            self.claims.wait_synced(),
            self.volumes.wait_synced(),
            self.attachments.wait_synced(),
            self.csi_nodes.wait_synced(),
            self.csi_drivers.wait_synced(),
            self.namespaces.wait_synced(),
            self.policies.wait_synced(),
            self.fences.wait_synced(),
            self.requests.wait_synced(),
            self.reports.wait_synced(),
        );
    }
}

impl Lookup for Stores {
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(&ObjectKey::namespaced(namespace, name))
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(&ObjectKey::cluster(name))
    }

    fn driver(&self, name: &str) -> Option<Arc<CsiDriver>> {
        self.csi_drivers.get(&ObjectKey::cluster(name))
    }
}

/// A reference for Events. Slim types do not carry their own kind, so it comes from the type.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    object.object_ref(&())
}

/// Only pods that use volumes are kept; the others of a suspect node are listed live.
fn uses_volumes(pod: &Pod) -> bool {
    pod.spec.volumes.iter().any(|volume| volume.source != VolumeSource::PodLocal)
}

fn node_of(pod: &Pod) -> Vec<String> {
    pod.spec.node_name.iter().cloned().collect()
}

#[derive(Clone, Copy)]
struct Start<'a> {
    name: &'static str,
    client: &'a Client,
    telemetry: &'a Telemetry,
    health: &'a Health,
    cancel: &'a CancellationToken,
}

impl Start<'_> {
    fn informer<K: Watched>(self, configure: impl FnOnce(Informer<K>) -> Informer<K>) -> Store<K> {
        let api = Api::all(self.client.clone());
        self.spawn(configure(Informer::new(api, self.name)))
    }

    fn namespaced<K: Watched + Resource<Scope = k8s_openapi::NamespaceResourceScope>>(
        self,
        namespace: &str,
    ) -> Store<K> {
        let api = Api::namespaced(self.client.clone(), namespace);
        self.spawn(Informer::new(api, self.name))
    }

    fn spawn<K: Watched>(self, informer: Informer<K>) -> Store<K> {
        let store = informer.spawn(self.cancel.clone(), self.telemetry);
        let gate = self.health.gate(format!("informer {}", self.name));
        gate.close("the first list has not arrived");
        let synced = store.clone();
        tokio::spawn(async move {
            synced.wait_synced().await;
            gate.open();
        });
        store
    }
}

/// What an informer needs of a kind.
trait Watched:
    Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static
{
}
