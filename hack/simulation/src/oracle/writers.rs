//! I1: never two writers. Writers write all the time; so what the array accepts is looked at whenever something that
//! decides it has changed. Where a detach revokes nothing, or nothing is attached, whoever else removes a pod by force makes a second
//! writer: that is not judged, until its machine is shut out. Who lets it in again is us. Nor is what is published to a machine by the
//! name that another one has by now, nor what was left published to that name when somebody else removed the pod.

use bulkhead::api::fencing::Proof;

use crate::others::{Power, node_of};
use crate::world::World;

impl World {
    /// Looks at every writer.
    pub(crate) fn judge(&mut self) {
        if !std::mem::take(&mut self.oracle.dirty) {
            return;
        }
        self.notice_held();
        self.forgive_no_more();
        let mut accepted = Vec::new();
        for (node, machine) in self.machines.iter().filter(|(_, machine)| machine.power == Power::Running) {
            for incarnation in &machine.running {
                for volume in incarnation.volumes.iter().filter(|volume| self.accepts(node, volume)) {
                    accepted.push((volume.clone(), incarnation.number, node.clone(), incarnation.uid.clone()));
                }
            }
        }
        self.notice_writing(accepted.iter().map(|(volume, _, node, _)| (volume.clone(), node.clone())).collect());
        // The newest first: whoever writes after it is late.
        accepted.sort_by_key(|(_, number, ..)| std::cmp::Reverse(*number));
        for (volume, number, node, uid) in accepted {
            if self.shape.volumes.get(&volume).is_some_and(|it| it.shared) {
                self.judge_shared(&volume, number, &node);
                continue;
            }
            let is_taken_back = self.shape.network.is_none() && self.shape.attaches(&volume);
            let is_by_others = self.oracle.by_others.contains(&uid);
            let is_published = self.is_published_to_the_other(&node, &volume);
            let newest = self.oracle.newest.entry(volume.clone()).or_insert_with(|| (number, node.clone()));
            let is_by_name = is_published || is_by_others && node_of(&newest.1) == node_of(&node);
            let is_ours = is_taken_back || !is_by_others;
            if number >= newest.0 {
                *newest = (number, node);
            } else if newest.1 != node && !(is_taken_back && is_by_name) && is_ours {
                let what = format!("pod {uid} on {node} writes to {volume} though {} has taken it over", newest.1);
                self.oracle.break_("I1", self.now, what);
            }
        }
    }

    /// A pod of a plan that somebody else removed, and that writes nothing by now, as its machine is shut out of all its storages.
    fn forgive_no_more(&mut self) {
        if self.shape.network.is_none() || self.oracle.by_others.is_empty() {
            return;
        }
        // What is of another cluster of its storage it is not shut out of.
        let is_shut_out = |node: &str, volume: &String| {
            let array = self.shape.driver_of(volume).and_then(|driver| self.arrays.get(driver));
            array.is_some_and(|array| self.shape.is_of_class(volume) && self.is_shut_out(node, array))
        };
        let mut ended = Vec::new();
        for (node, machine) in &self.machines {
            let planned = self.api.fences.get(node_of(node)).map(|fence| &fence.spec.plan.pods);
            for it in machine.running.iter().filter(|it| it.volumes.iter().all(|volume| is_shut_out(node, volume))) {
                let is_planned = planned.is_some_and(|rows| rows.iter().any(|row| row.uid == it.uid));
                ended.extend(is_planned.then(|| it.uid.clone()));
            }
        }
        for uid in ended {
            self.oracle.by_others.remove(&uid);
        }
    }

    /// A volume of many writers: one that is proved to be cut off must not write.
    fn judge_shared(&mut self, volume: &str, number: u64, node: &str) {
        let Some(machine) = self.machines.get(node) else { return };
        let key = (volume.to_owned(), machine.node_id.clone());
        let Some(((_, proved), Proof::Verified)) = self.oracle.proved.get(&key) else { return };
        let published = self.oracle.published.get(&key);
        // What the attacher published again is another matter: it is fenced again.
        if published.is_none_or(|published| published < proved) {
            let what = format!("incarnation {number} on {node} writes to {volume}, which is proved to be cut off");
            self.oracle.break_("I1", self.now, what);
        }
    }
}
