//! Carries out what a pass decided, in order, each effect at its own moment of leadership.

use kube::ResourceExt;

use crate::api::names;
use crate::api::node_fence::{NodeFence, PodAction};
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::{Node, Pod};
use crate::controllers::{Context, reference};
use crate::error::Result;
use crate::runtime::events::EventType;
use crate::runtime::patch::{self, NodeIdentity};
use crate::runtime::store::ObjectKey;

use super::decide::Effect;
use super::tell;

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
            let (node, policy) = (written.name_any(), policies(&written));
            tracing::info!(node, policy, ?before, episode = written.spec.episode, "plan written again");
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
            let before = cx.stores.policies.get(&ObjectKey::from(policy.as_ref()));
            let written = cx.writer.replace_status(policy.as_ref()).await?;
            if let Some(before) = before {
                tell::recorded(cx, &before, &written);
            }
        }
        Effect::AddTaint { taint, node } => {
            if let Some(patch) = patch::add_taint(identity(&node), node.taints(), &taint) {
                cx.writer.json_patch::<Node>(&ObjectKey::from(node.as_ref()), patch).await?;
                let note = format!("taint {}:{}: the node plugin of the driver is not ready", taint.key, taint.effect);
                tracing::info!(node = node.name_any(), taint = taint.key, "taint set");
                cx.events.publish(reference(node.as_ref()), EventType::Normal, "NodeTainted", "Taint", note);
            }
        }
        Effect::RemoveTaint { taint, node } => {
            if let Some(patch) = patch::remove_taint(identity(&node), node.taints(), &taint.key, &taint.effect) {
                cx.writer.json_patch::<Node>(&ObjectKey::from(node.as_ref()), patch).await?;
                let note = format!("taint {}:{} is taken back: its cause is over", taint.key, taint.effect);
                tracing::info!(node = node.name_any(), taint = taint.key, "taint taken back");
                cx.events.publish(reference(node.as_ref()), EventType::Normal, "NodeUntainted", "Untaint", note);
            }
        }
        Effect::Reschedule { pod, note } => {
            let version = pod.pod.metadata.resource_version.as_deref();
            cx.writer.delete::<Pod>(&ObjectKey::from(pod.pod.as_ref()), pod.uid(), version, None).await?;
            tracing::info!(pod = pod.display(), note, "pod deleted");
            cx.events.publish(reference(pod.pod.as_ref()), EventType::Normal, "PodReleased", "Reschedule", note);
        }
    }
    Ok(None)
}

fn policies(fence: &NodeFence) -> String {
    fence.spec.policies.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>().join(",")
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
    let (policy, volumes) = (policies(fence), plan.volumes.len());
    tracing::warn!(node, policy, reason, release, volumes, evidence = evidence.join("; "), "planned");
    let note = format!("{}; {release} pods to release once their volumes are fenced", evidence.join("; "));
    cx.events.publish(reference(fence), kind, reason, "Plan", note.clone());
    if let Some(node) = cx.stores.nodes.get(&ObjectKey::cluster(node)) {
        cx.events.publish(reference(node.as_ref()), kind, reason, "Plan", note);
    }
}

/// A plugin comes back with its machine: the boot says nothing.
fn identity(node: &Node) -> NodeIdentity<'_> {
    NodeIdentity { uid: node.metadata.uid.as_deref().unwrap_or_default(), boot_id: None, version: None }
}
