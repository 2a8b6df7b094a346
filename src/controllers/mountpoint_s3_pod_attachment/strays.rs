//! Mountpoint Pods that do not say what they mount, as upstream's controller made them: once no attachment names one,
//! nothing else leads to it. Keyed by the name of the pod.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::api::mountpoint_s3_pod_attachment::MountpointS3PodAttachment;
use crate::controllers::{BY_MOUNTPOINT_POD, Context, S3Stores};
use crate::error::Result;
use crate::runtime::queue::{Next, Queue};
use crate::runtime::store::Change;

use super::act;
use super::decide::{Effect, Patience};
use super::metrics::Metrics;
use super::orphans::{self, Verdict};
use super::tell;

/// Pods worked on at once.
pub const CONCURRENCY: usize = 4;

/// What looks after them.
pub struct Strays {
    pub cx: Context,
    pub s3: S3Stores,
    pub patience: Patience,
    pub metrics: Metrics,
}

impl Strays {
    /// Looks at each that changes, and at each that an attachment names no more: nothing tells which of two watches is first,
    /// and one that has ended changes no more. Until the stores end.
    pub fn feed(s3: &S3Stores, queue: &Queue<String>) {
        queue.follow(s3.mountpoint_pods.subscribe(), None, |change| {
            let is_stray = change.new.as_ref().is_some_and(|pod| pod.mount().is_none());
            is_stray.then(|| change.key.name.clone())
        });
        queue.follow(s3.attachments.subscribe(), None, dismissed);
    }

    /// All of them, for the sweep.
    pub fn all(s3: &S3Stores) -> Vec<String> {
        let pods = s3.mountpoint_pods.list().into_iter().filter(|pod| pod.mount().is_none());
        pods.map(|pod| pod.name().to_owned()).collect()
    }

    /// Looks at one.
    pub async fn reconcile(&self, name: &str) -> Result<Next> {
        let pod = self.s3.mountpoint_pod(name).filter(|pod| pod.mount().is_none());
        let Some(pod) = pod else { return Ok(Next::Await) };
        if !self.s3.attachments.by_index(BY_MOUNTPOINT_POD, name).is_empty() {
            return Ok(Next::Await);
        }
        match orphans::judge(&pod, self.patience, self.cx.clock.now()) {
            Verdict::Leave => Ok(Next::Await),
            Verdict::LookAgain(after) => Ok(Next::After(after.max(Duration::from_millis(100)))),
            Verdict::Ended(effect) => self.act(&effect, false).await,
            Verdict::Forgotten(effect) => self.act(&effect, true).await,
        }
    }

    async fn act(&self, effect: &Effect, forgotten: bool) -> Result<Next> {
        act::act(&self.cx, effect).await?;
        self.metrics.ended(effect, forgotten);
        if let Effect::Retire(pod) | Effect::DeletePod { pod, .. } = effect {
            let pod = Arc::clone(pod);
            if forgotten {
                tell::forgotten(&self.cx, &pod);
            } else {
                tracing::info!(mountpoint_pod = pod.name(), "Mountpoint Pod deleted");
            }
        }
        Ok(Next::Await)
    }
}

/// Mountpoint Pods that were named and are not any more.
fn dismissed(change: &Change<MountpointS3PodAttachment>) -> Vec<String> {
    let names = |it: &Option<Arc<MountpointS3PodAttachment>>| {
        let named = it.iter().flat_map(|it| it.spec.mountpoint_s3_pod_attachments.keys().cloned());
        named.collect::<BTreeSet<_>>()
    };
    names(&change.old).difference(&names(&change.new)).cloned().collect()
}
