//! Carries out what a pass decided, in order. Deletions of pods and attachments run side by side, a bounded number at
//! once, in the order given: the highest priority starts first.

use futures::{StreamExt, TryStreamExt, stream};
use json_patch::Patch;
use k8s_openapi::api::core::v1::Taint;
use kube::ResourceExt;
use serde_json::json;

use crate::api::fence_request::FenceRequest;
use crate::api::names;
use crate::api::node_fence::NodeFence;
use crate::api::slim::{Node, Pod, VolumeAttachment};
use crate::api::usage::PodView;
use crate::controllers::Context;
use crate::error::{Error, ErrorClass, Result};
use crate::runtime::patch::{self, Edit, NodePrecondition};
use crate::runtime::store::ObjectKey;

use super::decide::{Effect, Seen};
use super::detach;
use super::memory::{Incident, Noted, is_too_late};
use super::metrics::Metrics;
use super::{pods, tell};

/// Deletions under way at once.
const CONCURRENCY: usize = 32;

/// Carries out effects on what was seen.
pub(super) struct Actor<'a> {
    /// What to work with.
    pub cx: &'a Context,
    /// What to count with.
    pub metrics: &'a Metrics,
    /// What was decided on.
    pub seen: &'a Seen,
}

impl Actor<'_> {
    /// Carries out the effects of a pass.
    pub async fn act(&self, incident: &mut Incident, effects: Vec<Effect>) -> Result<()> {
        let (mut deletions, mut refused) = (Vec::new(), None);
        for effect in effects {
            match effect {
                Effect::DeletePod { .. } | Effect::FailPod { .. } | Effect::DeleteAttachment(_) => {
                    deletions.push(effect)
                }
                // No record waits for a question: one that is refused must not hide what has happened.
                ask @ (Effect::Ask(_) | Effect::AskAgain(_)) => {
                    refused = refused.or(self.one(incident, ask).await.err())
                }
                other => {
                    self.delete(std::mem::take(&mut deletions)).await?;
                    self.one(incident, other).await?;
                }
            }
        }
        self.delete(deletions).await?;
        refused.map_or(Ok(()), Err)
    }

    async fn one(&self, incident: &mut Incident, effect: Effect) -> Result<()> {
        let (cx, seen) = (self.cx, self.seen);
        let fence = seen.fence.as_ref();
        let now = cx.clock.now();
        match effect {
            Effect::Record(status) => {
                let written = cx.writer.record(fence, (*status).clone()).await?;
                incident.recorded(&status, now);
                incident.wrote(&written.metadata, cx.clock.now());
                tell::transitions(cx, fence, &written);
                if let Some(written) = &written.status {
                    tell::forgotten(fence, &status, written);
                    self.metrics.reached(fence.status.as_ref(), written);
                }
            }
            Effect::SetActive(active) => {
                let edit = Edit::of(&fence.metadata).label(names::ACTIVE_LABEL, active.then_some("true"));
                patch_fence(cx, fence, incident, edit.patch()).await?;
            }
            Effect::AddTaint { taint, node } => {
                let patch = patch::add_taint(precondition_for(&taint, &node), node.taints(), &taint);
                match cx.writer.patch(node.as_ref(), patch).await {
                    Ok(None) => {}
                    Ok(Some(_)) => tell::tainted(cx, fence, &node, &taint),
                    // An admission policy of the cluster may not want the key: then attachments go one by one. Nor do the
                    // pods wait for it that are proved.
                    Err(error) if taint.key == names::OUT_OF_SERVICE_TAINT && is_no_obstacle(&error) => {
                        tracing::warn!(node = fence.name_any(), %error, "the out-of-service taint is not set");
                        if is_refused(&error) {
                            incident.untaints(&taint.key);
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
            Effect::RemoveTaint { taint, node } => {
                incident.untaints(&taint.key);
                let patch = patch::remove_taint(precondition(&node), node.taints(), &taint.key, &taint.effect);
                cx.writer.patch(node.as_ref(), patch).await?;
            }
            Effect::Ask(request) => {
                let asked = incident.note_asked(&request, None, now);
                let result = cx.writer.create(request.as_ref()).await;
                self.asked(incident, asked, result)?;
            }
            Effect::AskAgain(request) => {
                let before = seen.request(&request.spec.fencer_name).cloned();
                let asked = incident.note_asked(&request, before.as_deref(), now);
                let result = cx.writer.replace(request.as_ref()).await;
                self.asked(incident, asked, result)?;
            }
            Effect::Withdraw(request) => withdraw(cx, &request).await?,
            Effect::RemoveFinalizer => {
                let patch = patch::remove_finalizer(&fence.metadata, names::NODE_CLEAN_FINALIZER);
                patch_fence(cx, fence, incident, patch).await?;
            }
            Effect::Forget => {
                let uid = fence.metadata.uid.as_deref().unwrap_or_default();
                cx.writer.delete::<NodeFence>(&ObjectKey::from(fence), uid, None, None).await?;
            }
            Effect::DeletePod { .. } | Effect::FailPod { .. } | Effect::DeleteAttachment(_) => {}
        }
        Ok(())
    }

    /// Notes how a request was written. What was refused for sure asked for nothing.
    fn asked(&self, incident: &mut Incident, asked: Noted, result: Result<FenceRequest>) -> Result<()> {
        match result {
            Ok(written) => incident.requested(&written.metadata, self.cx.clock.now()),
            Err(error) => {
                if error.is_conflict() || is_refused(&error) {
                    incident.forget_asked(asked);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    async fn delete(&self, effects: Vec<Effect>) -> Result<()> {
        let detaches = effects.iter().any(|effect| matches!(effect, Effect::DeleteAttachment(_)));
        let why = detaches.then(|| detach::why_one_by_one(self.seen, self.cx.clock.now())).flatten();
        let delete = |effect| self.delete_one(effect, why.as_deref());
        let deletions = stream::iter(effects).map(delete).buffered(CONCURRENCY);
        // All are tried before the first failure is reported: one refused pod must not hold up the others.
        let outcomes: Vec<Result<()>> = deletions.collect().await;
        stream::iter(outcomes).try_collect().await
    }

    async fn delete_one(&self, effect: Effect, why_one_by_one: Option<&str>) -> Result<()> {
        let (cx, seen) = (self.cx, self.seen);
        match effect {
            effect if is_too_late(&effect, cx.clock.now()) => Ok(()),
            Effect::DeletePod { pod, grace_seconds, .. } => {
                let key = ObjectKey::from(pod.pod.as_ref());
                let latest = pods::latest(pod.pod.clone(), cx.stores.pods.get(&key));
                let version = latest.metadata.resource_version.as_deref();
                cx.writer.delete::<Pod>(&key, pod.uid(), version, grace_seconds).await?;
                tracing::info!(node = seen.fence.name_any(), pod = pod.display(), ?grace_seconds, "pod released");
                tell::released(cx, &seen.fence, &pod);
                self.metrics.released();
                Ok(())
            }
            Effect::FailPod { pod, .. } => fail(cx, &pod).await,
            Effect::DeleteAttachment(attachment) => {
                let uid = attachment.metadata.uid.as_deref().unwrap_or_default();
                cx.writer.delete::<VolumeAttachment>(&ObjectKey::from(attachment.as_ref()), uid, None, None).await?;
                tell::detached(cx, &seen.fence, &attachment, why_one_by_one);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Whoever holds the pod with a finalizer (batch job tracking) lets go once it is Failed (KEP-3329's reason).
async fn fail(cx: &Context, pod: &PodView) -> Result<()> {
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByBulkhead",
        "message": "its node failed and its volumes are fenced",
        "lastTransitionTime": cx.clock.now().wall.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
    });
    let edit = Edit::of(&pod.pod.metadata).put(&["status", "phase"], "Failed");
    let edit = match (pod.pod.status.conditions.is_empty(), pod.pod.condition("DisruptionTarget")) {
        (_, Some(_)) => edit,
        (true, None) => edit.put(&["status", "conditions"], json!([condition])),
        (false, None) => edit.put(&["status", "conditions", "-"], condition),
    };
    let Some(patch) = edit.patch() else { return Ok(()) };
    cx.writer.json_patch_status::<Pod>(&ObjectKey::from(pod.pod.as_ref()), patch).await.map(drop)
}

async fn withdraw(cx: &Context, request: &FenceRequest) -> Result<()> {
    cx.writer.patch(request, patch::remove_finalizer(&request.metadata, names::FENCE_OPEN_FINALIZER)).await?;
    let uid = request.metadata.uid.as_deref().unwrap_or_default();
    cx.writer.delete::<FenceRequest>(&ObjectKey::from(request), uid, None, None).await
}

async fn patch_fence(cx: &Context, fence: &NodeFence, incident: &mut Incident, patch: Option<Patch>) -> Result<()> {
    if let Some(written) = cx.writer.patch(fence, patch).await? {
        incident.wrote(&written.metadata, cx.clock.now());
    }
    Ok(())
}

/// Not what was decided on has changed, nor are we no longer the one to decide.
fn is_no_obstacle(error: &Error) -> bool {
    !error.is_conflict() && !matches!(error, Error::NotLeader)
}

fn is_refused(error: &Error) -> bool {
    matches!(error.class(), ErrorClass::Forbidden | ErrorClass::Rejected)
}

fn precondition(node: &Node) -> NodePrecondition<'_> {
    NodePrecondition { boot_id: node.boot_id(), ..NodePrecondition::of(&node.metadata) }
}

/// The taint that starts the detach is for the node as it was read, just now: a late write of a leader that was stopped does
/// not reach one whose kubelet has told since that it is well. A silent node is hardly ever written: what is refused for
/// another reason is decided anew.
pub(super) fn precondition_for<'a>(taint: &Taint, node: &'a Node) -> NodePrecondition<'a> {
    let is_of_this_version = taint.key == names::OUT_OF_SERVICE_TAINT;
    let version = node.metadata.resource_version.as_deref().filter(|_| is_of_this_version);
    NodePrecondition { version, ..precondition(node) }
}
