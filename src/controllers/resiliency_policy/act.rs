//! Carries out what a pass decided, in order, each effect at its own moment of leadership.

use kube::ResourceExt;

use crate::api::names;
use crate::api::node_fence::{NodeFence, PodAction};
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::controllers::{Context, reference};
use crate::error::Result;
use crate::runtime::events::EventType;
use crate::runtime::patch;
use crate::runtime::store::ObjectKey;

use super::decide::Effect;

/// Carries out one effect. Returns the NodeFence it wrote, which the next pass must see before it decides again.
pub async fn act(cx: &Context, effect: Effect) -> Result<Option<NodeFence>> {
    match effect {
        Effect::Guard(policy) => {
            if let Some(patch) = patch::add_finalizer(&policy.metadata, names::POLICY_FINALIZER) {
                cx.writer.json_patch::<ResiliencyPolicy>(&ObjectKey::from(policy.as_ref()), patch).await?;
            }
        }
        Effect::Unguard(policy) => {
            if let Some(patch) = patch::remove_finalizer(&policy.metadata, names::POLICY_FINALIZER) {
                cx.writer.json_patch::<ResiliencyPolicy>(&ObjectKey::from(policy.as_ref()), patch).await?;
            }
        }
        Effect::Open(fence) => {
            let fence = cx.writer.create(fence.as_ref()).await?;
            announce(cx, &fence);
            return Ok(Some(fence));
        }
        Effect::Replan(fence) => {
            let before = fence.metadata.generation;
            let written = cx.writer.replace(fence.as_ref()).await?;
            tracing::info!(node = written.name_any(), ?before, episode = written.spec.episode, "plan written again");
            let begun = cx.stores.fences.get(&ObjectKey::from(&written));
            if begun.is_some_and(|known| known.spec.episode != written.spec.episode) {
                announce(cx, &written);
            } else {
                let note = format!("the plan has grown, digest {}", written.spec.plan.digest);
                cx.events.publish(reference(&written), EventType::Warning, "PlanGrew", "Plan", note);
            }
            return Ok(Some(written));
        }
        Effect::Record(policy) => {
            cx.writer.replace_status(policy.as_ref()).await?;
        }
    }
    Ok(None)
}

fn announce(cx: &Context, fence: &NodeFence) {
    let plan = &fence.spec.plan;
    let release = plan.pods.iter().filter(|pod| pod.action == PodAction::Release).count();
    let evidence: Vec<_> = plan.evidence.iter().filter_map(|evidence| evidence.message.as_deref()).collect();
    let node = fence.name_any();
    // A node whose volumes are in trouble is not declared failed.
    let (reason, kind) = match plan {
        plan if plan.is_by_volume() => ("VolumesTainted", EventType::Normal),
        plan if plan.is_by_path() => ("PathLost", EventType::Warning),
        _ => ("NodeDeclaredFailed", EventType::Normal),
    };
    tracing::warn!(node, reason, release, volumes = plan.volumes.len(), evidence = evidence.join("; "), "planned");
    let note = format!("{}; {release} pods to release once their volumes are fenced", evidence.join("; "));
    cx.events.publish(reference(fence), kind, reason, "Plan", note.clone());
    if let Some(node) = cx.stores.nodes.get(&ObjectKey::cluster(node)) {
        cx.events.publish(reference(node.as_ref()), kind, reason, "Plan", note);
    }
}
