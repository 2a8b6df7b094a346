//! Which providers a change is worth a look at.

use std::time::Duration;

use kube::ResourceExt;

use crate::api::shared_volume_provider::SharedVolumeProvider;
use crate::controllers::{Context, ProviderStores};
use crate::runtime::queue::Queue;
use crate::runtime::store::ObjectKey;
use crate::storageos::providers::Providers;

/// SharedVolumes come in crowds: their changes are gathered for this long.
const GATHER: Duration = Duration::from_millis(250);

/// Starts to listen.
pub fn start(cx: &Context, stores: &ProviderStores, providers: &Providers, queue: &Queue<String>) {
    queue.follow(stores.providers.subscribe(), None, |change| {
        let is_other = change.differs(|it: &SharedVolumeProvider| (it.uid(), it.metadata.generation));
        is_other.then(|| change.key.name.clone())
    });
    let providers = providers.clone();
    queue.follow(cx.stores.claims.subscribe(), None, move |change| {
        let ObjectKey { namespace, name } = &change.key;
        providers.of_claim(namespace.as_deref().unwrap_or_default(), name)
    });
    queue.follow(stores.shared_volumes.subscribe(), Some(GATHER), |change| {
        // Its backend never changes.
        let came_or_went = change.old.is_none() || change.new.is_none();
        let it = change.both().next().filter(|_| came_or_went);
        let backend = it.and_then(|it| it.spec.backend.provider.as_ref());
        backend.map(|backend| backend.name.clone())
    });
}
