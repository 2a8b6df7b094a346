//! The controllers, one folder each, all of one shape: `observe` gathers what is seen, `decide` (pure) says the next
//! step, `act` carries it out, `status` (pure) says what is reported, `mod` wires them to the informers. Controllers
//! meet in the API, never in each other.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Client, Resource};
use tokio_util::sync::CancellationToken;

use crate::api::driver_report::DriverReport;
use crate::api::fence_request::FenceRequest;
use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::names;
use crate::api::node_fence::NodeFence;
use crate::api::node_volume_report::NodeVolumeReport;
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::{
    AdmissionBinding, CsiDriver, CsiNode, Lease, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    VolumeAttachment, VolumeSource,
};
use crate::api::usage::Lookup;
use crate::api::volume_health::VolumeHealth;
use crate::api::volume_health_policy::VolumeHealthPolicy;
use crate::runtime::apply::Writer;
use crate::runtime::client::Clients;
use crate::runtime::clock::Clock;
use crate::runtime::events::Events;
use crate::runtime::health::Health;
use crate::runtime::informer::Informer;
use crate::runtime::store::{ObjectKey, Store};
use crate::runtime::telemetry::Telemetry;

pub mod indexes;
#[cfg(test)]
mod metrics_tests;
pub mod mountpoint_s3_pod_attachment;
pub mod node_fence;
pub mod resiliency_policy;
pub mod shared_volume;
pub mod shared_volume_provider;
mod stores;
#[cfg(test)]
pub(crate) mod testing;
pub mod volume_health;
pub mod volume_health_policy;

pub use indexes::{ANY_HOST, BY_CLAIM, BY_DRIVER, BY_HANDLE, BY_HOST, BY_NODE, BY_VOLUME};
pub use indexes::{BY_MOUNT, BY_MOUNTPOINT_POD, BY_PLACE, BY_UID, BY_WORKLOAD};
pub use indexes::{BY_PROVIDER_VOLUME, BY_SERVICE, BY_SHARED_VOLUME};
pub use indexes::{BY_TROUBLE, CRASH_LOOP};
pub use stores::{ProviderStores, SharedVolumeStores, Unread};

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
    /// NodeVolumeReports.
    pub node_reports: Store<NodeVolumeReport>,
    /// VolumeHealthPolicies.
    pub health_policies: Store<VolumeHealthPolicy>,
    /// VolumeHealths. A fence waits for nothing that only moves pods off nodes that are well.
    pub healths: Store<VolumeHealth>,
    /// Pods that run our node agent.
    pub agents: Store<Pod>,
    /// Admission policies that are in force.
    pub admission_bindings: Store<AdmissionBinding>,
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
            nodes: all("nodes").informer(|i| i.index(BY_HOST, indexes::hosts_of_node)),
            leases: all("leases").namespaced(NODE_LEASES),
            fencer_leases: all("fencerleases").namespaced(namespace),
            pods: all("pods").informer(|i| {
                i.index(BY_NODE, indexes::node_of_pod)
                    .index(BY_CLAIM, indexes::claims_of_pod)
                    .index(BY_PLACE, indexes::places_of_pod)
                    .index(BY_UID, indexes::uid_of_pod)
                    .index(BY_TROUBLE, indexes::trouble_of_pod)
                    .keep(uses_volumes)
                    .packed()
            }),
            claims: all("persistentvolumeclaims").informer(|i| i.index(BY_VOLUME, indexes::volume_of_claim).packed()),
            volumes: all("persistentvolumes").informer(|i| {
                i.index(BY_HOST, indexes::hosts_of_volume)
                    .index(BY_DRIVER, indexes::driver_of_volume)
                    .index(BY_HANDLE, indexes::handle_of_volume)
                    .packed()
            }),
            attachments: all("volumeattachments").informer(|i| {
                i.index(BY_NODE, |attachment: &VolumeAttachment| vec![attachment.spec.node_name.clone()])
                    .index(BY_VOLUME, |attachment: &VolumeAttachment| vec![attachment.volume().to_owned()])
                    .packed()
            }),
            csi_nodes: all("csinodes").informer(Informer::packed),
            csi_drivers: all("csidrivers").informer(|i| i),
            namespaces: all("namespaces").informer(|i| i),
            policies: all("resiliencypolicies").informer(|i| i),
            fences: all("nodefences").informer(|i| i),
            requests: all("fencerequests")
                .informer(|i| i.index(BY_NODE, |request: &FenceRequest| vec![request.spec.node_name.clone()])),
            reports: all("driverreports").informer(|i| i),
            node_reports: all("nodevolumereports")
                .informer(|i| i.index(BY_VOLUME, indexes::volumes_of_report).packed()),
            health_policies: all("volumehealthpolicies").informer(|i| i),
            healths: all("volumehealths").informer(|i| i.index(BY_CLAIM, indexes::claims_of_health)),
            agents: all("agents").informer(|i| {
                i.labels(&format!("{}=true", names::NODE_AGENT_LABEL)).index(BY_NODE, indexes::node_of_pod)
            }),
            admission_bindings: all("admissionbindings").informer(|i| i),
        }
    }

    /// Whether the admission policies that keep new users off a tainted volume are in force.
    pub fn can_enforce(&self) -> bool {
        let binding = |name: &str| self.admission_bindings.get(&ObjectKey::cluster(name));
        names::ENFORCING_POLICIES.iter().all(|name| binding(name).is_some_and(|binding| binding.denies()))
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

    /// Returns once those that only the health of volumes rests on are there too. Failover waits for none of them.
    pub async fn wait_health_synced(&self) {
        self.wait_synced().await;
        tokio::join!(
            self.node_reports.wait_synced(),
            self.health_policies.wait_synced(),
            self.healths.wait_synced(),
            self.agents.wait_synced(),
            self.admission_bindings.wait_synced(),
        );
    }
}

/// What S3 mounts rest on besides. Failover and the health of volumes wait for none of it; who has no S3 volumes has none.
#[derive(Clone)]
pub struct S3Stores {
    /// Which workloads share which Mountpoint Pods.
    pub attachments: Store<MountpointS3PodAttachment>,
    /// Mountpoint Pods.
    pub mountpoint_pods: Store<MountpointPod>,
    /// Where Mountpoint Pods live.
    namespace: String,
}

impl S3Stores {
    /// Starts the informers. `namespace` is that of Mountpoint Pods.
    pub fn spawn(
        client: &Client,
        namespace: &str,
        telemetry: &Telemetry,
        health: &Health,
        cancel: &CancellationToken,
    ) -> Self {
        let all = |name| Start { name, client, telemetry, health, cancel };
        let pods = Api::namespaced(client.clone(), namespace);
        let pods = Informer::new(pods, "mountpointpods").index(BY_MOUNT, indexes::mount_of_pod);
        Self {
            attachments: all("mountpoints3podattachments").informer(|i| {
                i.index(BY_MOUNT, indexes::mount_of_attachment)
                    .index(BY_WORKLOAD, indexes::workloads_of_attachment)
                    .index(BY_MOUNTPOINT_POD, indexes::pods_of_attachment)
            }),
            mountpoint_pods: all("mountpointpods").spawn(pods.keep(MountpointPod::is_one)),
            namespace: namespace.to_owned(),
        }
    }

    /// Returns once they, and the stores that they rest on, hold what the API server has.
    pub async fn wait_synced(&self, stores: &Stores) {
        tokio::join!(
            self.attachments.wait_synced(),
            self.mountpoint_pods.wait_synced(),
            stores.nodes.wait_synced(),
            stores.pods.wait_synced(),
            stores.claims.wait_synced(),
            stores.volumes.wait_synced(),
        );
    }

    /// The Mountpoint Pod of that name.
    pub fn mountpoint_pod(&self, name: &str) -> Option<Arc<MountpointPod>> {
        self.mountpoint_pods.get(&ObjectKey::namespaced(&self.namespace, name))
    }

    /// Whether a pod may have S3 volumes: a Mountpoint Pod that caches on a volume is served by nobody.
    pub fn is_workload(&self, pod: &Pod) -> bool {
        pod.metadata.namespace.as_deref() != Some(&self.namespace)
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
