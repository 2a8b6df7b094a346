//! Carries out what a pass decided, in order, each effect at its own moment of leadership.

use crate::api::names;
use crate::api::node_fence::NodeFence;
use crate::api::slim::{Node, Pod};
use crate::controllers::Context;
use crate::error::Result;
use crate::runtime::patch::{self, NodePrecondition};
use crate::runtime::store::ObjectKey;

use super::decide::Effect;
use super::tell;

/// Carries out one effect. Returns the NodeFence it wrote, which the next pass must see before it decides again.
pub async fn act(cx: &Context, effect: Effect) -> Result<Option<NodeFence>> {
    match effect {
        Effect::AddFinalizer(policy) => {
            let patch = patch::add_finalizer(&policy.metadata, names::POLICY_FINALIZER);
            cx.writer.patch(policy.as_ref(), patch).await?;
        }
        Effect::RemoveFinalizer(policy) => {
            let patch = patch::remove_finalizer(&policy.metadata, names::POLICY_FINALIZER);
            cx.writer.patch(policy.as_ref(), patch).await?;
        }
        Effect::Open(fence) => {
            let fence = cx.writer.create(fence.as_ref()).await?;
            tell::planned(cx, &fence);
            return Ok(Some(fence));
        }
        Effect::Replan(fence) => {
            let written = cx.writer.replace(fence.as_ref()).await?;
            tell::planned_again(cx, fence.metadata.generation, &written);
            return Ok(Some(written));
        }
        Effect::Record(policy) => {
            let before = cx.stores.policies.get(&ObjectKey::from(policy.as_ref()));
            let written = cx.writer.replace_status(policy.as_ref()).await?;
            if let Some(before) = before {
                tell::recorded(cx, &before, &written);
            }
        }
        Effect::AddTaint { taint, node } => {
            let patch = patch::add_taint(precondition(&node), node.taints(), &taint);
            if cx.writer.patch(node.as_ref(), patch).await?.is_some() {
                tell::tainted(cx, &node, &taint);
            }
        }
        Effect::RemoveTaint { taint, node } => {
            let patch = patch::remove_taint(precondition(&node), node.taints(), &taint.key, &taint.effect);
            if cx.writer.patch(node.as_ref(), patch).await?.is_some() {
                tell::untainted(cx, &node, &taint);
            }
        }
        Effect::Reschedule { pod, note } => {
            let version = pod.pod.metadata.resource_version.as_deref();
            cx.writer.delete::<Pod>(&ObjectKey::from(pod.pod.as_ref()), pod.uid(), version, None).await?;
            tell::rescheduled(cx, &pod, note);
        }
    }
    Ok(None)
}

/// A plugin comes back with its machine: the boot says nothing.
fn precondition(node: &Node) -> NodePrecondition<'_> {
    NodePrecondition::of(&node.metadata)
}
