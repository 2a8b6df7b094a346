//! What watches show, and when: the server that each slice leads to, Services, and volumes that serve. Two servers behind one
//! Service at once end the run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead::api::conditions;
use bulkhead::api::shared_volume::SharedVolume;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::task::JoinSet;

use crate::Result;

use super::world::NAMESPACE;

/// How often is looked whether something has come.
const POLL: Duration = Duration::from_millis(1);

/// Watches of one namespace.
pub struct Seen {
    state: Arc<Mutex<State>>,
    _watches: JoinSet<()>,
}

/// What was seen last, and since when, by name.
#[derive(Default)]
pub struct State {
    /// The port of the server that a Service leads to; absent when to none.
    pub leads_to: HashMap<String, (i32, Instant)>,
    /// Uid and first address of a Service.
    pub services: HashMap<String, (String, String, Instant)>,
    /// Volumes that serve.
    pub serving: HashMap<String, Instant>,
    /// What must never be.
    pub broken: Vec<String>,
}

impl State {
    fn slice(&mut self, slice: &EndpointSlice, is_gone: bool) {
        let Some(service) = slice.labels().get("kubernetes.io/service-name") else { return };
        if slice.endpoints.len() > 1 {
            self.broken.push(format!("{} has {} endpoints", slice.name_any(), slice.endpoints.len()));
        }
        let port = slice.ports.iter().flatten().find_map(|port| port.port);
        match port.filter(|_| !is_gone && !slice.endpoints.is_empty()) {
            None => drop(self.leads_to.remove(service)),
            // A write that leads to the same server is none that clients notice.
            Some(port) if self.leads_to.get(service).is_none_or(|(before, _)| *before != port) => {
                self.leads_to.insert(service.clone(), (port, Instant::now()));
            }
            Some(_) => {}
        }
    }

    fn service(&mut self, service: &Service, is_gone: bool) {
        let uid = service.uid().unwrap_or_default();
        let address = service.spec.as_ref().and_then(|spec| spec.cluster_ip.clone()).unwrap_or_default();
        if is_gone {
            self.services.remove(&service.name_any());
        } else if self.services.get(&service.name_any()).is_none_or(|(before, ..)| *before != uid) {
            self.services.insert(service.name_any(), (uid, address, Instant::now()));
        }
    }

    fn volume(&mut self, volume: &SharedVolume, is_gone: bool) {
        let conditions = volume.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        if is_gone || !conditions::is_true(conditions, "Ready") {
            self.serving.remove(&volume.name_any());
        } else {
            self.serving.entry(volume.name_any()).or_insert_with(Instant::now);
        }
    }
}

impl Seen {
    /// Begins to watch.
    pub fn watch(client: &Client) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let mut watches = JoinSet::new();
        watches.spawn(follow(Api::namespaced(client.clone(), NAMESPACE), state.clone(), State::slice));
        watches.spawn(follow(Api::namespaced(client.clone(), NAMESPACE), state.clone(), State::service));
        watches.spawn(follow(Api::namespaced(client.clone(), NAMESPACE), state.clone(), State::volume));
        Self { state, _watches: watches }
    }

    /// What was seen until now.
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits until `holds` says how many things are as they shall be, and that is all of them.
    pub async fn until(
        &self,
        what: &str,
        wanted: usize,
        limit: Duration,
        count: impl Fn(&State) -> usize,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let found = {
                let state = self.state();
                if let Some(broken) = state.broken.first() {
                    return Err(format!("BROKEN: {broken}").into());
                }
                count(&state)
            };
            if found >= wanted {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{what}: {found} of {wanted} after {limit:?}").into());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow<K>(api: Api<K>, state: Arc<Mutex<State>>, see: fn(&mut State, &K, bool))
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => see(&mut lock(&state), &object, false),
            Ok(Event::Delete(object)) => see(&mut lock(&state), &object, true),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => tracing::warn!(%error, kind = %K::kind(&()), "the watch goes on"),
        }
    }
}
