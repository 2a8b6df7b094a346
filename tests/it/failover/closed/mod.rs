//! Where the fence path is missing, hangs or lies, nothing is deleted, and a reason says why. When it works again, the
//! failover goes on by itself.

mod objects;
mod paper;
mod real;
mod table;

use bulkhead::api::fence_request::FenceOutcome;
use bulkhead::api::node_fence::VolumeStatusState;
use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::cluster::Cluster;
use libtest_mimic::Failed;
use tonic::Code;

pub use paper::every_trouble_of_every_call_at_every_stage;
pub use real::{acknowledged_by_a_driver, acknowledged_by_the_attacher, each_trouble_holds_its_own_pod_only};

use super::fleet::{Lane, LaneOptions};
use super::kept::Kept;
use super::look::{answer, condition, volume_row};

const UNPUBLISH: Method = Method::ControllerUnpublishVolume;

pub async fn without_a_sidecar_pods_wait_for_it(cluster: &Cluster) -> Result<(), Failed> {
    let options = LaneOptions { sidecar: false, ..LaneOptions::default() };
    let (mut lane, set, before) = Lane::open(cluster, "nosidecar", options).await?;
    lane.victim()?.kill().await;
    let fence = lane.fence("stalled", |fence| condition(fence, "Stalled") == Some(("True", "FencerMissing"))).await?;
    assert_eq!(condition(&fence, "Ready"), Some(("False", "FencerMissing")));
    assert_eq!(condition(&fence, "Released"), Some(("False", "PodsHeld")));
    lane.event("FenceFailed", "run bulkhead-csi-sidecar beside the controller of driver nosidecar.csi.test").await?;
    lane.assert_untouched(&set, &before).await?;
    lane.sidecar = Some(Kept::new(cluster.sidecar(lane.array())?));
    lane.moved(&set).await?;
    lane.end().await
}

pub async fn a_driver_that_cannot_unpublish_keeps_its_pods(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "unable", LaneOptions::default()).await?;
    lane.array().faults().add(Fault::on(UNPUBLISH, Effect::Fail(Code::Unimplemented)));
    lane.victim()?.kill().await;
    let fence = lane.fence("stalled", |fence| condition(fence, "Stalled") == Some(("True", "Unimplemented"))).await?;
    assert_eq!(condition(&fence, "Ready"), Some(("False", "Unimplemented")));
    let request = lane.request("answered", |request| answer(request, &set.volume_name(0, 0)).is_some()).await?;
    let ready = request.status.iter().flat_map(|status| &status.conditions).find(|c| c.type_ == "Ready");
    assert_eq!(ready.map(|ready| ready.reason.as_str()), Some("Unimplemented"));
    lane.event("FenceFailed", "Unimplemented").await?;
    lane.assert_untouched(&set, &before).await?;
    lane.end().await
}

/// What the list shows before the first call is the ground of every proof.
pub async fn a_list_that_cannot_be_read_starts_nothing(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "unread", LaneOptions::default()).await?;
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
        let request = lane.answered(&volume, FenceOutcome::Failed, reason).await?;
        let row = answer(&request, &volume).ok_or("no answer")?;
        assert_eq!((row.result, row.started_at), (FenceOutcome::Failed, None), "something was sent");
        fault = faults.replace(fault, Fault::on(Method::ListVolumes, effect));
    }
    assert_eq!(lane.array().calls().count(UNPUBLISH), 0, "a call was sent without a read before it");
    lane.assert_untouched(&set, &before).await?;
    faults.remove(fault);
    lane.moved(&set).await?;
    lane.end().await
}

/// A read-back that is old, or lacks the volume, proves nothing.
pub async fn a_read_back_that_shows_too_little_releases_nothing(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "stale", LaneOptions::default()).await?;
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
        lane.assert_untouched(&set, &before).await?;
        if let Some(effect) = effect {
            fault = faults.replace(fault, Fault::on(Method::ListVolumes, effect));
        }
    }
    faults.remove(fault);
    lane.moved(&set).await?;
    lane.end().await
}

pub async fn an_array_that_is_down_for_all_is_waited_for(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, set, before) = Lane::open(cluster, "gateway", LaneOptions::default()).await?;
    let down = lane.array().gateway_down();
    lane.victim()?.kill().await;
    let volume = set.volume_name(0, 0);
    lane.fence("Unavailable", |fence| {
        volume_row(fence, &volume).is_some_and(|row| row.reason.as_deref() == Some("Unavailable"))
    })
    .await?;
    lane.assert_untouched(&set, &before).await?;
    lane.array().faults().remove(down);
    lane.moved(&set).await?;
    lane.end().await
}
