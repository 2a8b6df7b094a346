//! What people set: modes and approvals, holds, pauses and maintenance windows. Each from the object that a person writes to
//! what becomes of the pods.

use bulkhead::api::names;
use bulkhead::api::node_fence::{NodeFence, Phase, PodAction, VolumeStatusState};
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, ClusterOptions, Workload};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::brakes::policy_says;
use super::fleet::{Lane, LaneOptions, SOON, create_policy, options};
use super::look::{Before, condition, event, is_released, phase, volume_row};

const UNPUBLISH: Method = Method::ControllerUnpublishVolume;

fn with(policy: Value) -> LaneOptions {
    LaneOptions { policy, ..LaneOptions::default() }
}

/// Writes into the NodeFence of the lane's victim, as a person does.
async fn write(cluster: &Cluster, node: &str, spec: Value) -> Result<NodeFence, Failed> {
    let fences: Api<NodeFence> = Api::all(cluster.client.clone());
    Ok(fences.patch(node, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await?)
}

fn approval(fence: &NodeFence) -> Value {
    json!({ "approval": { "planDigest": fence.spec.plan.digest, "reason": "ticket 4711" } })
}

async fn edit(lane: &Lane<'_>, change: Value) -> Result<(), Failed> {
    let api: Api<ResiliencyPolicy> = Api::all(lane.client());
    api.patch(&lane.name, &PatchParams::default(), &Patch::Merge(change)).await?;
    Ok(())
}

fn paused(reason: Option<&str>) -> Value {
    json!({ "metadata": { "annotations": { names::PAUSED_ANNOTATION: reason } } })
}

fn is_held_by(fence: &NodeFence, reason: &str) -> bool {
    condition(fence, "Held") == Some(("True", reason))
}

/// Waits until the whole incident waits for this reason.
async fn held(cluster: &Cluster, node: &str, reason: &str) -> Result<NodeFence, Failed> {
    Ok(cluster.fence(node, reason, SOON, |fence| is_held_by(fence, reason)).await?)
}

/// What was under way when it was held has ended. On a busy machine that is later than a proof lasts, and another is not asked
/// for while it is held.
fn is_answered(volume: &str) -> impl Fn(&NodeFence) -> bool {
    move |fence| {
        volume_row(fence, volume)
            .is_some_and(|row| row.state == VolumeStatusState::Fenced || row.reason.as_deref() == Some("AnswerTooLate"))
    }
}

/// Nothing was begun: no label, no taint, no request, no pod and no attachment gone.
async fn assert_not_begun(lane: &Lane<'_>, set: &Workload, before: &Before) -> Result<(), Failed> {
    let fence = lane.fence("planned", |_| true).await?;
    assert!(!fence.labels().contains_key(names::ACTIVE_LABEL), "it is active");
    assert_eq!(phase(&fence), Some(Phase::Planned));
    let ours = lane.taints().await?.into_iter().find(|taint| taint.key == names::FENCED_TAINT);
    assert_eq!(ours, None, "the node is tainted");
    let requests: Api<bulkhead::api::fence_request::FenceRequest> = Api::all(lane.client());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={}", lane.victim()?.name()));
    assert_eq!(requests.list(&of_node).await?.items.len(), 0, "a fence was asked for");
    lane.assert_untouched(set, before).await
}

/// A rehearsal records the plan and does nothing; the node that returns ends it. What was recorded is what is done in
/// earnest, in an episode of its own.
pub async fn a_rehearsal_records_the_plan_and_does_nothing(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "rehearsal", with(json!({ "mode": "DryRun" }))).await?;
    let victim = lane.victim()?;
    victim.kill().await;
    let rehearsed = held(cluster, victim.name(), "DryRun").await?;
    lane.event("FenceHeld", "DryRun").await?;
    assert_not_begun(&lane, &set, &before).await?;
    victim.revive().await?;
    let fence = lane.recovered().await?;
    assert_eq!(condition(&fence, "Held"), Some(("False", "NotHeld")));
    lane.ready_on(&set, &[victim.name()]).await?;
    lane.assert_untouched(&set, &before).await?;

    victim.kill().await;
    held(cluster, victim.name(), "DryRun").await?;
    edit(&lane, json!({ "spec": { "mode": "Enforce" } })).await?;
    lane.moved(&set).await?;
    let fence = lane.detached().await?;
    assert_eq!(fence.spec.episode, 3, "the failure, the next one, and the one that is acted on");
    let rows = |fence: &NodeFence| {
        let pods: Vec<_> =
            fence.spec.plan.pods.iter().map(|row| (row.name.clone(), row.action, row.reason.clone())).collect();
        let volumes: Vec<_> = fence
            .spec
            .plan
            .volumes
            .iter()
            .map(|row| (row.name.clone(), row.node_id.clone(), row.methods.clone()))
            .collect();
        (pods, volumes)
    };
    assert_eq!(rows(&fence), rows(&rehearsed), "what was rehearsed is what was done");
    lane.end().await
}

/// Of two policies on a node one rehearses: its pod is kept, by name, and the other's goes.
pub async fn beside_a_rehearsal_the_others_go(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "beside", LaneOptions::default()).await?;
    create_policy(&lane.client(), "beside-dry", "beside-dry", &json!({ "mode": "DryRun" })).await?;
    let set = lane.workload("db");
    let dry = Workload { labels: [("lane".to_owned(), "beside-dry".to_owned())].into(), ..lane.workload("dry") };
    lane.run(&set).await?;
    lane.run(&dry).await?;
    let uid = lane.pod(&dry, 0).await?.uid();
    lane.victim()?.kill().await;
    lane.moved(&set).await?;
    let fence = lane.fence("released", |fence| is_released(fence, &format!("{}-0", set.name))).await?;
    let row = fence.spec.plan.pods.iter().find(|row| row.name == format!("{}-0", dry.name)).ok_or("no row")?;
    assert_eq!((row.action, row.reason.as_str()), (PodAction::Keep, "DryRun"));
    assert_eq!(lane.pod(&dry, 0).await?.uid(), uid, "the rehearsed pod is another one");
    lane.end().await
}

/// Only the approval of the plan as it is now starts it; the plan grows while it waits.
pub async fn only_the_approval_of_the_plan_as_it_is_starts_it(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "approval", with(json!({ "mode": "RequireApproval" }))).await?;
    let set = lane.workload("db");
    // Its policy believes later that the node has failed.
    let patient = json!({ "mode": "RequireApproval", "detection": { "kubelet": { "decisiveAfter": "20s" } } });
    create_policy(&lane.client(), "approval-late", "approval-late", &patient).await?;
    let late = Workload { labels: [("lane".to_owned(), "approval-late".to_owned())].into(), ..lane.workload("late") };
    lane.run(&set).await?;
    lane.run(&late).await?;
    let before = lane.before(&set).await?;
    let node = lane.victim()?.name().to_owned();
    lane.victim()?.kill().await;
    let fence = held(cluster, &node, "AwaitingApproval").await?;
    let note = event(cluster, "Node", &node, "ApprovalNeeded", "AwaitingApproval").await?;
    assert!(note.contains(&fence.spec.plan.digest) && note.contains("kubectl bulkhead approve"), "{note}");
    assert_not_begun(&lane, &set, &before).await?;

    // The node has failed for the other pod too: the plan grows.
    let digest = fence.spec.plan.digest.clone();
    let grown = lane.fence("the plan grows", |fence| fence.spec.plan.digest != digest).await?;
    write(cluster, &node, approval(&fence)).await?;
    held(cluster, &node, "ApprovalOutdated").await?;
    lane.event("ApprovalNeeded", "ApprovalOutdated").await?;
    assert_not_begun(&lane, &set, &before).await?;

    write(cluster, &node, approval(&grown)).await?;
    lane.moved(&set).await?;
    lane.moved(&late).await?;
    lane.event("FenceResumed", "ApprovalOutdated").await?;
    let fence = lane.detached().await?;
    assert_eq!(condition(&fence, "Held"), Some(("False", "NotHeld")));
    assert_eq!(
        fence.spec.approval.map(|approval| approval.plan_digest),
        Some(grown.spec.plan.digest),
        "it is left as it is"
    );
    lane.end().await
}

/// A hold that comes after the fence call was begun: the volume is cut off, and its pod stays until the hold is removed.
pub async fn a_hold_stops_before_the_release(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "hold", LaneOptions::default()).await?;
    let (volume, node) = (set.volume_name(0, 0), lane.victim()?.name().to_owned());
    let hang = lane.array().faults().add(Fault::on(UNPUBLISH, Effect::Hang));
    lane.victim()?.kill().await;
    lane.begun(&volume).await?;
    write(cluster, &node, json!({ "hold": { "reason": "the storage team looks at it" } })).await?;
    let fence = held(cluster, &node, "HeldByPerson").await?;
    assert_eq!(phase(&fence), Some(Phase::Fencing), "a hold hides nothing");
    lane.event("FenceHeld", "the storage team looks at it").await?;
    lane.array().faults().remove(hang);
    lane.fence("answered", is_answered(&volume)).await?;
    lane.assert_untouched(&set, &before).await?;
    write(cluster, &node, json!({ "hold": null })).await?;
    lane.event("FenceResumed", "HeldByPerson").await?;
    lane.moved(&set).await?;
    lane.end().await
}

/// A paused policy begins nothing; a paused node stops its incident where it is.
pub async fn a_pause_begins_nothing_and_stops_what_runs(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "paused", LaneOptions::default()).await?;
    let (volume, node) = (set.volume_name(0, 0), lane.victim()?.name().to_owned());
    edit(&lane, paused(Some("array upgrade"))).await?;
    policy_says(cluster, "paused", "Restrained", "True", "Paused").await?;
    event(cluster, "ResiliencyPolicy", "paused", "Paused", "array upgrade").await?;
    lane.victim()?.kill().await;
    event(cluster, "Node", &node, "FenceHeld", "Paused (array upgrade)").await?;
    let fences: Api<NodeFence> = Api::all(lane.client());
    assert_eq!(fences.get_opt(&node).await?, None, "a NodeFence was opened");
    lane.assert_untouched(&set, &before).await?;

    let hang = lane.array().faults().add(Fault::on(UNPUBLISH, Effect::Hang));
    edit(&lane, paused(None)).await?;
    event(cluster, "ResiliencyPolicy", "paused", "Resumed", "array upgrade").await?;
    lane.begun(&volume).await?;
    let nodes: Api<Node> = Api::all(lane.client());
    nodes.patch(&node, &PatchParams::default(), &Patch::Merge(paused(Some("on call is on it")))).await?;
    held(cluster, &node, "Paused").await?;
    lane.array().faults().remove(hang);
    lane.fence("answered", is_answered(&volume)).await?;
    lane.assert_untouched(&set, &before).await?;
    nodes.patch(&node, &PatchParams::default(), &Patch::Merge(paused(None))).await?;
    lane.moved(&set).await?;
    lane.end().await
}

/// While a window is open, or cannot be understood, nothing is begun.
pub async fn in_a_maintenance_window_nothing_is_begun(cluster: &Cluster) -> Result<(), Failed> {
    let window = |schedule: &str| {
        let window = json!({ "name": "firmware", "schedule": schedule, "duration": "2m", "timeZone": "Europe/Berlin" });
        json!({ "maintenanceWindows": [window] })
    };
    let (lane, set, before) = Lane::open(cluster, "windows", with(window("* * * * *"))).await?;
    policy_says(cluster, "windows", "Restrained", "True", "MaintenanceWindow").await?;
    event(cluster, "ResiliencyPolicy", "windows", "MaintenanceStarted", "window firmware").await?;
    let node = lane.victim()?.name().to_owned();
    lane.victim()?.kill().await;
    event(cluster, "Node", &node, "FenceHeld", "MaintenanceWindow (firmware)").await?;
    edit(&lane, json!({ "spec": window("61 2 * * *") })).await?;
    policy_says(cluster, "windows", "Ready", "False", "InvalidSchedule").await?;
    policy_says(cluster, "windows", "Restrained", "True", "MaintenanceWindow").await?;
    let fences: Api<NodeFence> = Api::all(lane.client());
    assert_eq!(fences.get_opt(&node).await?, None, "a NodeFence was opened");
    lane.assert_untouched(&set, &before).await?;
    edit(&lane, json!({ "spec": { "maintenanceWindows": null } })).await?;
    event(cluster, "ResiliencyPolicy", "windows", "MaintenanceEnded", "window firmware").await?;
    policy_says(cluster, "windows", "Ready", "True", "Accepted").await?;
    lane.moved(&set).await?;
    lane.end().await
}

/// Of three nodes in one zone one may be acted on; that of the other zone may too.
pub async fn each_zone_has_a_budget_of_its_own(cluster: &Cluster) -> Result<(), Failed> {
    let topology = json!([{ "topologyKey": "example.com/hall", "maxNodes": 1 }]);
    let options = LaneOptions { nodes: 4, ..with(json!({ "limits": { "topology": topology } })) };
    let lane = Lane::new(cluster, "zones", options).await?;
    let nodes: Api<Node> = Api::all(lane.client());
    let spare = lane.nodes.last().ok_or("no node")?.name().to_owned();
    let failing: Vec<_> = lane.nodes.iter().take(3).collect();
    for (number, node) in failing.iter().enumerate() {
        let hall = if number < 2 { "east" } else { "west" };
        let label = Patch::Merge(json!({ "metadata": { "labels": { "example.com/hall": hall } } }));
        nodes.patch(node.name(), &PatchParams::default(), &label).await?;
        let there = vec![node.name().to_owned(), spare.clone()];
        let set =
            Workload { nodes: there, node: Some(node.name().to_owned()), ..lane.workload(&format!("db{number}")) };
        cluster.stateful_set_on(&[lane.array()], &set).await?;
        lane.ready_on(&set, &[node.name()]).await?;
    }
    futures::future::join_all(failing.iter().map(|node| node.kill())).await;
    let fences: Api<NodeFence> = Api::all(lane.client());
    let acted_on = async || -> Result<Vec<String>, kube::Error> {
        let all = fences.list(&ListParams::default()).await?.items;
        Ok(all.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("zones-")).collect())
    };
    let west = failing[2].name();
    cluster.fence(west, "released", SOON, |fence| is_released(fence, "zones-db2-0")).await?;
    policy_says(cluster, "zones", "Restrained", "True", "BudgetExhausted").await?;
    let names = acted_on().await?;
    assert_eq!(names.len(), 2, "{names:?}");
    let waits = failing.iter().find(|node| !names.contains(&node.name().to_owned())).ok_or("none waits")?;
    event(cluster, "Node", waits.name(), "FenceHeld", "BudgetExhausted (example.com/hall=east)").await?;
    // It is over for the first of that hall: the second may be acted on.
    let first = failing.iter().find(|node| node.name() != west && node.name() != waits.name()).ok_or("none")?;
    cluster.fence(first.name(), "Detached", SOON, |fence| phase(fence) == Some(Phase::Detached)).await?;
    first.reboot().await?;
    cluster.fence(waits.name(), "acted on", SOON, |_| true).await?;
    lane.end().await
}

/// Where two policies select one pod, the one that asks for less is told which field of which policy holds.
pub async fn the_policy_that_asks_for_less_is_told(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "conflict", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let strict = json!({ "mode": "RequireApproval", "release": { "detach": "VolumeAttachments" } });
    create_policy(&lane.client(), "conflict-strict", &lane.name, &strict).await?;
    policy_says(cluster, "conflict", "Conflict", "True", "StricterPolicyApplies").await?;
    let note = "policy conflict-strict in mode, release.detach";
    event(cluster, "ResiliencyPolicy", "conflict", "StricterPolicyApplies", note).await?;
    let api: Api<ResiliencyPolicy> = Api::all(lane.client());
    api.delete("conflict-strict", &kube::api::DeleteParams::default()).await?;
    let gone = async || {
        let status = api.get("conflict").await?.status.unwrap_or_default();
        let told = bulkhead::api::conditions::find(&status.conditions, "Conflict").cloned();
        Ok(told.map_or(Ok(()), |told| Err(told.message)))
    };
    cluster.wait("no conflict any more", SOON, gone).await?;
    lane.end().await
}

/// Approval and hold are in the API: who is killed in the middle, and who takes over, reads the same.
pub async fn what_people_wrote_outlives_the_controller() -> Result<(), Failed> {
    let mut cluster = Cluster::start(ClusterOptions { nodes: 3, ..options() }).await?;
    create_policy(&cluster.client, "people", "people", &json!({ "mode": "RequireApproval" })).await?;
    let set = Workload {
        labels: [("lane".to_owned(), "people".to_owned())].into(),
        node: Some("node-1".into()),
        ..Workload::new("people-db")
    };
    cluster.stateful_set(&set).await?;
    cluster.pods_ready(&set, SOON).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &set.namespace);
    let uid = pods.get("people-db-0").await?.uid();
    cluster.node("node-1")?.kill().await;
    let fence = held(&cluster, "node-1", "AwaitingApproval").await?;

    // Killed while it waits, and again while it is held, each time with something new to read.
    cluster.controllers.remove(0).kill().await;
    let both = json!({ "approval": approval(&fence)["approval"], "hold": { "reason": "not yet" } });
    write(&cluster, "node-1", both).await?;
    cluster.start_controller().await?;
    held(&cluster, "node-1", "HeldByPerson").await?;
    cluster.controllers.remove(0).kill().await;
    cluster.start_controller().await?;
    // It is awake: it has acted on what was written after its start.
    write(&cluster, "node-1", json!({ "approval": null })).await?;
    write(&cluster, "node-1", json!({ "hold": { "reason": "still not" } })).await?;
    let told = |fence: &NodeFence| {
        let status = fence.status.as_ref();
        let held = status.and_then(|status| bulkhead::api::conditions::find(&status.conditions, "Held"));
        held.is_some_and(|held| held.message.contains("still not"))
    };
    cluster.fence("node-1", "still not", SOON, told).await?;
    write(&cluster, "node-1", json!({ "hold": null })).await?;
    held(&cluster, "node-1", "AwaitingApproval").await?;
    assert_eq!(pods.get("people-db-0").await?.uid(), uid, "the pod is another one");

    cluster.controllers.remove(0).kill().await;
    write(&cluster, "node-1", approval(&fence)).await?;
    cluster.start_controller().await?;
    let released = |fence: &NodeFence| is_released(fence, "people-db-0");
    let fence = cluster.fence("node-1", "released", SOON, released).await?;
    assert_eq!(fence.spec.approval.map(|approval| approval.reason), Some(Some("ticket 4711".into())));
    cluster.judge()?;
    Ok(())
}
