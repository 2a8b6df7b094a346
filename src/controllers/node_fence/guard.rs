//! The guard of the out-of-service taint. Its key acts on the whole node: podGC and attach/detach release *every*
//! Terminating or finished pod there, proved or not. So it may be set only if nothing on the node is unproved.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Taint;

use crate::api::fencing::FenceMethodType;
use crate::api::names;
use crate::api::node_fence::{PlannedPod, PodAction, PodStatusState};
use crate::api::slim::Node;
use crate::api::time::{self, Now};
use crate::api::usage::{PodView, VolumeKind};
use crate::mutants::{self, Mutant};

use super::decide::{Effect, NodeState, Seen, Step};
use super::pods;
use super::rows::{Rows, VolumeRow};

/// Whether the out-of-service taint may be set; the error says what is unproved. Decides on what the caller saw: the
/// step that sets the taint demands a live look.
pub fn may_add_out_of_service(seen: &Seen, rows: &Rows) -> Result<(), String> {
    let node = seen.node.as_ref().ok_or("the Node is gone")?;
    if mutants::is_on(Mutant::NoOutOfServiceGuard) {
        return Ok(());
    }
    if node.metadata.uid.as_deref() != Some(&seen.fence.spec.node.uid) {
        return Err("the Node is another one".into());
    }
    // A machine that has rebooted is another one, though its kubelet is not up yet.
    let boot_id = node.status.node_info.boot_id.as_str();
    if seen.fence.spec.node.boot_id.as_deref().is_some_and(|planned| planned != boot_id) {
        return Err("the node has rebooted".into());
    }
    if !seen.lease_is_still || node.ready() == "True" && !may_be_ready(seen, node) {
        return Err("the node is back".into());
    }
    if node.taints().iter().any(|taint| taint.key == names::OUT_OF_SERVICE_TAINT) {
        return Err("somebody else's out-of-service taint is there".into());
    }
    let by_network = |row: &VolumeRow| row.status.method == Some(FenceMethodType::NetworkFence);
    if seen.requests.iter().any(|request| request.shuts_out()) || rows.volumes.iter().any(by_network) {
        // Rook fences a node that has the key, by the same addresses, and lifts that as soon as the key is gone.
        return Err("a NetworkFence shuts the node out, and who sees the key come and go may lift it".into());
    }
    let proved: BTreeSet<&str> = proved_rows(rows).map(|row| row.plan.name.as_str()).collect();
    for pod in &seen.pods {
        check_pod(seen, rows, pod, &proved)?;
    }
    for attachment in &seen.attachments {
        if !proved.contains(attachment.volume()) {
            return Err(format!("attachment of {} is not proved", attachment.volume()));
        }
    }
    let known = node_names(proved_rows(rows));
    let reported = node.status.volumes_attached.iter().map(|volume| &volume.name).chain(&node.status.volumes_in_use);
    match reported.into_iter().find(|name| !known.contains(*name)) {
        Some(name) => Err(format!("volume {name} of the node's status is not proved")),
        None => Ok(()),
    }
}

/// Whether Kubernetes may call the node Ready: it does so for another half a minute where the node was declared failed before
/// Kubernetes gave it up. Attach/detach acts on the key whatever the node's readiness; without it, it would find out about
/// attachments that are gone when it looks again, a minute later. A node that was well when its incident began may have a
/// kubelet that talks.
///
/// A kubelet that comes back tells the node's status first, and renews its Lease up to ten seconds later; a controller that has
/// just begun to lead takes the first renewal that it sees for the last one. Both carry the time by the clock of the node: where
/// that is ahead of ours nothing is lost but time, since attachments then go one by one.
fn may_be_ready(seen: &Seen, node: &Node) -> bool {
    let plan = &seen.fence.spec.plan;
    // Conditions have whole seconds.
    let has_turned = node.ready_since().is_none_or(|since| since.timestamp() >= plan.decided_at.timestamp());
    let has_renewed = seen.renewed_at.is_some_and(|renewed| renewed >= plan.decided_at);
    plan.is_ahead_of_kubernetes() && !plan.began_on_a_well_node() && !has_turned && !has_renewed
}

/// Volumes that are cut off with enough proof.
fn proved_rows(rows: &Rows) -> impl Iterator<Item = &VolumeRow> {
    rows.current().filter(|row| row.is_cut_off() && row.status.proof >= row.minimum)
}

/// Names of volumes in the status of a Node.
fn node_names<'a>(rows: impl Iterator<Item = &'a VolumeRow>) -> BTreeSet<String> {
    let name = |row: &VolumeRow| {
        Some(format!("kubernetes.io/csi/{}^{}", row.plan.driver.as_ref()?, row.plan.volume_handle.as_ref()?))
    };
    rows.filter_map(name).collect()
}

/// The out-of-service taint acts on the whole node, so it stays no moment longer than it must: until the plan's
/// attachments are gone, the node moves, or its time is up.
pub fn take_out_of_service_back(seen: &Seen, rows: &Rows, now: Now) -> Option<Step> {
    let node = seen.node.as_ref()?;
    let taint = seen.our_out_of_service()?;
    let age = taint.time_added.as_ref().map(|at| now.wall.signed_duration_since(time::from_k8s(at)));
    let max = TimeDelta::from_std(seen.settings.out_of_service_max).unwrap_or(TimeDelta::MAX);
    let spent = age.is_none_or(|age| age >= max || age < TimeDelta::zero());
    // An attachment that somebody else deletes is not known to attach/detach until it looks for itself: the node's list
    // tells when it has.
    let free = node_names(proved_rows(rows).filter(|row| !pods::is_wanted(seen, &row.plan.name)));
    let listed = node.status.volumes_attached.iter().any(|volume| free.contains(&volume.name));
    let done = rows.attachments_to_remove(seen).is_empty() && !rows.is_releasing() && !listed;
    let unproved = seen.pods.iter().any(|pod| would_go_unproved(seen, rows, pod)) || is_proof_lost(seen, rows);
    let unwanted = spent || done || unproved || rows.held.is_some() || may_end_unseen(seen, node, taint);
    let talks = node.ready() == "True" && !may_be_ready(seen, node);
    let moves = rows.node == NodeState::Back || talks || !seen.lease_is_still || seen.fence.is_another_boot(node);
    if !unwanted && !moves {
        return None;
    }
    Step::new("RemovingOutOfService", vec![Effect::RemoveTaint { taint: taint.clone(), node: node.clone() }])
}

/// The taint came with the deletions. One that is late, or was begun by somebody else, may outlive the proof; a deletion
/// that we sent and gave up may still arrive. One that the plan keeps does not go at all.
fn would_go_unproved(seen: &Seen, rows: &Rows, pod: &PodView) -> bool {
    let planned = seen.fence.spec.plan.pods.iter().find(|row| row.uid == pod.uid());
    let proved = planned.is_some_and(|row| row.action == PodAction::Release && are_fresh(rows, &row.volumes));
    let may_go = pod.pod.is_terminating() || is_released(rows, pod.uid());
    may_go && !pod.pod.is_finished() && !proved && !mutants::is_on(Mutant::NoOutOfServiceGuard)
}

/// Whether Kubernetes has given the node up since the taint is there: from then on it asks pods to end, and podGC removes
/// those. Pods without volumes are in no store, so one that the plan keeps would go before we see it.
fn may_end_unseen(seen: &Seen, node: &Node, taint: &Taint) -> bool {
    let (turned, added) = (node.ready_since(), taint.time_added.as_ref().map(time::from_k8s));
    let is_given_up = node.ready() != "True" && turned.zip(added).is_none_or(|(turned, added)| turned >= added);
    let stays = |row: &PlannedPod| {
        let belongs_to_node = matches!(row.reason.as_str(), "DaemonSet" | "StaticPod");
        row.action == PodAction::Keep && row.volumes.is_empty() && !belongs_to_node
    };
    is_given_up && seen.fence.spec.plan.pods.iter().any(stays) && !mutants::is_on(Mutant::NoOutOfServiceGuard)
}

/// Whether something is still attached that was cut off and is not proved to be any more: a later round said less, or it
/// was attached again.
fn is_proof_lost(seen: &Seen, rows: &Rows) -> bool {
    let proved: BTreeSet<&str> = proved_rows(rows).map(|row| row.plan.name.as_str()).collect();
    let lost = |row: &VolumeRow| row.is_committed() && !proved.contains(row.plan.name.as_str());
    let lost = rows.current().filter(|row| lost(row)).any(|row| seen.attachments_of(&row.plan.name).next().is_some());
    lost && !mutants::is_on(Mutant::NoOutOfServiceGuard)
}

/// The taint, as we set it.
pub fn out_of_service(seen: &Seen, now: Now) -> Taint {
    Taint {
        key: names::OUT_OF_SERVICE_TAINT.into(),
        value: Some(names::out_of_service_value(seen.fence.spec.episode)),
        effect: "NoSchedule".into(),
        time_added: Some(time::to_k8s(now.wall)),
    }
}

fn check_pod(seen: &Seen, rows: &Rows, pod: &PodView, proved: &BTreeSet<&str>) -> Result<(), String> {
    let uncovered = pod.volumes.iter().find(|volume| !proved.contains(volume.name.as_str()));
    let planned = seen.fence.spec.plan.pods.iter().find(|row| row.uid == pod.uid());
    let bound_to_node = pod.pod.controller_kind() == Some("DaemonSet") || pod.pod.is_static();
    if bound_to_node && !pod.pod.is_terminating() && !pod.pod.is_finished() && !has_attachable(pod) {
        return Ok(());
    }
    let harmless = pod.pod.is_finished() && pod.volumes.is_empty();
    match planned {
        None if harmless => Ok(()),
        None => Err(format!("pod {} is not in the plan", pod.display())),
        Some(PlannedPod { action: PodAction::Keep, .. }) if pod.pod.is_terminating() => {
            Err(format!("pod {} is kept and Terminating", pod.display()))
        }
        Some(PlannedPod { action: PodAction::Release, uid, .. }) if !is_released(rows, uid) => {
            Err(format!("pod {} is not released yet", pod.display()))
        }
        // It is still there: podGC would delete it, on a proof that may have grown too old.
        Some(PlannedPod { action: PodAction::Release, volumes, .. })
            if !pod.pod.is_finished() && !are_fresh(rows, volumes) =>
        {
            Err(format!("pod {} is still there and its proof is too old", pod.display()))
        }
        Some(_) => match uncovered {
            Some(volume) => Err(format!("volume {} of pod {} is not proved", volume.name, pod.display())),
            None => Ok(()),
        },
    }
}

fn are_fresh(rows: &Rows, volumes: &[String]) -> bool {
    volumes.iter().all(|name| rows.volume(name).is_some_and(|row| row.fresh))
}

fn has_attachable(pod: &PodView) -> bool {
    pod.volumes.iter().any(|volume| matches!(volume.kind, VolumeKind::Csi(_)))
}

fn is_released(rows: &Rows, uid: &str) -> bool {
    let row = rows.pods.iter().find(|row| row.uid == uid);
    row.is_some_and(|row| matches!(row.state, PodStatusState::Releasing | PodStatusState::Released))
}
