//! What people write: approvals, holds, pauses and modes.

use bulkhead::api::fencing::PolicyMode;
use bulkhead::api::names;
use bulkhead::api::node_fence::{Approval, Hold, NodeFence, NodeFenceSpec};
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::api::slim::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::others::Power;
use crate::world::World;

/// Something that a person does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Person {
    /// Approves the plan for a node as it is now.
    Approve(String),
    /// Holds the incident of a node.
    Hold(String),
    /// Lets it go on.
    LetGo(String),
    /// Pauses a node.
    PauseNode(String),
    /// Ends that.
    ResumeNode(String),
    /// Pauses every policy.
    PausePolicies,
    /// Ends that.
    ResumePolicies,
    /// Gives every policy a mode.
    SetMode(PolicyMode),
    /// Says that the machine of a node's incident is off, if it is, or has booted since.
    SayOff(String),
}

impl World {
    /// A person does it.
    pub(crate) fn person(&mut self, person: &Person) {
        match person {
            Person::Approve(node) => self.write_fence(node, |spec| {
                let plan_digest = spec.plan.digest.clone();
                spec.approval = Some(Approval { plan_digest, reason: None });
            }),
            Person::Hold(node) => self.write_fence(node, |spec| spec.hold = Some(Hold { reason: "wait".into() })),
            Person::LetGo(node) => self.write_fence(node, |spec| spec.hold = None),
            Person::PauseNode(node) => drop(self.api.update::<Node>(node, |it| pause(&mut it.metadata))),
            Person::ResumeNode(node) => drop(self.api.update::<Node>(node, |it| resume(&mut it.metadata))),
            Person::PausePolicies => self.write_policies(|policy| pause(&mut policy.metadata)),
            Person::ResumePolicies => self.write_policies(|policy| resume(&mut policy.metadata)),
            Person::SayOff(node) => self.say_off(node),
            Person::SetMode(mode) => self.write_policies(|policy| {
                policy.spec.mode = *mode;
                policy.metadata.generation = policy.metadata.generation.map(|generation| generation + 1);
            }),
        }
        self.note_holds();
    }

    fn say_off(&mut self, node: &str) {
        let Some(fence) = self.api.get::<NodeFence>(node) else { return };
        let meant = self.meant(node, &fence.spec.node);
        let is_so = self.machines.get(&meant).is_none_or(|machine| {
            machine.power == Power::Off
                || meant == node && fence.spec.node.boot_id.is_some() && !fence.is_failed_boot(&machine.boot_id())
        });
        let (said, word) = (fence.is_machine_said_to_be_off(), fence.machine_off_word());
        if is_so && !said && self.api.is_fenced(node) {
            self.counts.said_to_be_off += 1;
            self.api.update::<NodeFence>(node, |fence| {
                let annotations = fence.metadata.annotations.get_or_insert_default();
                annotations.insert(names::MACHINE_OFF_ANNOTATION.into(), word);
            });
        }
    }

    fn write_fence(&mut self, node: &str, change: impl FnOnce(&mut NodeFenceSpec)) {
        self.api.update::<NodeFence>(node, |fence| {
            let before = fence.spec.clone();
            change(&mut fence.spec);
            if fence.spec != before {
                fence.metadata.generation = fence.metadata.generation.map(|generation| generation + 1);
            }
        });
    }

    fn write_policies(&mut self, change: impl Fn(&mut ResiliencyPolicy)) {
        let names: Vec<_> = self.api.policies.values().map(|policy| policy.name_any()).collect();
        for name in names {
            self.api.update::<ResiliencyPolicy>(&name, &change);
        }
    }
}

fn pause(object: &mut ObjectMeta) {
    object.annotations.get_or_insert_default().insert(names::PAUSED_ANNOTATION.into(), "wait".into());
}

fn resume(object: &mut ObjectMeta) {
    object.annotations = object.annotations.take().filter(|all| !all.contains_key(names::PAUSED_ANNOTATION));
}
