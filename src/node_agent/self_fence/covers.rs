//! Covers over stopped pods' volumes. Each pod has a child of its own: one whose storage does not answer is in nobody's way.

use std::collections::BTreeMap;
use std::time::Instant;

use tokio_util::task::AbortOnDropHandle;

use super::cut::{Cover, Done, Order, Stopped};
use super::{NODE, SelfFence, decide, told_by_child};

/// Pods that are covered at once: each takes one of the places that self-fencing shares with all else.
const AT_ONCE: usize = 12;

/// A child at work.
type Working = AbortOnDropHandle<Result<Done, String>>;

/// Covers that are being made.
#[derive(Default)]
pub struct Covers {
    /// By the pod's uid.
    under_way: BTreeMap<String, Working>,
    /// What could not be covered last time, in words, by the pod's uid.
    left: BTreeMap<String, Vec<String>>,
}

impl Covers {
    /// What could not be covered, in words.
    pub fn left(&self) -> impl Iterator<Item = String> {
        self.left.values().flatten().cloned()
    }
}

impl SelfFence {
    /// Covers of which nothing is written down, as when the record was lost: their pods are given back as all others are.
    pub(super) async fn find_covers(&mut self, now: Instant) {
        if !self.finding.is_some_and(|looks| looks.is_due(now)) {
            return;
        }
        let root = self.cx.settings.kubelet_root.clone();
        let covered = match self.child(NODE, Order::Covered(root)).await {
            Ok(Done::Covered(pods)) => pods,
            other => {
                tracing::warn!(?other, "whether an earlier agent has left covers cannot be told");
                if let Some(looks) = &mut self.finding {
                    looks.ended(false, now);
                }
                return;
            }
        };
        self.finding = None;
        let stopped = self.record.stopped_uids();
        let found = decide::unrecorded(&covered, &stopped);
        if found.is_empty() {
            return;
        }
        let names: Vec<_> = found.iter().map(|pod| format!("pod {}", pod.uid)).collect();
        tracing::warn!(pods = names.join(" "), "covers were found of which nothing is written down");
        self.stops(found, names);
        self.save(true).await;
    }

    /// Begins to cover what is open of stopped pods. It is written down first: nothing else tells a file's mount that we made
    /// read-only from one that was so before.
    pub(super) async fn cover(&mut self, open: BTreeMap<String, Vec<String>>) {
        self.covers.left.retain(|pod, _| open.contains_key(pod));
        let wanted = self.record.stopped_uids();
        let is_due = |pod: &String| wanted.contains(pod) && !self.is_being_covered(pod);
        let mut due: Vec<_> = open.into_iter().filter(|(pod, _)| is_due(pod)).collect();
        // Those that failed come after all others.
        due.sort_by_key(|(pod, _)| self.covers.left.contains_key(pod));
        due.truncate(AT_ONCE.saturating_sub(self.covers.under_way.len()));
        if due.is_empty() {
            return;
        }
        if let Some(stopped) = &mut self.record.stopped {
            let new = due.iter().flat_map(|(_, paths)| paths).filter(|path| !stopped.covered.contains(*path));
            let new: Vec<_> = new.cloned().collect();
            stopped.covered.extend(new);
        }
        self.save(true).await;
        for (pod, paths) in due {
            let (children, about) = (self.cx.children.clone(), about(&pod));
            let order =
                Order::Cover(Cover { kubelet_root: self.cx.settings.kubelet_root.clone(), pod: pod.clone(), paths });
            let work = async move { told_by_child(&children, &about, order).await };
            self.covers.under_way.insert(pod, AbortOnDropHandle::new(tokio::spawn(work)));
        }
    }

    /// Takes note of the covers that are made.
    pub(super) async fn take_covers(&mut self) {
        let all = std::mem::take(&mut self.covers.under_way).into_iter();
        let (ended, under_way): (BTreeMap<_, _>, BTreeMap<_, _>) = all.partition(|(_, work)| work.is_finished());
        self.covers.under_way = under_way;
        for (pod, work) in ended {
            let done = Stopped::of(work.await.unwrap_or_else(|panic| Err(panic.to_string())));
            let is_new = self.covers.left.get(&pod).is_none_or(|before| *before != done.left);
            if is_new || !done.covered.is_empty() {
                tracing::warn!(pod, covered = done.covered.len(), left = ?done.left, "a stopped pod's volumes are covered");
            }
            if !done.left.is_empty() {
                self.covers.left.insert(pod, done.left);
            }
            self.sync(done.covered);
        }
    }

    /// Whether a child covers a pod's volumes, or hangs on the way there and may do so whenever its storage answers.
    pub(super) fn is_being_covered(&self, pod: &str) -> bool {
        self.covers.under_way.contains_key(pod) || self.cx.children.hung_of(&about(pod)) > 0
    }
}

/// What a child is about that covers a pod's volumes: no name of a volume.
fn about(pod: &str) -> String {
    format!("covers of pod {pod}")
}
