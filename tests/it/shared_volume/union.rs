//! The promise that no client is ever sent to two servers, watched: every version of every slice that we write, in the order
//! in which the API server stored them. What a test does not look for is found here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead::api::shared_volume::{SHARED_VOLUME_LABEL, SLICE_MANAGER};
use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinSet;

/// A Service: namespace and name.
type Service = (String, String);

/// Who serves, as clients see it: ports, because all servers of a test have one address.
pub type Serving = BTreeSet<i32>;

/// What was seen.
#[derive(Default)]
struct Record {
    /// Ready endpoints by slice.
    slices: BTreeMap<String, (Service, Vec<i32>)>,
    /// How the union of a Service's slices changed.
    history: BTreeMap<Service, Vec<Serving>>,
    broken: BTreeMap<String, Vec<String>>,
}

/// The watch; it ends when this is dropped.
pub struct Union {
    record: Arc<Mutex<Record>>,
    _watching: JoinSet<()>,
}

impl Union {
    pub fn watch(client: Client) -> Self {
        let record = Arc::new(Mutex::new(Record::default()));
        let mut watching = JoinSet::new();
        watching.spawn(follow(client, record.clone()));
        Self { record, _watching: watching }
    }

    /// What was broken in a namespace.
    pub fn broken(&self, namespace: &str) -> Vec<String> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.broken.get(namespace).cloned().unwrap_or_default()
    }

    /// All that a Service's slices ever said, each time it changed.
    pub fn history(&self, namespace: &str, service: &str) -> Vec<Serving> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.history.get(&(namespace.to_owned(), service.to_owned())).cloned().unwrap_or_default()
    }
}

async fn follow(client: Client, record: Arc<Mutex<Record>>) {
    let slices: Api<EndpointSlice> = Api::all(client);
    let mut events = watcher(slices, watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Ok(watcher::Event::Apply(slice) | watcher::Event::InitApply(slice)) => record.stored(&slice),
            Ok(watcher::Event::Delete(slice)) => record.deleted(&slice),
            Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
            Err(error) => eprintln!("the watch of slices starts anew: {error}"),
        }
    }
}

impl Record {
    fn stored(&mut self, slice: &EndpointSlice) {
        let Some((key, service)) = names(slice) else { return };
        let ready = ready(slice);
        if ready.len() > 1 {
            self.break_it(&service, format!("slice {key} has several ready endpoints: {ready:?}"));
        }
        self.slices.insert(key, (service.clone(), ready));
        self.judge(&service);
    }

    fn deleted(&mut self, slice: &EndpointSlice) {
        let Some((key, service)) = names(slice) else { return };
        self.slices.remove(&key);
        self.judge(&service);
    }

    fn judge(&mut self, service: &Service) {
        let of = |(key, (of, ready)): (&String, &(Service, Vec<i32>))| (of == service).then(|| (key.clone(), ready.clone()));
        let slices: BTreeMap<_, _> = self.slices.iter().filter_map(of).collect();
        let serving: Serving = slices.values().flatten().copied().collect();
        if serving.len() > 1 {
            self.break_it(service, format!("two servers at once: {slices:?}"));
        }
        let history = self.history.entry(service.clone()).or_default();
        if history.last() != Some(&serving) {
            history.push(serving);
        }
    }

    fn break_it(&mut self, (namespace, service): &Service, what: String) {
        self.broken.entry(namespace.clone()).or_default().push(format!("{service}: {what}"));
    }
}

/// Key of the slice and its Service, if the slice is ours.
fn names(slice: &EndpointSlice) -> Option<(String, Service)> {
    let labels = slice.labels();
    let ours = labels.contains_key(SHARED_VOLUME_LABEL)
        || labels.get("endpointslice.kubernetes.io/managed-by").is_some_and(|manager| manager == SLICE_MANAGER);
    let service = labels.get("kubernetes.io/service-name").filter(|_| ours)?;
    let namespace = slice.namespace().unwrap_or_default();
    Some((format!("{namespace}/{}", slice.name_any()), (namespace, service.clone())))
}

/// The port of each endpoint that traffic goes to.
fn ready(slice: &EndpointSlice) -> Vec<i32> {
    // The port that is mounted is the first; the others go with it.
    let port = slice.ports.iter().flatten().find_map(|port| port.port).unwrap_or_default();
    let is_ready = |endpoint: &&k8s_openapi::api::discovery::v1::Endpoint| {
        endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false)
    };
    slice.endpoints.iter().filter(is_ready).map(|_| port).collect()
}
