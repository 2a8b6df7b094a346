//! The caches of the cluster: those that all controllers share, and what S3 mounts, shared volumes and storage providers
//! rest on besides.

use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
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
use crate::api::shared_volume::{SHARED_VOLUME_LABEL, SharedVolume};
use crate::api::shared_volume_provider::SharedVolumeProvider;
use crate::api::slim::network::{EndpointSlice, Endpoints, MANAGED_BY_LABEL, SELECTOR_SLICES, Service};
use crate::api::slim::{
    AdmissionBinding, CsiDriver, CsiNode, Lease, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    VolumeAttachment, VolumeSource, is_pod_local, protobuf,
};
use crate::api::usage::Lookup;
use crate::api::volume_health::VolumeHealth;
use crate::api::volume_health_policy::VolumeHealthPolicy;
use crate::runtime::health::Health;
use crate::runtime::informer::Informer;
use crate::runtime::protobuf::Sieve;
use crate::runtime::store::{ObjectKey, Store};
use crate::runtime::telemetry::Telemetry;

use super::{
    BY_CLAIM, BY_DRIVER, BY_HANDLE, BY_HOST, BY_MOUNT, BY_MOUNTPOINT_POD, BY_NODE, BY_PLACE, BY_PROVIDER_VOLUME,
    BY_SERVICE, BY_SHARED_VOLUME, BY_TROUBLE, BY_UID, BY_VOLUME, BY_WORKLOAD, NODE_LEASES, indexes,
};

/// With what informers are started.
#[derive(Clone, Copy)]
pub struct Informers<'a> {
    /// For watches.
    pub client: &'a Client,
    /// Their metrics.
    pub telemetry: &'a Telemetry,
    /// A gate for each.
    pub health: &'a Health,
    /// Ends them.
    pub cancel: &'a CancellationToken,
}

impl Informers<'_> {
    /// One of all objects of a kind.
    fn all<K: Watched>(self, name: &'static str, configure: impl FnOnce(Informer<K>) -> Informer<K>) -> Store<K> {
        let api = Api::all(self.client.clone());
        self.spawn(name, configure(Informer::new(api, name)))
    }

    /// One of those in a namespace.
    fn within<K>(
        self,
        namespace: &str,
        name: &'static str,
        configure: impl FnOnce(Informer<K>) -> Informer<K>,
    ) -> Store<K>
    where
        K: Watched + Resource<Scope = NamespaceResourceScope>,
    {
        let api = Api::namespaced(self.client.clone(), namespace);
        self.spawn(name, configure(Informer::new(api, name)))
    }

    /// The program is not ready before the first list is there.
    fn spawn<K: Watched>(self, name: &str, informer: Informer<K>) -> Store<K> {
        let store = informer.spawn(self.cancel.clone(), self.telemetry);
        let gate = self.health.gate(format!("informer {name}"));
        gate.close("the first list has not arrived");
        let synced = store.clone();
        tokio::spawn(async move {
            synced.wait_synced().await;
            gate.open();
        });
        store
    }
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
    pub fn spawn(informers: Informers<'_>, namespace: &str) -> Self {
        Self {
            nodes: informers.all("nodes", |i| i.protobuf(&protobuf::NODE).index(BY_HOST, indexes::hosts_of_node)),
            leases: informers.within(NODE_LEASES, "leases", |i| i.protobuf(&protobuf::LEASE)),
            fencer_leases: informers.within(namespace, "fencerleases", |i| i),
            pods: informers.all("pods", |i| {
                i.protobuf(&protobuf::POD)
                    .index(BY_NODE, indexes::node_of_pod)
                    .index(BY_CLAIM, indexes::claims_of_pod)
                    .index(BY_PLACE, indexes::places_of_pod)
                    .index(BY_UID, indexes::uid_of_pod)
                    .index(BY_TROUBLE, indexes::trouble_of_pod)
                    .sift(VOLUMES)
                    .keep(uses_volumes)
                    .packed()
            }),
            claims: informers.all("persistentvolumeclaims", |i| {
                i.protobuf(&protobuf::PERSISTENT_VOLUME_CLAIM).index(BY_VOLUME, indexes::volume_of_claim).packed()
            }),
            volumes: informers.all("persistentvolumes", |i| {
                i.protobuf(&protobuf::PERSISTENT_VOLUME)
                    .index(BY_HOST, indexes::hosts_of_volume)
                    .index(BY_DRIVER, indexes::driver_of_volume)
                    .index(BY_HANDLE, indexes::handle_of_volume)
                    .packed()
            }),
            attachments: informers.all("volumeattachments", |i| {
                i.protobuf(&protobuf::VOLUME_ATTACHMENT)
                    .index(BY_NODE, |attachment: &VolumeAttachment| vec![attachment.spec.node_name.clone()])
                    .index(BY_VOLUME, |attachment: &VolumeAttachment| vec![attachment.volume().to_owned()])
                    .packed()
            }),
            csi_nodes: informers.all("csinodes", |i| i.protobuf(&protobuf::CSI_NODE).packed()),
            csi_drivers: informers.all("csidrivers", |i| i),
            namespaces: informers.all("namespaces", |i| i),
            policies: informers.all("resiliencypolicies", |i| i),
            fences: informers.all("nodefences", |i| i),
            requests: informers.all("fencerequests", |i| {
                i.index(BY_NODE, |request: &FenceRequest| vec![request.spec.node_name.clone()])
            }),
            reports: informers.all("driverreports", |i| i),
            node_reports: informers
                .all("nodevolumereports", |i| i.index(BY_VOLUME, indexes::volumes_of_report).packed()),
            health_policies: informers.all("volumehealthpolicies", |i| i),
            healths: informers.all("volumehealths", |i| i.index(BY_CLAIM, indexes::claims_of_health)),
            agents: informers.all("agents", |i| {
                i.labels(&format!("{}=true", names::NODE_AGENT_LABEL)).index(BY_NODE, indexes::node_of_pod)
            }),
            admission_bindings: informers.all("admissionbindings", |i| i),
        }
    }

    /// Whether the admission policies that keep new users off a tainted volume are in force.
    pub fn can_enforce(&self) -> bool {
        let binding = |name: &str| self.admission_bindings.get(&ObjectKey::cluster(name));
        names::ENFORCING_POLICIES.iter().all(|name| binding(name).is_some_and(|binding| binding.denies()))
    }

    /// Over once every informer holds what the API server has. It may outlive what it is asked of.
    pub fn wait_synced(&self) -> impl Future<Output = ()> + use<> {
        let stores = self.clone();
        async move {
            tokio::join!(
                stores.nodes.wait_synced(),
                stores.leases.wait_synced(),
                stores.fencer_leases.wait_synced(),
                stores.pods.wait_synced(),
                stores.claims.wait_synced(),
                stores.volumes.wait_synced(),
                stores.attachments.wait_synced(),
                stores.csi_nodes.wait_synced(),
                stores.csi_drivers.wait_synced(),
                stores.namespaces.wait_synced(),
                stores.policies.wait_synced(),
                stores.fences.wait_synced(),
                stores.requests.wait_synced(),
                stores.reports.wait_synced(),
            );
        }
    }

    /// Over once those that only the health of volumes rests on are there too. Failover waits for none of them.
    pub fn wait_health_synced(&self) -> impl Future<Output = ()> + use<> {
        let stores = self.clone();
        async move {
            stores.wait_synced().await;
            tokio::join!(
                stores.node_reports.wait_synced(),
                stores.health_policies.wait_synced(),
                stores.healths.wait_synced(),
                stores.agents.wait_synced(),
                stores.admission_bindings.wait_synced(),
            );
        }
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
    pub fn spawn(informers: Informers<'_>, namespace: &str) -> Self {
        Self {
            attachments: informers.all("mountpoints3podattachments", |i| {
                i.index(BY_MOUNT, indexes::mount_of_attachment)
                    .index(BY_WORKLOAD, indexes::workloads_of_attachment)
                    .index(BY_MOUNTPOINT_POD, indexes::pods_of_attachment)
            }),
            mountpoint_pods: informers.within(namespace, "mountpointpods", |i| {
                i.index(BY_MOUNT, indexes::mount_of_pod).keep(MountpointPod::is_one)
            }),
            namespace: namespace.to_owned(),
        }
    }

    /// Over once they, and the stores that they rest on, hold what the API server has.
    pub fn wait_synced(&self, stores: &Stores) -> impl Future<Output = ()> + use<> {
        let (ours, stores) = (self.clone(), stores.clone());
        async move {
            tokio::join!(
                ours.attachments.wait_synced(),
                ours.mountpoint_pods.wait_synced(),
                stores.nodes.wait_synced(),
                stores.pods.wait_synced(),
                stores.claims.wait_synced(),
                stores.volumes.wait_synced(),
            );
        }
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

/// What shared volumes rest on besides. Nobody else waits for it.
#[derive(Clone)]
pub struct SharedVolumeStores {
    /// SharedVolumes.
    pub shared_volumes: Store<SharedVolume>,
    /// All Services: one that is not ours may have the name that ours is to have.
    pub services: Store<Service>,
    /// Slices of Services without a selector, whoever writes them.
    pub slices: Store<EndpointSlice>,
    /// Endpoints that are ours.
    pub endpoints: Store<Endpoints>,
}

impl SharedVolumeStores {
    /// Starts the informers.
    pub fn spawn(informers: Informers<'_>) -> Self {
        // The slices of Services with a selector are most of a cluster's, and change with each of its pods.
        let slices = format!("{MANAGED_BY_LABEL}!={SELECTOR_SLICES}");
        Self {
            shared_volumes: informers.all("sharedvolumes", |i| {
                i.index(BY_CLAIM, indexes::claim_of_shared_volume)
                    .index(BY_SERVICE, indexes::service_of_shared_volume)
                    .index(BY_NODE, indexes::nodes_of_shared_volume)
                    .index(BY_PROVIDER_VOLUME, indexes::provider_volume_of_shared_volume)
            }),
            services: informers.all("services", |i| i),
            slices: informers.all("endpointslices", |i| {
                i.labels(&slices)
                    .index(BY_SERVICE, indexes::service_of_slice)
                    .index(BY_SHARED_VOLUME, indexes::shared_volume_of_slice)
            }),
            endpoints: informers.all("endpoints", |i| i.labels(SHARED_VOLUME_LABEL)),
        }
    }

    /// Over once they, and the stores that they rest on, hold what the API server has.
    pub fn wait_synced(&self, stores: &Stores) -> impl Future<Output = ()> + use<> {
        let (ours, stores) = (self.clone(), stores.clone());
        async move {
            tokio::join!(
                ours.shared_volumes.wait_synced(),
                ours.services.wait_synced(),
                ours.slices.wait_synced(),
                ours.endpoints.wait_synced(),
                stores.claims.wait_synced(),
                stores.fences.wait_synced(),
            );
        }
    }
}

/// What the polls of storage control planes rest on besides.
#[derive(Clone)]
pub struct ProviderStores {
    /// Providers.
    pub providers: Store<SharedVolumeProvider>,
    /// SharedVolumes.
    pub shared_volumes: Store<SharedVolume>,
}

impl ProviderStores {
    /// Starts the informers, but for that of SharedVolumes.
    pub fn spawn(informers: Informers<'_>, shared_volumes: Store<SharedVolume>) -> Self {
        Self { providers: informers.all("sharedvolumeproviders", |i| i), shared_volumes }
    }

    /// Over once they, and the stores that they rest on, hold what the API server has.
    pub fn wait_synced(&self, stores: &Stores) -> impl Future<Output = ()> + use<> {
        let (ours, stores) = (self.clone(), stores.clone());
        async move {
            tokio::join!(
                ours.providers.wait_synced(),
                ours.shared_volumes.wait_synced(),
                stores.claims.wait_synced(),
                stores.namespaces.wait_synced(),
            );
        }
    }
}

/// Only pods that use volumes are kept; the others of a suspect node are listed live.
pub(super) fn uses_volumes(pod: &Pod) -> bool {
    pod.spec.volumes.iter().any(|volume| volume.source != VolumeSource::PodLocal)
}

/// The same of a pod that is still in protobuf: most of a cluster's use none.
const VOLUMES: Sieve = Sieve { path: &["spec", "volumes", "volumeSource"], wanted: |source| !is_pod_local(source) };

/// What an informer needs of a kind.
pub(super) trait Watched:
    Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static
{
}

impl<K> Watched for K where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static
{
}

#[cfg(test)]
#[path = "stores_tests.rs"]
mod tests;
