//! The guard of the out-of-service taint. Its key acts on the whole node: podGC and attach/detach release *every*
//! Terminating or finished pod there, proved or not. So it may be set only if nothing on the node is unproved.

use std::collections::BTreeSet;

use crate::api::node_fence::{PlannedPod, PodAction, PodStatusState};
use crate::api::usage::{PodView, VolumeKind};

use super::decide::Seen;
use super::rows::Rows;

/// Whether the out-of-service taint may be set; the error says what is unproved. Decides on what the caller saw: the
/// step that sets the taint demands a live look.
pub fn may_add_out_of_service(seen: &Seen, rows: &Rows) -> Result<(), String> {
    let node = seen.node.as_ref().ok_or("the Node is gone")?;
    if node.metadata.uid.as_deref() != Some(&seen.fence.spec.node.uid) {
        return Err("the Node is another one".into());
    }
    if node.ready() == "True" || !seen.lease_is_still {
        return Err("the node is back".into());
    }
    if node.taints().iter().any(|taint| taint.key == crate::api::names::OUT_OF_SERVICE_TAINT) {
        return Err("somebody else's out-of-service taint is there".into());
    }
    let proved: BTreeSet<&str> = rows
        .current()
        .filter(|row| row.is_cut_off() && row.status.proof >= row.minimum)
        .map(|row| row.plan.name.as_str())
        .collect();
    for pod in &seen.pods {
        check_pod(seen, rows, pod, &proved)?;
    }
    for attachment in &seen.attachments {
        if !proved.contains(attachment.volume()) {
            return Err(format!("attachment of {} is not proved", attachment.volume()));
        }
    }
    let known: BTreeSet<String> = rows
        .volumes
        .iter()
        .filter(|row| proved.contains(row.plan.name.as_str()))
        .filter_map(|row| {
            Some(format!("kubernetes.io/csi/{}^{}", row.plan.driver.as_ref()?, row.plan.volume_handle.as_ref()?))
        })
        .collect();
    let reported = node.status.volumes_attached.iter().map(|volume| &volume.name).chain(&node.status.volumes_in_use);
    match reported.into_iter().find(|name| !known.contains(*name)) {
        Some(name) => Err(format!("volume {name} of the node's status is not proved")),
        None => Ok(()),
    }
}

fn check_pod(seen: &Seen, rows: &Rows, pod: &PodView, proved: &BTreeSet<&str>) -> Result<(), String> {
    let uncovered = pod.volumes.iter().find(|volume| !proved.contains(volume.name.as_str()));
    let planned = seen.fence.spec.plan.pods.iter().find(|row| row.uid == pod.uid());
    let bound_to_node = pod.pod.controller_kind() == Some("DaemonSet") || pod.pod.is_static();
    if bound_to_node && !pod.pod.is_terminating() && !pod.pod.is_finished() && !has_attachable(pod) {
        return Ok(());
    }
    match planned {
        None => Err(format!("pod {} is not in the plan", pod.display())),
        Some(PlannedPod { action: PodAction::Keep, .. }) if pod.pod.is_terminating() => {
            Err(format!("pod {} is kept and Terminating", pod.display()))
        }
        Some(PlannedPod { action: PodAction::Release, uid, .. }) if !is_released(rows, uid) => {
            Err(format!("pod {} is not released yet", pod.display()))
        }
        Some(_) => match uncovered {
            Some(volume) => Err(format!("volume {} of pod {} is not proved", volume.name, pod.display())),
            None => Ok(()),
        },
    }
}

fn has_attachable(pod: &PodView) -> bool {
    pod.volumes.iter().any(|volume| matches!(volume.kind, VolumeKind::Csi(_)))
}

fn is_released(rows: &Rows, uid: &str) -> bool {
    let row = rows.pods.iter().find(|row| row.uid == uid);
    row.is_some_and(|row| matches!(row.state, PodStatusState::Releasing | PodStatusState::Released))
}
