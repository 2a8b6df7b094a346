//! What shared volumes and their providers rest on, besides what is there for all; and the stores of a program that looks
//! once.

use k8s_openapi::NamespaceResourceScope;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use tokio_util::sync::CancellationToken;

use crate::api::fence_request::FenceRequest;
use crate::api::shared_volume::{SHARED_VOLUME_LABEL, SharedVolume};
use crate::api::shared_volume_provider::SharedVolumeProvider;
use crate::api::slim::VolumeAttachment;
use crate::api::slim::network::{EndpointSlice, Endpoints, MANAGED_BY_LABEL, SELECTOR_SLICES, Service};
use crate::error::Error;
use crate::runtime::health::Health;
use crate::runtime::store::{IndexFn, Store};
use crate::runtime::telemetry::Telemetry;

use super::{
    BY_CLAIM, BY_NODE, BY_PROVIDER_VOLUME, BY_SERVICE, BY_SHARED_VOLUME, BY_VOLUME, NODE_LEASES, Start, Stores,
    Watched, indexes, uses_volumes,
};

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
    pub fn spawn(client: &Client, telemetry: &Telemetry, health: &Health, cancel: &CancellationToken) -> Self {
        let all = |name| Start { name, client, telemetry, health, cancel };
        // The slices of Services with a selector are most of a cluster's, and change with each of its pods.
        let slices = format!("{MANAGED_BY_LABEL}!={SELECTOR_SLICES}");
        Self {
            shared_volumes: all("sharedvolumes").informer(|i| {
                i.index(BY_CLAIM, indexes::claim_of_shared_volume)
                    .index(BY_SERVICE, indexes::service_of_shared_volume)
                    .index(BY_NODE, indexes::nodes_of_shared_volume)
                    .index(BY_PROVIDER_VOLUME, indexes::provider_volume_of_shared_volume)
            }),
            services: all("services").informer(|i| i),
            slices: all("endpointslices").informer(|i| {
                i.labels(&slices)
                    .index(BY_SERVICE, indexes::service_of_slice)
                    .index(BY_SHARED_VOLUME, indexes::shared_volume_of_slice)
            }),
            endpoints: all("endpoints").informer(|i| i.labels(SHARED_VOLUME_LABEL)),
        }
    }

    /// Returns once they, and the stores that they rest on, hold what the API server has.
    pub async fn wait_synced(&self, stores: &Stores) {
        tokio::join!(
            self.shared_volumes.wait_synced(),
            self.services.wait_synced(),
            self.slices.wait_synced(),
            self.endpoints.wait_synced(),
            stores.claims.wait_synced(),
            stores.fences.wait_synced(),
        );
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
    pub fn spawn(
        client: &Client,
        shared_volumes: Store<SharedVolume>,
        telemetry: &Telemetry,
        health: &Health,
        cancel: &CancellationToken,
    ) -> Self {
        let all = |name| Start { name, client, telemetry, health, cancel };
        Self { providers: all("sharedvolumeproviders").informer(|i| i), shared_volumes }
    }

    /// Returns once they, and the stores that they rest on, hold what the API server has.
    pub async fn wait_synced(&self, stores: &Stores) {
        tokio::join!(
            self.providers.wait_synced(),
            self.shared_volumes.wait_synced(),
            stores.claims.wait_synced(),
            stores.namespaces.wait_synced(),
        );
    }
}

/// A list that the API server did not give.
#[derive(Debug)]
pub struct Unread {
    /// What was to be listed, as `resource.group`.
    pub resource: String,
    /// Where; everywhere if it is absent.
    pub namespace: Option<String>,
    /// Why not.
    pub error: Error,
}

impl Stores {
    /// What failover rests on, listed once and never again: for a program that looks, tells and ends. `namespace` is the
    /// operator's own.
    pub async fn listed(reads: &Client, namespace: &str) -> Result<Self, Vec<Unread>> {
        let list = Listing { reads };
        let (nodes, leases, fencer_leases, pods, claims, volumes, attachments) = tokio::join!(
            list.all(&[]),
            list.within(NODE_LEASES),
            list.within(namespace),
            list.pages(Api::all(reads.clone()), None, &[(BY_NODE, indexes::node_of_pod)], uses_volumes),
            list.all(&[(BY_VOLUME, indexes::volume_of_claim)]),
            list.all(&[]),
            list.all(&[(BY_NODE, |attachment: &VolumeAttachment| vec![attachment.spec.node_name.clone()])]),
        );
        let (csi_nodes, csi_drivers, namespaces, policies, fences, requests, reports, node_reports, healths) = tokio::join!(
            list.all(&[]),
            list.all(&[]),
            list.all(&[]),
            list.all(&[]),
            list.all(&[]),
            list.all(&[(BY_NODE, |request: &FenceRequest| vec![request.spec.node_name.clone()])]),
            list.all(&[]),
            list.all(&[]),
            list.all(&[]),
        );
        let mut unread = Vec::new();
        let stores = Self {
            nodes: kept(nodes, &mut unread),
            leases: kept(leases, &mut unread),
            fencer_leases: kept(fencer_leases, &mut unread),
            pods: kept(pods, &mut unread),
            claims: kept(claims, &mut unread),
            volumes: kept(volumes, &mut unread),
            attachments: kept(attachments, &mut unread),
            csi_nodes: kept(csi_nodes, &mut unread),
            csi_drivers: kept(csi_drivers, &mut unread),
            namespaces: kept(namespaces, &mut unread),
            policies: kept(policies, &mut unread),
            fences: kept(fences, &mut unread),
            requests: kept(requests, &mut unread),
            reports: kept(reports, &mut unread),
            node_reports: kept(node_reports, &mut unread),
            healths: kept(healths, &mut unread),
            health_policies: Store::new_detached(Vec::new()),
            agents: Store::new_detached(Vec::new()),
            admission_bindings: Store::new_detached(Vec::new()),
        };
        if unread.is_empty() { Ok(stores) } else { Err(unread) }
    }
}

fn kept<K>(listed: Result<Store<K>, Unread>, unread: &mut Vec<Unread>) -> Store<K> {
    listed.unwrap_or_else(|error| {
        unread.push(error);
        Store::new_detached(Vec::new())
    })
}

/// Lists, page by page.
struct Listing<'a> {
    reads: &'a Client,
}

impl Listing<'_> {
    async fn all<K: Watched>(&self, indexes: &[(&'static str, IndexFn<K>)]) -> Result<Store<K>, Unread> {
        self.pages(Api::all(self.reads.clone()), None, indexes, |_| true).await
    }

    async fn within<K>(&self, namespace: &str) -> Result<Store<K>, Unread>
    where
        K: Watched + Resource<Scope = NamespaceResourceScope>,
    {
        self.pages(Api::namespaced(self.reads.clone(), namespace), Some(namespace), &[], |_| true).await
    }

    async fn pages<K: Watched>(
        &self,
        api: Api<K>,
        namespace: Option<&str>,
        indexes: &[(&'static str, IndexFn<K>)],
        keep: fn(&K) -> bool,
    ) -> Result<Store<K>, Unread> {
        const PAGE: u32 = 500;
        let store = Store::new_detached(indexes.to_vec());
        store.list_begins();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let listed = api.list(&page).await.map_err(|error| Unread {
                resource: [K::plural(&()), K::group(&())].join(".").trim_end_matches('.').to_owned(),
                namespace: namespace.map(str::to_owned),
                error: error.into(),
            })?;
            listed.items.into_iter().filter(keep).for_each(|object| store.insert(object));
            match listed.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        store.list_done();
        Ok(store)
    }
}
