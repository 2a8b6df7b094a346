//! The node agent, as far as the controller can tell: it looks at what runs on its machine and says so, some time later.
//! It is honest and may be late, of another boot, of another Node, or of fewer volumes than are cut off by now.

use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::node_volume_report::{Cleanup, CleanupState, NodeVolumeReport, NodeVolumeReportStatus};
use bulkhead::api::slim::Node;
use bulkhead::controllers::node_fence::report;
use kube::ResourceExt;

use crate::chance::{Chance, Choice};
use crate::time::{MINUTE, Millis, SECOND};
use crate::world::World;

use super::{Actor, Incarnation, Power};

/// The agent of one machine.
#[derive(Clone, Debug, Default)]
pub struct Agent {
    /// The clean-up that its passes count for: uid of the NodeFence, episode, digest and boot.
    of: Option<(String, i64, String, String)>,
    /// Passes in a row that found nothing.
    passes: i32,
    /// What it is about to say, of which report, and when that arrives.
    says: Option<(Millis, String, NodeVolumeReportStatus)>,
}

impl World {
    /// The agent of a node does what is due. Who is not connected is woken when that changes.
    pub(crate) fn agent(&mut self, name: &str, chance: &mut dyn Chance) {
        let well = |machine: &super::Machine| machine.power == Power::Running && machine.is_connected;
        if self.api.down || !self.machines.get(name).is_some_and(well) {
            return;
        }
        self.keep_report(name);
        let mut agent = self.others.agents.remove(name).unwrap_or_default();
        if let Some((due, report, status)) = agent.says.take() {
            if due > self.now {
                self.wake(Actor::Agent(name.to_owned()), due);
                agent.says = Some((due, report, status));
            } else {
                self.take_report(name, &report, status);
            }
        }
        if agent.says.is_none()
            && let Some(again) = self.look_for_remnants(name, &mut agent, chance)
        {
            self.wake(Actor::Agent(name.to_owned()), again);
        }
        self.others.agents.insert(name.to_owned(), agent);
    }

    /// What the controller and the garbage collector do for a report: one per Node object, and it goes with that.
    fn keep_report(&mut self, name: &str) {
        let node = self.api.get::<Node>(name);
        let report = self.api.get::<NodeVolumeReport>(name);
        let owner = |report: &NodeVolumeReport| report.owner_references().first().map(|owner| owner.uid.clone());
        if report.as_deref().is_some_and(|report| owner(report) != node.as_ref().and_then(|node| node.uid())) {
            self.api.remove::<NodeVolumeReport>(name);
        }
        let report = self.api.get::<NodeVolumeReport>(name);
        if let Some(fresh) = report::missing(node.as_deref(), report.as_deref()) {
            let _ = self.api.create(fresh, self.now);
        }
    }

    fn take_report(&mut self, name: &str, uid: &str, status: NodeVolumeReportStatus) {
        self.tell(|| format!("the agent of {name} says {:?}", status.cleanup));
        if self.api.get::<NodeVolumeReport>(name).is_some_and(|report| report.uid().as_deref() == Some(uid)) {
            self.api.update::<NodeVolumeReport>(name, |report| report.status = Some(status));
        }
    }

    /// One pass, as the node is now. Returns when to look again.
    fn look_for_remnants(&mut self, name: &str, agent: &mut Agent, chance: &mut dyn Chance) -> Option<Millis> {
        let fence = self.api.get::<NodeFence>(name).filter(|fence| fence.labels().contains_key(names::ACTIVE_LABEL))?;
        fence.volumes_to_clean().next()?;
        let (node, report) = (self.api.get::<Node>(name)?, self.api.get::<NodeVolumeReport>(name)?);
        let boot_id = self.machines.get(name)?.boot_id();
        let of = (fence.uid().unwrap_or_default(), fence.spec.episode, fence.cleanup_digest(), boot_id);
        if agent.of.as_ref() != Some(&of) {
            (agent.of, agent.passes) = (Some(of.clone()), 0);
        }
        let cut_off = |volume: &str| fence.volumes_to_clean().any(|plan| plan.name == volume);
        let is_left = self.holders(name, cut_off).next().is_some();
        agent.passes = if is_left { 0 } else { (agent.passes + 1).min(2) };
        let state = match (is_left, agent.passes) {
            (true, _) => CleanupState::Blocked,
            (false, 2) => CleanupState::Clean,
            (false, _) => CleanupState::Cleaning,
        };
        let (fence_uid, episode, digest, boot_id) = of;
        let status = NodeVolumeReportStatus {
            node_uid: node.uid(),
            boot_id: Some(boot_id.clone()),
            cleanup: Some(Cleanup {
                fence_uid,
                episode,
                digest,
                state,
                clean_passes: agent.passes,
                boot_id,
                finished_at: None,
                remaining: Vec::new(),
            }),
            ..NodeVolumeReportStatus::default()
        };
        if report.status.as_ref() == Some(&status) {
            return Some(self.now + if state == CleanupState::Clean { MINUTE } else { 2 * SECOND });
        }
        let arrives = self.now + chance.between(Choice::Others, 5, 4_000);
        agent.says = Some((arrives, report.uid().unwrap_or_default(), status));
        Some(arrives.max(self.now + SECOND))
    }

    /// What runs on a machine and holds one of these volumes.
    pub(crate) fn holders<'a>(
        &'a self,
        name: &str,
        held: impl Fn(&str) -> bool + 'a,
    ) -> impl Iterator<Item = &'a Incarnation> {
        let running = self.machines.get(name).map(|machine| machine.running.as_slice()).unwrap_or_default();
        running.iter().filter(move |it| it.volumes.iter().any(|volume| held(volume)))
    }
}
