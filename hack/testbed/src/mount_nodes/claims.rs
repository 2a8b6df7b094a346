//! Which volumes of our driver a pod has, through its claims.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bulkhead::api::s3;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Resource, ResourceExt};
use tokio::task::JoinSet;

use super::views::State;

/// How often is looked for what is not bound yet.
const POLL: Duration = Duration::from_millis(50);

/// Claims and volumes as the API shows them.
#[derive(Default)]
pub(super) struct Claims(OnceLock<(Store<PersistentVolumeClaim>, Store<PersistentVolume>)>);

/// Follows claims and volumes.
pub(super) fn watch(state: &Arc<State>, tasks: &mut JoinSet<()>) {
    let stores = (reflect(Api::all(state.client.clone()), tasks), reflect(Api::all(state.client.clone()), tasks));
    // Set once: there is one call.
    let _ = state.claims.0.set(stores);
}

fn reflect<K>(api: Api<K>, tasks: &mut JoinSet<()>) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let events = reflector(writer, watcher(api, watcher::Config::default()).default_backoff());
    tasks.spawn(events.for_each(|_| std::future::ready(())));
    store
}

impl Claims {
    /// The PersistentVolumes of our driver that a pod uses, once all its claims are bound.
    pub async fn volumes_of(&self, pod: &Pod) -> Vec<String> {
        let declared = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let claims: Vec<_> = declared.filter_map(|volume| claim_of(pod, volume)).collect();
        let mut volumes = Vec::new();
        for claim in claims {
            volumes.extend(self.volume_of(&claim).await);
        }
        volumes
    }

    /// `None` for one of another driver.
    async fn volume_of(&self, claim: &ObjectRef<PersistentVolumeClaim>) -> Option<String> {
        loop {
            if let Some(volume) = self.bound(claim) {
                let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
                return csi.filter(|csi| csi.driver == s3::DRIVER).map(|_| volume.name_any());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn bound(&self, claim: &ObjectRef<PersistentVolumeClaim>) -> Option<Arc<PersistentVolume>> {
        let (claims, volumes) = self.0.get()?;
        let claim = claims.get(claim)?;
        let bound = claim.status.as_ref()?.phase.as_deref() == Some("Bound");
        let name = claim.spec.as_ref()?.volume_name.as_ref().filter(|_| bound)?;
        volumes.get(&ObjectRef::new(name))
    }
}

fn claim_of(pod: &Pod, volume: &Volume) -> Option<ObjectRef<PersistentVolumeClaim>> {
    let named = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone());
    let own = || volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name_any(), volume.name));
    let namespace = pod.namespace().unwrap_or_default();
    Some(ObjectRef::new(&named.or_else(own)?).within(&namespace))
}
