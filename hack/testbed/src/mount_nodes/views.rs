//! What all played nodes know: pods and `s3pa` as the API shows them, and what is mounted where.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use bulkhead::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::claims::Claims;
use super::mountpoint;
use super::played::Played;
use super::workload;
use crate::lock::lock;
use crate::pod_watch;

/// A pod; `None` when it is not there, or not any more.
pub(super) type PodView = watch::Receiver<Option<Arc<Pod>>>;

pub(super) struct State {
    pub client: Client,
    /// Of the Mountpoint Pods.
    pub namespace: String,
    pub nodes: Mutex<BTreeSet<String>>,
    pub held: watch::Sender<BTreeSet<String>>,
    pub claims: Claims,
    pub mounts: Mutex<Mounts>,
    pub tasks: Mutex<JoinSet<()>>,
    /// By uid: a pod of the same name is another pod.
    pods: Mutex<HashMap<String, watch::Sender<Option<Arc<Pod>>>>>,
    /// By name, as the `s3pa` have it.
    mountpoint_pods: Mutex<HashMap<String, watch::Sender<Option<Arc<Pod>>>>>,
    /// Workload uid → volume → Mountpoint Pod.
    assignments: Mutex<HashMap<String, watch::Sender<BTreeMap<String, String>>>>,
}

/// Waits until what is watched is so. For ever, when the nodes are being dropped.
pub(super) async fn until<T>(mut view: watch::Receiver<T>, holds: impl FnMut(&T) -> bool) {
    if view.wait_for(holds).await.is_err() {
        std::future::pending().await
    }
}

/// Which workload is mounted on which Mountpoint Pod.
#[derive(Default)]
pub(super) struct Mounts {
    workloads: HashMap<String, BTreeMap<String, String>>,
    /// Mountpoint Pod → how many mounts it serves.
    used: HashMap<String, watch::Sender<usize>>,
}

impl Mounts {
    pub fn of_workload(&self, uid: &str) -> BTreeMap<String, String> {
        self.workloads.get(uid).cloned().unwrap_or_default()
    }

    /// Mounts a volume, in place of what it was mounted on.
    pub fn mount(&mut self, uid: &str, volume: &str, mountpoint_pod: &str) {
        let before = self.workloads.entry(uid.to_owned()).or_default().insert(volume.into(), mountpoint_pod.into());
        self.used(mountpoint_pod).send_modify(|used| *used += 1);
        if let Some(before) = before {
            self.used(&before).send_modify(|used| *used = used.saturating_sub(1));
        }
    }

    pub fn unmount_all(&mut self, uid: &str) {
        for mountpoint_pod in self.workloads.remove(uid).unwrap_or_default().into_values() {
            self.used(&mountpoint_pod).send_modify(|used| *used = used.saturating_sub(1));
        }
    }

    pub fn users(&mut self, mountpoint_pod: &str) -> watch::Receiver<usize> {
        self.used(mountpoint_pod).subscribe()
    }

    fn used(&mut self, mountpoint_pod: &str) -> &watch::Sender<usize> {
        self.used.entry(mountpoint_pod.to_owned()).or_default()
    }
}

impl State {
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            nodes: Mutex::default(),
            held: watch::Sender::default(),
            claims: Claims::default(),
            mounts: Mutex::default(),
            tasks: Mutex::default(),
            pods: Mutex::default(),
            mountpoint_pods: Mutex::default(),
            assignments: Mutex::default(),
        }
    }

    /// Waits until nothing holds this node.
    pub async fn let_go(&self, node: &str) {
        until(self.held.subscribe(), |held| !held.contains(node)).await;
    }

    /// What the `s3pa` say of a workload.
    pub fn assignments(&self, uid: &str) -> watch::Receiver<BTreeMap<String, String>> {
        lock(&self.assignments).entry(uid.to_owned()).or_default().subscribe()
    }

    pub fn mountpoint_pod(&self, name: &str) -> PodView {
        lock(&self.mountpoint_pods).entry(name.to_owned()).or_default().subscribe()
    }

    /// Nobody asks for this workload any more.
    pub fn forget(&self, uid: &str) {
        lock(&self.assignments).remove(uid);
    }

    fn see_pod(self: &Arc<Self>, pod: Pod) {
        let (uid, namespace) = (pod.uid().unwrap_or_default(), pod.namespace().unwrap_or_default());
        let pod = Arc::new(pod);
        let is_mountpoint = namespace == self.namespace;
        if is_mountpoint {
            let mut known = lock(&self.mountpoint_pods);
            known.entry(pod.name_any()).or_default().send_replace(Some(pod.clone()));
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        if !lock(&self.nodes).contains(&node) {
            return;
        }
        let mut pods = lock(&self.pods);
        if let Some(known) = pods.get(&uid) {
            known.send_replace(Some(pod));
            return;
        }
        let sender = watch::Sender::new(Some(pod.clone()));
        let played = Played::new(self.clone(), &pod, node, sender.subscribe());
        pods.insert(uid, sender);
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        if is_mountpoint {
            tasks.spawn(mountpoint::run(played))
        } else {
            tasks.spawn(workload::run(played))
        };
    }

    fn lose_pods(&self, is_lost: impl Fn(&str) -> bool) {
        lock(&self.pods).retain(|uid, pod| {
            let lost = is_lost(uid);
            if lost {
                pod.send_replace(None);
            }
            !lost
        });
        lock(&self.mountpoint_pods).retain(|_, pod| {
            let uid = pod.borrow().as_ref().and_then(|pod| pod.uid());
            if uid.as_deref().is_some_and(&is_lost) {
                pod.send_replace(None);
            }
            pod.receiver_count() > 0 || pod.borrow().is_some()
        });
    }

    fn see_attachment(&self, attachment: &MountpointS3PodAttachment) {
        let (spec, mut all) = (&attachment.spec, lock(&self.assignments));
        for (mountpoint_pod, workloads) in &spec.mountpoint_s3_pod_attachments {
            for workload in workloads {
                let assigned = all.entry(workload.workload_pod_uid.clone()).or_default();
                assigned.send_if_modified(|assigned| {
                    let before = assigned.insert(spec.persistent_volume_name.clone(), mountpoint_pod.clone());
                    before.as_ref() != Some(mountpoint_pod)
                });
            }
        }
    }
}

/// Follows all pods, for ever.
pub(super) async fn watch_pods(state: Arc<State>) {
    pod_watch::follow(state.client.clone(), |pod| state.see_pod(pod), |is_lost| state.lose_pods(is_lost)).await;
}

/// Follows all `s3pa`, for ever. One that goes changes nothing: what is mounted stays mounted.
pub(super) async fn watch_attachments(state: Arc<State>) {
    let api: Api<MountpointS3PodAttachment> = Api::all(state.client.clone());
    let events = watcher::watcher(api, watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::InitApply(attachment) | Event::Apply(attachment)) => state.see_attachment(&attachment),
            Ok(_) => {}
            // An odd one, for instance: one without spec is not for us.
            Err(error) => tracing::debug!(%error, "the played nodes' watch of attachments goes on"),
        }
    }
}
