//! Gathers what a pass sees: from the caches, from the poll's memory, and the Secret by its name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1 as core;
use kube::{Api, Client, ResourceExt};

use crate::api::shared_volume::SharedVolume;
use crate::api::shared_volume_provider::{SecretReference, SharedVolumeProvider};
use crate::controllers::{Context, ProviderStores};
use crate::error::{Error, ErrorClass, Result};
use crate::runtime::store::{ObjectKey, Store};
use crate::storageos::Credentials;
use crate::storageos::providers::Providers;

use super::decide::Secret;
use super::discovery::{self, Candidate};
use super::poll::Served;

/// What was read of a Secret counts for this long: a changed one is used after that.
pub const SECRET_PACE: Duration = Duration::from_secs(5);

/// The Secret of a provider as it was read last. It is asked for by its name, again and again: a watch would need a right on
/// all Secrets of its namespace.
pub struct SecretMemory {
    reference: SecretReference,
    read: Option<(Instant, Secret, Option<Credentials>)>,
}

impl SecretMemory {
    /// Nothing is known of it yet.
    pub fn new(reference: &SecretReference) -> Self {
        Self { reference: reference.clone(), read: None }
    }

    /// Whether it is of this one.
    pub fn is_of(&self, reference: &SecretReference) -> bool {
        self.reference == *reference
    }

    /// The Secret, read anew where that is due. While it cannot be read for a passing reason the last one counts.
    pub async fn read(&mut self, client: &Client, now: Instant) -> Result<(Secret, Option<Credentials>)> {
        if let Some((at, secret, credentials)) = &self.read
            && now.saturating_duration_since(*at) < SECRET_PACE
        {
            return Ok((secret.clone(), credentials.clone()));
        }
        let SecretReference { namespace, name } = &self.reference;
        let api: Api<core::Secret> = Api::namespaced(client.clone(), namespace);
        let (secret, found) = match api.get_opt(name).await.map_err(Error::from) {
            Ok(secret) => secret.map_or((Secret::Absent, None), |secret| credentials(&secret)),
            Err(error) if error.class() == ErrorClass::Forbidden => (Secret::Unreadable(error.to_string()), None),
            Err(error) => {
                let (_, secret, credentials) = self.read.clone().ok_or(error)?;
                (secret, credentials)
            }
        };
        self.read = Some((now, secret.clone(), found.clone()));
        Ok((secret, found))
    }
}

fn credentials(secret: &core::Secret) -> (Secret, Option<Credentials>) {
    let value = |key: &str| {
        let bytes = secret.data.as_ref()?.get(key)?;
        let text = String::from_utf8_lossy(&bytes.0).trim_end().to_owned();
        Some(text).filter(|text| !text.is_empty())
    };
    let Some(username) = value("username") else { return (Secret::Incomplete("username"), None) };
    let Some(password) = value("password") else { return (Secret::Incomplete("password"), None) };
    let version = format!("{}/{}", secret.uid().unwrap_or_default(), secret.resource_version().unwrap_or_default());
    (Secret::Usable(version), Some(Credentials { username, password }))
}

/// The volumes of a provider with what there is of them, and how many SharedVolumes they feed.
pub fn volumes(
    cx: &Context,
    stores: &ProviderStores,
    providers: &Providers,
    provider: &SharedVolumeProvider,
) -> (Vec<Candidate>, usize) {
    let name = provider.name_any();
    let served =
        Served { selector: provider.spec.namespace_selector.clone(), namespaces: cx.stores.namespaces.clone() };
    let ours = ours(stores, &name);
    let volumes = providers.volumes(&name);
    let known: BTreeSet<_> = volumes.iter().map(|volume| volume.id.as_str()).collect();
    let is_fed = |it: &&Arc<SharedVolume>| volume_of(it).is_some_and(|id| known.contains(id));
    let fed = ours.values().flatten().filter(is_fed).count();
    let candidate = |volume| candidate(cx, stores, provider, &served, &ours, volume);
    (volumes.iter().cloned().map(candidate).collect(), fed)
}

fn candidate(
    cx: &Context,
    stores: &ProviderStores,
    provider: &SharedVolumeProvider,
    served: &Served,
    ours: &HashMap<String, Vec<Arc<SharedVolume>>>,
    volume: Arc<crate::api::provider_volume::ProviderVolume>,
) -> Candidate {
    let namespace = &volume.claim_namespace;
    // Of another namespace it is another tenant's, who shall not keep this one from theirs.
    let is_own = |it: &Arc<SharedVolume>| namespace.is_empty() || it.metadata.namespace.as_ref() == Some(namespace);
    let key = ObjectKey::namespaced(namespace, discovery::name(provider, &volume));
    Candidate {
        claim: cx.stores.claims.get(&ObjectKey::namespaced(namespace, &volume.claim_name)),
        is_served: served.is_served(namespace),
        is_managed: ours.get(&volume.id).is_some_and(|all| all.iter().any(is_own)),
        is_name_taken: stores.shared_volumes.get(&key).is_some(),
        volume,
    }
}

/// The SharedVolumes of a provider by the id of their volume.
fn ours(stores: &ProviderStores, provider: &str) -> HashMap<String, Vec<Arc<SharedVolume>>> {
    let mut ours: HashMap<String, Vec<Arc<SharedVolume>>> = HashMap::new();
    for it in stores.shared_volumes.list() {
        let backend = it.spec.backend.provider.as_ref().filter(|backend| backend.name == provider);
        if let Some(id) = backend.map(|backend| backend.volume_id.clone()) {
            ours.entry(id).or_default().push(it);
        }
    }
    ours
}

/// Ids of the volumes that SharedVolumes of a provider name, by id of their namespace. Without `volumeNamespace` it is where
/// the volume was reported last; one that never was cannot be read.
pub fn named(
    shared_volumes: &Store<SharedVolume>,
    provider: &str,
    providers: &Providers,
) -> BTreeMap<String, BTreeSet<String>> {
    let volumes = providers.volumes(provider);
    let known: HashMap<_, _> = volumes.iter().map(|it| (it.id.as_str(), it.namespace_id.as_str())).collect();
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for it in shared_volumes.list() {
        let Some(backend) = it.spec.backend.provider.as_ref().filter(|backend| backend.name == provider) else {
            continue;
        };
        let reported = known.get(backend.volume_id.as_str()).copied();
        if let Some(namespace) = backend.volume_namespace.as_deref().or(reported).filter(|id| !id.is_empty()) {
            named.entry(namespace.to_owned()).or_default().insert(backend.volume_id.clone());
        }
    }
    named
}

fn volume_of(shared_volume: &SharedVolume) -> Option<&str> {
    shared_volume.spec.backend.provider.as_ref().map(|backend| backend.volume_id.as_str())
}
