//! What is read live: what no informer brings, because it would bring too much with it, and what an informer may not have
//! brought yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::api::ListParams;
use kube::{Api, Client};

use crate::api::shared_volume::{EndpointObjects, SHARED_VOLUME_LABEL};
use crate::api::slim::network::{
    EndpointSlice, Endpoints, MIRRORED_SLICES, SELECTOR_SLICES, SERVICE_NAME_LABEL, Service,
};
use crate::error::Result;
use crate::runtime::clock::monotonic;
use crate::runtime::lock::lock;
use crate::runtime::store::ObjectKey;

use super::decide::Seen;
use super::objects::service_name;

/// How long after a selector was last seen its slices may still come: Kubernetes makes them at its own pace, and once made
/// they stay. And how often they are looked for meanwhile.
const AFTER_SELECTOR: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(1));

/// A Service and its endpoints, as the API server has them.
#[derive(Clone, Debug)]
pub struct Live {
    service: Option<Arc<Service>>,
    slices: Vec<Arc<EndpointSlice>>,
    endpoints: Option<Arc<Endpoints>>,
}

impl Live {
    /// Reads all of it.
    pub async fn read(client: &Client, seen: &Seen) -> Result<Self> {
        let (namespace, name) = service_key(seen);
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        let (service, slices, endpoints) =
            tokio::try_join!(async { Ok(services.get_opt(&name).await?) }, slices(client, namespace, &name), async {
                let counts = wants_endpoints(seen) || seen.endpoints.is_some();
                if counts { endpoints(client, namespace, &name).await } else { Ok(None) }
            },)?;
        Ok(Self { service: service.map(Arc::new), slices, endpoints })
    }

    /// Puts it in place of what the stores show.
    pub fn onto(self, seen: &mut Seen) {
        // Slices that have our label and name another Service are found by the stores alone.
        let (_, name) = service_key(seen);
        seen.slices.retain(|slice| slice.service() != Some(&name));
        seen.slices.extend(self.slices);
        seen.service = self.service;
        // As in every other pass, or the verdict would change with each look.
        let counts = wants_endpoints(seen);
        seen.endpoints = self.endpoints.filter(|it| counts || has_label(it));
    }
}

/// What no informer brings, or has not brought yet.
#[derive(Default)]
pub struct Hidden {
    /// Read once for each Service, and in every pass for those that have something of it.
    found: Mutex<HashMap<ObjectKey, Found>>,
    /// Services that are there, though their informer does not show them yet.
    ahead: Mutex<HashMap<ObjectKey, Arc<Service>>>,
    /// Until when there may be slices of a selector that the Service had.
    suspect: Mutex<HashMap<ObjectKey, Instant>>,
}

/// What was found beside a Service.
#[derive(Clone, Default)]
struct Found {
    /// Uid of the Service.
    service: Option<String>,
    slices: Vec<Arc<EndpointSlice>>,
    endpoints: Option<Arc<Endpoints>>,
}

impl Hidden {
    /// Adds what there is to what the stores show.
    pub async fn add_to(&self, client: &Client, key: &ObjectKey, seen: &mut Seen) -> Result<()> {
        match &seen.service {
            Some(_) => drop(lock(&self.ahead).remove(key)),
            None => seen.service = lock(&self.ahead).get(key).cloned(),
        }
        self.note_selector(key, seen);
        let uid = seen.service.as_ref().and_then(|service| service.metadata.uid.clone());
        if uid.is_none() {
            lock(&self.found).remove(key);
            return Ok(());
        }
        let known = lock(&self.found).get(key).cloned().filter(|known| known.service == uid);
        let found = match known {
            Some(known) if known.is_nothing() && !is_suspect(seen) && !self.is_suspect(key) => known,
            _ => Found { service: uid, ..Found::read(client, seen).await? },
        };
        seen.slices.extend(found.slices.iter().cloned());
        seen.endpoints = seen.endpoints.take().or_else(|| found.endpoints.clone());
        lock(&self.found).insert(key.clone(), found);
        Ok(())
    }

    /// The Service was read live: it counts until the informer shows one.
    pub fn is_ahead(&self, key: &ObjectKey, seen: &Seen) {
        if let Some(service) = &seen.service {
            lock(&self.ahead).insert(key.clone(), service.clone());
        }
    }

    /// Everything was read live: later passes know of it, or they would undo what this one decides.
    pub fn learn(&self, key: &ObjectKey, seen: &Seen) {
        self.note_selector(key, seen);
        match seen.service.as_ref().and_then(|service| service.metadata.uid.clone()) {
            Some(uid) => drop(lock(&self.found).insert(key.clone(), Found::of(uid, seen))),
            None => drop(lock(&self.found).remove(key)),
        }
    }

    /// The Service had a selector just now: its slices are looked for in every pass for a while.
    pub fn suspect(&self, key: &ObjectKey) {
        lock(&self.suspect).insert(key.clone(), monotonic() + AFTER_SELECTOR.0);
    }

    /// When to look for slices of a selector again. One that is still there is waited for by the watch.
    pub fn look_again(&self, key: &ObjectKey, seen: &Seen) -> Option<Duration> {
        (self.is_suspect(key) && !has_selector(seen)).then_some(AFTER_SELECTOR.1)
    }

    /// Reads everything again in the next pass.
    pub fn read_again(&self, key: &ObjectKey) {
        lock(&self.found).remove(key);
        lock(&self.ahead).remove(key);
    }

    /// The SharedVolume is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.read_again(key);
        lock(&self.suspect).remove(key);
    }

    fn note_selector(&self, key: &ObjectKey, seen: &Seen) {
        if has_selector(seen) {
            self.suspect(key);
        }
    }

    fn is_suspect(&self, key: &ObjectKey) -> bool {
        let mut suspect = lock(&self.suspect);
        let is_suspect = suspect.get(key).is_some_and(|until| monotonic() < *until);
        if !is_suspect {
            suspect.remove(key);
        }
        is_suspect
    }
}

impl Found {
    async fn read(client: &Client, seen: &Seen) -> Result<Self> {
        let (namespace, name) = service_key(seen);
        let wants_endpoints = wants_endpoints(seen);
        let (mut slices, endpoints) = tokio::try_join!(slices(client, namespace, &name), async {
            if wants_endpoints { endpoints(client, namespace, &name).await } else { Ok(None) }
        })?;
        slices.retain(|slice| slice.manager() == Some(SELECTOR_SLICES));
        Ok(Self { service: None, slices, endpoints: endpoints.filter(|_| seen.endpoints.is_none()) })
    }

    /// What of a live view no informer brings.
    fn of(uid: String, seen: &Seen) -> Self {
        let slices = seen.slices.iter().filter(|slice| slice.manager() == Some(SELECTOR_SLICES));
        let endpoints = seen.endpoints.as_ref().filter(|it| !has_label(it));
        Self { service: Some(uid), slices: slices.cloned().collect(), endpoints: endpoints.cloned() }
    }

    fn is_nothing(&self) -> bool {
        self.slices.is_empty() && self.endpoints.is_none()
    }
}

/// Whether others write endpoints for the Service, so that there may be what no informer brings.
fn is_suspect(seen: &Seen) -> bool {
    has_selector(seen) || (is_mirrored(seen) && seen.endpoints.is_none())
}

fn has_selector(seen: &Seen) -> bool {
    seen.service.as_ref().is_some_and(|service| !service.spec.selector.is_empty())
}

/// Whether the informer of Endpoints brings them.
fn has_label(endpoints: &Endpoints) -> bool {
    endpoints.metadata.labels.iter().any(|labels| labels.contains_key(SHARED_VOLUME_LABEL))
}

/// Whether Endpoints of the Service's name bear on it, whoever made them.
fn wants_endpoints(seen: &Seen) -> bool {
    seen.shared_volume.spec.service.endpoints == EndpointObjects::EndpointSliceAndEndpoints || is_mirrored(seen)
}

fn is_mirrored(seen: &Seen) -> bool {
    seen.slices.iter().any(|slice| slice.manager() == Some(MIRRORED_SLICES))
}

fn service_key(seen: &Seen) -> (&str, String) {
    let namespace = seen.shared_volume.metadata.namespace.as_deref().unwrap_or_default();
    (namespace, service_name(&seen.shared_volume))
}

async fn slices(client: &Client, namespace: &str, service: &str) -> Result<Vec<Arc<EndpointSlice>>> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let of_service = ListParams::default().labels(&format!("{SERVICE_NAME_LABEL}={service}"));
    Ok(api.list(&of_service).await?.items.into_iter().map(Arc::new).collect())
}

async fn endpoints(client: &Client, namespace: &str, name: &str) -> Result<Option<Arc<Endpoints>>> {
    let api: Api<Endpoints> = Api::namespaced(client.clone(), namespace);
    Ok(api.get_opt(name).await?.map(Arc::new))
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
