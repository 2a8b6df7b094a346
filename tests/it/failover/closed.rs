//! Where the fence path is missing, hangs or lies, nothing is deleted, and a reason says why. When it works again, the
//! failover goes on by itself.

use std::collections::BTreeMap;

use bulkhead::api::fence_request::FenceOutcome;
use bulkhead::api::node_fence::{PodStatusState, VolumeStatusState};
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, Workload};
use kube::ResourceExt;
use libtest_mimic::Failed;
use serde_json::json;
use tonic::Code;

use super::fleet::{Lane, LaneOptions};
use super::look::{answer, condition, is_released, pod_row, volume_row};

const UNPUBLISH: Method = Method::ControllerUnpublishVolume;

/// Nothing of the workload was deleted: same pod, same attachments.
async fn assert_untouched(lane: &Lane<'_>, set: &Workload, uid: &str, attachments: &[String]) -> Result<(), Failed> {
    assert_eq!(lane.pod(set, 0).await?.uid().as_deref(), Some(uid), "the pod is another one");
    assert_eq!(lane.attachments().await?, attachments);
    assert_eq!(lane.deletions(attachments)?, [], "the operator deleted something");
    Ok(())
}

pub async fn without_a_sidecar_pods_wait_for_it(cluster: &Cluster) -> Result<(), Failed> {
    let mut lane = Lane::new(cluster, "nosidecar", LaneOptions { sidecar: false, ..LaneOptions::default() }).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let uid = lane.pod(&set, 0).await?.uid().unwrap_or_default();
    let attachments = lane.attachments().await?;
    lane.victim()?.kill().await;
    let fence = lane.fence("stalled", |fence| condition(fence, "Stalled") == Some(("True", "FencerMissing"))).await?;
    assert_eq!(condition(&fence, "Ready"), Some(("False", "FencerMissing")));
    assert_eq!(condition(&fence, "Released"), Some(("False", "PodsHeld")));
    lane.event("FenceFailed", "run bulkhead-csi-sidecar beside the controller of driver nosidecar.csi.test").await?;
    assert_untouched(&lane, &set, &uid, &attachments).await?;
    lane.sidecar = Some(cluster.sidecar(lane.array())?);
    lane.moved(&set).await?;
    lane.end().await
}

pub async fn a_driver_that_cannot_unpublish_keeps_its_pods(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "unable", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let uid = lane.pod(&set, 0).await?.uid().unwrap_or_default();
    let attachments = lane.attachments().await?;
    lane.array().faults().add(Fault::on(UNPUBLISH, Effect::Fail(Code::Unimplemented)));
    lane.victim()?.kill().await;
    let fence = lane.fence("stalled", |fence| condition(fence, "Stalled") == Some(("True", "Unimplemented"))).await?;
    assert_eq!(condition(&fence, "Ready"), Some(("False", "Unimplemented")));
    let request = lane.request("answered", |request| answer(request, &set.volume_name(0, 0)).is_some()).await?;
    let ready = request.status.iter().flat_map(|status| &status.conditions).find(|c| c.type_ == "Ready");
    assert_eq!(ready.map(|ready| ready.reason.as_str()), Some("Unimplemented"));
    lane.event("FenceFailed", "Unimplemented").await?;
    assert_untouched(&lane, &set, &uid, &attachments).await?;
    lane.end().await
}

/// One node, many volumes, each with its own trouble. The sound one is not delayed by any of them.
pub async fn each_trouble_holds_its_own_pod_only(cluster: &Cluster) -> Result<(), Failed> {
    const STOP: [Code; 8] = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::FailedPrecondition,
        Code::OutOfRange,
        Code::DataLoss,
        Code::Unauthenticated,
    ];
    const RETRY: [Code; 6] =
        [Code::Cancelled, Code::Unknown, Code::ResourceExhausted, Code::Aborted, Code::Internal, Code::Unavailable];
    let options = LaneOptions { policy: json!({ "fencing": { "callTimeout": "3s" } }), ..LaneOptions::default() };
    let lane = Lane::new(cluster, "trouble", options).await?;
    // 0 is sound, 1 hangs, 2 lies; then one per code.
    let set = Workload { replicas: 3 + STOP.len() + RETRY.len(), ..lane.workload("db") };
    lane.run(&set).await?;
    let faults = lane.array().faults();
    let on = |replica: usize, effect: Effect| faults.add(Fault::on(UNPUBLISH, effect).volume(&set.handle(replica, 0)));
    on(1, Effect::Hang);
    on(2, Effect::DoNothing);
    let mut expected: BTreeMap<String, (FenceOutcome, String)> = BTreeMap::new();
    let coded = STOP.iter().map(|code| (code, FenceOutcome::Failed));
    for (number, (code, outcome)) in coded.chain(RETRY.iter().map(|code| (code, FenceOutcome::Started))).enumerate() {
        on(3 + number, Effect::Fail(*code));
        expected.insert(set.volume_name(3 + number, 0), (outcome, format!("{code:?}")));
    }
    expected.insert(set.volume_name(2, 0), (FenceOutcome::Failed, "StillPublished".into()));
    // A call that hangs is tried again: the driver may only have been slow.
    expected.insert(set.volume_name(1, 0), (FenceOutcome::Started, "DeadlineExceeded".into()));
    lane.victim()?.kill().await;
    let first = format!("{}-0", set.name);
    lane.fence("the sound pod is released", |fence| is_released(fence, &first)).await?;
    lane.request("every trouble is answered", |request| {
        expected.iter().all(|(volume, (outcome, reason))| {
            answer(request, volume)
                .is_some_and(|row| row.result == *outcome && row.reason.as_deref() == Some(reason.as_str()))
        })
    })
    .await?;
    let fence =
        lane.fence("all others wait", |fence| condition(fence, "Released") == Some(("False", "PodsHeld"))).await?;
    for replica in 1..set.replicas {
        let name = format!("{}-{replica}", set.name);
        let state = pod_row(&fence, &name).map(|row| row.state);
        assert!(matches!(state, Some(PodStatusState::Waiting | PodStatusState::Pending)), "{name} is {state:?}");
    }
    let released = lane.deletions(&[])?;
    assert!(released.iter().all(|record| record.name == first), "{released:?}");
    faults.clear();
    lane.moved(&set).await?;
    lane.end().await
}

/// What the list shows before the first call is the ground of every proof.
pub async fn a_list_that_cannot_be_read_starts_nothing(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "unread", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let uid = lane.pod(&set, 0).await?.uid().unwrap_or_default();
    let attachments = lane.attachments().await?;
    let volume = set.volume_name(0, 0);
    let faults = lane.array().faults();
    let mut fault = faults.add(Fault::on(Method::ListVolumes, Effect::OmitNodes));
    lane.victim()?.kill().await;
    let next = [
        ("NeverPublished", Effect::RepeatToken),
        ("IncompleteList", Effect::OmitVolumes([set.handle(0, 0)].into())),
        ("NotListed", Effect::Fail(Code::Unavailable)),
    ];
    for (reason, effect) in next {
        let request = lane
            .request(reason, |request| answer(request, &volume).and_then(|row| row.reason.as_deref()) == Some(reason))
            .await?;
        let row = answer(&request, &volume).ok_or("no answer")?;
        assert_eq!((row.result, row.started_at), (FenceOutcome::Failed, None), "something was sent");
        faults.remove(fault);
        fault = faults.add(Fault::on(Method::ListVolumes, effect));
    }
    assert_eq!(lane.array().calls().count(UNPUBLISH), 0, "a call was sent without a read before it");
    assert_untouched(&lane, &set, &uid, &attachments).await?;
    faults.remove(fault);
    lane.moved(&set).await?;
    lane.end().await
}

/// A read-back that is old, or lacks the volume, proves nothing.
pub async fn a_read_back_that_shows_too_little_releases_nothing(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "stale", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let uid = lane.pod(&set, 0).await?.uid().unwrap_or_default();
    let attachments = lane.attachments().await?;
    let volume = set.volume_name(0, 0);
    let faults = lane.array().faults();
    let mut fault = faults.add(Fault::on(Method::ListVolumes, Effect::StaleSince(lane.array().ledger().now())));
    lane.victim()?.kill().await;
    for (reason, effect) in [("StillPublished", Some(Effect::OmitPage(0))), ("NotListed", None)] {
        let fence = lane
            .fence(reason, |fence| {
                volume_row(fence, &volume)
                    .is_some_and(|row| row.state == VolumeStatusState::Failed && row.reason.as_deref() == Some(reason))
            })
            .await?;
        assert_eq!(condition(&fence, "Fenced"), Some(("False", "ProofTooWeak")));
        lane.event("FenceHeld", &volume).await?;
        assert_untouched(&lane, &set, &uid, &attachments).await?;
        faults.remove(fault);
        if let Some(effect) = effect {
            fault = faults.add(Fault::on(Method::ListVolumes, effect));
        }
    }
    lane.moved(&set).await?;
    lane.end().await
}

pub async fn an_array_that_is_down_for_all_is_waited_for(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "gateway", LaneOptions::default()).await?;
    let set = lane.workload("db");
    lane.run(&set).await?;
    let uid = lane.pod(&set, 0).await?.uid().unwrap_or_default();
    let attachments = lane.attachments().await?;
    let down = lane.array().gateway_down();
    lane.victim()?.kill().await;
    let volume = set.volume_name(0, 0);
    lane.fence("Unavailable", |fence| {
        volume_row(fence, &volume).is_some_and(|row| row.reason.as_deref() == Some("Unavailable"))
    })
    .await?;
    assert_untouched(&lane, &set, &uid, &attachments).await?;
    lane.array().faults().remove(down);
    lane.moved(&set).await?;
    lane.end().await
}
