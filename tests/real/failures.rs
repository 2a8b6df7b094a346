//! Every failure of a node, for each kind of workload, healed before or after the release of its pods.

use bulkhead::api::fence_request::FenceRequest;
use bulkhead::api::names;
use bulkhead::api::node_fence::{NodeFence, Phase, PodStatusState, VolumeStatusState};
use bulkhead_testbed::array::{Effect, Fault as ArrayFault, Method};
use bulkhead_testbed::cluster::real::{RealCluster, RealWorkload};
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use super::Outcome;
use super::bed::SOON;
use super::story::{Story, of_now, one, phase};
use super::table::{Cell, Ends, Healed};

pub async fn play(cluster: &RealCluster, cell: Cell) -> Outcome {
    let workload = RealWorkload { kind: cell.kind, ..RealWorkload::new(&cell.name().replace(['_', ':'], "-")) };
    match (cell.failure.ends, cell.healed) {
        (Ends::LeftAlone, _) => left_alone(cluster, workload, cell).await,
        (Ends::Moved { .. }, Healed::BeforeRelease) => undone(cluster, workload, cell).await,
        (Ends::Moved { writes, clean }, Healed::AfterRelease) => {
            let story = Story::begin(cluster, workload, cell.failure.faults).await?;
            if writes {
                story.writes_when_declared().await?;
            }
            story.moves().await?;
            if writes {
                story.is_refused().await?;
            }
            story.recovers(clean).await
        }
    }
}

/// The fencer is kept from its first call: it begins with none before it has read what is published.
async fn undone(cluster: &RealCluster, workload: RealWorkload, cell: Cell) -> Outcome {
    let mut story = Story::prepare(cluster, workload).await?;
    let fault = cluster.array.faults().add(ArrayFault::on(Method::ListVolumes, Effect::Hang));
    let unpublished = cluster.array.calls().count(Method::ControllerUnpublishVolume);
    story.fail(cell.failure.faults).await?;
    story.fence("opened", of_now).await?;
    let requests = Api::<FenceRequest>::all(cluster.client.clone());
    let name = names::fence_request(&story.old.node, cluster.array.driver_name());
    cluster
        .wait("the fence is asked for", SOON, async || {
            let asked = requests.get_opt(&name).await?.is_some_and(|request| !request.spec.volumes.is_empty());
            Ok(if asked { Ok(()) } else { Err("it is not".to_owned()) })
        })
        .await?;
    story.node.heal_all().await?;
    let healed = story.ledger().now();
    let recovered = |fence: &NodeFence| phase(fence) == Some(Phase::Recovered);
    let fence = story.fence("Recovered", recovered).await?;
    let status = fence.status.unwrap_or_default();
    // Those that nobody protects, and those of DaemonSets, are kept.
    let pods = status
        .pods
        .iter()
        .all(|row| row.state == if row.uid == story.old.uid { PodStatusState::Undone } else { PodStatusState::Kept });
    let volumes = status.volumes.iter().all(|row| row.state == VolumeStatusState::Undone && row.committed_at.is_none());
    assert!(pods && volumes && !status.volumes.is_empty(), "{status:?}");
    cluster.usable(&story.old.node, SOON).await?;
    cluster.array.faults().remove(fault);
    assert_eq!(one(cluster.running(&story.workload, &[], SOON).await?)?, story.old, "another pod");
    story.ledger().wait_for_write(&story.volume, &story.old.node, healed, SOON).await?;
    assert_eq!(cluster.array.calls().count(Method::ControllerUnpublishVolume), unpublished);
    Ok(cluster.end(&story.workload, SOON).await?)
}

/// The kubelet goes on reporting: its node is not gone, whatever it says of itself.
async fn left_alone(cluster: &RealCluster, workload: RealWorkload, cell: Cell) -> Outcome {
    let story = Story::begin(cluster, workload, cell.failure.faults).await?;
    let nodes = Api::<Node>::all(cluster.client.clone());
    cluster
        .wait("the kubelet says that its node is not Ready", SOON, async || {
            let node = nodes.get(&story.old.node).await?;
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            let unready = conditions.iter().any(|it| it.type_ == "Ready" && it.status == "False");
            Ok(if unready { Ok(()) } else { Err(format!("{conditions:?}")) })
        })
        .await?;
    let declared = story.ledger().now();
    story.ledger().wait_for_write(&story.volume, &story.old.node, declared, SOON).await?;
    let fence = Api::<NodeFence>::all(cluster.client.clone()).get_opt(&story.old.node).await?;
    assert!(!fence.as_ref().is_some_and(of_now), "{fence:?}");
    story.node.heal_all().await?;
    cluster.usable(&story.old.node, SOON).await?;
    assert_eq!(one(cluster.running(&story.workload, &[], SOON).await?)?, story.old, "another pod");
    Ok(cluster.end(&story.workload, SOON).await?)
}
