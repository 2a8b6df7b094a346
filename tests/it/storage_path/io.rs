//! The array is asked whether the node is doing I/O before anything is cut off from it.

use bulkhead::api::driver_report::Capability;
use bulkhead::api::fence_request::{FenceOutcome, IO_IN_PROGRESS};
use bulkhead_testbed::array::{ArrayOptions, Call, Effect, Fault, Method};
use bulkhead_testbed::cluster::{Cluster, ClusterOptions, Workload};
use bulkhead_testbed::ledger::Access;
use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};
use tonic::Code;

use crate::failover::fleet::{Lane, LaneOptions, options};
use crate::failover::look::{answer, condition};

fn vetoing() -> Value {
    json!({ "detection": { "storage": { "whenIOInProgress": "Veto" } } })
}

impl Lane<'_> {
    /// Questions to the driver about I/O: those that name volumes.
    fn io_questions(&self) -> Vec<Call> {
        let calls = self.array().calls().all().into_iter();
        calls.filter(|it| it.method == Method::ValidateVolumeHostConnectivity && !it.volume.is_empty()).collect()
    }

    fn unpublishes(&self) -> Vec<Call> {
        let calls = self.array().calls().all().into_iter();
        calls.filter(|it| it.method == Method::ControllerUnpublishVolume).collect()
    }

    /// Waits until the driver can be asked.
    async fn tells_io(&self) -> Result<(), Failed> {
        self.reported("able", |it| it.capabilities.contains(&Capability::IoInProgress)).await?;
        Ok(())
    }

    /// Waits until the incident is held for the I/O, by name.
    async fn held_for_io(&self, volume: &str) -> Result<(), Failed> {
        self.fence("held", |fence| condition(fence, "Held") == Some(("True", IO_IN_PROGRESS))).await?;
        let request = self.answered(volume, FenceOutcome::Failed, IO_IN_PROGRESS).await?;
        assert_eq!(answer(&request, volume).and_then(|row| row.started_at), None, "it has begun");
        Ok(())
    }

    /// Waits until it was asked so many times more.
    async fn asked_about_io_again(&self, times: usize) -> Result<(), Failed> {
        let before = self.io_questions().len();
        let asked = async || {
            let now = self.io_questions().len();
            Ok(if now >= before + times { Ok(()) } else { Err(format!("{now} of {}", before + times)) })
        };
        Ok(self.cluster.wait("asked about I/O", crate::failover::fleet::SOON, asked).await?)
    }
}

/// On a cluster of its own: its controller is killed in between.
pub fn trial() -> Trial {
    let name = "storage_path::a_node_that_writes_is_cut_off_when_it_stops_and_whoever_leads";
    Trial::test(name, || tokio::runtime::Runtime::new()?.block_on(a_node_that_writes_is_cut_off_when_it_stops()))
}

async fn a_node_that_writes_is_cut_off_when_it_stops() -> Result<(), Failed> {
    let mut cluster = Cluster::start(ClusterOptions { arrays: Vec::new(), nodes: 2, ..options() }).await?;
    let first = cluster.controllers.remove(0);
    let (lane, db, before) =
        Lane::open(&cluster, "writes", LaneOptions { policy: vetoing(), ..LaneOptions::default() }).await?;
    lane.tells_io().await?;
    let (victim, volume) = (lane.victim()?.clone(), db.volume_name(0, 0));
    victim.kill().await;
    lane.held_for_io(&volume).await?;
    lane.event("FenceHeld", IO_IN_PROGRESS).await?;
    first.kill().await;
    let second = cluster.controller("bulkhead-controller-second")?;
    lane.asked_about_io_again(2).await?;
    lane.held_for_io(&volume).await?;
    assert_eq!(lane.unpublishes().len(), 0, "something was cut off");
    lane.assert_untouched(&db, &before).await?;

    // It ends by itself, and on an answer of its own: what was answered before the last question is not believed.
    victim.freeze_writers();
    lane.moved(&db).await?;
    let first_cut = lane.unpublishes().first().ok_or("nothing was cut off")?.at;
    let questions = lane.io_questions();
    let asked = questions.iter().rfind(|call| call.at < first_cut).ok_or("not asked")?;
    let answered = asked.answer.as_ref().ok_or("not answered")?.0;
    let gap = first_cut.since(answered);
    assert!(gap < std::time::Duration::from_secs(5), "the answer was {gap:?} old");
    lane.event("FenceResumed", IO_IN_PROGRESS).await?;
    lane.end().await?;
    second.kill().await;
    Ok(())
}

/// A node that is cut off from the API goes on writing: with the default it is failed over all the same.
pub async fn a_failed_node_is_cut_off_though_it_writes(cluster: &Cluster) -> Result<(), Failed> {
    let (lane, db, _) = Lane::open(cluster, "failedio", LaneOptions::default()).await?;
    lane.tells_io().await?;
    lane.victim()?.kill().await;
    lane.moved(&db).await?;
    assert_eq!(lane.io_questions().len(), 0, "nobody is asked where the answer would stop nothing");
    lane.end().await
}

/// A driver that does not say stops nothing.
pub async fn what_is_not_known_stops_nothing(cluster: &Cluster) -> Result<(), Failed> {
    let options = LaneOptions { policy: vetoing(), ..LaneOptions::default() };
    let (lane, db, _) = Lane::open(cluster, "unknownio", options).await?;
    lane.tells_io().await?;
    let fault = Fault::on(Method::ValidateVolumeHostConnectivity, Effect::Fail(Code::Internal));
    lane.array().faults().add(fault.volume(&db.handle(0, 0)));
    lane.victim()?.kill().await;
    lane.moved(&db).await?;
    assert!(!lane.io_questions().is_empty(), "it was not asked");
    lane.end().await
}

/// What others write to a volume that they share is not what the node does: by a driver that counts per node, it is told
/// apart; by one that counts per volume, nobody knows.
pub async fn of_a_shared_volume_only_the_nodes_own_io_counts(cluster: &Cluster) -> Result<(), Failed> {
    for per_node in [true, false] {
        let name = if per_node { "shareio" } else { "countio" };
        let array = ArrayOptions { tells_io_per_node: per_node, ..ArrayOptions::default() };
        let options = LaneOptions { nodes: 3, array, policy: vetoing(), ..LaneOptions::default() };
        let lane = Lane::new(cluster, name, options).await?;
        lane.tells_io().await?;
        let [victim, sharing, other] = lane.nodes.as_slice() else { return Err("three nodes".into()) };
        let db = Workload { access: Access::MultiWriter, ..lane.workload("db") };
        lane.run(&db).await?;
        let on = |node: &str, set: Workload| Workload { nodes: vec![node.to_owned()], node: None, ..set };
        let claim = json!({ "name": "data", "persistentVolumeClaim": { "claimName": db.claim_name(0, 0) } });
        let sharer = Workload { volumes: Vec::new(), more_volumes: vec![claim], ..lane.workload("sharer") };
        let sharer = on(sharing.name(), sharer);
        cluster.stateful_set_on(&[], &sharer).await?;
        lane.ready_on(&sharer, &[sharing.name()]).await?;
        // A node that has nothing of that volume, so that there is one to compare with.
        let alone = on(other.name(), lane.workload("alone"));
        cluster.stateful_set_on(&[lane.array()], &alone).await?;
        lane.ready_on(&alone, &[other.name()]).await?;
        let sharers = lane.pod(&sharer, 0).await?.metadata.uid;

        victim.kill().await;
        if per_node {
            lane.held_for_io(&db.volume_name(0, 0)).await?;
            assert_eq!(lane.unpublishes().len(), 0, "something was cut off");
            victim.freeze_writers();
        }
        let from = lane.array().ledger().now();
        lane.moved(&db).await?;
        assert_eq!(lane.pod(&sharer, 0).await?.metadata.uid, sharers, "the other user of the volume was touched");
        let handle = db.handle(0, 0);
        assert!(
            lane.array().ledger().writes(&handle, sharing.csi_node_id(), from) > 0,
            "the other user does not write"
        );
        let asked: Vec<_> = lane.io_questions().into_iter().map(|call| call.node).collect();
        assert!(asked.iter().any(|node| node == other.csi_node_id()), "nothing was compared: {asked:?}");
        lane.end().await?;
    }
    Ok(())
}
