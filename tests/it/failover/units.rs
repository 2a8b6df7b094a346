//! Pods that share volumes, or must run on one node: they go together or not at all, with those outside every policy where
//! that is asked for.

use bulkhead::api::node_fence::{NodeFence, PodAction, PodStatusState};
use bulkhead_testbed::array::{ArrayOptions, Effect, Fault, FaultId, Method};
use bulkhead_testbed::cluster::{AddedArray, Cluster, Workload};
use bulkhead_testbed::ledger::Access;
use libtest_mimic::Failed;
use serde_json::{Value, json};
use tonic::Code;

use super::fleet::{Lane, LaneOptions};
use super::kept::Kept;
use super::look::{event, pod_row};

/// A second driver of a lane, whose unpublish is refused until told otherwise.
async fn refusing(cluster: &Cluster, lane: &str) -> Result<(AddedArray, Kept, FaultId), Failed> {
    let options = ArrayOptions { driver_name: format!("{lane}-other.csi.test"), ..ArrayOptions::default() };
    let other = cluster.add_array(&options).await?;
    let sidecar = Kept::new(cluster.sidecar(&other.array)?);
    let refused = Fault::on(Method::ControllerUnpublishVolume, Effect::Fail(Code::PermissionDenied));
    let refused = other.array.faults().add(refused);
    Ok((other, sidecar, refused))
}

fn claim_of(set: &Workload) -> Value {
    json!({ "name": "shared", "persistentVolumeClaim": { "claimName": set.claim_name(0, 0) } })
}

fn waits(fence: &NodeFence, set: &Workload, reason: &str) -> bool {
    pod_row(fence, &format!("{}-0", set.name))
        .is_some_and(|row| row.state == PodStatusState::Waiting && row.reason.as_deref() == Some(reason))
}

/// `first` and `second` have a volume in common, and `second` one of a driver that refuses: neither goes.
pub async fn pods_that_share_a_volume_go_together(cluster: &Cluster) -> Result<(), Failed> {
    let (other, _sidecar, refused) = refusing(cluster, "unit").await?;
    let lane = Lane::new(cluster, "unit", LaneOptions::default()).await?;
    let arrays = [lane.array(), &other.array];
    let first = Workload { access: Access::MultiWriter, ..lane.workload("first") };
    let second = Workload { volumes: vec![1], more_volumes: vec![claim_of(&first)], ..lane.workload("second") };
    let free = lane.workload("free");
    for set in [&first, &second, &free] {
        lane.run_on(&arrays, set).await?;
    }
    let before = lane.pod(&first, 0).await?.metadata.uid;
    lane.victim()?.kill().await;
    lane.moved(&free).await?;
    lane.fence("both wait", |it| waits(it, &first, "ProofTooWeak") && waits(it, &second, "ProofTooWeak")).await?;
    assert_eq!(lane.pod(&first, 0).await?.metadata.uid, before, "half of a unit was released");
    assert_eq!(lane.deletions(&[])?.len(), 1, "only the pod that shares nothing goes");
    other.array.faults().remove(refused);
    lane.moved(&first).await?;
    lane.moved(&second).await?;
    lane.end().await
}

/// A pod that no policy selects, in the middle of a unit: by default everybody stays, by name.
pub async fn who_is_outside_holds_the_unit(cluster: &Cluster) -> Result<(), Failed> {
    let lane = Lane::new(cluster, "held", LaneOptions::default()).await?;
    let first = Workload { access: Access::MultiWriter, ..lane.workload("first") };
    let outside = outside(&lane, &first);
    for set in [&first, &outside] {
        lane.run(set).await?;
    }
    let before = lane.before(&first).await?;
    lane.victim()?.kill().await;
    let fence = lane.fence("it waits", |it| waits(it, &first, "SharerHeld")).await?;
    let row = fence.spec.plan.pods.iter().find(|row| row.name == "held-outside-0").ok_or("no row")?;
    assert_eq!((row.action, row.reason.as_str()), (PodAction::Keep, "UnselectedSharer"));
    event(cluster, "Pod", "held-first-0", "FenceHeld", "held-outside-0").await?;
    lane.assert_untouched(&first, &before).await?;
    lane.end().await
}

/// The same with `CleanAll`: both go, each with the proof of all volumes.
pub async fn who_is_outside_goes_with_the_unit(cluster: &Cluster) -> Result<(), Failed> {
    let policy = json!({ "sharers": "CleanAll" });
    let lane = Lane::new(cluster, "cleaned", LaneOptions { policy, ..LaneOptions::default() }).await?;
    let first = Workload { access: Access::MultiWriter, ..lane.workload("first") };
    let outside = outside(&lane, &first);
    let stranger = Workload { labels: [].into(), ..lane.workload("stranger") };
    for set in [&first, &outside, &stranger] {
        lane.run(set).await?;
    }
    let left = lane.pod(&stranger, 0).await?.metadata.uid;
    lane.victim()?.kill().await;
    lane.moved(&first).await?;
    lane.moved(&outside).await?;
    let fence = lane.fence("planned", |_| true).await?;
    let row = fence.spec.plan.pods.iter().find(|row| row.name == "cleaned-outside-0").ok_or("no row")?;
    assert_eq!((row.action, row.reason.as_str()), (PodAction::Release, "UnselectedSharer"));
    assert_eq!(lane.pod(&stranger, 0).await?.metadata.uid, left, "who shares nothing is nobody's concern");
    lane.end().await
}

fn outside(lane: &Lane<'_>, first: &Workload) -> Workload {
    Workload { labels: [].into(), more_volumes: vec![claim_of(first)], ..lane.workload("outside") }
}

/// Three pods that must run on one node: none goes before all can, and they land together.
pub async fn pods_that_must_run_together_land_together(cluster: &Cluster) -> Result<(), Failed> {
    let (other, _sidecar, refused) = refusing(cluster, "group").await?;
    let policy = json!({ "release": { "affinityGroups": "Together" } });
    let lane = Lane::new(cluster, "group", LaneOptions { nodes: 3, policy, ..LaneOptions::default() }).await?;
    let arrays = [lane.array(), &other.array];
    let leader = lane.workload("leader");
    let beside = |name: &str, volume: usize| {
        let term = json!([{
            "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": leader.name } },
        }]);
        let affinity = json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": term } });
        let template = json!({ "spec": { "affinity": affinity } });
        Workload { volumes: vec![volume], template, ..lane.workload(name) }
    };
    let group = [leader.clone(), beside("second", 0), beside("third", 1)];
    let free = lane.workload("free");
    for set in group.iter().chain([&free]) {
        lane.run_on(&arrays, set).await?;
    }
    lane.victim()?.kill().await;
    lane.moved(&free).await?;
    lane.fence("all wait", |it| group.iter().all(|set| waits(it, set, "ProofTooWeak"))).await?;
    assert_eq!(lane.deletions(&[])?.len(), 1, "only the pod that is bound to nobody goes");
    other.array.faults().remove(refused);
    let mut places = Vec::new();
    for set in &group {
        lane.moved(set).await?;
        places.push(lane.pod(set, 0).await?.spec.and_then(|spec| spec.node_name));
    }
    assert!(places.windows(2).all(|pair| pair[0] == pair[1]), "{places:?}");
    lane.end().await
}
