//! Which SharedVolumes a change is worth a look at. What we wrote into a status is worth none.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use tokio::sync::mpsc;

use crate::api::names::ACTIVE_LABEL;
use crate::api::node_fence::NodeFence;
use crate::api::shared_volume::{MOUNT_ENDPOINT_ANNOTATION, SharedVolume};
use crate::api::slim::PersistentVolumeClaim;
use crate::api::slim::network::{EndpointSlice, Endpoints, Service};
use crate::controllers::{BY_CLAIM, BY_NODE, BY_PROVIDER_VOLUME, BY_SERVICE, Context, SharedVolumeStores, indexes};
use crate::runtime::queue::Queue;
use crate::runtime::store::{Change, ObjectKey};
use crate::storageos::providers::{Changed, Providers};

use super::observe;
use super::server_pods::ServerPods;

/// What feeds the queue.
#[derive(Clone)]
pub struct Feed {
    pub cx: Context,
    pub stores: SharedVolumeStores,
    pub server_pods: ServerPods,
    pub queue: Queue<ObjectKey>,
}

impl Feed {
    /// Starts to listen, once everything is known: then what is there is looked at once.
    pub fn start(self, providers: &Providers) {
        let reports = providers.subscribe();
        tokio::spawn(async move {
            self.stores.wait_synced(&self.cx.stores).await;
            // Claims there are by the ten thousand, and those that are there are looked at with their SharedVolumes: a claim
            // that changes after this is told, and one that changed before is seen by whoever is queued after it.
            self.on(self.cx.stores.claims.changes_from_now(), Self::of_claim);
            self.on(self.stores.shared_volumes.subscribe(), Self::of_shared_volume);
            self.on(self.stores.services.subscribe(), Self::of_service);
            self.on(self.stores.slices.subscribe(), Self::of_slice);
            self.on(self.stores.endpoints.subscribe(), Self::of_endpoints);
            self.on(self.cx.stores.fences.subscribe(), Self::of_fence);
            self.on(reports, Self::of_report);
        });
    }

    fn on<C: Send + 'static>(&self, changes: mpsc::UnboundedReceiver<C>, keys: fn(&Self, &C) -> Vec<ObjectKey>) {
        let feed = self.clone();
        self.queue.follow(changes, None, move |change| keys(&feed, change));
    }

    fn of_shared_volume(&self, change: &Change<SharedVolume>) -> Vec<ObjectKey> {
        let view = |it: &SharedVolume| {
            let metadata = &it.metadata;
            let texts = (metadata.annotations.clone(), metadata.finalizers.clone());
            (it.uid(), metadata.generation, metadata.deletion_timestamp.clone(), texts)
        };
        if !change.differs(view) {
            return Vec::new();
        }
        let rivals = change.both().flat_map(|it| self.rivals(it));
        rivals.chain([change.key.clone()]).collect()
    }

    /// Who may have to wait for it, or not any more.
    fn rivals(&self, it: &SharedVolume) -> Vec<ObjectKey> {
        let of_claim = indexes::claim_of_shared_volume(it).into_iter().flat_map(|claim| self.by(BY_CLAIM, &claim));
        let of_service = indexes::service_of_shared_volume(it).into_iter().flat_map(|name| self.by(BY_SERVICE, &name));
        of_claim.chain(of_service).collect()
    }

    fn of_claim(&self, change: &Change<PersistentVolumeClaim>) -> Vec<ObjectKey> {
        let view = |claim: &PersistentVolumeClaim| {
            let told = claim.annotations().get(MOUNT_ENDPOINT_ANNOTATION).cloned();
            let bound = (claim.spec.clone(), claim.status.clone());
            (claim.uid(), bound, claim.metadata.deletion_timestamp.clone(), told)
        };
        if change.differs(view) { self.by(BY_CLAIM, &change.key.to_string()) } else { Vec::new() }
    }

    fn of_service(&self, change: &Change<Service>) -> Vec<ObjectKey> {
        if is_same(change, |service| &service.spec) {
            return Vec::new();
        }
        self.by(BY_SERVICE, &change.key.to_string())
    }

    fn of_slice(&self, change: &Change<EndpointSlice>) -> Vec<ObjectKey> {
        if is_same(change, |slice| (&slice.endpoints, &slice.ports)) {
            return Vec::new();
        }
        let served = change.both().flat_map(|slice| indexes::service_of_slice(slice));
        let owners = change.both().flat_map(|slice| indexes::shared_volume_of_slice(slice));
        let owners = owners
            .filter_map(|owner| owner.split_once('/').map(|(namespace, name)| ObjectKey::namespaced(namespace, name)));
        served.flat_map(|name| self.by(BY_SERVICE, &name)).chain(owners).collect()
    }

    fn of_endpoints(&self, change: &Change<Endpoints>) -> Vec<ObjectKey> {
        if is_same(change, |endpoints| &endpoints.subsets) {
            return Vec::new();
        }
        self.by(BY_SERVICE, &change.key.to_string())
    }

    /// Worth a look is only that a node is being cut off, is proved to be, or is not any more.
    fn of_fence(&self, change: &Change<NodeFence>) -> Vec<ObjectKey> {
        let view = |fence: &Option<Arc<NodeFence>>| {
            let active = fence.as_ref().filter(|it| it.labels().contains_key(ACTIVE_LABEL));
            active.map(|fence| observe::is_open(fence))
        };
        if view(&change.old) == view(&change.new) {
            return Vec::new();
        }
        let node = &change.key.name;
        self.by(BY_NODE, node).into_iter().chain(self.server_pods.on_node(node)).collect()
    }

    fn of_report(&self, changed: &Changed) -> Vec<ObjectKey> {
        self.by(BY_PROVIDER_VOLUME, &indexes::provider_volume(&changed.provider, &changed.volume_id))
    }

    fn by(&self, index: &str, value: &str) -> Vec<ObjectKey> {
        let found = self.stores.shared_volumes.by_index(index, value);
        found.iter().map(|it| ObjectKey::from(it.as_ref())).collect()
    }
}

/// Whether nothing changed that is ours to keep: field ownership and versions are not.
fn is_same<'a, K: Resource, V: PartialEq>(change: &'a Change<K>, content: impl Fn(&'a K) -> V) -> bool {
    let metadata = |meta: &'a ObjectMeta| {
        (&meta.uid, &meta.labels, &meta.annotations, &meta.owner_references, &meta.deletion_timestamp)
    };
    !change.differs(|object: &'a K| (metadata(object.meta()), content(object)))
}
