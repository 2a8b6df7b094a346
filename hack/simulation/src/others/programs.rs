//! Programs that fail wherever they run, and what a kubelet says of their pods.

use bulkhead::api::slim::{ContainerStatus, Pod};
use kube::ResourceExt;
use serde_json::json;

use crate::time::Millis;
use crate::world::World;

use super::kubelet::set_condition;

impl World {
    /// A kubelet says of what it runs whether it is ready, or fails again and again.
    pub(super) fn tell_programs(&mut self, node: &str) {
        let now = self.now;
        let running = self.machines[node].running.iter().filter(|it| it.stops_at.is_none());
        let changed = running.filter_map(|it| {
            let pod =
                self.api.pods.get(&it.pod).filter(|pod| pod.uid().as_ref() == Some(&it.uid) && !pod.is_finished())?;
            let fails = pod.labels().get("app").is_some_and(|app| self.failing.contains(app));
            let told = !pod.is("Ready") && pod.crash_looping().is_some();
            (if fails { !told } else { !pod.is("Ready") || told }).then(|| (it.pod.clone(), fails))
        });
        for (pod, fails) in changed.collect::<Vec<_>>() {
            self.api.update::<Pod>(&pod, |pod| tell(pod, fails, now));
        }
    }
}

fn tell(pod: &mut Pod, fails: bool, now: Millis) {
    let state = if fails { json!({ "waiting": { "reason": "CrashLoopBackOff" } }) } else { json!({}) };
    let status: ContainerStatus =
        serde_json::from_value(json!({ "name": "main", "state": state })).expect("a container's status");
    pod.status.container_statuses = vec![status];
    set_condition(&mut pod.status.conditions, "Ready", if fails { "False" } else { "True" }, now);
}
