//! Policies and namespaces that change under an incident: the stricter one holds, and nothing weaker ever does.

use bulkhead::api::fence_request::FenceOutcome;
use bulkhead::api::fencing::Proof;
use bulkhead::api::node_fence::VolumeStatusState;
use bulkhead::api::resiliency_policy::ResiliencyPolicy;
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, Workload};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::fleet::{Lane, LaneOptions, SOON, create_policy};
use super::look::{condition, volume_row};

const UNPUBLISH: Method = Method::ControllerUnpublishVolume;

fn acknowledged() -> Value {
    json!({ "fencing": { "minimumProof": "Acknowledged", "methods": [{ "type": "Unpublish" }] } })
}

async fn edit(lane: &Lane<'_>, fencing: Value) -> Result<(), Failed> {
    let api: Api<ResiliencyPolicy> = Api::all(lane.client());
    let patch = Patch::Merge(json!({ "spec": { "fencing": fencing } }));
    api.patch(&lane.name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until the volume has failed to reach the proof that is demanded now.
async fn too_weak(lane: &Lane<'_>, volume: &str, reason: &str) -> Result<(), Failed> {
    let fence = lane.fence("the proof is too weak", |fence| {
        volume_row(fence, volume)
            .is_some_and(|row| row.state == VolumeStatusState::Failed && row.reason.as_deref() == Some(reason))
            && condition(fence, "Released") == Some(("False", "PodsHeld"))
    });
    let fence = fence.await?;
    assert_eq!(condition(&fence, "Fenced"), Some(("False", "ProofTooWeak")));
    Ok(())
}

pub async fn of_two_policies_the_stricter_one_holds(cluster: &Cluster) -> Result<(), Failed> {
    let options = LaneOptions { policy: acknowledged(), ..LaneOptions::default() };
    let lane = Lane::new(cluster, "twopolicies", options).await?;
    create_policy(&lane.client(), "twopolicies-strict", &lane.name, &json!({})).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let before = lane.before(&set).await?;
    let lies = lane.array().faults().add(Fault::on(UNPUBLISH, Effect::DoNothing));
    lane.victim()?.kill().await;
    too_weak(&lane, &set.volume_name(0, 0), "StillPublished").await?;
    let fence = lane.fence("planned", |_| true).await?;
    assert_eq!(fence.spec.plan.volumes.iter().map(|row| row.minimum_proof).collect::<Vec<_>>(), [Proof::Verified]);
    assert_eq!(fence.spec.policies.len(), 2);
    lane.assert_untouched(&set, &before).await?;
    lane.array().faults().remove(lies);
    lane.moved(&set).await?;
    let api: Api<ResiliencyPolicy> = Api::all(lane.client());
    api.delete("twopolicies-strict", &DeleteParams::default()).await?;
    lane.end().await
}

/// The edit comes before the answer: an OK is not enough any more. A read from before the first call is lacking, so that
/// nothing more can be proved in this episode: it waits for a person.
pub async fn a_policy_that_becomes_stricter_holds_the_incident(cluster: &Cluster) -> Result<(), Failed> {
    let options = LaneOptions { policy: acknowledged(), ..LaneOptions::default() };
    let (lane, set, before) = Lane::open(cluster, "stricter", options).await?;
    let volume = set.volume_name(0, 0);
    let hang = lane.array().faults().add(Fault::on(UNPUBLISH, Effect::Hang));
    lane.victim()?.kill().await;
    lane.begun(&volume).await?;
    edit(&lane, json!({ "minimumProof": "Verified" })).await?;
    lane.array().faults().remove(hang);
    lane.answered(&volume, FenceOutcome::Fenced, "Acknowledged").await?;
    too_weak(&lane, &volume, "Acknowledged").await?;
    lane.assert_untouched(&set, &before).await?;
    edit(&lane, json!({ "minimumProof": "Acknowledged" })).await?;
    lane.moved(&set).await?;
    lane.end().await
}

pub async fn a_policy_that_becomes_weaker_weakens_no_incident(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "weaker", LaneOptions::default()).await?;
    let volume = set.volume_name(0, 0);
    let lies = lane.array().faults().add(Fault::on(UNPUBLISH, Effect::DoNothing));
    lane.victim()?.kill().await;
    too_weak(&lane, &volume, "StillPublished").await?;
    edit(&lane, json!({ "minimumProof": "Acknowledged" })).await?;
    // Two more answers under the weaker policy.
    let round = |request: &bulkhead::api::fence_request::FenceRequest| {
        request.status.iter().flat_map(|status| &status.volumes).map(|row| row.round).max().unwrap_or(0)
    };
    let asked = round(&lane.request("answered", |_| true).await?);
    lane.request("answered twice more", |request| round(request) >= asked + 2).await?;
    too_weak(&lane, &volume, "StillPublished").await?;
    lane.assert_untouched(&set, &before).await?;
    lane.array().faults().remove(lies);
    lane.moved(&set).await?;
    let fence = lane.detached().await?;
    assert_eq!(volume_row(&fence, &volume).map(|row| row.proof), Some(Proof::Verified));
    lane.end().await
}

/// Its pods go with it, but not before the proof: nobody else would stop the writer.
pub async fn pods_of_a_deleted_namespace_wait_for_the_proof(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "gone", LaneOptions::default()).await?;
    let namespaces: Api<Namespace> = Api::all(lane.client());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": "gone" } }))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    let set = Workload { namespace: "gone".into(), ..lane.workload("db") };
    lane.run(&set).await?;
    let before = lane.before(&set).await?;
    let hang = lane.array().faults().add(Fault::on(UNPUBLISH, Effect::Hang));
    lane.victim()?.kill().await;
    lane.begun(&set.volume_name(0, 0)).await?;
    namespaces.delete("gone", &DeleteParams::default()).await?;
    let api: Api<Pod> = Api::namespaced(lane.client(), "gone");
    let pod = format!("{}-0", set.name);
    let terminating = async || {
        let pod = api.get_opt(&pod).await?;
        let going = pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
        Ok(if going { Ok(()) } else { Err(format!("{:?}", pod.map(|pod| pod.metadata))) })
    };
    cluster.wait("the pod is Terminating", SOON, terminating).await?;
    assert_eq!(lane.attachments().await?, before.attachments);
    assert_eq!(lane.deletions(&before.attachments)?, [], "deleted before the proof");
    lane.array().faults().remove(hang);
    let fence = lane.detached().await?;
    assert_eq!(volume_row(&fence, &set.volume_name(0, 0)).map(|row| row.state), Some(VolumeStatusState::Detached));
    assert_eq!(lane.attachments().await?, [""; 0]);
    let gone = async || {
        let namespace = namespaces.get_opt("gone").await?;
        Ok(namespace.map_or(Ok(()), |namespace| Err(format!("{:?}", namespace.status))))
    };
    cluster.wait("the namespace is gone", SOON, gone).await?;
    lane.end().await
}
