//! What the API itself says right before anything is removed. What a pass sees comes from watches, which may be silent
//! for minutes, and work may have waited for its turn.

use std::collections::BTreeSet;

use kube::Api;
use kube::api::ListParams;

use crate::api::node_fence::NodeFence;
use crate::api::node_volume_report::RemnantKind;
use crate::api::slim::{Pod, VolumeSource};

use super::decide::{Failure, Key, Work};
use super::{Context, observe};

/// Asks whether the work is still to be done: `Ok` with what forbids to unstage, if anything does.
pub async fn ask(cx: &Context, work: &Work) -> Result<Option<Failure>, Failure> {
    let node = &cx.settings.node_name;
    let fences: Api<NodeFence> = Api::all(cx.clients.reads.clone());
    let pods: Api<Pod> = Api::all(cx.clients.reads.clone());
    let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let (fence, pods) = tokio::join!(fences.get_opt(node), pods.list(&bound));
    let unreachable = |error: kube::Error| refusal(&work.volume.name, "ApiUnreachable", error.to_string());
    judge(work, fence.map_err(unreachable)?.as_ref(), &pods.map_err(unreachable)?.items)
}

/// Nothing is removed for another incident than this one, or from a pod that is the kubelet's; and nothing is unstaged
/// while a pod that the plan does not know has a claim, of which only the API's readers of claims know the volume.
pub fn judge(work: &Work, fence: Option<&NodeFence>, pods: &[Pod]) -> Result<Option<Failure>, Failure> {
    let same = |fence: &&NodeFence| Key::of(fence, &work.key.boot_id).as_ref() == Some(&work.key);
    let Some(fence) = fence.filter(same) else {
        let message = "the NodeFence is not the one that the node was looked at for";
        return Err(refusal(&work.volume.name, "IncidentChanged", message));
    };
    let touched = work.targets.iter().map(|place| &place.pod).chain(work.elsewhere.iter().map(|mount| &mount.pod));
    let mut taken_from: BTreeSet<_> = touched.flatten().collect();
    if work.rest.is_some() {
        taken_from.extend(&work.volume.pods);
    }
    let planned: BTreeSet<_> = fence.spec.plan.pods.iter().map(|pod| &pod.uid).collect();
    let mut forbids = None;
    for pod in pods.iter().filter(|pod| !pod.is_finished()) {
        let uids: Vec<_> = observe::uids(pod).collect();
        if uids.iter().any(|uid| taken_from.contains(uid)) {
            return Err(refusal(&shown(pod), "PodNotGone", "the API has the pod, and it has not ended"));
        }
        if !uids.iter().any(|uid| planned.contains(uid)) && has_claim(pod) {
            let message = "the pod came after the node failed, and may use the volume";
            forbids.get_or_insert_with(|| refusal(&shown(pod), "PodMayUseVolume", message));
        }
    }
    Ok(forbids)
}

fn has_claim(pod: &Pod) -> bool {
    let claims = |source: &VolumeSource| matches!(source, VolumeSource::Claim(_) | VolumeSource::Ephemeral);
    pod.spec.volumes.iter().any(|volume| claims(&volume.source))
}

fn shown(pod: &Pod) -> String {
    let [namespace, name] =
        [&pod.metadata.namespace, &pod.metadata.name].map(|text| text.as_deref().unwrap_or_default());
    format!("pod {namespace}/{name}")
}

fn refusal(id: &str, reason: &str, message: impl Into<String>) -> Failure {
    Failure { kind: RemnantKind::Unknown, id: id.to_owned(), reason: reason.to_owned(), message: message.into() }
}
