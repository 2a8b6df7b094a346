//! What a watch shows, and when: workloads that are named by an attachment, workloads that ended.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinSet;

use crate::Result;

/// How often is looked whether something has come.
const POLL: Duration = Duration::from_millis(20);

/// A watch of attachments and of the workloads of one namespace.
pub struct Seen {
    times: Arc<Mutex<Times>>,
    _watches: JoinSet<()>,
}

/// First and last times, by uid of the workload.
#[derive(Default)]
pub struct Times {
    /// It was named for the first time.
    pub attached: HashMap<String, Instant>,
    /// It is not named any more.
    pub detached: HashMap<String, Instant>,
    /// Its containers have ended, or it is gone.
    pub ended: HashMap<String, Instant>,
    /// It runs.
    pub running: HashMap<String, Instant>,
    attachments: HashMap<String, BTreeSet<String>>,
}

impl Times {
    fn see_attachment(&mut self, name: String, named: BTreeSet<String>) {
        let now = Instant::now();
        for uid in &named {
            self.attached.entry(uid.clone()).or_insert(now);
        }
        let before = self.attachments.insert(name, named).unwrap_or_default();
        for uid in before {
            if !self.attachments.values().any(|named| named.contains(&uid)) {
                self.detached.insert(uid, now);
            }
        }
    }

    fn see_workload(&mut self, pod: &Pod, gone: bool) {
        let (uid, now) = (pod.uid().unwrap_or_default(), Instant::now());
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        if phase == "Running" {
            self.running.entry(uid.clone()).or_insert(now);
        }
        if gone || matches!(phase, "Succeeded" | "Failed") {
            self.ended.entry(uid).or_insert(now);
        }
    }
}

impl Seen {
    /// Begins to watch.
    pub fn watch(client: &Client, namespace: &str) -> Self {
        let times = Arc::new(Mutex::new(Times::default()));
        let mut watches = JoinSet::new();
        watches.spawn(attachments(Api::all(client.clone()), times.clone()));
        watches.spawn(workloads(Api::namespaced(client.clone(), namespace), times.clone()));
        Self { times, _watches: watches }
    }

    /// What was seen until now.
    pub fn times(&self) -> MutexGuard<'_, Times> {
        lock(&self.times)
    }

    /// Waits until so many of these workloads are among those that `which` chooses.
    pub async fn until(
        &self,
        what: &str,
        uids: &[String],
        limit: Duration,
        which: impl Fn(&Times) -> &HashMap<String, Instant>,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let seen = {
                let times = self.times();
                let among = which(&times);
                uids.iter().filter(|uid| among.contains_key(*uid)).count()
            };
            if seen == uids.len() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{what}: {seen} of {} after {limit:?}", uids.len()).into());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn attachments(api: Api<MountpointS3PodAttachment>, times: Arc<Mutex<Times>>) {
    let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(attachment) | Event::InitApply(attachment)) => {
                let named = attachment.spec.workloads().into_iter().map(str::to_owned).collect();
                lock(&times).see_attachment(attachment.name_any(), named);
            }
            Ok(Event::Delete(attachment)) => lock(&times).see_attachment(attachment.name_any(), BTreeSet::new()),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => tracing::warn!(%error, "the watch of attachments goes on"),
        }
    }
}

async fn workloads(api: Api<Pod>, times: Arc<Mutex<Times>>) {
    let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => lock(&times).see_workload(&pod, false),
            Ok(Event::Delete(pod)) => lock(&times).see_workload(&pod, true),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => tracing::warn!(%error, "the watch of workloads goes on"),
        }
    }
}
