//! Those who make pods, those who place them, and those who remove what is left of them.

use bulkhead::api::names;
use bulkhead::api::slim::{Node, Pod};
use kube::ResourceExt;

use crate::chance::{Chance, Choice};
use crate::shape::{JOB_FINALIZER, Owner, Placement, Workload};
use crate::time::{Millis, SECOND};
use crate::world::World;

use super::Actor;
use super::kubelet::set_condition;

/// How often the pod garbage collector looks.
const GARBAGE: Millis = 20 * SECOND;

impl World {
    /// StatefulSet, ReplicaSet and Job controllers.
    pub(crate) fn make_pods(&mut self, chance: &mut dyn Chance) {
        if self.api.down {
            return self.wake(Actor::Workloads, self.now + SECOND);
        }
        let shape = self.shape.clone();
        for workload in &shape.workloads {
            let pods: Vec<_> = self.pods_of(workload);
            for pod in &pods {
                self.let_go(workload, pod);
            }
            let pods = self.pods_of(workload);
            let counts = |pod: &Pod| match workload.owner {
                Owner::ReplicaSet => !pod.is_terminating() && !pod.is_finished(),
                _ => true,
            };
            if workload.owner.is_daemon() || pods.iter().any(|pod| counts(pod)) {
                continue;
            }
            self.others.pods_made += 1;
            let mut pod = workload.pod(self.others.pods_made);
            if let Placement::Named(index) = workload.placement {
                pod.spec.node_name = self.shape.nodes.get(index).cloned();
            }
            let _ = self.api.create(pod, self.now);
        }
        let _ = chance;
    }

    fn pods_of(&self, workload: &Workload) -> Vec<std::sync::Arc<Pod>> {
        let of = |pod: &&std::sync::Arc<Pod>| pod.labels().get("app") == Some(&workload.name);
        self.api.pods.values().filter(of).cloned().collect()
    }

    /// Job tracking lets go of what has ended; a StatefulSet removes what has failed.
    fn let_go(&mut self, workload: &Workload, pod: &Pod) {
        let now = self.now;
        let ended = pod.is_finished();
        // One that was deleted before it was bound will never end: nobody runs it.
        let never_ran = pod.is_terminating() && pod.spec.node_name.is_none();
        if workload.owner == Owner::Job && (ended || never_ran) && !pod.finalizers().is_empty() {
            self.api.update::<Pod>(&pod.name_any(), |pod| {
                pod.metadata.finalizers.iter_mut().for_each(|them| them.retain(|it| it != JOB_FINALIZER));
            });
        }
        let removes = matches!(workload.owner, Owner::StatefulSet | Owner::Job);
        if removes && ended && !pod.is_terminating() {
            self.api.delete_pod(&pod.name_any(), None, now);
        }
    }

    /// The scheduler.
    pub(crate) fn bind_pods(&mut self, chance: &mut dyn Chance) {
        if self.api.down {
            return self.wake(Actor::Scheduler, self.now + SECOND);
        }
        let unbound: Vec<_> = self.api.pods.values().filter(|pod| pod.spec.node_name.is_none()).cloned().collect();
        for pod in unbound.into_iter().filter(|pod| !pod.is_terminating()) {
            let placement = self.shape.workload_of(&pod).map_or(Placement::Scheduled, |workload| workload.placement);
            // Its watch of nodes lags behind: it has not heard of any taint.
            let is_late = chance.one_in(Choice::Scheduler, 8);
            let fits = |node: &Node| {
                let kept_off =
                    node.taints().iter().any(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"));
                placement == Placement::ToleratesAll || !kept_off || is_late
            };
            let nodes: Vec<_> = self.api.nodes.values().filter(|node| fits(node)).map(|node| node.name_any()).collect();
            if nodes.is_empty() {
                continue;
            }
            let index = chance.pick(Choice::Others, nodes.len() as u64);
            let node = nodes.get(usize::try_from(index).unwrap_or(0)).cloned();
            let now = self.now;
            self.api.update::<Pod>(&pod.name_any(), |pod| {
                pod.spec.node_name = node;
                set_condition(&mut pod.status.conditions, "PodScheduled", "True", now);
            });
        }
    }

    /// podGC: what is Terminating on a node that is out of service, and what is bound to a node that is gone.
    pub(crate) fn collect_garbage(&mut self) {
        let now = self.now;
        self.wake(Actor::Garbage, now + GARBAGE);
        if self.api.down {
            return;
        }
        let bound: Vec<_> = self.api.pods.values().filter(|pod| pod.spec.node_name.is_some()).cloned().collect();
        for pod in bound {
            let node = pod.spec.node_name.as_deref().and_then(|name| self.api.get::<Node>(name));
            let goes = match &node {
                None => true,
                Some(node) => {
                    let key = node.taints().iter().any(|taint| taint.key == names::OUT_OF_SERVICE_TAINT);
                    key && node.ready() != "True" && pod.is_terminating()
                }
            };
            if goes {
                self.oracle.collected(&pod, node.as_deref());
                if let Some(node) = &node {
                    self.judge_collected(&pod, node);
                }
                if !pod.is_finished() {
                    self.api.update::<Pod>(&pod.name_any(), |pod| pod.status.phase = Some("Failed".into()));
                }
                self.api.delete_pod(&pod.name_any(), Some(0), now);
            }
        }
    }
}
