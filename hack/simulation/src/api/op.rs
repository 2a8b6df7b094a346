//! What the programs under test write, each with the preconditions that the product's writer sends.

use std::sync::Arc;

use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::names;
use bulkhead::api::node_fence::NodeFence;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead::api::slim::{Node, Pod, StatusCondition, VolumeAttachment};
use k8s_openapi::api::core::v1::Taint;
use kube::api::ObjectMeta;

use crate::time::{Millis, stamp};

use super::{Api, Refusal, Stored, rules, with_label};

/// One write.
#[derive(Clone, Debug)]
pub enum Op {
    /// Creates a NodeFence.
    CreateFence(Box<NodeFence>),
    /// Replaces the spec of a NodeFence.
    ReplaceFence(Box<NodeFence>),
    /// Replaces the status of a NodeFence.
    RecordFence(Box<NodeFence>),
    /// Sets or removes the active label on exactly this version.
    LabelFence(Arc<NodeFence>, bool),
    /// Takes our finalizer off a NodeFence.
    UnguardFence(Arc<NodeFence>),
    /// Deletes a NodeFence of this uid.
    ForgetFence(Arc<NodeFence>),
    /// Adds a taint to the node as it was seen.
    AddTaint(Arc<Node>, Taint),
    /// Removes a taint from the node as it was seen.
    RemoveTaint(Arc<Node>, Taint),
    /// Creates a FenceRequest.
    CreateRequest(Box<FenceRequest>),
    /// Replaces the spec of a FenceRequest.
    ReplaceRequest(Box<FenceRequest>),
    /// Takes our finalizer off a FenceRequest.
    OpenRequest(Arc<FenceRequest>),
    /// Deletes a FenceRequest of this uid.
    DeleteRequest(Arc<FenceRequest>),
    /// Replaces the status of a FenceRequest.
    AnswerRequest(Box<FenceRequest>),
    /// Marks a pod of this version as Failed.
    FailPod(Arc<Pod>),
    /// Deletes a pod of this uid and version.
    DeletePod(Arc<Pod>, Option<u32>),
    /// Deletes a VolumeAttachment of this uid.
    DeleteAttachment(Arc<VolumeAttachment>),
    /// Puts our finalizer on a policy.
    GuardPolicy(Arc<ResiliencyPolicy>),
    /// Takes our finalizer off a policy.
    UnguardPolicy(Arc<ResiliencyPolicy>),
    /// Replaces the status of a policy.
    RecordPolicy(Box<ResiliencyPolicy>),
    /// Writes a leader's Lease that was seen at that version.
    Claim {
        /// Its name.
        lease: String,
        /// Its version; `None` when there was none.
        version: Option<String>,
        /// The holder.
        holder: String,
    },
}

/// What a write came to.
#[derive(Clone, Debug)]
pub enum Written {
    /// A NodeFence.
    Fence(Arc<NodeFence>),
    /// A FenceRequest.
    Request(Arc<FenceRequest>),
    /// A Lease: its new version.
    Lease(String),
    /// Anything else, or nothing.
    Other,
}

type Outcome = Result<Written, Refusal>;

impl Api {
    /// Carries out a write.
    pub fn write(&mut self, op: &Op, at: Millis) -> Outcome {
        match op {
            Op::CreateFence(fence) => Ok(Written::Fence(self.create(NodeFence::clone(fence), at)?)),
            Op::ReplaceFence(fence) => self.replace_fence(fence),
            Op::RecordFence(fence) => {
                self.versioned::<NodeFence>(&fence.metadata)?;
                rules::fence_status(fence)?;
                Ok(Written::Fence(self.change(fence.as_ref(), |it| it.status.clone_from(&fence.status))?))
            }
            Op::LabelFence(fence, active) => {
                self.versioned::<NodeFence>(&fence.metadata)?;
                let value = active.then_some("true");
                let labelled = |it: &mut NodeFence| {
                    it.metadata.labels = with_label(it.metadata.labels.take(), names::ACTIVE_LABEL, value);
                };
                Ok(Written::Fence(self.change(fence.as_ref(), labelled)?))
            }
            Op::UnguardFence(fence) => self.without_finalizer(fence.as_ref(), names::NODE_CLEAN_FINALIZER),
            Op::ForgetFence(fence) => self.delete_this(fence.as_ref(), at),
            Op::AddTaint(node, taint) => self.taint(node, taint, true),
            Op::RemoveTaint(node, taint) => self.taint(node, taint, false),
            Op::CreateRequest(request) if !self.admits_request(request) => Err(Refusal::Forbidden),
            Op::CreateRequest(request) => Ok(Written::Request(self.create(FenceRequest::clone(request), at)?)),
            Op::ReplaceRequest(request) => self.replace_request(request),
            Op::OpenRequest(request) => self.without_finalizer(request.as_ref(), names::FENCE_OPEN_FINALIZER),
            Op::DeleteRequest(request) => self.delete_this(request.as_ref(), at),
            Op::AnswerRequest(request) => {
                let known = self.versioned::<FenceRequest>(&request.metadata)?;
                rules::request_status(&known, request)?;
                Ok(Written::Request(self.change(request.as_ref(), |it| it.status.clone_from(&request.status))?))
            }
            Op::FailPod(pod) => self.fail_pod(pod, at),
            Op::DeletePod(pod, grace) => self.delete_this_pod(pod, *grace, at),
            Op::DeleteAttachment(attachment) => self.delete_this(attachment.as_ref(), at),
            Op::GuardPolicy(policy) => {
                let known = self.same::<ResiliencyPolicy>(&policy.metadata)?;
                if known.metadata.finalizers != policy.metadata.finalizers
                    || known.metadata.deletion_timestamp.is_some()
                {
                    return Err(Refusal::Conflict);
                }
                self.change(policy.as_ref(), |it| {
                    it.metadata.finalizers.get_or_insert_default().push(names::POLICY_FINALIZER.into());
                })?;
                Ok(Written::Other)
            }
            Op::UnguardPolicy(policy) => self.without_finalizer(policy.as_ref(), names::POLICY_FINALIZER),
            Op::RecordPolicy(policy) => {
                self.versioned::<ResiliencyPolicy>(&policy.metadata)?;
                self.change(policy.as_ref(), |it| it.status.clone_from(&policy.status))?;
                Ok(Written::Other)
            }
            Op::Claim { lease, version, holder } => {
                Ok(Written::Lease(self.claim(lease, version.as_deref(), Some(holder), at)?))
            }
        }
    }

    /// The object of that name, if it is still the one with that uid.
    fn same<K: Stored>(&self, meta: &ObjectMeta) -> Result<Arc<K>, Refusal> {
        let known = self.get::<K>(meta.name.as_deref().unwrap_or_default()).ok_or(Refusal::NotFound)?;
        if known.meta().uid == meta.uid { Ok(known) } else { Err(Refusal::Conflict) }
    }

    /// The object of that name, if it is still exactly that version.
    fn versioned<K: Stored>(&self, meta: &ObjectMeta) -> Result<Arc<K>, Refusal> {
        let known = self.get::<K>(meta.name.as_deref().unwrap_or_default()).ok_or(Refusal::NotFound)?;
        if known.meta().resource_version == meta.resource_version { Ok(known) } else { Err(Refusal::Conflict) }
    }

    fn change<K: Stored>(&mut self, object: &K, change: impl FnOnce(&mut K)) -> Result<Arc<K>, Refusal> {
        self.update(object.meta().name.as_deref().unwrap_or_default(), change).ok_or(Refusal::NotFound)
    }

    fn replace_fence(&mut self, fence: &NodeFence) -> Outcome {
        let known = self.versioned::<NodeFence>(&fence.metadata)?;
        rules::fence_spec(&known, fence)?;
        Ok(Written::Fence(self.change(fence, |it| {
            it.spec = fence.spec.clone();
            it.metadata.labels.clone_from(&fence.metadata.labels);
            it.metadata.finalizers.clone_from(&fence.metadata.finalizers);
            it.metadata.generation = known.metadata.generation.map(|generation| generation + 1);
        })?))
    }

    fn replace_request(&mut self, request: &FenceRequest) -> Outcome {
        let known = self.versioned::<FenceRequest>(&request.metadata)?;
        rules::request_spec(&known, request)?;
        Ok(Written::Request(self.change(request, |it| {
            it.spec = request.spec.clone();
            it.metadata.generation = known.metadata.generation.map(|generation| generation + 1);
        })?))
    }

    /// As the patch of the product: it tests the uid and the whole list.
    fn without_finalizer<K: Stored>(&mut self, object: &K, finalizer: &str) -> Outcome {
        let present = object.meta().finalizers.clone().unwrap_or_default();
        if !present.iter().any(|it| it == finalizer) {
            return Ok(Written::Other);
        }
        let known = self.same::<K>(object.meta())?;
        if known.meta().finalizers.clone().unwrap_or_default() != present {
            return Err(Refusal::Conflict);
        }
        self.change(object, |it| {
            it.meta_mut().finalizers = Some(present.iter().filter(|it| *it != finalizer).cloned().collect());
        })?;
        Ok(Written::Other)
    }

    /// A deletion of what is gone already has succeeded.
    fn delete_this<K: Stored>(&mut self, object: &K, at: Millis) -> Outcome {
        match self.same::<K>(object.meta()) {
            Err(Refusal::NotFound) => Ok(Written::Other),
            Err(other) => Err(other),
            Ok(_) => {
                let meta = object.meta();
                self.delete::<K>(meta.name.as_deref().unwrap_or_default(), meta.uid.as_deref().unwrap_or_default(), at);
                Ok(Written::Other)
            }
        }
    }

    fn delete_this_pod(&mut self, pod: &Pod, grace: Option<u32>, at: Millis) -> Outcome {
        match self.same::<Pod>(&pod.metadata) {
            Err(Refusal::NotFound) => return Ok(Written::Other),
            Err(other) => return Err(other),
            Ok(_) => self.versioned::<Pod>(&pod.metadata)?,
        };
        self.delete_pod(pod.metadata.name.as_deref().unwrap_or_default(), grace, at);
        Ok(Written::Other)
    }

    fn fail_pod(&mut self, pod: &Pod, at: Millis) -> Outcome {
        self.versioned::<Pod>(&pod.metadata)?;
        self.change(pod, |it| {
            it.status.phase = Some("Failed".into());
            if it.condition("DisruptionTarget").is_none() {
                it.status.conditions.push(StatusCondition {
                    type_: "DisruptionTarget".into(),
                    status: "True".into(),
                    last_transition_time: Some(stamp(at)),
                });
            }
        })?;
        Ok(Written::Other)
    }

    /// As the patch of the product: it tests uid, boot id where there is one, and the whole list of taints.
    fn taint(&mut self, seen: &Node, taint: &Taint, add: bool) -> Outcome {
        let same = |it: &&Taint| it.key == taint.key && it.effect == taint.effect;
        let there = seen.taints().iter().find(same);
        if add && there.is_some_and(|it| it.value == taint.value) || !add && there.is_none() {
            return Ok(Written::Other);
        }
        let known = self.same::<Node>(&seen.metadata)?;
        let boot_id = &seen.status.node_info.boot_id;
        let is_written = add
            && taint.key == names::OUT_OF_SERVICE_TAINT
            && seen.metadata.resource_version != known.metadata.resource_version;
        let is_another_boot = !boot_id.is_empty() && *boot_id != known.status.node_info.boot_id;
        if is_written || is_another_boot || seen.taints() != known.taints() {
            return Err(Refusal::Conflict);
        }
        self.change(seen, |it| {
            let mut taints = it.spec.taints.take().unwrap_or_default();
            taints.retain(|it| !same(&it));
            if add {
                taints.push(taint.clone());
            }
            it.spec.taints = (!taints.is_empty()).then_some(taints);
        })?;
        Ok(Written::Other)
    }
}
