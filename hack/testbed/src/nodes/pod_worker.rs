//! The life of one pod on one node: volumes, containers, Ready; and all that backwards.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use tokio::task::JoinSet;

use super::kubelet::{Kubelet, RETRY};
use super::status::{self, Stage};
use super::volumes::{self, Volume};
use super::world::PodView;
use super::writer::Writer;

/// The life of one pod on one node.
pub(super) struct PodWorker {
    kubelet: Arc<Kubelet>,
    view: PodView,
    pods: Api<Pod>,
    name: String,
    uid: String,
    address: Ipv4Addr,
    writers: JoinSet<()>,
    /// How often its containers were started again; the view may lag behind what was reported.
    restarts: i32,
}

impl PodWorker {
    pub fn new(kubelet: Arc<Kubelet>, view: PodView) -> Self {
        let pod = view.borrow().clone();
        let metadata = pod.as_deref().map(|pod| pod.metadata.clone());
        let metadata = metadata.unwrap_or_default();
        let client = kubelet.world.client.clone();
        PodWorker {
            address: kubelet.next_pod_address(),
            pods: Api::namespaced(client, &metadata.namespace.unwrap_or_default()),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            writers: JoinSet::new(),
            restarts: 0,
            kubelet,
            view,
        }
    }

    /// Ends when the pod does. Aborted, it takes its writers with it and leaves the rest as it is: a power failure.
    pub async fn run(mut self) {
        let mut volumes = Vec::new();
        // What was begun is undone, however far it came.
        let mut end = self.view.clone();
        let kubelet = self.kubelet.clone();
        tokio::select! {
            biased;
            () = seen_ended(&kubelet, &mut end) => {}
            () = self.bring_up(&mut volumes) => {}
        }
        tokio::select! {
            biased;
            () = seen_ended(&kubelet, &mut end) => {}
            () = self.stay_ready() => {}
        }
        self.tear_down(&volumes).await;
    }

    /// Volumes, then containers, then Ready.
    async fn bring_up(&mut self, volumes: &mut Vec<Volume>) {
        let Some(pod) = self.pod().await else { return };
        self.restarts = status::restarts(&pod) + i32::from(status::ran_before(&pod));
        self.report(&pod, Stage::Creating, 0).await;
        *volumes = self.find_volumes(&pod).await;
        self.use_volumes(volumes).await;
        for volume in volumes.iter() {
            self.mount(volume).await;
        }
        for volume in volumes.iter().filter(|volume| volume.writable) {
            let writer = Writer {
                io_socket: volume.array.io_socket().to_owned(),
                volume: volume.handle.clone(),
                csi_node_id: self.kubelet.csi_node_id.clone(),
                tag: self.uid.clone(),
                every: self.kubelet.world.options.write_interval,
                frozen: self.kubelet.frozen.subscribe(),
            };
            self.writers.spawn(writer.run());
        }
        self.report(&pod, status::stage_of(&pod), self.restarts).await;
    }

    /// While a node is silent its pods are marked as not Ready; the kubelet reports what is true when it is back.
    async fn stay_ready(&self) {
        let mut view = self.view.clone();
        let marked = |pod: &Option<Arc<Pod>>| pod.as_deref().is_some_and(|pod| !status::is_ready(pod));
        while view.wait_for(marked).await.is_ok() {
            let pod = self.pod().await;
            let is_wrong = |pod: &Arc<Pod>| status::stage_of(pod) == Stage::Running && !status::is_ready(pod);
            if let Some(pod) = pod.filter(|pod| !status::must_end(pod) && is_wrong(pod)) {
                self.report(&pod, Stage::Running, self.restarts).await;
            }
            // What was reported comes back as a change.
            if view.changed().await.is_err() {
                break;
            }
        }
        // The simulation is over.
        std::future::pending().await
    }

    /// The pod as the API has it, when the network is up.
    async fn pod(&self) -> Option<Arc<Pod>> {
        let _passage = self.kubelet.network.pass().await;
        self.view.borrow().clone()
    }

    async fn find_volumes(&self, pod: &Pod) -> Vec<Volume> {
        loop {
            match volumes::of_pod(&self.kubelet, pod).await {
                Ok(Some(volumes)) => return volumes,
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, pod = self.name, "no volumes yet"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Reports the volumes in use, then waits until they are attached.
    async fn use_volumes(&self, volumes: &[Volume]) {
        let attachable = volumes.iter().filter(|volume| volume.attach_required);
        let names: BTreeSet<String> = attachable.map(|volume| volume.unique_name.clone()).collect();
        if names.is_empty() {
            return;
        }
        self.kubelet.use_volumes(&self.uid, Some(names.clone())).await;
        let mut attached = self.kubelet.attached.subscribe();
        // The sender lives in the kubelet, so this cannot fail.
        let _ = attached.wait_for(|attached| names.is_subset(attached)).await;
        // A node that is cut off does not hear of it.
        drop(self.kubelet.network.pass().await);
    }

    async fn mount(&self, volume: &Volume) {
        while let Err(status) = volume.mount(&self.kubelet, &self.uid).await {
            tracing::debug!(%status, pod = self.name, volume = volume.handle, "not mounted yet");
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Containers, then volumes, then the pod itself: the order a kubelet keeps.
    async fn tear_down(&mut self, volumes: &[Volume]) {
        self.writers.shutdown().await;
        let deleted = self.pod().await;
        if let Some(pod) = deleted.as_deref().filter(|pod| !status::is_final(pod)) {
            self.report(pod, Stage::Ended, 0).await;
        }
        for volume in volumes {
            while let Err(status) = volume.unmount(&self.kubelet, &self.uid).await {
                tracing::debug!(%status, pod = self.name, volume = volume.handle, "still mounted");
                tokio::time::sleep(RETRY).await;
            }
        }
        self.kubelet.use_volumes(&self.uid, None).await;
        if deleted.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some()) {
            self.delete().await;
        }
    }

    async fn report(&self, pod: &Pod, stage: Stage, restarts: i32) {
        let host = self.kubelet.address();
        let patch = status::patch(pod, stage, &host, self.address, restarts);
        let (params, patch) = (PatchParams::default(), Patch::Strategic(&patch));
        let reported = self.kubelet.ask(|| self.pods.patch_status(&self.name, &params, &patch));
        match reported.await {
            // It is gone, or another one has its name: the watch will tell.
            Err(kube::Error::Api(gone)) if matches!(gone.code, 404 | 409) => {}
            Err(error) => tracing::error!(%error, pod = self.name, "its status is refused"),
            Ok(_) => {}
        }
    }

    async fn delete(&self) {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(self.uid.clone()), ..Preconditions::default() }),
            ..DeleteParams::default()
        };
        let deleted = self.kubelet.ask(|| self.pods.delete(&self.name, &params));
        if let Err(error) = deleted.await {
            tracing::debug!(%error, pod = self.name, "it is gone already");
        }
    }
}

/// Waits until the kubelet sees that the pod must end: with the network up.
async fn seen_ended(kubelet: &Kubelet, view: &mut PodView) {
    loop {
        let ended = |pod: &Option<Arc<Pod>>| pod.as_deref().is_none_or(status::must_end);
        if view.wait_for(ended).await.is_err() {
            // The simulation is over.
            return std::future::pending().await;
        }
        let _passage = kubelet.network.pass().await;
        if ended(&view.borrow()) {
            return;
        }
    }
}
