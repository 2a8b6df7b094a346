//! What shared volumes and their providers rest on, besides what is there for all.

use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::api::shared_volume::{SHARED_VOLUME_LABEL, SharedVolume};
use crate::api::shared_volume_provider::SharedVolumeProvider;
use crate::api::slim_network::{EndpointSlice, Endpoints, MANAGED_BY_LABEL, SELECTOR_SLICES, Service};
use crate::runtime::health::Health;
use crate::runtime::store::Store;
use crate::runtime::telemetry::Telemetry;

use super::{BY_CLAIM, BY_NODE, BY_PROVIDER_VOLUME, BY_SERVICE, BY_SHARED_VOLUME, Start, Stores, indexes};

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
