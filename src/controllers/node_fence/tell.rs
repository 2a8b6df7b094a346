//! Events and metrics of an incident: every action and every deliberate inaction, with its reason.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::api::conditions;
use crate::api::names;
use crate::api::node_fence::{
    AWAITING_STORAGE, MACHINE_MAY_RUN, NodeFence, NodeFenceStatus, Phase, PodStatusState, VolumeStatus,
    VolumeStatusState,
};
use crate::api::slim::{Node, PersistentVolumeClaim, VolumeAttachment};
use crate::api::usage::PodView;
use crate::controllers::{Context, reference};
use crate::runtime::events::EventType;
use crate::runtime::store::ObjectKey;

/// Our taint, or the one that starts the detach, was set.
pub fn tainted(cx: &Context, fence: &NodeFence, node: &Node, taint: &Taint) {
    let reason = if taint.key == names::OUT_OF_SERVICE_TAINT { "OutOfServiceAdded" } else { "NodeTainted" };
    let note = format!("taint {}={}:{}", taint.key, taint.value.as_deref().unwrap_or_default(), taint.effect);
    tracing::info!(node = node.name_any(), taint = note, "taint set");
    cx.events.publish(reference(fence), EventType::Normal, reason, "Taint", note.clone());
    cx.events.publish(reference(node), EventType::Normal, reason, "Taint", note);
}

/// A pod was released.
pub fn released(cx: &Context, fence: &NodeFence, pod: &PodView) {
    let why = match &fence.spec.plan {
        plan if plan.is_by_volume() => "has trouble with its volumes",
        plan if plan.is_by_path() => "lost the path to its storage",
        _ => "failed",
    };
    let note = format!("node {} {why}; every volume of the pod is fenced", fence.name_any());
    cx.events.publish(reference(pod.pod.as_ref()), EventType::Normal, "PodReleased", "Release", note);
}

/// A VolumeAttachment was deleted; `why` it was no out-of-service taint that did it.
pub fn detached(cx: &Context, fence: &NodeFence, attachment: &VolumeAttachment, why: Option<&str>) {
    let later = why.map(|why| {
        format!("; Kubernetes may need a minute to notice, since it is told by no out-of-service taint: {why}")
    });
    let note = format!("attachment of {} removed{}", attachment.volume(), later.unwrap_or_default());
    cx.events.publish(reference(fence), EventType::Normal, "AttachmentRemoved", "Detach", note);
}

/// What the server has dropped of a record: its definition of the kind is older than this program, which alone knows it then.
pub fn forgotten(fence: &NodeFence, sent: &NodeFenceStatus, kept: &NodeFenceStatus) {
    for field in lost(sent, kept) {
        tracing::warn!(
            node = fence.name_any(),
            field,
            boots = ?sent.failed_boot_ids,
            "the server does not keep this field: apply the NodeFence definition of this release (docs/upgrade.md)"
        );
    }
}

/// The fields that were sent and are not there.
pub(super) fn lost(sent: &NodeFenceStatus, kept: &NodeFenceStatus) -> Vec<&'static str> {
    let proved = |status: &NodeFenceStatus| status.volumes.iter().filter(|row| row.external_proof.is_some()).count();
    let boots = (sent.failed_boot_ids != kept.failed_boot_ids).then_some("status.failedBootIDs");
    let proofs = (proved(sent) != proved(kept)).then_some("status.volumes[].externalProof");
    boots.into_iter().chain(proofs).collect()
}

/// What changed from one record to the next, one Event per incident and change, not per pod; and what concerns a pod or a claim,
/// there too, for those who may not see NodeFences.
pub fn transitions(cx: &Context, before: &NodeFence, after: &NodeFence) {
    let (Some(new), old) = (&after.status, before.status.clone().unwrap_or_default()) else { return };
    let publish = |kind, reason, action, note: String| cx.events.publish(reference(after), kind, reason, action, note);
    let fenced =
        |status: &NodeFenceStatus| status.volumes.iter().filter(|row| row.state == VolumeStatusState::Fenced).count();
    if fenced(new) > fenced(&old) {
        let proof = new.weakest_proof.map(|proof| format!("{proof:?}")).unwrap_or_default();
        publish(
            EventType::Normal,
            "VolumeFenced",
            "Fence",
            format!("{} volumes fenced, weakest proof {proof}", fenced(new)),
        );
    }
    for row in &new.volumes {
        let was = old.volumes.iter().find(|was| was.episode == row.episode && was.name == row.name);
        if was.map(|was| was.refences) != Some(row.refences) && row.refences.is_some() {
            let note = format!("volume {} was attached again and is fenced again", row.name);
            publish(EventType::Warning, "VolumeRefenced", "Fence", note);
        }
        let is_fenced = |row: &VolumeStatus| row.state == VolumeStatusState::Fenced;
        if is_fenced(row)
            && !was.is_some_and(is_fenced)
            && let Some(claim) = claim_of(cx, &row.name)
        {
            let note = format!("node {} is cut off from volume {}, proof {:?}", after.name_any(), row.name, row.proof);
            cx.events.publish(reference(claim.as_ref()), EventType::Normal, "VolumeFenced", "Fence", note);
        }
    }
    tell_return(cx, after, &old);
    tell_waiting(cx, after, &old);
    tell_ready(cx, after, &old);
}

/// Who looks at the Node sees how it ends, as they saw that it was tainted.
fn tell_return(cx: &Context, fence: &NodeFence, old: &NodeFenceStatus) {
    let Some(new) = &fence.status else { return };
    if old.phase != Some(Phase::Recovered) && new.phase == Some(Phase::Recovered) {
        let note = "access, taint and label are given back";
        on_both(cx, fence, EventType::Normal, "NodeRecovered", "Recover", note.into());
    }
    if new.was_back() && !old.was_back() {
        let note = match &fence.spec.plan {
            plan if plan.is_by_volume() => "its pods have gone, or their volumes are well again",
            plan if plan.is_by_path() => "it reaches its storage again",
            _ => "the node is back",
        };
        on_both(cx, fence, EventType::Normal, "NodeReturned", "Watch", note.into());
    }
}

/// On the NodeFence, and on its Node while there is one.
fn on_both(cx: &Context, fence: &NodeFence, kind: EventType, reason: &'static str, action: &'static str, note: String) {
    if let Some(node) = cx.stores.nodes.get(&ObjectKey::cluster(fence.name_any())) {
        cx.events.publish(reference(node.as_ref()), kind, reason, action, note.clone());
    }
    cx.events.publish(reference(fence), kind, reason, action, note);
}

fn tell_waiting(cx: &Context, fence: &NodeFence, old: &NodeFenceStatus) {
    let Some(new) = &fence.status else { return };
    for row in &new.pods {
        let was = old.pods.iter().find(|was| was.uid == row.uid);
        let same = was.is_some_and(|was| was.state == row.state && was.reason == row.reason);
        if same {
            continue;
        }
        let Some(plan) = fence.spec.plan.pods.iter().find(|plan| plan.uid == row.uid) else { continue };
        let detail = format!(
            "{}/{}: {} {}",
            plan.namespace,
            plan.name,
            row.reason.as_deref().unwrap_or_default(),
            row.message.as_deref().unwrap_or_default()
        );
        let (kind, reason) = match (row.state, row.reason.as_deref()) {
            (PodStatusState::Waiting, _) => (EventType::Warning, "FenceHeld"),
            (PodStatusState::Released, Some("ReleasedByOthers")) => (EventType::Warning, "ReleasedByOthers"),
            _ => continue,
        };
        cx.events.publish(reference(fence), kind, reason, "Release", detail.clone());
        if let Some(pod) = cx.stores.pods.get(&ObjectKey::namespaced(&plan.namespace, &plan.name)) {
            cx.events.publish(reference(pod.as_ref()), kind, reason, "Release", detail.clone());
        }
        for claim in plan.volumes.iter().filter_map(|volume| claim_of(cx, volume)) {
            cx.events.publish(reference(claim.as_ref()), kind, reason, "Release", detail.clone());
        }
    }
}

/// The claim that a volume is bound to, as it is now.
fn claim_of(cx: &Context, volume: &str) -> Option<Arc<PersistentVolumeClaim>> {
    let volume = cx.stores.volumes.get(&ObjectKey::cluster(volume))?;
    let bound = volume.spec.claim_ref.as_ref()?;
    let claim = ObjectKey::namespaced(bound.namespace.as_deref()?, bound.name.as_deref()?);
    cx.stores.claims.get(&claim).filter(|claim| claim.metadata.uid == bound.uid)
}

/// The reason that held it.
fn held_by(status: &NodeFenceStatus) -> &str {
    conditions::find(&status.conditions, "Held").map(|held| held.reason.as_str()).unwrap_or_default()
}

/// Whether a condition says something else than before. The command that ends a wait for a person is another one once the machine has failed
/// again.
fn is_news(was: &Condition, now: &Condition) -> bool {
    was.reason != now.reason || now.reason == MACHINE_MAY_RUN && was.message != now.message
}

fn tell_ready(cx: &Context, fence: &NodeFence, old: &NodeFenceStatus) {
    let Some(new) = &fence.status else { return };
    let held = |status: &NodeFenceStatus| conditions::is_true(&status.conditions, "Held");
    if held(old) && !held(new) && new.phase != Some(Phase::Recovered) {
        let note = format!("nothing holds it any more: {}", held_by(old));
        cx.events.publish(reference(fence), EventType::Normal, "FenceResumed", "Fence", note);
    }
    for (type_, event) in [("Stalled", "FenceFailed"), ("Held", "FenceHeld")] {
        let now = conditions::find(&new.conditions, type_).filter(|condition| condition.status == "True");
        let was = conditions::find(&old.conditions, type_).filter(|condition| condition.status == "True");
        if let Some(condition) = now.filter(|now| was.is_none_or(|was| is_news(was, now))) {
            let note = format!("{}: {}", condition.reason, condition.message);
            tracing::warn!(node = fence.name_any(), note, "incident waits");
            let (event, action) = match condition.reason.as_str() {
                "CleanupBlocked" | MACHINE_MAY_RUN => ("CleanupBlocked", "Clean"),
                AWAITING_STORAGE => ("PathNotRestored", "Watch"),
                "AwaitingApproval" | "ApprovalOutdated" => ("ApprovalNeeded", "Fence"),
                _ => (event, "Fence"),
            };
            if matches!(event, "CleanupBlocked" | "PathNotRestored" | "ApprovalNeeded") {
                on_both(cx, fence, EventType::Warning, event, action, note);
            } else {
                cx.events.publish(reference(fence), EventType::Warning, event, action, note);
            }
        }
    }
}
