//! Which mounts a change is worth a look at. Most changes of pods are worth none.

use std::sync::{Arc, Mutex};

use kube::ResourceExt;
use tokio::sync::mpsc;

use crate::api::mountpoint_pod::MountpointPod;
use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::api::s3::{DRIVER, Mount};
use crate::api::slim::{PersistentVolume, PersistentVolumeClaim, Pod};
use crate::controllers::{BY_CLAIM, BY_MOUNTPOINT_POD, BY_WORKLOAD, Context, S3Stores, indexes};
use crate::runtime::lock::lock;
use crate::runtime::queue::Queue;
use crate::runtime::store::Change;

use super::departed::Departed;
use super::{tell, volumes};

/// What feeds the queue.
#[derive(Clone)]
pub struct Feed {
    pub cx: Context,
    pub s3: S3Stores,
    pub queue: Queue<Mount>,
    pub departed: Arc<Mutex<Departed>>,
}

impl Feed {
    /// Starts to listen, once everything is known: then what is there is looked at once.
    pub fn start(self) {
        tokio::spawn(async move {
            let stores = &self.cx.stores;
            self.s3.wait_synced(stores).await;
            // Pods there are by the ten thousand, and hardly one of them is a workload of ours: those that are there are gone
            // through one after the other, with their claims and volumes.
            self.on(stores.pods.changes_from_now(), Self::of_workload);
            self.on(stores.claims.changes_from_now(), Self::of_claim);
            self.on(stores.volumes.changes_from_now(), Self::of_volume);
            self.on(self.s3.attachments.subscribe(), Self::of_attachment);
            self.on(self.s3.mountpoint_pods.subscribe(), Self::of_mountpoint_pod);
            stores.pods.each(|pod| self.of_pod(&pod).into_iter().for_each(|mount| self.queue.add(mount))).await;
        });
    }

    fn on<K: Send + Sync + 'static>(
        &self,
        changes: mpsc::UnboundedReceiver<Change<K>>,
        mounts: fn(&Self, &Change<K>) -> Vec<Mount>,
    ) {
        let feed = self.clone();
        self.queue.follow(changes, None, move |change| mounts(&feed, change));
    }

    fn of_workload(&self, change: &Change<Pod>) -> Vec<Mount> {
        let uid = |pod: &Option<Arc<Pod>>| pod.as_ref().and_then(|pod| pod.uid());
        let (old, new) = (uid(&change.old), uid(&change.new));
        if let Some(gone) = old.filter(|old| Some(old) != new.as_ref()) {
            let mut departed = lock(&self.departed);
            departed.note(&gone, self.cx.clock.now().mono);
        }
        let view = |pod: &Pod| (pod.uid(), pod.spec.node_name.clone(), pod.status.phase.clone(), pod.is_terminating());
        if !change.differs(view) {
            return Vec::new();
        }
        change.both().flat_map(|pod| self.of_pod(pod)).collect()
    }

    /// What it needs, and where it is attached.
    fn of_pod(&self, pod: &Pod) -> Vec<Mount> {
        if !self.s3.is_workload(pod) {
            return Vec::new();
        }
        tell::complain(&self.cx, pod);
        let mut mounts = volumes::mounts(pod, &self.cx.stores);
        let attached = pod.metadata.uid.iter().flat_map(|uid| self.s3.attachments.by_index(BY_WORKLOAD, uid));
        mounts.extend(attached.map(|attachment| attachment.spec.mount()));
        mounts
    }

    fn of_claim(&self, change: &Change<PersistentVolumeClaim>) -> Vec<Mount> {
        let view = |claim: &PersistentVolumeClaim| (claim.uid(), claim.spec.volume_name.clone());
        if !change.differs(view) {
            return Vec::new();
        }
        self.of_users(&change.key.to_string())
    }

    fn of_volume(&self, change: &Change<PersistentVolume>) -> Vec<Mount> {
        let is_ours =
            |volume: &&Arc<PersistentVolume>| volume.spec.csi.as_ref().is_some_and(|csi| csi.driver == DRIVER);
        let view = |volume: &Arc<PersistentVolume>| {
            (volume.uid(), volume.spec.claim_ref.clone(), volume.spec.mount_options.clone(), volume.spec.csi.clone())
        };
        let (old, new) = (change.old.as_ref().filter(is_ours), change.new.as_ref().filter(is_ours));
        if old.map(view) == new.map(view) {
            return Vec::new();
        }
        let claims = old.into_iter().chain(new).filter_map(|volume| indexes::claim_of_volume(volume));
        claims.flat_map(|claim| self.of_users(&claim)).collect()
    }

    fn of_users(&self, claim: &str) -> Vec<Mount> {
        self.cx.stores.pods.by_index(BY_CLAIM, claim).iter().flat_map(|pod| self.of_pod(pod)).collect()
    }

    /// A status that we wrote is worth no look.
    fn of_attachment(&self, change: &Change<MountpointS3PodAttachment>) -> Vec<Mount> {
        let view = |it: &MountpointS3PodAttachment| {
            let metadata = &it.metadata;
            (it.uid(), metadata.generation, metadata.deletion_timestamp.clone(), metadata.finalizers.clone())
        };
        if !change.differs(view) {
            return Vec::new();
        }
        change.both().map(|attachment| attachment.spec.mount()).collect()
    }

    fn of_mountpoint_pod(&self, change: &Change<MountpointPod>) -> Vec<Mount> {
        if let Some(pod) = &change.new {
            tell::unscheduled(&self.cx, &self.s3, pod);
        }
        let mut mounts: Vec<_> =
            change.new.as_ref().or(change.old.as_ref()).and_then(|pod| pod.mount()).into_iter().collect();
        let naming = self.s3.attachments.by_index(BY_MOUNTPOINT_POD, &change.key.name);
        mounts.extend(naming.iter().map(|attachment| attachment.spec.mount()));
        mounts
    }
}

/// Every mount that is known of, for the sweep.
pub fn all(s3: &S3Stores) -> Vec<Mount> {
    let attached = s3.attachments.list().into_iter().map(|attachment| attachment.spec.mount());
    attached.chain(s3.mountpoint_pods.list().into_iter().filter_map(|pod| pod.mount())).collect()
}
