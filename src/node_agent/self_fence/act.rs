//! Stops pods, keeps them stopped, and gives back what nobody has fenced.

use std::time::Duration;

use kube::Api;
use kube::api::ListParams;

use crate::api::node_fence::NodeFence;
use crate::api::slim::Pod;
use crate::runtime::clock::monotonic;

use super::super::child::{Answer, Task};
use super::asking::Asking;
use super::cut::{Done, GiveBack, Order, Stop, Stopped};
use super::decide::{self, Fate, Protected};
use super::record::{StoppedPods, Told};
use super::{CHILD, NODE, SelfFence, TOLD_MAX};

/// How long what decides about a stopped pod may take to be read.
const READ: Duration = Duration::from_secs(5);
/// Stopped pods are stopped again this often: the kubelet starts their containers anew.
const AGAIN: Duration = Duration::from_millis(500);
/// And this often those that only the kubelet still has: their volumes were cut off before they were let go.
const GONE_AGAIN: Duration = Duration::from_secs(2);
/// Answers of the API in a row before anything is given back.
pub(super) const ANSWERS: u32 = 3;

impl SelfFence {
    /// Writes down whom it stops, before anything is done.
    pub(super) async fn begin(&mut self, new: Vec<Protected>, alone: Duration) {
        let names: Vec<_> = new.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
        tracing::error!(?alone, pods = names.join(" "), "the API and all neighbours are lost: stopping protected pods");
        self.cx.metrics.self_fenced();
        self.stops(new, names);
        self.save(true).await;
    }

    /// These are stopped from now on, until they are given back.
    pub(super) fn stops(&mut self, pods: Vec<Protected>, names: Vec<String>) {
        let now = self.cx.clock.now().wall;
        let fresh = || Told { at: now, pods: Vec::new(), left: Vec::new(), is_over: false };
        let mut told = self.record.told.take().filter(|told| !told.is_over).unwrap_or_else(fresh);
        told.pods.extend(names);
        self.record.told = Some(told);
        self.record.stopped.get_or_insert_default().pods.extend(pods);
        (self.stopped_at, self.answers, self.asking) = (None, 0, Asking::default());
    }

    /// Stops all of them, again and again: the kubelet starts containers anew, and what it starts may not write.
    pub(super) async fn keep_stopped(&mut self) {
        let now = monotonic();
        let Some(stopped) = &self.record.stopped else { return };
        let pace = if stopped.pods.is_empty() { GONE_AGAIN } else { AGAIN };
        if self.stopped_at.is_some_and(|at| now < at + pace) {
            return;
        }
        self.stopped_at = Some(now);
        let pods = self.record.stopped_uids();
        self.cx.metrics.self_fenced_pods(pods.len());
        let all = pods.union(&stopped.gone).cloned().collect();
        let stop = Stop { kubelet_root: self.cx.settings.kubelet_root.clone(), pods: all };
        let done = Stopped::of(self.child(NODE, Order::Stop(stop)).await);
        if done.killed > 0 {
            tracing::warn!(killed = done.killed, left = ?done.left, "protected pods are stopped");
        }
        if let Some(stopped) = &mut self.record.stopped {
            stopped.gone.retain(|pod| !done.removed.contains(pod));
            self.record.stopped.take_if(|stopped| stopped.is_nothing());
        }
        self.cover(done.open).await;
        if let Some(told) = &mut self.record.told {
            let left = done.left.into_iter().chain(self.covers.left());
            told.left = left.take(TOLD_MAX).collect();
        }
    }

    /// What is in memory is written now, or not while the storage is away; nobody waits for that.
    pub(super) fn sync(&self, paths: Vec<String>) {
        for path in paths {
            let children = self.cx.children.clone();
            tokio::spawn(async move {
                let task = Task::SelfFence(Order::Sync(vec![path.clone()]));
                match children.run(&path, task, CHILD).await {
                    Ok(Answer::SelfFenced(Done::All)) => {}
                    other => {
                        tracing::warn!(path, ?other, "what was in memory of a stopped pod's volume may be unwritten")
                    }
                }
            });
        }
    }

    /// Once the API has answered for a while: it is asked itself about each pod.
    pub(super) async fn give_back(&mut self) {
        let is_wanted = self.answers >= ANSWERS && self.record.has_stopped_pods();
        if !is_wanted || !self.asking.is_due(monotonic()) {
            return;
        }
        self.asking.has_asked(monotonic());
        let (node, reads) = (&self.cx.settings.node_name, &self.cx.clients.reads);
        let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let (fences, pods): (Api<NodeFence>, Api<Pod>) = (Api::all(reads.clone()), Api::all(reads.clone()));
        let asked = async { tokio::try_join!(fences.get_opt(node), pods.list(&bound)) };
        let Ok(Ok((fence, pods))) = tokio::time::timeout(READ, asked).await else {
            self.answers = 0;
            return;
        };
        let Some(mut stopped) = self.record.stopped.clone() else { return };
        let mut kept = Vec::new();
        for pod in std::mem::take(&mut stopped.pods) {
            let fate = decide::fate(&pod.uid, &pods.items, fence.as_ref());
            // Of one that is gone or has ended too: a cover would be in the way of who cleans up.
            if fate == Fate::Waits || !self.uncovered(&pod, &mut stopped).await {
                kept.push(pod);
            } else if fate == Fate::Gone {
                // The kubelet may not know yet, and start it anew.
                stopped.gone.insert(pod.uid);
            }
        }
        stopped.pods = kept;
        let is_over = stopped.pods.is_empty();
        self.cx.metrics.self_fenced_pods(stopped.pods.len());
        self.record.stopped = Some(stopped).filter(|stopped| !stopped.is_nothing());
        if let Some(told) = &mut self.record.told {
            told.is_over = is_over;
        }
        if is_over {
            self.asking = Asking::default();
            tracing::info!("no pod of this node is stopped any more");
        }
    }

    /// Whether the pod's volumes are open again.
    async fn uncovered(&self, pod: &Protected, stopped: &mut StoppedPods) -> bool {
        // What waits in the kernel would cover it again later.
        if self.is_being_covered(&pod.uid) {
            return false;
        }
        let (paths, rest) = stopped.covered.iter().cloned().partition(|path| path.contains(&pod.uid));
        let kubelet_root = self.cx.settings.kubelet_root.clone();
        let give_back = GiveBack { kubelet_root, pod: pod.uid.clone(), paths };
        match self.child(NODE, Order::GiveBack(give_back)).await {
            Ok(Done::GivenBack(left)) => {
                if !left.is_empty() {
                    tracing::warn!(pod = pod.name, ?left, "containers that began under a cover keep it: end them");
                }
                stopped.covered = rest;
                true
            }
            other => {
                tracing::warn!(pod = pod.name, ?other, "a stopped pod does not get its access back yet");
                false
            }
        }
    }
}
