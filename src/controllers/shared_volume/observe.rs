//! What one pass over a SharedVolume sees: the stores, what its provider reported, what its servers answered, and what no
//! informer brings. A write that rests on an old view is refused, because each names the version that was seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;

use crate::api::names::ACTIVE_LABEL;
use crate::api::node_fence::{NodeFence, Phase};
use crate::api::shared_volume::SharedVolume;
use crate::api::slim::network::EndpointSlice;
use crate::controllers::{BY_CLAIM, BY_SERVICE, BY_SHARED_VOLUME, Context, SharedVolumeStores, Stores, indexes};
use crate::error::Result;
use crate::runtime::store::{ObjectKey, Store};
use crate::storageos::providers::{self, Providers};

use super::Config;
use super::decide::{Effect, Intervals, Memory, Seen};
use super::objects::service_name;
use super::prober::Prober;
use super::server_pods::{Selection, ServerPods};
use super::verify::Hidden;

/// Where everything is looked up.
pub struct Observer {
    pub cx: Context,
    pub stores: SharedVolumeStores,
    pub providers: Providers,
    pub server_pods: ServerPods,
    pub prober: Prober,
    pub hidden: Hidden,
    pub config: Config,
}

impl Observer {
    /// What there is to see; `None` if there is no such SharedVolume.
    pub async fn observe(&self, key: &ObjectKey, memory: Memory) -> Result<Option<Seen>> {
        let Some(shared_volume) = self.stores.shared_volumes.get(key) else { return Ok(None) };
        let namespace = shared_volume.metadata.namespace.as_deref().unwrap_or_default();
        let named = |name: &str| ObjectKey::namespaced(namespace, name);
        let service = named(&service_name(&shared_volume));
        let backend = &shared_volume.spec.backend;
        let selection = backend
            .pods
            .as_ref()
            .map(|pods| Selection { namespace: namespace.to_owned(), labels: pods.match_labels.clone() });
        let pods = self.server_pods.select(key, selection).await?;
        let slices = self.slices(key, &service);
        let nodes = indexes::nodes_of_shared_volume(&shared_volume).into_iter();
        let nodes = nodes.chain(pods.iter().filter_map(|pod| pod.spec.node_name.clone()));
        let led_to = slices.iter().flat_map(|slice| &slice.endpoints).filter_map(|it| it.node_name.clone());
        let fenced_nodes = fenced(&self.cx.stores, nodes.chain(led_to));
        let unproved_nodes = fenced_nodes.iter().filter(|node| is_unproved(&self.cx.stores, node)).cloned().collect();
        let mut seen = Seen {
            rivals: self.rivals(&shared_volume),
            claim: self.cx.stores.claims.get(&named(&shared_volume.spec.claim_name)),
            service: self.stores.services.get(&service),
            slices,
            fenced_nodes,
            unproved_nodes,
            endpoints: self.stores.endpoints.get(&service),
            observation: backend.provider.as_ref().map(|it| self.providers.observe(&it.name, &it.volume_id)),
            intervals: self.intervals(&shared_volume),
            answers: self.prober.answers(key),
            memory,
            cluster_domain: self.config.cluster_domain.clone(),
            pods,
            shared_volume,
        };
        self.hidden.add_to(&self.cx.clients.reads, key, &mut seen).await?;
        Ok(Some(seen))
    }

    /// Others with the same claim, or the same Service.
    fn rivals(&self, it: &SharedVolume) -> Vec<Arc<SharedVolume>> {
        let by = |index, values: Vec<String>| {
            values.into_iter().flat_map(move |value| self.stores.shared_volumes.by_index(index, &value))
        };
        let of_claim = by(BY_CLAIM, indexes::claim_of_shared_volume(it));
        let of_service = by(BY_SERVICE, indexes::service_of_shared_volume(it));
        let rivals = of_claim.chain(of_service).filter(|rival| rival.metadata.name != it.metadata.name);
        let rivals: BTreeMap<_, _> = rivals.map(|rival| (rival.name_any(), rival)).collect();
        rivals.into_values().collect()
    }

    fn slices(&self, key: &ObjectKey, service: &ObjectKey) -> Vec<Arc<EndpointSlice>> {
        let of_service = self.stores.slices.by_index(BY_SERVICE, &service.to_string());
        let labelled = self.stores.slices.by_index(BY_SHARED_VOLUME, &key.to_string());
        let slices: BTreeMap<_, _> = of_service.into_iter().chain(labelled).map(|it| (it.name_any(), it)).collect();
        slices.into_values().collect()
    }

    fn intervals(&self, it: &SharedVolume) -> Intervals {
        let provider = it.spec.backend.provider.as_ref();
        let own = provider.and_then(|provider| self.providers.intervals(&provider.name)).unwrap_or_default();
        intervals(self.config.intervals, own)
    }

    /// Whether the stores show a write.
    pub fn shows(&self, seen: &Seen, effect: &Effect) -> bool {
        let stores = &self.stores;
        match effect {
            Effect::Record { before, .. } => has_moved(&stores.shared_volumes, before.as_ref()),
            Effect::AddFinalizer | Effect::RemoveFinalizer => {
                has_moved(&stores.shared_volumes, seen.shared_volume.as_ref())
            }
            Effect::ApplyService { service, create: true } => {
                stores.services.get(&ObjectKey::from(service.as_ref())).is_some()
            }
            Effect::ApplyService { .. } => {
                seen.service.as_ref().is_none_or(|before| has_moved(&stores.services, before.as_ref()))
            }
            Effect::RepairService { before, .. } | Effect::DisownService(before) | Effect::DeleteService(before) => {
                has_moved(&stores.services, before.as_ref())
            }
            Effect::WriteSlice { slice, before } => match before {
                Some(before) => has_moved(&stores.slices, before.as_ref()),
                None => stores.slices.get(&ObjectKey::from(slice.as_ref())).is_some(),
            },
            Effect::DeleteSlice(before) => has_moved(&stores.slices, before.as_ref()),
            Effect::WriteEndpoints { endpoints, before } => match before {
                Some(before) => has_moved(&stores.endpoints, before.as_ref()),
                None => stores.endpoints.get(&ObjectKey::from(endpoints.as_ref())).is_some(),
            },
            Effect::DeleteEndpoints(before) => has_moved(&stores.endpoints, before.as_ref()),
            Effect::AnnotateClaim { claim, .. } => has_moved(&self.cx.stores.claims, claim.as_ref()),
            Effect::Publish { .. } | Effect::Verify => true,
        }
    }
}

/// Whether the store has another version of an object, or none.
fn has_moved<K: kube::Resource>(store: &Store<K>, before: &K) -> bool {
    let now = store.get(&ObjectKey::from(before));
    now.is_none_or(|now| now.meta().resource_version != before.meta().resource_version)
}

/// The provider's times where it has any, else those of the flags.
pub(super) fn intervals(flags: Intervals, own: providers::Intervals) -> Intervals {
    Intervals {
        cache_expiry: own.cache_expiry.unwrap_or(flags.cache_expiry),
        create_poll: own.create_poll.unwrap_or(flags.create_poll),
        create_wait: own.create_wait.unwrap_or(flags.create_wait),
    }
}

fn fenced(stores: &Stores, nodes: impl Iterator<Item = String>) -> BTreeSet<String> {
    let is_fenced = |node: &String| {
        let fence = stores.fences.get(&ObjectKey::cluster(node));
        fence.is_some_and(|fence| fence.labels().contains_key(ACTIVE_LABEL))
    };
    nodes.filter(is_fenced).collect()
}

/// Whether a node that is being fenced may still reach what the plan names.
fn is_unproved(stores: &Stores, node: &str) -> bool {
    let fence = stores.fences.get(&ObjectKey::cluster(node));
    fence.is_some_and(|fence| is_open(&fence))
}

/// Whether not everything of the plan is proved yet.
pub fn is_open(fence: &NodeFence) -> bool {
    let phase = fence.status.as_ref().and_then(|status| status.phase);
    matches!(phase, None | Some(Phase::Planned | Phase::Fencing))
}
